"""Barriers: elements of several components, which come in any order and are taken once they are complete."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, int32, int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.deadline import wait_for
from trainband.compat.tf1.graphs.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, known_value

_numbers = itertools.count()
_FIRST = -(2**63)

Complete = tuple[int, bytes, list[Any]]
"""When it was begun, its key, and a value for each component."""


class _Held:
    """The elements in a session, by key."""

    def __init__(self, name: str, components: int) -> None:
        self._name, self._components = name, components
        self._changed = threading.Condition()
        self._incomplete: dict[bytes, tuple[int, dict[int, Any]]] = {}
        self._ready: list[tuple[int, int, bytes, list[Any]]] = []
        self._closed = self._cancelled = self._ended = False
        self._number, self._order = _FIRST, itertools.count()

    def sizes(self) -> tuple[int, int]:
        """(how many are complete, how many are not)."""
        with self._changed:
            return len(self._ready), len(self._incomplete)

    def insert(self, component: int, keys: Sequence[bytes], values: Sequence[Any]) -> None:
        """Adds a component of elements.

        Raises:
          CancelledError: it is closed, and there is no such element that is incomplete.
          InvalidArgumentError: an element has this component.
        """
        with self._changed:
            is_new = [key for key in keys if key not in self._incomplete]
            if self._cancelled or (self._closed and is_new):
                raise CancelledError(None, None, f"Barrier '{self._name}' is closed.")
            for key, value in zip(keys, values, strict=True):
                _, parts = self._incomplete.setdefault(key, (self._number, {}))
                if component in parts:
                    raise InvalidArgumentError(
                        None, None, f"Key {key!r} already has a value for component {component} in '{self._name}'"
                    )
                parts[component] = value
                if len(parts) == self._components:
                    begun, _ = self._incomplete.pop(key)
                    whole = [parts[i] for i in range(self._components)]
                    heapq.heappush(self._ready, (begun, next(self._order), key, whole))
            self._number += bool(is_new)
            self._changed.notify_all()

    def take(self, count: int, small: bool) -> list[Complete]:
        """Removes complete elements; `small`: fewer, once it is closed.

        Raises:
          OutOfRangeError: it is closed and has too few.
          CancelledError: the session is closed.
        """
        with self._changed:
            wait_for(
                self._changed,
                lambda: self._ended or len(self._ready) >= count or self._is_decided(count, small),
                f"Barrier '{self._name}'",
            )
            if self._ended:
                raise CancelledError(None, None, f"Barrier '{self._name}': take_many was cancelled")
            ready = len(self._ready)
            if ready < count and not (small and ready):
                raise OutOfRangeError(
                    None,
                    None,
                    f"Barrier '{self._name}' is closed and has insufficient elements (requested {count}, total size "
                    f"{self._possible()})",
                )
            found = [heapq.heappop(self._ready) for _ in range(min(count, ready))]
            return [(begun, key, values) for begun, _, key, values in found]

    def _possible(self) -> int:
        return len(self._ready) + (0 if self._cancelled else len(self._incomplete))

    def _is_decided(self, count: int, small: bool) -> bool:
        if not self._closed:
            return False
        return self._possible() < (1 if small else count) or (small and bool(self._ready))

    def finish(self, cancel: bool) -> None:
        """Accepts no more elements, and no more components either if `cancel`."""
        with self._changed:
            self._closed = True
            self._cancelled = self._cancelled or cancel
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting, because the session ends."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Barrier:
    """Elements by key, of several components.

    Args:
      types, shapes: of the components.

    Raises:
      ValueError: a shape has no elements, or there are not as many as types.
    """

    def __init__(self, types: Any, shapes: Any = None, shared_name: str | None = None, name: str = "barrier") -> None:
        self._types = [as_dtype(one) for one in (types if isinstance(types, list | tuple) else [types])]
        listed = [None] * len(self._types) if shapes is None else list(shapes)
        if len(self._types) == 1 and listed != [None] and len(listed) != 1:
            listed = [shapes]
        if len(listed) != len(self._types):
            raise ValueError(f"{len(listed)} shapes for {len(self._types)} component types.")
        self._shapes = [TensorShape(one) for one in listed]
        for i, shape in enumerate(self._shapes):
            if shape.sizes is not None and 0 in shape.sizes:
                raise ValueError(f"Empty tensors are not supported, but received shape '{shape}' at index {i}")
        self._name = get_default_graph().unique_name(name)
        self._key = ("barrier", shared_name or next(_numbers))

    @property
    def name(self) -> str:
        """That of its operation."""
        return self._name

    @property
    def barrier_ref(self) -> Barrier:
        """Itself."""
        return self

    def insert_many(self, component_index: int, keys: Any, values: Any, name: str | None = None) -> Operation:
        """An operation that adds one component of the elements of these keys."""
        shape = TensorShape([None]).concatenate(self._shapes[component_index])
        names, given = convert(keys, string), convert(values, self._types[component_index])
        shape.assert_is_compatible_with(given.shape)

        def insert(held: _Held, some: Any, array: Any) -> list[Any]:
            if len(some) and not array.size:
                raise InvalidArgumentError(None, None, f"Tensors with no elements are not supported: {array.shape}")
            held.insert(int(component_index), some.tolist(), list(array))
            return []

        return self._record("BarrierInsertMany", insert, [names, given], name=name)

    def take_many(
        self, num_elements: Any, allow_small_batch: bool = False, timeout: int | None = None, name: str | None = None
    ) -> tuple[Tensor, Tensor, Any]:
        """(when elements were begun, their keys, their values by component), once so many are complete.

        Args:
          allow_small_batch: whether there may be fewer once the barrier is closed.
        """
        del timeout

        def take(held: _Held, count: Any) -> list[Any]:
            found = held.take(int(count), allow_small_batch)
            numbers, keys = (np.array([one[i] for one in found], kind) for i, kind in ((0, np.int64), (1, object)))
            columns = zip(*(values for _, _, values in found), strict=True)
            arrays = [np.array(column, dtype.numpy) for column, dtype in zip(columns, self._types, strict=True)]
            return [numbers, keys, *arrays]

        count = convert(num_elements, int32)
        known = None if allow_small_batch else known_value(count)
        first = [None if known is None else int(known)]
        outputs = self._record(
            "BarrierTakeMany", take, [count], dtypes=[int64, string, *self._types],
            shapes=[first, first, *(TensorShape(first).concatenate(one) for one in self._shapes)],
            name=name or f"{self._name}_BarrierTakeMany",
        ).outputs  # fmt: skip
        values = list(outputs[2:])
        return outputs[0], outputs[1], values

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """An operation after which no new elements are accepted, and no components either if these are cancelled."""

        def finish(held: _Held) -> list[Any]:
            held.finish(cancel_pending_enqueues)
            return []

        return self._record("BarrierClose", finish, name=name or f"{self._name}_BarrierClose")

    def ready_size(self, name: str | None = None) -> Tensor:
        """How many elements are complete."""
        return self._size(0, name or f"{self._name}_BarrierReadySize")

    def incomplete_size(self, name: str | None = None) -> Tensor:
        """How many elements lack a component."""
        return self._size(1, name or f"{self._name}_BarrierIncompleteSize")

    def _size(self, place: int, name: str) -> Tensor:
        return self._record(
            "BarrierSize", lambda held: [np.int32(held.sizes()[place])], dtypes=[int32], shapes=[[]], name=name
        ).outputs[0]

    def _record(self, type_: str, action: Callable[..., Any], inputs: Sequence[Tensor] = (), **more: Any) -> Operation:
        def source(resources: Any, *arrays: Any) -> Any:
            held = resources.get(self._key)
            if held is None:
                held = resources.setdefault(self._key, _Held(self._name, len(self._types)))
            if getattr(resources, "closed", False):
                held.close()
            return action(held, *arrays)

        return record_source(type_, source, inputs, **more)
