"""Transformations for `Dataset.apply`, as `tf.contrib.data` and `tf.data.experimental` have them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.datasets import ordering
from trainband.compat.tf1.datasets.dataset import AUTOTUNE, Dataset, nested, of_elements
from trainband.compat.tf1.datasets.elements import (
    Element,
    Elements,
    Spec,
    along,
    boxed,
    common,
    flatten,
    mapped,
    pack,
)
from trainband.compat.tf1.datasets.function import Function
from trainband.compat.tf1.datasets.reduction import single
from trainband.compat.tf1.datasets.run import Input, Run
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OpError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.keys import combined_seed

Transformation = Callable[[Dataset], Dataset]


def shuffle_and_repeat(buffer_size: Any, count: Any = None, seed: Any = None) -> Transformation:
    """Shuffles, then repeats."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """Maps, then batches."""
    calls = num_parallel_batches if num_parallel_calls is None else num_parallel_calls
    return lambda dataset: dataset.map(map_func, calls).batch(batch_size, drop_remainder)


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """Batches, without a last one that is smaller."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size: Any, padded_shapes: Any, padding_values: Any = None) -> Transformation:
    """Pads and batches, without a last one that is smaller."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: Any,
    block_length: Any = 1,
    sloppy: Any = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Transformation:
    """Interleaves, always in the same order."""
    del sloppy, buffer_output_elements, prefetch_input_elements
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def unbatch() -> Transformation:
    """Takes elements apart into their rows."""
    return lambda dataset: dataset.unbatch()


def enumerate_dataset(start: int = 0) -> Transformation:
    """Numbers the elements."""
    return lambda dataset: dataset.enumerate(start)


def ignore_errors(log_warning: bool = False) -> Transformation:
    """Leaves out elements that raise an error."""
    del log_warning

    def apply(dataset: Dataset) -> Dataset:
        def start(run: Run) -> Elements:
            elements = dataset.start(run)
            while True:
                try:
                    element = next(elements)
                except StopIteration:
                    return
                except OpError:
                    continue
                yield element

        return Dataset(dataset.element_spec, start, [dataset])

    return apply


def prefetch_to_device(device: str, buffer_size: Any = None) -> Transformation:
    """Computes elements ahead."""
    del device
    return lambda dataset: dataset.prefetch(AUTOTUNE if buffer_size is None else buffer_size)


def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """Changes nothing: a run takes what it needs to its device."""
    del target_device, source_device
    return lambda dataset: dataset


def assert_element_shape(expected_shapes: Any) -> Transformation:
    """Declares the shapes of the elements, which are checked."""

    def apply(dataset: Dataset) -> Dataset:
        structure = dataset.element_spec
        specs = flatten(structure)
        shapes = [
            spec.shape.merge_with(TensorShape(shape))
            for spec, shape in zip(specs, along(structure, expected_shapes), strict=True)
        ]

        def start(run: Run) -> Elements:
            for element in dataset.start(run):
                for leaf, shape in zip(element, shapes, strict=True):
                    if not shape.is_compatible_with(leaf.shape):
                        raise InvalidArgumentError(
                            None, None, f"An element of shape {leaf.shape} came where {shape} was expected."
                        )
                yield element

        known = [Spec(spec.dtype, shape) for spec, shape in zip(specs, shapes, strict=True)]
        return Dataset(pack(structure, known), start, [dataset])

    return apply


def scan(initial_state: Any, scan_func: Callable[..., Any]) -> Transformation:
    """A function of a state and an element makes the next state, and the element that comes out."""

    def apply(dataset: Dataset) -> Dataset:
        first = [Input.make(leaf) for leaf in flatten(initial_state)]
        state = pack(initial_state, [part.spec for part in first])
        function = Function(scan_func, (state, dataset.element_spec), nested)
        if not isinstance(function.structure, tuple) or len(function.structure) != 2:
            raise TypeError("The scan function must return a pair comprising the new state and the output value.")
        after, output = function.structure
        common(state, after)

        def start(run: Run) -> Elements:
            current = tuple(part.of(run) for part in first)
            for element in dataset.start(run):
                found = function.results(run, (*current, *element))
                current = found[: len(first)]
                yield found[len(first) :]

        inputs = [tensor for part in first for tensor in part.tensors]
        return Dataset(output, start, [dataset], [*inputs, *function.captured])

    return apply


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements before the first for which a function gives false."""

    def apply(dataset: Dataset) -> Dataset:
        function = Function(predicate, dataset.element_spec, nested)

        def start(run: Run) -> Elements:
            for element in dataset.start(run):
                if not function.results(run, element)[0]:
                    return
                yield element

        return Dataset(dataset.element_spec, start, [dataset], function.captured)

    return apply


