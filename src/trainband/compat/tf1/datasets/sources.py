"""Where elements come from: arrays, generators, numbers, names of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.datasets.elements import Elements, Spec, flatten, mapped, pack, specs_of, text, without_first
from trainband.compat.tf1.datasets.file_names import matching
from trainband.compat.tf1.datasets.generating import generated
from trainband.compat.tf1.datasets.run import Input, Run, Source, tensors_of
from trainband.compat.tf1.graphs.record import is_tensor


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
    for spec in flatten(structure):
        if spec.shape.sizes is not None and not spec.shape.sizes:
            raise ValueError("Unbatching a tensor is only supported for rank >= 1")
    counts = {spec.shape.sizes[0] for spec in flatten(structure) if spec.shape.sizes} - {None}
    if len(counts) > 1:
        raise ValueError(f"Dimensions {' and '.join(map(str, sorted(counts)))} are not compatible")

    def of(value: Any) -> Iterable[Any]:
        return map(text, value) if value.dtype == object else value

    def start(run: Run) -> Elements:
        return zip(*(of(np.asarray(part.of(run))) for part in parts), strict=True)

    each = mapped(lambda spec: Spec(spec.dtype, without_first(spec.shape)), structure)
    return Source(each, start, (), tensors_of(parts))


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
        found = range(*(int(one.of(run)) for one in bounds))
        return zip(map(np.int64, found), strict=True)

    return Source(Spec(int64, TensorShape([])), start, (), tensors_of(bounds))


def file_names(file_pattern: Any) -> Source:
    """The names of files that match a pattern, or several."""
    pattern = Input.make(file_pattern, None if is_tensor(file_pattern) else string)
    return Source(Spec(string, TensorShape([])), lambda run: matching(pattern.of(run)), (), pattern.tensors)


def _inputs(values: Any) -> tuple[list[Input], Any]:
    """The leaves of nested values, and what is known of them."""
    parts = [Input.make(leaf) for leaf in flatten(values)]
    return parts, pack(values, [part.spec for part in parts])
