"""Queues of a graph, which threads of a script fill and empty in runs of a session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, bool_, int32, int64
from trainband.compat.ops.shapes import Dimension, TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.keys import combined_seed
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.input.buffers import Buffer, ByPriority, Fifo, Shuffled

_numbers = itertools.count()


class QueueBase:
    """A queue: each element has one value for each component.

    Args:
      dtypes: of the components.
      shapes: of the components, if they are all known.
      names: of the components; elements are then dictionaries.
      shared_name: queues of one name are one queue in a session.
      name: of the operations.

    Raises:
      ValueError: there are not as many shapes or names as dtypes.
    """

    _kind = "FIFOQueue"

    def __init__(
        self,
        make: Callable[[str], Buffer],
        dtypes: Any,
        shapes: Any,
        names: Any,
        shared_name: str | None,
        name: str,
    ) -> None:
        self._dtypes = [as_dtype(one) for one in (dtypes if isinstance(dtypes, list | tuple) else [dtypes])]
        self._shapes = _as_shapes(shapes, len(self._dtypes))
        self._names = [names] if isinstance(names, str) else None if names is None else list(names)
        if self._names is not None and len(self._names) != len(self._dtypes):
            raise ValueError(
                "List of names must have the same length as the list of dtypes. "
                f"names: {self._names}, dtypes: {self._dtypes}"
            )
        graph = get_default_graph()
        self._graph: Graph = graph
        self._name = graph.unique_name(name)
        key = ("queue", shared_name or next(_numbers))
        label = shared_name or f"_{key[1]}_{self._name}"

        def find(resources: Any) -> Buffer:
            found: Buffer | None = resources.get(key)
            return found if found is not None else resources.setdefault(key, make(label))

        self._find: Callable[..., Buffer] = find
        self._selected: list[Tensor] = []

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue at a place of a list, which is known in a run.

        Raises:
          TypeError, ValueError: they are not queues of the same dtypes.
        """
        if not queues or not all(isinstance(one, QueueBase) for one in queues):
            raise TypeError("A list of queues expected")
        if any(one.dtypes != queues[0].dtypes for one in queues):
            raise TypeError("Queues do not have matching component dtypes.")
        if any(one.names != queues[0].names for one in queues):
            raise TypeError("Queues do not have matching component names.")
        found = object.__new__(QueueBase)
        found.__dict__.update(queues[0].__dict__)
        alike = all(one.shapes == queues[0].shapes for one in queues)
        found._selects(
            convert(index), queues, queues[0].shapes if alike else [TensorShape(None)] * len(queues[0].dtypes)
        )
        return found

    def _selects(self, index: Tensor, queues: Sequence[QueueBase], shapes: list[TensorShape]) -> None:
        self._shapes, self._selected = shapes, [index]
        self._find = lambda resources, place: queues[int(place)].buffer(resources)

    # --- what it is

    @property
    def name(self) -> str:
        """That of its operation."""
        return self._name

    @property
    def dtypes(self) -> list[DType]:
        """Of the components."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """Of the components."""
        return list(self._shapes)

    @property
    def names(self) -> list[str] | None:
        """Of the components."""
        return self._names

    @property
    def queue_ref(self) -> QueueBase:
        """Itself."""
        return self

    def buffer(self, resources: Any) -> Buffer:
        """Where its elements are in a session."""
        return self._find(resources)

    # --- its operations

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """Record the adding of one element. It waits while the queue is full.

        Raises:
          CancelledError (in a run): the queue is closed, or this one was cancelled.
        """
        return self.enqueue_kept(vals, name=name or f"{self._name}_enqueue")

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """Record the adding of as many elements as the values have rows."""
        return self.enqueue_kept(vals, many=True, name=name or f"{self._name}_EnqueueMany")

    def enqueue_kept(
        self, vals: Any, keep: Tensor | None = None, *, many: bool = False, name: str | None = None
    ) -> Operation:
        """Record the adding of one element, or of those rows, for which `keep` is true.

        Raises:
          ValueError: they do not have the queue's components or shapes.
        """
        values = self._components(vals)
        for value, shape in zip(values, self._shapes, strict=True):
            sizes = value.shape.sizes
            if many and sizes == ():
                raise ValueError(f"enqueue_many needs rows, but {value} is a single value (at {user_line()})")
            _checked(TensorShape(None if sizes is None else sizes[int(many) :]), shape)

        def put(buffer: Buffer, *arrays: Any) -> list[Any]:
            given = arrays if keep is None else arrays[1:]
            self._check_sizes(given, many)
            rows = list(zip(*given, strict=True)) if many else [tuple(one if one.ndim else one[()] for one in given)]
            if keep is not None:
                kept = np.broadcast_to(arrays[0], len(rows))
                rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
            buffer.put(rows)
            return []

        type_ = "QueueEnqueueManyV2" if many else "QueueEnqueueV2"
        return self._record(
            type_, put, values if keep is None else [keep, *values], name=name or f"{self._name}_enqueue"
        )

    def dequeue(self, name: str | None = None) -> Any:
        """Record the removal of one element. It waits until there is one.

        Raises:
          OutOfRangeError (in a run): the queue is closed and empty.
        """
        return self._taken(
            "QueueDequeueV2", lambda buffer: list(buffer.take(1)[0]), [], self._shapes, name or f"{self._name}_Dequeue"
        )

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Record the removal of `n` elements; each component gets a first axis of this size.

        Raises:
          OutOfRangeError (in a run): the queue is closed and has fewer.
        """
        return self._several("QueueDequeueManyV2", n, False, name or f"{self._name}_DequeueMany")

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """Record the removal of `n` elements, or of what is left once the queue is closed."""
        return self._several("QueueDequeueUpToV2", n, True, name or f"{self._name}_DequeueUpTo")

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Record the closing of the queue: nothing more can be added; what waits to be added may be cancelled."""

        def finish(buffer: Buffer) -> list[Any]:
            buffer.finish(cancel_pending_enqueues)
            return []

        return self._record("QueueCloseV2", finish, name=name or f"{self._name}_Close")

    def is_closed(self, name: str | None = None) -> Tensor:
        """Record whether the queue is closed."""
        return self._record(
            "QueueIsClosedV2",
            lambda buffer: [np.bool_(buffer.closed)],
            dtypes=[bool_],
            shapes=[[]],
            name=name or f"{self._name}_Is_Closed",
        ).outputs[0]

    def size(self, name: str | None = None) -> Tensor:
        """Record the number of elements."""
        return self._record(
            "QueueSizeV2",
            lambda buffer: [np.int32(len(buffer))],
            dtypes=[int32],
            shapes=[[]],
            name=name or f"{self._name}_Size",
        ).outputs[0]

    def _record(self, type_: str, action: Callable[..., Any], values: Sequence[Tensor] = (), **more: Any) -> Operation:
        count = len(self._selected)

        def source(resources: Any, *arrays: Any) -> Any:
            buffer = self._find(resources, *arrays[:count])
            if getattr(resources, "closed", False):
                buffer.close()
            return action(buffer, *arrays[count:])

        return record_source(type_, source, [*self._selected, *values], **more)

    def _taken(
        self, type_: str, action: Callable[..., Any], values: Sequence[Tensor], shapes: Sequence[Any], name: str
    ) -> Any:
        found = self._record(type_, action, values, dtypes=self._dtypes, shapes=shapes, name=name).outputs
        if self._names is not None:
            return dict(zip(self._names, found, strict=True))
        return found[0] if len(found) == 1 else found

    def _several(self, type_: str, n: Any, up_to: bool, name: str) -> Any:
        count = convert(n, int32)
        known = known_value(count)
        first = None if up_to or known is None else int(known)

        def take(buffer: Buffer, many: Any) -> list[Any]:
            if not self._has_shapes():
                raise InvalidArgumentError(
                    None, None, f"{self._kind}'s DequeueMany and DequeueUpTo require the components to have shapes."
                )
            if many < 0:
                raise InvalidArgumentError(None, None, f"DequeueMany requested {many} < 0 elements")
            rows = buffer.take(int(many), up_to=up_to)
            columns = zip(*rows, strict=True) if rows else [()] * len(self._dtypes)
            return [
                self._stacked(column, dtype, shape)
                for column, dtype, shape in zip(columns, self._dtypes, self._shapes, strict=True)
            ]

        shapes = [TensorShape([first]).concatenate(shape) for shape in self._shapes]
        return self._taken(type_, take, [count], shapes, name)

    def _has_shapes(self) -> bool:
        return all(shape.is_fully_defined() for shape in self._shapes)

    def _stacked(self, column: Sequence[Any], dtype: DType, shape: TensorShape) -> Any:
        if not column or dtype.numpy.kind == "O":
            found = np.empty([len(column), *(size or 0 for size in shape.sizes or ())], dtype.numpy)
            for i, value in enumerate(column):
                found[i] = value
            return found
        return np.array(column, dtype.numpy)

    def _components(self, vals: Any) -> list[Tensor]:
        """Convert the components of an element.

        Raises:
          ValueError: they are not those of this queue.
        """
        if self._names is not None:
            if not isinstance(vals, Mapping):
                raise ValueError("enqueue must be passed a dictionary, because the queue's components have names")
            if sorted(vals) != sorted(self._names):
                raise ValueError(
                    "Keys in dictionary to enqueue do not match names of Queue. "
                    f"Dictionary: {sorted(vals)}, Queue: {sorted(self._names)}"
                )
            listed = [vals[name] for name in self._names]
        elif isinstance(vals, Mapping):
            raise ValueError("enqueue must not be passed a dictionary, because the queue's components have no names")
        else:
            listed = list(vals) if isinstance(vals, list | tuple) else [vals]
        if len(listed) != len(self._dtypes):
            raise ValueError(
                f"{self._name} has {len(self._dtypes)} components, but {len(listed)} values are enqueued (at "
                f"{user_line()})"
            )
        return [convert(value, dtype) for value, dtype in zip(listed, self._dtypes, strict=True)]

    def _check_sizes(self, arrays: Sequence[Any], many: bool) -> None:
        if many and any(array.ndim == 0 or len(array) != len(arrays[0]) for array in arrays):
            shapes = [array.shape for array in arrays]
            raise InvalidArgumentError(
                None, None, f"All components of enqueue_many need the same number of rows, not {shapes}"
            )
        for i, (array, shape) in enumerate(zip(arrays, self._shapes, strict=True)):
            found = array.shape[int(many) :]
            if found != shape.sizes and not shape.is_compatible_with(found):
                raise InvalidArgumentError(
                    None, None, f"Shape mismatch in tuple component {i}. Expected {shape}, got {list(found)}"
                )


class FIFOQueue(QueueBase):
    """First in, first out."""

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        size = _number(capacity)
        super().__init__(lambda label: Fifo(self._kind, label, size), dtypes, shapes, names, shared_name, name)


class RandomShuffleQueue(QueueBase):
    """Elements come out in random order; `min_after_dequeue` of them stay while more may come, to mix well."""

    _kind = "RandomShuffleQueue"

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        graph = get_default_graph()
        drawn = combined_seed(graph.seed, seed, len(graph.operations))
        size, least = _number(capacity), _number(min_after_dequeue)

        def make(label: str) -> Buffer:
            return Shuffled(self._kind, label, size, least, drawn)

        super().__init__(make, dtypes, shapes, names, shared_name, name)


class PaddingFIFOQueue(QueueBase):
    """First in, first out; sizes may differ, and what is dequeued together is padded with zeros to the largest."""

    _kind = "PaddingFIFOQueue"

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        size = _number(capacity)
        super().__init__(lambda label: Fifo(self._kind, label, size), dtypes, shapes, names, shared_name, name)
        if not self._has_shapes():
            raise ValueError("Shapes must be provided for PaddingFIFOQueue: sizes may be unknown, but not ranks.")

    def _has_shapes(self) -> bool:
        return all(shape.sizes is not None for shape in self._shapes)

    def _stacked(self, column: Sequence[Any], dtype: DType, shape: TensorShape) -> Any:
        if shape.is_fully_defined():
            return super()._stacked(column, dtype, shape)
        every = [np.shape(value) for value in column]
        sizes = [
            max((one[axis] for one in every), default=0) if size is None else size
            for axis, size in enumerate(shape.sizes or ())
        ]
        found = np.full([len(column), *sizes], b"" if dtype.numpy.kind == "O" else 0, dtype.numpy)
        for i, value in enumerate(column):
            places: tuple[Any, ...] = (i, *(slice(size) for size in every[i]))
            found[places] = value
        return found


class PriorityQueue(QueueBase):
    """The element with the least first component, an int64, comes first."""

    _kind = "PriorityQueue"

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        more = list(types) if isinstance(types, list | tuple) else [types]
        known = None if shapes is None else [[], *_as_shapes(shapes, len(more))]
        size = _number(capacity)
        super().__init__(
            lambda label: ByPriority(self._kind, label, size), [int64, *more], known, names, shared_name, name
        )


def _number(value: Any) -> int:
    return int(value if known_value(value) is None else known_value(value))  # type: ignore[arg-type]


def _as_shapes(shapes: Any, count: int) -> list[TensorShape]:
    if shapes is None:
        return [TensorShape(None)] * count
    single = isinstance(shapes, TensorShape) or all(isinstance(one, int | Dimension | None) for one in shapes)
    listed = [shapes] if single else list(shapes)
    if len(listed) != count:
        raise ValueError(
            f"Queue shapes must have the same length as dtypes, received len(shapes)={len(listed)}, len(dtypes)={count}"
        )
    return [TensorShape(one) for one in listed]


def _checked(found: TensorShape, wanted: TensorShape) -> None:
    if not found.is_compatible_with(wanted):
        raise ValueError(f"Shapes {found} and {wanted} are not compatible (at {user_line()})")