def unique() -> Transformation:
    """Each element only the first time that it comes."""

    def apply(dataset: Dataset) -> Dataset:
        def start(run: Run) -> Elements:
            seen: set[Any] = set()
            for element in dataset.start(run):
                key = tuple(tuple(np.ravel(leaf).tolist()) for leaf in element)
                if key not in seen:
                    seen.add(key)
                    yield element

        return Dataset(dataset.element_spec, start, [dataset])

    return apply


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[..., Dataset],
    window_size: Any = None,
    window_size_func: Callable[..., Any] | None = None,
) -> Transformation:
    """What `reduce_func(key, dataset)` makes of each `window_size` elements of one key.

    Raises:
      ValueError: the size and the function that gives it are both given, or neither.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func, but not both.")

    def apply(dataset: Dataset) -> Dataset:
        structure = dataset.element_spec
        scalar = Spec(int64, TensorShape([]))
        key = Function(key_func, structure, nested)
        reduce = Function(reduce_func, (scalar, Spec(string, TensorShape([]), structure)), nested)
        if reduce.dataset is None:
            raise TypeError("`reduce_func` must return a `Dataset` object.")
        size = None if window_size_func is None else Function(window_size_func, scalar, nested)
        fixed = Input.make(0 if window_size is None else window_size)

        def start(run: Run) -> Elements:
            def size_of(number: int) -> int:
                return int(fixed.of(run)) if size is None else int(size.results(run, (np.int64(number),))[0])

            return ordering.grouped(
                dataset.start(run),
                lambda element: int(key.results(run, element)[0]),
                size_of,
                lambda number, group: reduce.opened(run, (np.int64(number), boxed(group))),
            )

        used = [*key.captured, *reduce.captured, *fixed.tensors, *(size.captured if size else ())]
        return Dataset(reduce.dataset.element_spec, start, [dataset], used)

    return apply


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """Batches elements of similar length, padded.

    Args:
      element_length_func: the length of an element.
      bucket_boundaries: lengths at which the next bucket begins.
      bucket_batch_sizes: one more than the boundaries.
      pad_to_bucket_boundary: pads to the longest that a bucket can have; none may be longer than all boundaries.

    Raises:
      ValueError: there is not one batch size more than boundaries.
    """
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")

    def apply(dataset: Dataset) -> Dataset:
        structure = dataset.element_spec
        length = Function(element_length_func, structure, nested)

        def batched(elements: Dataset, bucket: int) -> Dataset:
            size = bucket_batch_sizes[bucket]
            if no_padding:
                return elements.batch(size, drop_remainder)
            shapes = dataset.output_shapes if padded_shapes is None else padded_shapes
            if pad_to_bucket_boundary:
                if bucket == len(bucket_boundaries):
                    raise InvalidArgumentError(
                        None,
                        None,
                        "When pad_to_bucket_boundary=True, elements must have length < max(bucket_boundaries).",
                    )
                most = bucket_boundaries[bucket] - 1
                sizes = [TensorShape(one).sizes for one in along(structure, shapes)]
                filled = [None if one is None else [most if n is None else n for n in one] for one in sizes]
                shapes = pack(structure, [TensorShape(one) for one in filled])
            return elements.padded_batch(size, shapes, padding_values, drop_remainder)

        def start(run: Run) -> Elements:
            def bucket_of(element: Element) -> int:
                return int(np.searchsorted(bucket_boundaries, int(length.results(run, element)[0]), side="right"))

            return ordering.grouped(
                dataset.start(run),
                bucket_of,
                lambda bucket: bucket_batch_sizes[bucket],
                lambda bucket, group: batched(of_elements(structure, group), bucket).start(run),
            )

        shape_of = batched(dataset, 0).element_spec
        if not drop_remainder or len(set(bucket_batch_sizes)) > 1 or pad_to_bucket_boundary:
            shape_of = functools.reduce(
                common, [batched(dataset, i).element_spec for i in range(len(bucket_boundaries))], shape_of
            )
        return Dataset(shape_of, start, [dataset], length.captured)

    return apply


def dense_to_sparse_batch(batch_size: Any, row_shape: Any) -> Transformation:
    """Not supported.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(f"dense_to_sparse_batch({batch_size}, {row_shape}): use padded_batch.")


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Any = None, seed: Any = None, stop_on_empty_dataset: bool = False
) -> Dataset:
    """Each time the next element of one of several datasets, by chance.

    Args:
      weights: how probable each is; a tensor, numbers, or a dataset of such. Equal by default.
      stop_on_empty_dataset: ends with the first that ends, rather than with the last.
    """
    count = len(datasets)
    chances = weights if isinstance(weights, Dataset) else None
    fixed = Input.make(np.full(count, 1 / count) if weights is None or chances is not None else weights)
    graph = get_default_graph()
    combined = combined_seed(graph.seed, seed, len(graph.operations))
    structure = functools.reduce(common, [dataset.element_spec for dataset in datasets])

    def start(run: Run) -> Elements:
        random = np.random.default_rng(combined)
        sources = [dataset.start(run) for dataset in datasets]
        open_ = np.ones(count, bool)
        given = None if chances is None else chances.start(run)
        while open_.any():
            current = np.asarray(fixed.of(run) if given is None else next(given)[0], np.float64) * open_
            if current.sum() <= 0:
                return
            place = int(random.choice(count, p=current / current.sum()))
            element = next(sources[place], None)
            if element is not None:
                yield element
            elif stop_on_empty_dataset:
                return
            else:
                open_[place] = False

    return Dataset(structure, start, [*datasets, *([] if chances is None else [chances])], fixed.tensors)


def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = False
) -> Dataset:
    """The next element of the dataset whose number comes next; of one that has ended, none."""
    structure = functools.reduce(common, [dataset.element_spec for dataset in datasets])

    def start(run: Run) -> Elements:
        sources = [dataset.start(run) for dataset in datasets]
        for (place,) in choice_dataset.start(run):
            element = next(sources[int(place)], None)
            if element is not None:
                yield element
            elif stop_on_empty_dataset:
                return

    return Dataset(structure, start, [*datasets, choice_dataset])


def Counter(start: int = 0, step: int = 1, dtype: Any = int64) -> Dataset:  # noqa: N802
    """Numbers without end."""
    numbers = Dataset.range(start, np.iinfo(np.int64).max if step > 0 else np.iinfo(np.int64).min, step)
    if dtype == int64:
        return numbers
    changed = mapped(lambda spec: Spec(dtype, spec.shape), numbers.element_spec)
    return Dataset(changed, lambda run: ((dtype.numpy.type(one),) for (one,) in numbers.start(run)), [numbers])


def get_single_element(dataset: Dataset) -> Any:
    """The only element of a dataset, as tensors.

    Raises:
      InvalidArgumentError: in a run: there is none, or more than one.
    """
    return single(dataset)
