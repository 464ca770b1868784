"""Dataset: a recipe for elements, which a session's iterators follow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.datasets import grouping, ordering, selection, sources
from trainband.compat.tf1.datasets.caching import cached
from trainband.compat.tf1.datasets.elements import (
    Element,
    Elements,
    classes_in,
    common,
    flatten,
    pack,
    shown,
)
from trainband.compat.tf1.datasets.function import Function
from trainband.compat.tf1.datasets.iterator import Iterator
from trainband.compat.tf1.datasets.mapping import Mapping, ThreadedMapping
from trainband.compat.tf1.datasets.options import Options
from trainband.compat.tf1.datasets.prefetching import Prefetching
from trainband.compat.tf1.datasets.reduction import reduced
from trainband.compat.tf1.datasets.run import Input, Run, tensors_of
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import is_tensor

AUTOTUNE = -1
DEFAULT_PREFETCHED = 2
"""How many elements are computed ahead where the script leaves it open."""

Start = Callable[[Run], Elements]


class Dataset:
    """Elements of one structure, one after the other.

    Args:
      structure: of the elements: nested specs.
      start: begins a pass over them.
      parents: the datasets that it takes elements from.
      inputs: what else it uses.
    """

    def __init__(
        self,
        structure: Any,
        start: Start,
        parents: Sequence[Dataset] = (),
        inputs: Sequence[Tensor] = (),
        options: Options | None = None,
    ) -> None:
        self._structure = structure
        self.start = start
        own = [tensor for parent in parents for tensor in parent.inputs]
        self.inputs: tuple[Tensor, ...] = tuple(dict.fromkeys([*own, *inputs]))
        """All tensors whose values must be known before a pass begins."""
        self._options = options or next((parent.options() for parent in parents), Options())

    @property
    def element_spec(self) -> Any:
        """What is known of the elements."""
        return self._structure

    @property
    def output_types(self) -> Any:
        """The dtypes of the elements, nested as these are."""
        return shown(self._structure, "dtype")

    @property
    def output_shapes(self) -> Any:
        """The shapes of the elements, nested as these are."""
        return shown(self._structure, "shape")

    @property
    def output_classes(self) -> Any:
        """What the elements are, nested as these are: tensors and sparse tensors."""
        return classes_in(self._structure)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} shapes: {self.output_shapes}, types: {self.output_types}>"

    # --- sources

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """A dataset of one element."""
        return Dataset(*sources.whole(tensors))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """A dataset of the rows of arrays.

        Raises:
          ValueError: an array is a scalar, or they differ in their number of rows.
        """
        return Dataset(*sources.rows(tensors))

    @staticmethod
    def from_sparse_tensor_slices(sparse_tensor: Any) -> Dataset:
        """A dataset of the rows of a sparse tensor: (indices, values, dense shape)."""
        return Dataset(*sources.rows_of_sparse(sparse_tensor))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Any = None
    ) -> Dataset:
        """A dataset of what a generator yields; `args` are tensors whose values it is called with.

        Raises:
          TypeError: it cannot be called.
        """
        return Dataset(*sources.yielded(generator, output_types, output_shapes, args))

    @staticmethod
    def range(*args: Any) -> Dataset:
        """A dataset of whole numbers: to `stop`, from `start`, by `step`.

        Raises:
          ValueError: there are none or more than three arguments.
        """
        return Dataset(*sources.numbers(*args))

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """The elements of several datasets side by side, as long as all have some."""
        parents: list[Dataset] = flatten(datasets)
        for one in parents:
            if not isinstance(one, Dataset):
                raise TypeError(f"The argument to `Dataset.zip()` must be a nest of datasets, got {one!r}.")
        structure = pack(datasets, [parent.element_spec for parent in parents])

        def start(run: Run) -> Elements:
            together = zip(*(parent.start(run) for parent in parents), strict=False)
            return (tuple(itertools.chain.from_iterable(parts)) for parts in together)

        return Dataset(structure, start, parents)

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: Any = None) -> Dataset:
        """A dataset of the names of files that match a pattern, or several; shuffled unless told otherwise."""
        found = Dataset(*sources.file_names(file_pattern))
        return found if shuffle is False else found.shuffle(1 << 20, seed)

    # --- combinations

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this one, then those of another.

        Raises:
          TypeError: they differ in structure or dtypes.
        """
        structure = common(self._structure, dataset.element_spec)

        def start(run: Run) -> Elements:
            yield from self.start(run)
            yield from dataset.start(run)

        return Dataset(structure, start, [self, dataset])

    def enumerate(self, start: int = 0) -> Dataset:
        """Each element with its number."""
        return Dataset.zip((Dataset.range(start, np.iinfo(np.int64).max), self))

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """What a function of datasets makes of this one.

        Raises:
          TypeError: that is no dataset.
        """
        found = transformation_func(self)
        if not isinstance(found, Dataset):
            raise TypeError("`transformation_func` must return a Dataset.")
        return found

    # --- by functions

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None, deterministic: Any = None) -> Dataset:
        """What a function makes of each element. It is recorded once.

        Args:
          num_parallel_calls: how many threads compute it, where it needs Python.
        """
        del deterministic
        function = self._function(map_func)
        threads = Input.make(1 if num_parallel_calls is None else num_parallel_calls)

        def start(run: Run) -> Elements:
            count = int(threads.of(run))
            elements = self.start(run)
            if count > 1 and not function.program.is_pure:
                return ThreadedMapping(function, run, elements, count)
            return Mapping(function, run, elements)

        return Dataset(function.structure, start, [self], [*function.captured, *threads.tensors])

    def map_with_legacy_function(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Dataset:
        """Like `map`."""
        return self.map(map_func, num_parallel_calls)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a function gives true.

        Raises:
          ValueError: it does not give a truth value.
        """
        function = self._function(predicate, keeps=True)
        found = flatten(function.structure)
        if len(found) != 1 or not found[0].dtype.is_bool or found[0].shape.sizes not in (None, ()):
            raise ValueError(f"`predicate` must return a `tf.bool` scalar tensor, but returns {function.structure!r}.")

        def start(run: Run) -> Elements:
            return (element[1:] for element in Mapping(function, run, self.start(run)) if element[0])

        return Dataset(self._structure, start, [self], function.captured)

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """The elements of the datasets that a function makes of each element, one dataset after the other."""
        return self.interleave(map_func, 1, 1)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: Any = None,
        block_length: Any = 1,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
    ) -> Dataset:
        """The elements of the datasets that a function makes: `block_length` of each of `cycle_length` in turn.

        Raises:
          TypeError: the function does not give datasets.
        """
        del num_parallel_calls, deterministic
        function = self._function(map_func)
        if function.dataset is None:
            raise TypeError("`map_func` must return a `Dataset` object.")
        cycle = Input.make(4 if cycle_length in (None, AUTOTUNE) else cycle_length)
        block = Input.make(1 if block_length is None else block_length)

        def start(run: Run) -> Elements:
            opened = functools.partial(function.opened, run)
            return ordering.interleaved(self.start(run), opened, int(cycle.of(run)), int(block.of(run)))

        used = [*function.captured, *cycle.tensors, *block.tensors]
        return Dataset(function.dataset.element_spec, start, [self], used)

    def reduce(self, initial_state: Any, reduce_func: Callable[..., Any]) -> Any:
        """What is left when a function has taken up one element after the other: of the state and the element."""
        return reduced(self, initial_state, reduce_func, nested)

    def _function(self, function: Callable[..., Any], *, keeps: bool = False) -> Function:
        return Function(function, self._structure, nested, keeps=keeps)

    # --- order and number

    def shuffle(self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None) -> Dataset:
        """Each time a random one of the next `buffer_size` elements.

        Args:
          seed: makes the order the same in every session.
          reshuffle_each_iteration: whether another pass over it has another order, which is the default.
        """
        return Dataset(*selection.shuffled(self, buffer_size, seed, reshuffle_each_iteration))

    def repeat(self, count: Any = None) -> Dataset:
        """The elements again and again, `count` times or without end."""
        return Dataset(*selection.repeated(self, count))

    def take(self, count: Any) -> Dataset:
        """The first `count` elements; all, if it is negative."""
        return Dataset(*selection.first(self, count))

    def skip(self, count: Any) -> Dataset:
        """The elements after the first `count`; none, if it is negative."""
        return Dataset(*selection.rest(self, count))

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Every `num_shards`th element, from that of the number `index`.

        Raises:
          ValueError: the index is not below the number.
        """
        return Dataset(*selection.sharded(self, num_shards, index))

    def prefetch(self, buffer_size: Any = AUTOTUNE) -> Dataset:
        """The same elements, computed by a thread up to `buffer_size` ahead."""
        size = Input.make(AUTOTUNE if buffer_size is None else buffer_size)

        def start(run: Run) -> Elements:
            ahead = int(size.of(run))
            if ahead == 0:
                return self.start(run)
            found = Prefetching(self.start(run), DEFAULT_PREFETCHED if ahead < 0 else ahead)
            run.closes(found)
            return found

        return self._like(start, size)

    def cache(self, filename: Any = "") -> Dataset:
        """The same elements, kept after the first pass: in memory, or in a file."""
        name = Input.make(filename, None if is_tensor(filename) else string)
        specs = flatten(self._structure)

        def start(run: Run) -> Elements:
            path = bytes(name.of(run)[()]).decode()
            return cached(lambda: self.start(run), path, run.state(start, list), specs)

        return self._like(start, name)

    # --- several as one

    def batch(self, batch_size: Any, drop_remainder: Any = False, num_parallel_calls: Any = None) -> Dataset:
        """Several elements at a time, stacked along a new first axis.

        Args:
          drop_remainder: whether a last one that is smaller is left out.
        """
        del num_parallel_calls
        return Dataset(*grouping.batched(self, batch_size, drop_remainder))

    def padded_batch(
        self, batch_size: Any, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: Any = False
    ) -> Dataset:
        """Several elements at a time, each part padded to `padded_shapes`, or to the largest where a size is unknown.

        Args:
          padding_values: what is put there; zeros and empty texts by default.
        """
        return Dataset(*grouping.padded(self, batch_size, padded_shapes, padding_values, drop_remainder))

    def unbatch(self) -> Dataset:
        """The rows of each element."""
        return Dataset(*grouping.unbatched(self))

    def window(self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: Any = False) -> Dataset:
        """Datasets of `size` elements each, which are `stride` apart; each begins `shift` after the one before."""
        return Dataset(*grouping.windows(self, size, shift, stride, drop_remainder))

    # --- options and iterators

    def options(self) -> Options:
        """What was set by `with_options`."""
        return self._options

    def with_options(self, options: Options) -> Dataset:
        """The same elements; options change nothing here."""
        return Dataset(self._structure, self.start, [self], options=options)

    def make_one_shot_iterator(self) -> Iterator:
        """An iterator that begins by itself, and goes over the elements once in each session.

        Raises:
          ValueError: the dataset needs a placeholder.
        """
        return Iterator.one_shot(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """An iterator that begins whenever its initializer is run."""
        del shared_name
        return Iterator.initializable(self)

    def __iter__(self) -> Any:
        raise RuntimeError("dataset.__iter__() is only supported when eager execution is enabled: make an iterator.")

    def __len__(self) -> int:
        raise TypeError("A dataset has no length while it is recorded.")

    def __bool__(self) -> bool:
        return True

    def _like(self, start: Start, *inputs: Input) -> Dataset:
        return Dataset(self._structure, start, [self], tensors_of(inputs))


def nested(tensor: Tensor, structure: Any) -> Dataset:
    """The dataset for which a tensor stands: its value is a list of elements."""
    return Dataset(structure, lambda run: iter(np.asarray(run.values[tensor])[()]), inputs=[tensor])


def of_elements(structure: Any, elements: Iterable[Element]) -> Dataset:
    """A dataset of elements that are there."""
    return Dataset(structure, lambda _: iter(elements))


def types_of(dataset: Any) -> Any:
    """The dtypes of a dataset's or iterator's elements."""
    return dataset.output_types


def shapes_of(dataset: Any) -> Any:
    """The shapes of a dataset's or iterator's elements."""
    return dataset.output_shapes


def classes_of(dataset: Any) -> Any:
    """What a dataset's or iterator's elements are."""
    return dataset.output_classes
