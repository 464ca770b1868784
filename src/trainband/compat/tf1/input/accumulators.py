"""Conditional accumulators: gradients of several runs are added up until one takes their mean."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, int32, int64
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.deadline import wait_for
from trainband.compat.tf1.graphs.errors import CancelledError, InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.slices import IndexedSlices

_numbers = itertools.count()


class _Sum:
    """The sum in a session, which several threads add to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._closed = False
        self._step = 0
        self._total: Any = None
        self.count = 0
        """How many gradients it has."""

    def add(self, step: int, join: Callable[[Any], Any]) -> None:
        """Adds a gradient by `join`, unless its step is an old one."""
        with self._changed:
            if step >= self._step:
                self._total = join(self._total)
                self.count += 1
                self._changed.notify_all()

    def take(self, count: int) -> tuple[Any, int]:
        """(the sum, of how many gradients); waits for as many, and begins the next step.

        Raises:
          CancelledError: the session is closed.
        """
        with self._changed:
            wait_for(self._changed, lambda: self._closed or self.count >= count, f"Accumulator '{self._name}'")
            if self._closed:
                raise CancelledError(None, None, f"Accumulator '{self._name}': take_grad was cancelled.")
            found = self._total, self.count
            self._total, self.count = None, 0
            self._step += 1
            return found

    def begin(self, step: int) -> None:
        """Sets the step."""
        with self._changed:
            self._step = max(step, self._step)

    def close(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


Reference = tuple[str, tuple[str, Any]]
"""The name of an accumulator, and what a session knows it by."""


def _reference(shared_name: str | None, name: str) -> Reference:
    return get_default_graph().unique_name(name), ("accumulator", shared_name or next(_numbers))


class ConditionalAccumulatorBase:
    """What both accumulators do."""

    _type = "Accumulator"

    def __init__(self, dtype: Any, shape: Any, accumulator_ref: Reference) -> None:
        self._dtype, self._shape = as_dtype(dtype), TensorShape(shape)
        self._name, self._key = accumulator_ref

    @property
    def name(self) -> str:
        """That of its operation."""
        return self._name

    @property
    def dtype(self) -> Any:
        """Of the gradients."""
        return self._dtype

    @property
    def accumulator_ref(self) -> Reference:
        """Its name, and what a session knows it by."""
        return self._name, self._key

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """How many gradients have been added since the last was taken."""
        return self._record(
            "NumAccumulated", lambda held: [np.int32(held.count)], dtypes=[int32], shapes=[[]],
            name=name or f"{self._name}_NumAccumulated",
        ).outputs[0]  # fmt: skip

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Operation:
        """An operation that sets the step: gradients of earlier ones are dropped."""

        def begin(held: _Sum, step: Any) -> list[Any]:
            held.begin(int(step))
            return []

        step = convert(new_global_step, None if isinstance(new_global_step, Tensor) else int64)
        return self._record("SetGlobalStep", begin, [step], name=name or f"{self._name}_SetGlobalStep")

    def _record(self, what: str, action: Callable[..., Any], inputs: Sequence[Tensor] = (), **more: Any) -> Operation:
        def source(resources: Any, *arrays: Any) -> Any:
            held = resources.get(self._key)
            if held is None:
                held = resources.setdefault(self._key, _Sum(self._name))
            if getattr(resources, "closed", False):
                held.close()
            return action(held, *arrays)

        return record_source(f"{self._type}{what}", source, inputs, **more)

    def _fits(self, found: TensorShape, rows: bool = False) -> None:
        """Raises `ValueError` if a gradient, or the rows of one, have another shape."""
        wanted = TensorShape([None, *self._shape.sizes[1:]]) if rows and self._shape.sizes else self._shape
        if not found.is_compatible_with(wanted):
            raise ValueError(f"Shapes {found} and {wanted} are not compatible")


def _taken(held: _Sum, count: Any) -> tuple[Any, int]:
    if int(count) < 1:
        raise InvalidArgumentError(None, None, f"Argument num_required must be positive, got {int(count)}")
    return held.take(int(count))


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Gradients of one dtype and shape."""

    def __init__(
        self, dtype: Any, shape: Any = None, shared_name: str | None = None, name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:  # fmt: skip
        super().__init__(dtype, shape, _reference(shared_name, name))
        self._mean = reduction_type.upper() == "MEAN"

    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Operation:
        """An operation that adds a gradient; one of an earlier step than the present one is dropped.

        Raises:
          ValueError: it has another shape.
        """
        gradient = convert(grad, self._dtype)
        self._fits(gradient.shape)

        def add(held: _Sum, array: Any, step: Any) -> list[Any]:
            def join(total: Any) -> Any:
                if not self._shape.is_compatible_with(array.shape) or (
                    total is not None and total.shape != array.shape
                ):
                    raise InvalidArgumentError(None, None, f"Shape mismatch: expected {self._shape}, got {array.shape}")
                return array.copy() if total is None else total + array

            held.add(int(step), join)
            return []

        step = convert(local_step, None if isinstance(local_step, Tensor) else int64)
        return self._record("ApplyGradient", add, [gradient, step], name=name or f"{self._name}_ApplyGradient")

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """The mean of all gradients that were added, once there are enough of them; the next step begins."""

        def take(held: _Sum, count: Any) -> list[Any]:
            total, many = _taken(held, count)
            return [np.asarray(total / many if self._mean else total, self._dtype.numpy)]

        return self._record(
            "TakeGradient", take, [convert(num_required)], dtypes=[self._dtype], shapes=[self._shape],
            name=name or f"{self._name}_TakeGradient",
        ).outputs[0]  # fmt: skip


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Gradients that are rows of one dtype and shape, by their numbers."""

    _type = "SparseAccumulator"

    def __init__(
        self, dtype: Any, shape: Any = None, shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator", reduction_type: str = "MEAN",
    ) -> None:  # fmt: skip
        super().__init__(dtype, shape, _reference(shared_name, name))
        self._mean = reduction_type.upper() == "MEAN"

    def apply_indexed_slices_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Operation:
        """An operation that adds a gradient of rows."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self, grad_indices: Any, grad_values: Any, grad_shape: Any = None, local_step: Any = 0, name: str | None = None
    ) -> Operation:
        """An operation that adds rows by their numbers; those of an earlier step than the present one are dropped."""
        numbers = convert(grad_indices, None if isinstance(grad_indices, Tensor) else int64)
        values = convert(grad_values, self._dtype)
        shape = [] if grad_shape is None else [convert(grad_shape, None if isinstance(grad_shape, Tensor) else int64)]

        def add(held: _Sum, step: Any, rows: Any, array: Any, *sizes: Any) -> list[Any]:
            self._check(rows, array, *sizes)

            def join(total: Any) -> Any:
                found = {} if total is None else total
                for number, row in zip(rows.tolist(), array, strict=True):
                    had, count = found.get(number, (0, 0))
                    found[number] = had + row, count + 1
                return found

            held.add(int(step), join)
            return []

        step = convert(local_step, None if isinstance(local_step, Tensor) else int64)
        return self._record(
            "ApplyGradient", add, [step, numbers, values, *shape], name=name or f"{self._name}_ApplyGradient"
        )

    def _check(self, rows: Any, array: Any, *sizes: Any) -> None:
        problem = ""
        if rows.ndim != 1:
            problem = f"Input indices should be vector but received shape: {list(rows.shape)}"
        elif array.ndim == 0:
            problem = "Values cannot be 0-dimensional."
        elif len(rows) != len(array):
            problem = f"Expected {len(rows)} non-empty input values, got {len(array)}"
        elif not len(rows):
            problem = "Must have at least one nonempty gradient"
        elif self._shape.sizes and not TensorShape(self._shape.sizes[1:]).is_compatible_with(array.shape[1:]):
            problem = f"Shape mismatch: expected shape {self._shape}, got [*, {', '.join(map(str, array.shape[1:]))}]"
        elif sizes and sizes[0].size and not self._shape.is_compatible_with(sizes[0].tolist()):
            problem = f"Shape mismatch: expected shape {self._shape}, got {sizes[0].tolist()}"
        if problem:
            raise InvalidArgumentError(None, None, problem)

    def take_grad(self, num_required: Any, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(the numbers of rows, their means over the gradients that have them, the shape of the whole)."""

        def take(held: _Sum, count: Any) -> list[Any]:
            total, _ = _taken(held, count)
            numbers = sorted(total)
            rows = [total[one][0] / (total[one][1] if self._mean else 1) for one in numbers]
            values = np.asarray(rows, self._dtype.numpy)
            sizes = [-1 if one is None else one for one in self._shape.sizes or (-1, *values.shape[1:])]
            return [np.asarray(numbers, np.int64), values, np.asarray(sizes, np.int64)]

        inner = None if self._shape.sizes is None else [None, *self._shape.sizes[1:]]
        found = self._record(
            "TakeGradient", take, [convert(num_required)], dtypes=[int64, self._dtype, int64],
            shapes=[[None], inner, [self._shape.ndims]], name=name or f"{self._name}_TakeGradient",
        ).outputs  # fmt: skip
        return found[0], found[1], found[2]

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        """The rows as `IndexedSlices`."""
        numbers, values, shape = self.take_grad(num_required, name)
        return IndexedSlices(values, numbers, shape)
