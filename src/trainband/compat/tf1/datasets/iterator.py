"""Iterator: where a session stands in a dataset."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.datasets.elements import Element, Elements, classes_in, common, flatten, pack, shown, specs_of
from trainband.compat.tf1.datasets.run import Recipe, Run
from trainband.compat.tf1.graphs.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.where import user_line

_beginning = threading.Lock()


class Position:
    """How far one session is: a pass over a dataset, and what is left of it."""

    def __init__(self, dataset: Recipe, values: Sequence[Any], resources: dict[Any, Any]) -> None:
        self._run = Run(dict(zip(dataset.inputs, values, strict=True)), resources)
        self._elements: Elements = iter(dataset.start(self._run))
        self._ended = False
        self._one_at_a_time = threading.Lock()

    def next(self, op: Operation) -> Element:
        """The next element.

        Raises:
          OutOfRangeError: there is none.
        """
        with self._one_at_a_time:  # several threads of a script may take from it
            if not self._ended:
                try:
                    return next(self._elements)
                except StopIteration:
                    self._ended = True
        raise OutOfRangeError(None, op, "End of sequence")

    def close(self) -> None:
        """Ends the threads of the pass. Idempotent."""
        self._ended = True
        self._run.close()


class Iterator:
    """An iterator: a session has one position for it. `Dataset` has the methods that make one.

    Args:
      structure: of the elements.
      dataset: what a position begins in by itself, if it does.
      handle: a string tensor that says at run time which iterator is meant, if this one stands for others.
    """

    def __init__(
        self,
        structure: Any,
        dataset: Recipe | None = None,
        initializer: Operation | None = None,
        handle: Tensor | None = None,
    ) -> None:
        self._structure = structure
        self._dataset = dataset
        self._initializer = initializer
        self._handle = handle
        self._string_handle = self._recorded_handle(None)

    @classmethod
    def one_shot(cls, dataset: Recipe) -> Iterator:
        """An iterator that begins by itself.

        Raises:
          ValueError: the dataset needs a placeholder.
        """
        for op in _ancestors(dataset.inputs):
            if op.type == "Placeholder":
                raise ValueError(
                    "Failed to create a one-shot iterator for a dataset. `Dataset.make_initializable_iterator()` is "
                    f"more likely to be appropriate here: Cannot capture a placeholder (name:{op.name}, "
                    f"type:Placeholder) by value. (at {user_line()})"
                )
        return cls(dataset.element_spec, dataset)

    @classmethod
    def initializable(cls, dataset: Recipe) -> Iterator:
        """An iterator that begins whenever its initializer is run."""
        found = cls(dataset.element_spec)
        found._initializer = found.make_initializer(dataset)
        return found

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None, output_classes: Any = None
    ) -> Iterator:
        """An iterator over any dataset of these dtypes and shapes, for which `make_initializer` is called."""
        del shared_name
        return Iterator(specs_of(output_types, output_shapes, output_classes))

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> Iterator:
        """The iterator whose handle, a value of its `string_handle()`, is given at run time."""
        structure = specs_of(output_types, output_shapes, output_classes)
        return Iterator(structure, handle=convert(string_handle, string))

    @property
    def initializer(self) -> Operation:
        """The operation that begins anew.

        Raises:
          ValueError: the iterator has none.
        """
        if self._initializer is None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    @property
    def element_spec(self) -> Any:
        """What is known of the elements."""
        return self._structure

    @property
    def output_types(self) -> Any:
        """The dtypes of the elements."""
        return shown(self._structure, "dtype")

    @property
    def output_shapes(self) -> Any:
        """The shapes of the elements."""
        return shown(self._structure, "shape")

    @property
    def output_classes(self) -> Any:
        """What the elements are: tensors and sparse tensors."""
        return classes_in(self._structure)

    def make_initializer(self, dataset: Recipe, name: str | None = None) -> Operation:
        """An operation that begins at the beginning of a dataset.

        Raises:
          TypeError: its elements are of other dtypes, or shapes.
        """
        merged = common(self._structure, dataset.element_spec)
        for mine, both in zip(flatten(self._structure), flatten(merged), strict=True):
            if mine.shape.sizes != both.shape.sizes:
                raise TypeError(
                    f"Expected output shapes compatible with {self.output_shapes} but got dataset with output shapes "
                    f"{shown(dataset.element_spec, 'shape')}. (at {user_line()})"
                )

        def begin(resources: dict[Any, Any], *values: Any) -> Sequence[Any]:
            before = resources.pop(self, None)
            if before is not None:
                before.close()
            resources[self] = Position(dataset, values, resources)
            return []

        return record_source("MakeIterator", begin, dataset.inputs, name=name or "MakeIterator")

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors; each run of them moves on by one."""
        specs = flatten(self._structure)
        if any(spec.nested is not None for spec in specs):
            raise TypeError("An iterator cannot return datasets: use flat_map on those that window() makes.")

        def take(resources: dict[Any, Any], *values: Any) -> Sequence[Any]:
            return self._position(op, resources, values).next(op)

        op = record_source(
            "IteratorGetNext",
            take,
            self._inputs,
            dtypes=[spec.dtype for spec in specs],
            shapes=[spec.shape for spec in specs],
            name=name or "IteratorGetNext",
        )
        return pack(self._structure, op.outputs)

    def string_handle(self, name: str | None = None) -> Tensor:
        """A string tensor whose value stands for the iterator in the same session."""
        return self._string_handle if name is None else self._recorded_handle(name)

    def _recorded_handle(self, name: str | None) -> Tensor:
        def give(resources: dict[Any, Any], *values: Any) -> Sequence[Any]:
            if self._dataset is not None:
                self._position(op, resources, values)
            handle = f"{op.name}-{id(self):x}".encode()
            resources["handle", handle] = self
            return [np.array(handle, object)]

        op = record_source(
            "IteratorToStringHandle",
            give,
            self._inputs,
            dtypes=[string],
            shapes=[[]],
            name=name or "IteratorToStringHandle",
        )
        return op.outputs[0]

    @property
    def _inputs(self) -> Sequence[Tensor]:
        """What the position needs when it is asked for."""
        if self._handle is not None:
            return [self._handle]
        return self._dataset.inputs if self._dataset is not None else ()

    def _position(self, op: Operation, resources: dict[Any, Any], values: Sequence[Any]) -> Position:
        meant = self
        if self._handle is not None:
            handle = bytes(np.asarray(values[0], object)[()])
            if ("handle", handle) not in resources:
                raise InvalidArgumentError(None, op, f"No iterator of this session has the handle {handle!r}.")
            meant = resources["handle", handle]
            mine, its = flatten(self._structure), flatten(meant.element_spec)
            if len(mine) != len(its) or not all(
                a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in zip(mine, its, strict=True)
            ):
                raise InvalidArgumentError(
                    None,
                    op,
                    f"The iterator of this handle has elements of {meant.output_types}, {meant.output_shapes}, not of "
                    f"{self.output_types}, {self.output_shapes}.",
                )
        return meant._own_position(op, resources, values)  # noqa: SLF001 - another of this class

    def _own_position(self, op: Operation, resources: dict[Any, Any], values: Sequence[Any]) -> Position:
        with _beginning:
            if self not in resources and self._dataset is not None:
                resources[self] = Position(self._dataset, values, resources)
        found: Position | None = resources.get(self)
        if found is None:
            raise FailedPreconditionError(
                None,
                op,
                "GetNext() failed because the iterator has not been initialized. Ensure that you have run the "
                "initializer operation for this iterator before getting the next element.",
            )
        return found


def _ancestors(tensors: Sequence[Tensor]) -> set[Operation]:
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def make_one_shot_iterator(dataset: Recipe) -> Iterator:
    """An iterator that begins by itself."""
    return Iterator.one_shot(dataset)


def make_initializable_iterator(dataset: Recipe, shared_name: str | None = None) -> Iterator:
    """An iterator that begins whenever its initializer is run."""
    del shared_name
    return Iterator.initializable(dataset)
