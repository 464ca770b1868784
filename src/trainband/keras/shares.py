"""Which part of the data each worker trains on: Keras's data adapters, cut for the workers of a job."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.keras.inside import (
    ArrayDataAdapter,
    DataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    can_convert_arrays,
    get_data_adapter,
    get_random_seed,
    keras,
)
from trainband.runtime.overrides import override
from trainband.strategies.base import Strategy

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A worker's place among those that train.

    Attributes:
      workers: how many there are.
      index: which of them this is, from 0.
      together: how many workers' gradients make one update.
      devices: which must divide each worker's batch; 1 where any size will do.
      alike: whether all workers' batches of an update must have one shape.
      job: the same words on all of them, for a shuffling that all agree on.
    """

    workers: int = 1
    index: int = 0
    together: int = 1
    devices: int = 1
    alike: bool = False
    job: str = ""

    @classmethod
    def of(cls, strategy: Strategy) -> Share:
        """The share of this task, under a strategy."""
        cluster, refuses = strategy.cluster, strategy.remainder == "refuse"
        if cluster is None or not cluster.task.trains:
            return cls(devices=strategy.num_replicas if refuses else 1)
        workers = len(cluster.spec.workers)
        return cls(
            workers=workers,
            index=cluster.training_index % workers,
            together=strategy.gradients_per_update,
            devices=max(1, strategy.num_replicas // workers) if refuses else 1,
            alike=not cluster.spec.ps,
            job=",".join(map(str, cluster.spec.workers)),
        )

    @property
    def is_all(self) -> bool:
        """Whether there is nothing to cut."""
        return self.workers == 1

    def updates(self, examples: int, batch_size: int) -> int:
        """Updates of the job in one pass over so many examples."""
        whole, rest = divmod(examples, batch_size * self.together)
        return whole + (rest >= (self.workers if self.alike else 1))

    def cut(self, order: Indices, batch_size: int) -> Iterator[Indices]:
        """The worker's batches of one pass over the examples in this order; together, the workers' are the whole.

        Where all make each update together, it is made of `workers * batch_size` examples that follow one another,
        each worker taking an equal part of them, so that it is the same update as that of one device on all of them.
        Where their batches must have one shape, up to `workers - 1` examples are left over at the end.
        """
        if self.together < self.workers:
            for start in range(self.index * batch_size, len(order), self.workers * batch_size):
                yield order[start : start + batch_size]
            return
        for start in range(0, len(order), self.workers * batch_size):
            whole = order[start : start + self.workers * batch_size]
            if self.alike or len(whole) == self.workers * batch_size:
                size = len(whole) // self.workers
                mine = whole[self.index * size : (self.index + 1) * size]
            else:
                mine = np.array_split(whole, self.workers)[self.index]
            if len(mine):
                yield mine

    def check_sizes(self, examples: int, batch_size: int) -> None:
        """Sees before the first epoch whether the last batch of it would be refused.

        Raises:
          DataError: the devices do not divide one of the batches, and must.
        """
        if self.devices == 1:
            return
        sizes = {len(mine) for mine in self.cut(np.arange(examples), batch_size)}
        refused = sorted(size for size in sizes if size % self.devices)
        if refused:
            raise DataError(
                f"fit: {examples} examples in batches of {batch_size} make batches of "
                f"{' and '.join(map(str, refused))} examples, which {self.devices} devices do not divide: leave out "
                'remainder="refuse" of the strategy, or give a number of examples and a batch_size that are multiples '
                f"of {self.devices}{f' * {self.workers}' if self.workers > 1 else ''}."
            )


class Endless(DataAdapter):  # type: ignore[misc]
    """Another adapter's batches, again and again: a fast worker of a job needs more than its share in an epoch.

    Args:
      adapter: whose.
      updates: of the job in an epoch, which ends it; `None` where that is not known.
      goes_on: whether an epoch begins where the one before ended, as `steps_per_epoch` has it.
    """

    def __init__(self, adapter: Any, updates: int | None, *, goes_on: bool) -> None:
        self._adapter = adapter
        self._updates = updates
        self._goes_on = goes_on

    @override
    def get_numpy_iterator(self) -> Iterator[Any]:
        return self._again(self._adapter.get_numpy_iterator)

    @override
    def get_jax_iterator(self) -> Iterator[Any]:
        return self._again(self._adapter.get_jax_iterator)

    def _again(self, one_pass: Callable[[], Any]) -> Iterator[Any]:
        while True:
            empty = True
            for batch in one_pass():
                empty = False
                yield batch
            if empty or self._updates is None:
                return

    @property
    @override
    def num_batches(self) -> int | None:
        """Updates of the job; without it, Keras reads on in one pass from epoch to epoch."""
        return None if self._goes_on else self._updates

    @property
    @override
    def batch_size(self) -> int | None:
        size: int | None = self._adapter.batch_size
        return size

    @property
    @override
    def has_partial_batch(self) -> bool:
        return False

    @property
    @override
    def partial_batch_size(self) -> None:
        pass

    @override
    def on_epoch_begin(self) -> None:
        self._adapter.on_epoch_begin()

    @override
    def on_epoch_end(self) -> None:
        self._adapter.on_epoch_end()


class ArrayShare(ArrayDataAdapter):  # type: ignore[misc]
    """One pass over this worker's part of arrays, in batches that are cut only for it."""

    def __init__(self, share: Share, *arrays: Any, **settings: Any) -> None:
        super().__init__(*arrays, **settings)
        self._share = share
        self._passes = 0
        if self._num_samples < share.workers:
            raise DataError(
                f"fit: {self._num_samples} examples are too few for {share.workers} workers: every one needs an "
                "example for each update."
            )

    @property
    def examples(self) -> int:
        """Of all workers together, in one pass."""
        count: int = self._num_samples
        return count

    @property
    def updates(self) -> int:
        """Of the job, in one pass."""
        return self._share.updates(self._num_samples, self._batch_size)

    def _get_iterator(self, slice_and_convert_fn: Callable[..., Any], inputs: Any) -> Iterator[Any]:
        order = np.arange(self._num_samples)
        random = self._random()
        if self._shuffle and self._shuffle != "batch":
            order = random.permutation(self._num_samples)
        for indices in self._share.cut(order, self._batch_size):
            mine = random.permutation(indices) if self._shuffle == "batch" else indices
            yield keras.tree.map_structure(partial(slice_and_convert_fn, indices=mine), inputs)

    def _random(self) -> Any:
        """Where the order comes from: all workers must come to the same one."""
        self._passes += 1
        if get_random_seed() is not None or self._share.workers == 1:
            return np.random
        return np.random.RandomState(zlib.crc32(f"{self._share.job} {self._passes}".encode()))


class PyDatasetShare(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
    """Every so many'th batch of another `PyDataset`.

    Where all workers' batches must have one shape, a last one that is smaller is left out.
    """

    def __init__(self, dataset: Any, share: Share) -> None:
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset = dataset
        self._share = share
        count = dataset.num_batches
        is_whole = not share.alike or count % share.workers or _rows_of(dataset[count - 1]) == _rows_of(dataset[0])
        self._left_out = 0 if is_whole else 1

    @property
    def of_all(self) -> int:
        """Batches of all workers together."""
        count: int = self._dataset.num_batches - self._left_out
        return count

    @property
    @override
    def num_batches(self) -> int | None:
        return self.of_all // self._share.workers

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index * self._share.workers + self._share.index]

    @override
    def on_epoch_begin(self) -> None:
        self._dataset.on_epoch_begin()

    @override
    def on_epoch_end(self) -> None:
        self._dataset.on_epoch_end()


def _rows_of(batch: Any) -> int:
    rows: int = keras.tree.flatten(batch)[0].shape[0]
    return rows


def adapter_for(
    share: Share,
    x: Any,
    y: Any,
    *,
    sample_weight: Any,
    batch_size: int | None,
    steps_per_epoch: int | None,
    shuffle: Any,
    class_weight: Any,
) -> Any:
    """Keras's data adapter for what `fit` was given, for this worker's part of it.

    Arrays and `PyDataset`s are cut. What can only be read from beginning to end (generators, `tf.data`, loaders) is
    read whole by every worker; an epoch is then as long as one of them.

    Raises:
      DataError: there is less data than workers, or a batch would be refused later.
    """
    are_arrays = can_convert_arrays((x, y, sample_weight))
    settings = {"class_weight": class_weight, "shuffle": shuffle, "batch_size": batch_size}
    if not share.is_all and are_arrays:
        if not batch_size and steps_per_epoch:
            examples = keras.tree.flatten(x)[0].shape[0]
            settings["batch_size"] = math.ceil(examples / (steps_per_epoch * share.together))
        adapter = ArrayShare(share, x, y, sample_weight=sample_weight, steps=steps_per_epoch, **settings)
        share.check_sizes(adapter.examples, adapter.batch_size)
        return Endless(adapter, steps_per_epoch or adapter.updates, goes_on=bool(steps_per_epoch))
    if isinstance(x, keras.utils.PyDataset) and share.workers > 1 and x.num_batches:
        part = PyDatasetShare(x, share)
        if part.of_all < share.workers:
            raise DataError(
                f"fit: a PyDataset of {x.num_batches} batches cannot be shared by {share.workers} workers"
                f"{', whose batches must have one size' if share.alike else ''}."
            )
        mine = PyDatasetAdapter(part, class_weight=class_weight, shuffle=shuffle)
        updates = steps_per_epoch or max(1, part.of_all // share.together)
        return Endless(mine, updates, goes_on=bool(steps_per_epoch))
    whole = get_data_adapter(x=x, y=y, sample_weight=sample_weight, steps_per_epoch=steps_per_epoch, **settings)
    if are_arrays:
        share.check_sizes(keras.tree.flatten(x)[0].shape[0], whole.batch_size)
    if share.workers == 1 or isinstance(whole, GeneratorDataAdapter) or isinstance(x, GeneratorType):
        return whole
    return Endless(whole, steps_per_epoch or whole.num_batches, goes_on=bool(steps_per_epoch))
