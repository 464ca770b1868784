"""Where elements come from: arrays, generators, numbers, names of files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype, int64, string
from trainband.compat.tf1.datasets.elements import Spec
from trainband.compat.tf1.datasets.file_names import matching
from trainband.compat.tf1.datasets.generating import generated
from trainband.compat.tf2.data.blocks import Block, Blocks, Single
from trainband.compat.tf2.data.passes import INFINITE, UNKNOWN, Pass, Recipe
from trainband.compat.tf2.data.sparse_tensor import rows_of_sparse
from trainband.compat.tf2.data.specs import spec_of_array, specs_of, without_first
from trainband.compat.tf2.data.structure import flatten, map_structure, pack, sparse_places, template
from trainband.compat.tf2.data.values import array_from, number, tensor_of
from trainband.compat.tf2.eager.function import TensorSpec
from trainband.compat.tf2.eager.shapes import TensorShape


def whole(tensors: Any) -> Recipe:
    """One element."""
    arrays = map_structure(array_from, tensors)
    structure, leaves = template(arrays), tuple(flatten(arrays))

    def start(_: Pass) -> Blocks:
        yield Single(structure, leaves)

    return Recipe(
        kind="tensors",
        start=start,
        spec=lambda: map_structure(spec_of_array, arrays),
        count=lambda: 1,
        is_cheap=True,
    )


def rows(tensors: Any) -> Recipe:
    """The rows of arrays.

    Raises:
      ValueError: an array is a scalar, or they differ in their number of rows.
    """
    arrays = map_structure(array_from, tensors)
    if sparse_places(arrays):
        return rows_of_sparse(arrays)
    leaves = [_kept(one) for one in flatten(arrays)]
    if not leaves:
        raise ValueError("Invalid `tensors`. `tensors` cannot be empty.")
    for leaf in leaves:
        if not leaf.ndim:
            raise ValueError("Unbatching a tensor is only supported for rank >= 1")
    counts = sorted({len(leaf) for leaf in leaves})
    if len(counts) > 1:
        raise ValueError(f"Dimensions {' and '.join(map(str, counts))} are not compatible")
    structure, columns = template(arrays), tuple(leaves)

    def start(_: Pass) -> Blocks:
        if counts[0]:
            yield Block(structure, columns, lasting=True)

    return Recipe(
        kind="tensor_slices",
        start=start,
        spec=lambda: without_first(map_structure(spec_of_array, arrays)),
        count=lambda: counts[0],
        is_cheap=True,
    )


def _kept(array: Any) -> Any:
    """A copy that nobody changes: the script may go on with its own."""
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def numbers(*args: Any, output_type: Any = int64) -> Recipe:
    """Whole numbers: to `stop`, from `start`, by `step`.

    Raises:
      ValueError: there are none or more than three arguments.
    """
    given = [number(one, "range") for one in args]
    if not 1 <= len(given) <= 3:
        raise ValueError(f"Invalid `args`. The length of `args` should be between 1 and 3 but was {len(given)}.")
    first, stop, step = (0, given[0], 1) if len(given) == 1 else (*given, 1)[:3]
    dtype = as_dtype(output_type)
    count = len(range(first, stop, step))
    at_once = 1 << 16

    def start(_: Pass) -> Blocks:
        for begin in range(0, count, at_once):
            places = np.arange(begin, min(count, begin + at_once), dtype=np.int64)
            yield Block(None, ((first + places * step).astype(dtype.numpy),))

    return Recipe(kind="range", start=start, spec=lambda: TensorSpec([], dtype), count=lambda: count, is_cheap=True)


def counted(start: Any = 0, step: Any = 1, dtype: Any = int64) -> Recipe:
    """Whole numbers without end."""
    first, apart, kind = number(start, "start"), number(step, "step"), as_dtype(dtype)

    def begin(_: Pass) -> Blocks:
        place = first
        while True:
            yield Single(None, (np.array(place, kind.numpy),))
            place += apart

    return Recipe(kind="counter", start=begin, spec=lambda: TensorSpec([], kind), count=lambda: INFINITE)


def drawn(seed: Any) -> Recipe:
    """Random whole numbers without end."""

    def start(_: Pass) -> Blocks:
        random = np.random.default_rng(seed)
        while True:
            yield Block(None, (random.integers(0, 2**32, 256, dtype=np.int64),))

    return Recipe(kind="random", start=start, spec=lambda: TensorSpec([], int64), count=lambda: INFINITE)


def yielded(
    generator: Callable[..., Any], output_types: Any, output_shapes: Any, args: Any, output_signature: Any
) -> Recipe:
    """What a generator yields.

    Raises:
      TypeError: it cannot be called, or nothing says what it yields.
    """
    if not callable(generator):
        raise TypeError("`generator` must be a Python callable.")
    if output_types is not None and output_signature is not None:
        raise TypeError("The `output_types` argument can not be used together with the `output_signature` argument.")
    if output_types is None and output_signature is None:
        raise TypeError("Either the `output_types` or the `output_signature` argument must be used.")
    spec = specs_of(output_types, output_shapes) if output_signature is None else output_signature
    for leaf in flatten(spec):
        if not isinstance(leaf, TensorSpec):
            raise TypeError(f"`output_signature` must contain objects that are `tf.TypeSpec`, got {leaf!r}.")
    known = pack(spec, [Spec(leaf.dtype, leaf.shape) for leaf in flatten(spec)])
    form = template(spec)
    given = [np.asarray(array_from(one)) for one in args or ()]

    def start(_: Pass) -> Blocks:
        values = generator(*(tensor_of(one).numpy() for one in given))
        return (Single(form, element) for element in generated(iter(values), known))

    return Recipe(kind="generator", start=start, spec=lambda: spec, count=lambda: UNKNOWN)


def file_names(pattern: Any) -> Recipe:
    """The names of the files that match a pattern, or one of several, in order.

    Raises:
      NotFoundError (when it begins): there are none.
    """
    patterns = array_from(pattern)

    def start(_: Pass) -> Blocks:
        names = np.array([leaf.item() for (leaf,) in matching(patterns)], object)
        yield Block(None, (names,))

    return Recipe(
        kind="list_files",
        start=start,
        spec=lambda: TensorSpec(TensorShape([]), string),
        count=lambda: sum(1 for _ in matching(patterns)),
    )
