"""Several elements as one, and the other way: batches, padded batches, windows, rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, as_dtype, string
from trainband.compat.ops.shapes import TensorShape, dims_of
from trainband.compat.tf1.datasets import ordering
from trainband.compat.tf1.datasets.elements import Spec
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.input.packing import stacked as stacked_sparse
from trainband.compat.tf2.data.blocks import Block, Blocks, Leaves, Single, elements_of, joined, stacked_leaves
from trainband.compat.tf2.data.passes import UNKNOWN, Pass, Recipe
from trainband.compat.tf2.data.sparse_tensor import SparseTensorSpec
from trainband.compat.tf2.data.specs import DatasetSpec, with_first, without_first
from trainband.compat.tf2.data.structure import along, flatten, map_structure, pack, sparse_places
from trainband.compat.tf2.data.values import array_from, boxed, number, positive
from trainband.compat.tf2.eager.function import TensorSpec
from trainband.compat.tf2.eager.tensor import Tensor


def batched(parent: Recipe, batch_size: Any, drop_remainder: Any) -> Recipe:
    """Several elements at a time, stacked along a new first axis.

    Raises:
      InvalidArgumentError: the size is not positive.
    """
    size = positive(number(batch_size, "batch_size"), "Batch size must be greater than zero.")
    drops = bool(drop_remainder)

    def start(run: Pass) -> Blocks:
        for held in gathered_by(parent.start(run), itertools.repeat(size), drops):
            yield _batch(held)

    def spec() -> Any:
        return _batched_spec(parent.spec(), size if drops else None)

    return Recipe(kind="batch", start=start, spec=spec, count=_count_of(parent, size, drops), is_cheap=parent.is_cheap)


def _batched_spec(spec: Any, count: int | None) -> Any:
    return map_structure(
        lambda one: one.batched(count) if isinstance(one, SparseTensorSpec) else with_first(count, one), spec
    )


def gathered_by(blocks: Blocks, sizes: Iterator[int], drops: bool) -> Iterator[list[Block]]:
    """Lists of blocks with so many elements each."""
    held: list[Block] = []
    missing = wanted = next(sizes)
    for block in blocks:
        begin = 0
        while block.size - begin >= missing:
            held.append(block.part(begin, begin + missing))
            yield held
            begin += missing
            held, missing = [], next(sizes)
            wanted = missing
        if begin < block.size:
            held.append(block.part(begin, block.size))
            missing -= block.size - begin
    if held and not (drops and missing < wanted):
        yield held


def _batch(held: Sequence[Block]) -> Block:
    places = sparse_places(held[0].structure)
    if not places:
        whole = joined(held)
        return Single(whole.structure, whole.gathered())
    structure = held[0].structure
    columns = list(zip(*(leaves for block in held for leaves in block.elements()), strict=True))
    found: list[Any] = []
    while len(found) < len(columns):
        place = len(found)
        if place in places:
            rows = list(zip(*columns[place : place + 3], strict=True))
            found += stacked_sparse(rows, as_dtype(columns[place + 1][0].dtype))
        else:
            found += stacked_leaves([(one,) for one in columns[place]])
    return Single(structure, tuple(found))


def _count_of(parent: Recipe, size: int, drops: bool) -> Callable[[], int]:
    def count() -> int:
        held = parent.count()
        return held if held < 0 else held // size if drops else math.ceil(held / size)

    return count


def padded(parent: Recipe, batch_size: Any, padded_shapes: Any, padding_values: Any, drop_remainder: Any) -> Recipe:
    """Several elements at a time, each part padded to its padded shape, or to the largest where a size is unknown.

    Raises:
      InvalidArgumentError: the size is not positive.
      ValueError: a padded shape does not fit the elements.
    """
    size = positive(number(batch_size, "batch_size"), "Batch size must be greater than zero.")
    drops = bool(drop_remainder)

    def spec() -> Any:
        known = parent.spec()
        shapes = [None] * len(flatten(known)) if padded_shapes is None else along(known, padded_shapes)
        found = []
        for one, shape in zip(flatten(known), shapes, strict=True):
            sizes = one.shape.sizes if padded_shapes is None else _sizes(shape)
            found.append(TensorSpec(None if sizes is None else [size if drops else None, *sizes], one.dtype))
        return pack(known, found)

    def start(run: Pass) -> Blocks:
        combine: Callable[[Sequence[Leaves]], Leaves] | None = None
        for held in gathered_by(parent.start(run), itertools.repeat(size), drops):
            elements = [leaves for block in held for leaves in block.elements()]
            if combine is None:
                combine = _padder(held[0].structure, elements[0], padded_shapes, padding_values)
            yield Single(held[0].structure, combine(elements))

    return Recipe(kind="padded_batch", start=start, spec=spec, count=_count_of(parent, size, drops))


def _padder(structure: Any, first: Leaves, shapes: Any, values: Any) -> Callable[[Sequence[Leaves]], Leaves]:
    kinds = [as_dtype(leaf.dtype) for leaf in first]
    wanted = [None] * len(first) if shapes is None else [_sizes(one) for one in along(structure, shapes)]
    if values is None or not isinstance(values, tuple | dict):
        given = [values] * len(first)
    else:
        given = along(structure, values)
    fillings = [
        _filling(None if shapes is None and values is None else value, kind)
        for value, kind in zip(given, kinds, strict=True)
    ]
    specs = [Spec(kind, TensorShape(None)) for kind in kinds]
    return ordering.padder(specs, wanted, fillings)


def _filling(value: Any, dtype: Any) -> Any:
    if value is None:
        return b"" if dtype is string else dtype.numpy.type(0)
    array = array_from(value)
    if dtype is string:
        return array_of(array, string)[()]
    if isinstance(value, Tensor | np.ndarray | np.generic) and array.dtype != dtype.numpy:
        raise TypeError(
            f"Mismatched type between the padding value ({as_dtype(array.dtype).name}) and the input dataset's "
            f"component ({dtype.name})."
        )
    return array.astype(dtype.numpy)[()]


def _sizes(shape: Any) -> list[int | None] | None:
    """A padded shape: sizes, of which -1 is unknown."""
    if isinstance(shape, Tensor):
        shape = shape.numpy().tolist()
    sizes = dims_of(shape)
    return None if sizes is None else [None if one in (None, -1) else one for one in sizes]


def unbatched(parent: Recipe) -> Recipe:
    """The rows of each element."""

    def start(run: Pass) -> Blocks:
        for structure, leaves in elements_of(parent.start(run)):
            counts = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
            if len(counts) != 1 or None in counts:
                raise InvalidArgumentError(
                    None, None, "Input element must have the same batch size in each component, and rank >= 1."
                )
            if leaves[0].shape[0]:
                yield Block(structure, leaves)

    def count() -> int:
        held = parent.count()
        if held < 0:
            return held
        sizes = [one.shape.sizes for one in flatten(parent.spec())]
        first = sizes[0][0] if sizes and sizes[0] else None
        return UNKNOWN if first is None else held * first

    return Recipe(
        kind="unbatch", start=start, spec=lambda: without_first(parent.spec()), count=count, is_cheap=parent.is_cheap
    )


def rebatched(parent: Recipe, batch_size: Any, drop_remainder: Any) -> Recipe:
    """The rows of all elements, in batches of other sizes: of one, or of several in turn."""
    given = np.ravel(array_from(batch_size)).tolist()
    sizes = [positive(int(one), "Batch size must be greater than zero.") for one in given]
    drops = bool(drop_remainder)
    single = unbatched(parent)

    def start(run: Pass) -> Blocks:
        for held in gathered_by(single.start(run), itertools.cycle(sizes), drops):
            yield _batch(held)

    known = sizes[0] if drops and len(set(sizes)) == 1 else None
    return Recipe(kind="rebatch", start=start, spec=lambda: with_first(known, single.spec()), is_cheap=parent.is_cheap)


def divided(parent: Recipe, parts: int) -> Recipe:
    """Each batch as `parts` smaller ones of one size; the last ones are smaller or empty where it does not divide."""

    def start(run: Pass) -> Blocks:
        for structure, leaves in elements_of(parent.start(run)):
            if any(not leaf.ndim for leaf in leaves):
                raise ValueError("Invalid `input_dataset`. Expected a dataset whose elements have rank >= 1 but found "
                                 "a dataset whose elements are scalars. Fix the issue by adding the `batch` "
                                 "transformation to the dataset.")  # fmt: skip
            size = -(-leaves[0].shape[0] // parts)
            for begin in range(0, size * parts or parts, size or 1):
                yield Single(structure, tuple([leaf[begin : begin + size] for leaf in leaves]))

    def spec() -> Any:
        def smaller(one: Any) -> Any:
            sizes = one.shape.sizes
            if not sizes:
                return one
            first = sizes[0] // parts if sizes[0] is not None and sizes[0] % parts == 0 else None
            return TensorSpec([first, *sizes[1:]], one.dtype)

        return map_structure(smaller, parent.spec())

    def count() -> int:
        held = parent.count()
        return held if held < 0 else held * parts

    return Recipe(kind="divide", start=start, spec=spec, count=count, is_cheap=parent.is_cheap)


def windows(
    parent: Recipe, size: Any, shift: Any, stride: Any, drop_remainder: Any, made: Callable[[Recipe], Any]
) -> Recipe:
    """Datasets of `size` elements each, which are `stride` apart; each begins `shift` after the one before.

    Args:
      made: makes a dataset of a recipe.
    """
    length = positive(number(size, "size"), "Window size must be greater than zero.")
    step = positive(length if shift is None else number(shift, "shift"), "Window shift must be greater than zero.")
    apart = positive(number(stride, "stride"), "Window stride must be greater than zero.")
    drops = bool(drop_remainder)

    def window(elements: Sequence[Leaves], place: int, spec: Callable[[], Any]) -> Any:
        return boxed(made(of_elements([(leaves[place],) for leaves in elements], None, lambda: flatten(spec())[place])))

    def start(run: Pass) -> Blocks:
        form: list[Any] = []

        def every() -> Iterator[Leaves]:
            for structure, leaves in elements_of(parent.start(run)):
                if not form:
                    form.append(structure)
                yield leaves

        for one in ordering.windows(every(), length, step, apart, drops):
            yield Single(form[0], tuple(window(one, place, parent.spec) for place in range(len(one[0]))))

    def count() -> int:
        held = parent.count()
        if held < 0:
            return held
        reach = (length - 1) * apart + 1
        return max(0, (held - reach) // step + 1) if drops else math.ceil(held / step)

    return Recipe(kind="window", start=start, spec=lambda: map_structure(DatasetSpec, parent.spec()), count=count)


def of_elements(elements: Sequence[Leaves], structure: Any, spec: Callable[[], Any]) -> Recipe:
    """Elements that are there already."""

    def start(_: Pass) -> Blocks:
        return (Single(structure, leaves) for leaves in elements)

    return Recipe(kind="elements", start=start, spec=spec, count=lambda: len(elements), is_cheap=True)
