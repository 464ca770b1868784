"""Several elements as one, and the other way: batches, padded batches, windows, rows."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops.dtypes import string
from trainband.compat.ops.shapes import TensorShape, dims_of
from trainband.compat.tf1.datasets import ordering
from trainband.compat.tf1.datasets.elements import (
    Elements,
    Spec,
    along,
    boxed,
    flatten,
    mapped,
    pack,
    shown,
    sparse_places,
    sparse_specs,
    text,
    with_first,
    without_first,
)
from trainband.compat.tf1.datasets.run import Input, Recipe, Run, Source, tensors_of
from trainband.compat.tf1.graphs.record import convert, is_tensor


def batched(dataset: Recipe, batch_size: Any, drop_remainder: Any) -> Source:
    """Several elements at a time, stacked along a new first axis.

    Raises:
      TypeError: the elements are datasets.
    """
    size, drops = Input.make(batch_size), Input.make(drop_remainder)
    specs = flatten(dataset.element_spec)
    if any(spec.nested is not None for spec in specs):
        raise TypeError("Datasets cannot be batched.")
    count, sparse = _count(size, drops), sparse_places(dataset.element_spec)
    combine = ordering.stacker(specs, sparse)

    def start(run: Run) -> Elements:
        return ordering.Batches(dataset.start(run), int(size.of(run)), bool(drops.of(run)), combine)

    known = [Spec(spec.dtype, with_first(count, spec.shape)) for spec in specs]
    for place in sparse:
        held = specs[place + 2]
        rank = held.shape.sizes[0] if held.shape.sizes else None
        sizes = held.value or (None if rank is None else (None,) * rank)
        known[place : place + 3] = flatten(sparse_specs(specs[place + 1].dtype, with_first(count, TensorShape(sizes))))
    return Source(pack(dataset.element_spec, known), start, (dataset,), tensors_of([size, drops]))


def padded(dataset: Recipe, batch_size: Any, padded_shapes: Any, padding_values: Any, drop_remainder: Any) -> Source:
    """Several elements at a time, each part padded to its padded shape, or to the largest where a size is unknown.

    Raises:
      ValueError: a padded shape does not fit the elements.
    """
    size, drops = Input.make(batch_size), Input.make(drop_remainder)
    structure = dataset.element_spec
    specs: list[Spec] = flatten(structure)
    if padded_shapes is None:
        padded_shapes = shown(structure, "shape")
    wanted = [_sizes(one) for one in along(structure, padded_shapes)]
    known = [TensorShape(None if one is None else one) for one in (_static(shape) for shape in wanted)]
    for spec, shape in zip(specs, known, strict=True):
        if not _fits(spec.shape, shape):
            raise ValueError(
                f"The padded shape {shape} is not compatible with the shape {spec.shape} of the corresponding "
                "input component."
            )
    values = [None] * len(specs) if padding_values is None else along(structure, padding_values)
    fillings = [
        Input.make((b"" if spec.dtype == string else 0) if value is None else value, spec.dtype)
        if not (value is None and spec.dtype.is_bool)
        else Input.make(False)
        for value, spec in zip(values, specs, strict=True)
    ]
    count = _count(size, drops)

    def start(run: Run) -> Elements:
        shapes = [_dynamic(shape, run) for shape in wanted]
        combine = ordering.padder(specs, shapes, [one.of(run)[()] for one in fillings])
        return ordering.Batches(dataset.start(run), int(size.of(run)), bool(drops.of(run)), combine)

    merged = [Spec(spec.dtype, with_first(count, shape)) for spec, shape in zip(specs, known, strict=True)]
    used = tensors_of([size, drops, *fillings, *(one for one in wanted if isinstance(one, Input))])
    return Source(pack(structure, merged), start, (dataset,), used)


def unbatched(dataset: Recipe) -> Source:
    """The rows of each element."""
    structure = mapped(lambda spec: Spec(spec.dtype, without_first(spec.shape)), dataset.element_spec)

    def start(run: Run) -> Elements:
        for element in dataset.start(run):
            columns = [map(text, leaf) if leaf.dtype == object else leaf for leaf in element]
            yield from zip(*columns, strict=True)

    return Source(structure, start, (dataset,))


def windows(dataset: Recipe, size: Any, shift: Any, stride: Any, drop_remainder: Any) -> Source:
    """Datasets of `size` elements each, which are `stride` apart; each begins `shift` after the one before."""
    length = Input.make(size)
    step = length if shift is None else Input.make(shift)
    apart, drops = Input.make(stride), Input.make(drop_remainder)

    def start(run: Run) -> Elements:
        found = ordering.windows(
            dataset.start(run), int(length.of(run)), int(step.of(run)), int(apart.of(run)), bool(drops.of(run))
        )
        return (tuple(boxed([(leaf,) for leaf in column]) for column in zip(*one, strict=True)) for one in found)

    structure = mapped(lambda spec: Spec(string, TensorShape([]), spec), dataset.element_spec)
    return Source(structure, start, (dataset,), tensors_of([length, step, apart, drops]))


def _count(size: Input, drops: Input) -> int | None:
    """How many elements each batch has, if that is known."""
    if drops.known is None or not drops.known or size.known is None:
        return None
    return int(size.known)


def _sizes(shape: Any) -> Any:
    """A padded shape: sizes, of which -1 is unknown; or an input."""
    if is_tensor(shape):
        return Input.make(convert(shape))
    sizes = dims_of(shape)
    return None if sizes is None else [None if one in (None, -1) else one for one in sizes]


def _fits(shape: TensorShape, padded: TensorShape) -> bool:
    if shape.sizes is None or padded.sizes is None:
        return True
    return len(shape.sizes) == len(padded.sizes) and all(
        a is None or b is None or a <= b for a, b in zip(shape.sizes, padded.sizes, strict=True)
    )


def _static(shape: Any) -> Any:
    if not isinstance(shape, Input):
        return shape
    if shape.known is not None:
        return [None if one < 0 else int(one) for one in shape.known]
    sizes = shape.spec.shape.sizes
    return None if sizes is None or sizes[0] is None else [None] * sizes[0]


def _dynamic(shape: Any, run: Run) -> Any:
    return [None if one < 0 else int(one) for one in shape.of(run)] if isinstance(shape, Input) else shape
