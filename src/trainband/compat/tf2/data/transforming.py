"""The transformations of datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64
from trainband.compat.tf2.data import batching, combining, keeping, mapping, selecting, shuffling, sources
from trainband.compat.tf2.data.elements import Elements
from trainband.compat.tf2.data.function import ElementFunction
from trainband.compat.tf2.data.options import SHARD_HINT
from trainband.compat.tf2.data.passes import Recipe
from trainband.compat.tf2.data.resampling import rejection_resampled
from trainband.compat.tf2.data.structure import flatten
from trainband.compat.tf2.data.values import number


class Transforming(Elements):
    """A dataset, and what can be made of it."""

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool = False,
        name: str | None = None,
    ) -> Any:
        """What a function gives for each element."""
        del deterministic, synchronous, use_unbounded_threadpool, name
        return self.then(mapping.mapped, ElementFunction(map_func), num_parallel_calls)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Any:
        """The elements for which a function gives true."""
        del name
        return self.then(selecting.filtered, ElementFunction(predicate))

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Any:
        """The elements of the datasets that a function gives."""
        del name
        return self._opening(combining.flat_mapped, ElementFunction(map_func))

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: Any = None,
        block_length: Any = None,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Any:
        """Elements of `cycle_length` of the datasets that a function gives, `block_length` in a row of each."""
        del num_parallel_calls, deterministic, name
        return self._opening(combining.interleaving, ElementFunction(map_func), cycle_length, block_length)

    def _opening(self, make: Callable[..., Recipe], function: ElementFunction, *arguments: Any) -> Any:
        found = self.then(make, function, *arguments)
        found.function = function
        return found

    def batch(
        self,
        batch_size: Any,
        drop_remainder: Any = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Any:
        """Several elements at a time, stacked along a new first axis.

        Raises:
          InvalidArgumentError: the size is not positive; in a pass, elements differ in shape.
        """
        del num_parallel_calls, deterministic, name
        return self.then(batching.batched, batch_size, drop_remainder)

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: Any = False,
        name: str | None = None,
    ) -> Any:
        """Several elements at a time, each part padded at its end to a common shape."""
        del name
        return self.then(batching.padded, batch_size, padded_shapes, padding_values, drop_remainder)

    def unbatch(self, name: str | None = None) -> Any:
        """The rows of each element."""
        del name
        return self.then(batching.unbatched)

    def rebatch(self, batch_size: Any, drop_remainder: Any = False, name: str | None = None) -> Any:
        """The rows of all elements, in batches of another size, or of several sizes in turn."""
        del name
        return self.then(batching.rebatched, batch_size, drop_remainder)

    def window(
        self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: Any = False, name: str | None = None
    ) -> Any:
        """Datasets of `size` elements each, which are `stride` apart; each begins `shift` after the one before."""
        del name
        return self.then(batching.windows, size, shift, stride, drop_remainder, type(self))

    def shuffle(
        self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: Any = None, name: str | None = None
    ) -> Any:
        """Each time a random one of the next `buffer_size` elements."""
        del name
        return self.then(shuffling.shuffled, buffer_size, seed, reshuffle_each_iteration)

    def repeat(self, count: Any = None, name: str | None = None) -> Any:
        """The elements again and again: so many times, or without end where that is -1 or left out."""
        del name
        return self.then(selecting.repeated, count)

    def shard(self, num_shards: Any, index: Any, name: str | None = None) -> Any:
        """Each `num_shards`-th element, from the one with number `index` on."""
        del name
        if isinstance(num_shards, int) and num_shards == SHARD_HINT:
            return self.then(_hint)
        return self.then(selecting.sharded, num_shards, index)

    def take(self, count: Any, name: str | None = None) -> Any:
        """The first elements; all where the number is -1."""
        del name
        return self.then(selecting.taken, count)

    def skip(self, count: Any, name: str | None = None) -> Any:
        """The elements after the first ones; none where the number is -1."""
        del name
        return self.then(selecting.skipped, count)

    def cache(self, filename: Any = "", name: str | None = None) -> Any:
        """The elements of the first whole pass, kept in memory or in a file."""
        del name
        return self.then(keeping.cached, filename)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Any:
        """The same elements, computed ahead."""
        del name
        return self.then(keeping.prefetched, buffer_size)

    def enumerate(self, start: Any = 0, name: str | None = None) -> Any:
        """Pairs of a number and an element."""
        del name
        first = number(start, "start")
        numbers = type(self)(sources.numbers(first, np.iinfo(np.int64).max, output_type=int64))
        return numbers.then(_paired, others=[self])

    def concatenate(self, dataset: Elements, name: str | None = None) -> Any:
        """These elements, then those of another dataset."""
        del name
        return self.then(combining.concatenated, others=[dataset])

    def apply(self, transformation_func: Callable[[Any], Any], name: str | None = None) -> Any:
        """What a function makes of the dataset.

        Raises:
          TypeError: it is no dataset.
        """
        del name
        found = transformation_func(self)
        if not isinstance(found, Elements):
            raise TypeError(f"`transformation_func` must return a `tf.data.Dataset` object. Got {type(found)}.")
        return found

    def scan(self, initial_state: Any, scan_func: Callable[..., Any], name: str | None = None) -> Any:
        """What a function of a state and an element gives beside the next state."""
        del name
        return self.then(mapping.scanned, initial_state, ElementFunction(scan_func))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: Any = None,
        name: Any = None,
    ) -> Any:
        """(class, element) of the elements that are kept so that the classes are distributed as wanted.

        Args:
          class_func: of an element, its class.
          target_dist: the wanted share of each class.
          initial_dist: the share of each class in this dataset; estimated from the elements so far if left out.
        """
        del name
        return rejection_resampled(self, class_func, target_dist, initial_dist, seed)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Any:
        """The elements before the first for which a function gives false."""
        del name
        return self.then(selecting.taken_while, ElementFunction(predicate))

    def unique(self, name: str | None = None) -> Any:
        """Each element once."""
        del name
        return self.then(selecting.unique)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Any], Any],
        window_size: Any = None,
        window_size_func: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """What a function makes of some elements with the same key.

        Raises:
          ValueError: neither or both of the size and the function for it are given.
        """
        del name
        if (window_size is None) == (window_size_func is None):
            raise ValueError("Must pass either `window_size` or `window_size_func`, and not both.")

        def size(key: int) -> int:
            return number(window_size if window_size_func is None else window_size_func(key), "window_size")

        return self.then(combining.grouped_by, ElementFunction(key_func), reduce_func, size, type(self))


def _hint(parent: Recipe) -> Recipe:
    return Recipe(kind="shard_hint", start=parent.start, spec=parent.spec, count=parent.count)


def _paired(*parents: Recipe) -> Recipe:
    return combining.zipped((None,) * len(parents), parents)


def datasets_in(structure: Any) -> Sequence[Any]:
    """The datasets in a structure.

    Raises:
      TypeError: there is something else.
    """
    found = flatten(structure)
    for one in found:
        if not isinstance(one, Elements):
            raise TypeError(f"Invalid input to `zip`. Inputs are expected to be (nested) structures of "
                            f"`tf.data.Dataset` objects. Encountered object of type {type(one)}.")  # fmt: skip
    return found
