"""Where elements come from: arrays, generators, numbers, names of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.datasets.elements import (
    Elements,
    Spec,
    flatten,
    pack,
    sparse_places,
    specs_of,
    text,
    with_sparse_tensors,
    without_first,
)
from trainband.compat.tf1.datasets.file_names import matching
from trainband.compat.tf1.datasets.generating import generated
from trainband.compat.tf1.datasets.run import Input, Run, Source, tensors_of
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.record import is_tensor
from trainband.compat.tf1.input.packing import rows_of


def whole(tensors: Any) -> Source:
    """One element."""
    parts, structure = _inputs(tensors)
    return Source(structure, lambda run: iter([tuple(part.of(run) for part in parts)]), (), tensors_of(parts))


def rows(tensors: Any) -> Source:
    """The rows of arrays.

    Raises:
      ValueError: an array is a scalar, or they differ in their number of rows.
    """
    parts, structure = _inputs(tensors)
    sparse = sparse_places(structure)
    specs = [spec for place, spec in enumerate(flatten(structure)) if not _is_within(place, sparse)]
    for spec in specs:
        if spec.shape.sizes is not None and not spec.shape.sizes:
            raise ValueError("Unbatching a tensor is only supported for rank >= 1")
    counts = {spec.shape.sizes[0] for spec in specs if spec.shape.sizes} - {None}
    if len(counts) > 1:
        raise ValueError(f"Dimensions {' and '.join(map(str, sorted(counts)))} are not compatible")

    def of(value: Any) -> Iterable[Any]:
        return map(text, value) if value.dtype == object else value

    def columns(run: Run) -> Iterable[Iterable[Any]]:
        values = [np.asarray(part.of(run)) for part in parts]
        place = 0
        while place < len(values):
            if place in sparse:
                yield from zip(*rows_of(*values[place : place + 3]), strict=True)
                place += 3
            else:
                yield of(values[place])
                place += 1

    def start(run: Run) -> Elements:
        return zip(*columns(run), strict=True)

    return Source(_rows(structure), start, (), tensors_of(parts))


def rows_of_sparse(sparse_tensor: Any) -> Source:
    """The rows of a sparse tensor, each as (indices, values, dense shape)."""
    found = rows(sparse_tensor)
    return found._replace(structure=tuple(flatten(found.structure)))


def _rows(structure: Any) -> Any:
    """What is known of the rows of arrays and sparse tensors."""
    sparse, found = sparse_places(structure), []
    for place, spec in enumerate(flatten(structure)):
        within = _is_within(place, sparse)
        if not within:
            found.append(Spec(spec.dtype, without_first(spec.shape)))
        elif place in sparse:
            rank = spec.shape.sizes[1] if spec.shape.sizes else None
            found.append(Spec(spec.dtype, TensorShape([None, None if rank is None else rank - 1])))
        elif place - 1 in sparse:
            found.append(Spec(spec.dtype, TensorShape([None])))
        else:
            rank = spec.shape.sizes[0] if spec.shape.sizes else None
            known = None if spec.value is None else spec.value[1:]
            found.append(Spec(spec.dtype, TensorShape([None if rank is None else rank - 1]), None, known))
    return pack(structure, found)


def _is_within(place: int, sparse: Sequence[int]) -> bool:
    return any(first <= place < first + 3 for first in sparse)


def yielded(generator: Callable[..., Any], output_types: Any, output_shapes: Any, args: Any) -> Source:
    """What a generator yields.

    Raises:
      TypeError: it cannot be called.
    """
    if not callable(generator):
        raise TypeError("`generator` must be callable.")
    structure = specs_of(output_types, output_shapes)
    given = [Input.make(one) for one in args or ()]

    def start(run: Run) -> Elements:
        return generated(generator(*(np.asarray(one.of(run)) for one in given)), structure)

    return Source(structure, start, (), tensors_of(given))


def numbers(*args: Any) -> Source:
    """Whole numbers, as `range` has them.

    Raises:
      ValueError: there are none or more than three arguments.
    """
    if not 1 <= len(args) <= 3:
        raise ValueError(f"Invalid arguments to RangeDataset: {args}")
    bounds = [Input.make(one, None if is_tensor(one) else int64) for one in args]

    def start(run: Run) -> Elements:
        limits = [int(one.of(run)) for one in bounds]
        if len(limits) == 3 and limits[2] == 0:
            raise InvalidArgumentError(None, None, "step cannot be zero")
        found = range(*limits)
        return zip(map(np.int64, found), strict=True)

    return Source(Spec(int64, TensorShape([])), start, (), tensors_of(bounds))


def file_names(file_pattern: Any) -> Source:
    """The names of files that match a pattern, or several."""
    pattern = Input.make(file_pattern, None if is_tensor(file_pattern) else string)
    return Source(Spec(string, TensorShape([])), lambda run: matching(pattern.of(run)), (), pattern.tensors)


def _inputs(values: Any) -> tuple[list[Input], Any]:
    """The leaves of nested values, and what is known of them."""
    values = with_sparse_tensors(values)
    parts = [Input.make(leaf) for leaf in flatten(values)]
    specs = [part.spec for part in parts]
    for place in sparse_places(values):
        known = parts[place + 2].known
        if known is not None:
            specs[place + 2] = replace(specs[place + 2], value=tuple(map(int, known)))
    return parts, pack(values, specs)
