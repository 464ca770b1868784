"""Each worker's part of the data: Keras's data adapters, split among the workers of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.keras.keras_internals import (
    ArrayDataAdapter,
    DataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    can_convert_arrays,
    get_data_adapter,
    keras,
)
from trainband.runtime.overrides import override
from trainband.strategies.base import Strategy

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A worker's place among the training workers.

    Attributes:
      workers: their number.
      index: of this one, from 0.
      together: how many workers' gradients make one update.
      devices: must divide each worker's batch; 1 if any size will do.
      alike: whether all workers' batches of an update must have the same shape.
    """

    workers: int = 1
    index: int = 0
    together: int = 1
    devices: int = 1
    alike: bool = False

    @classmethod
    def of(cls, strategy: Strategy) -> Share:
        """Returns the share of this task under a strategy."""
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
        )

    @property
    def is_all(self) -> bool:
        """Whether there is nothing to split."""
        return self.workers == 1

    def updates(self, examples: int, batch_size: int) -> int:
        """Returns the job's updates in one pass over this many examples."""
        whole, rest = divmod(examples, batch_size * self.together)
        return whole + (rest >= (self.workers if self.alike else 1))

    def cut(self, order: Indices, batch_size: int) -> Iterator[Indices]:
        """Yields the worker's batches of one pass over the examples in this order; all workers' together are the whole.

        If all make each update together, it covers `workers * batch_size` consecutive examples, each worker taking an
        equal part of them, so that it equals the update of one device on all of them. If their batches must have the
        same shape, up to `workers - 1` examples are left over at the end.
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
        """Checks before the first epoch whether its last batch would be refused.

        Raises:
          DataError: the devices must divide the batches, but do not.
        """
        if self.devices == 1:
            return
        sizes = {len(mine) for mine in self.cut(np.arange(examples), batch_size)}
        refused = sorted(size for size in sizes if size % self.devices)
        if refused:
            raise DataError(
                f"fit: {examples} examples in batches of {batch_size} make batches of "
                f"{' and '.join(map(str, refused))} examples, which {self.devices} devices do not divide: remove "
                'remainder="refuse" of the strategy, or give a number of examples and a batch_size that are multiples '
                f"of {self.devices}{f' * {self.workers}' if self.workers > 1 else ''}."
            )


class Order:
    """The order of a `fit`'s examples, the same on all workers, whose own seeds and draws may differ.

    It depends on the number of workers, the number of the call of `fit`, the epoch, and the pass over the data in it;
    with `steps_per_epoch`, where passes do not begin with epochs, on the pass alone.

    Args:
      workers: their number.
      fit: number of the call of `fit`, from 1.
      by_epoch: whether a pass begins with each epoch.
    """

    def __init__(self, workers: int, fit: int = 1, *, by_epoch: bool = True) -> None:
        self._workers = workers
        self._fit = fit
        self._by_epoch = by_epoch
        self._epoch: int | None = None
        self._passes = 0

    def start_epoch(self, epoch: int) -> None:
        """Restarts the count of passes: fast workers make more of them in an epoch than slow ones."""
        if self._by_epoch or self._epoch is None:
            self._epoch, self._passes = epoch, 0

    def next_pass(self) -> np.random.RandomState:
        """Returns the random state of the next pass's order."""
        self._passes += 1
        epoch = (self._epoch or 0) if self._by_epoch else 0
        return np.random.RandomState([self._workers, self._fit, epoch, self._passes])


class Endless(DataAdapter):  # type: ignore[misc]
    """Repeats another adapter's batches: a fast worker of a job needs more than its share in an epoch.

    Args:
      adapter: to repeat.
      updates: of the job in an epoch, which ends it; `None` if unknown.
      goes_on: whether an epoch begins where the last one ended, as with `steps_per_epoch`.
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
        """Updates of the job; without them, Keras continues one pass from epoch to epoch."""
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
    """One pass over this worker's part of arrays, in batches split only for it."""

    def __init__(self, share: Share, order: Order, *arrays: Any, **settings: Any) -> None:
        super().__init__(*arrays, **settings)
        self._share = share
        self._order = order
        if self._num_samples < share.workers:
            raise DataError(
                f"fit: {self._num_samples} examples are too few for {share.workers} workers: each needs an "
                "example for each update."
            )
        batches = -(-self._num_samples // self._batch_size)
        if share.together < share.workers and batches < share.workers:
            raise DataError(
                f"fit: {self._num_samples} examples make {batches} of batch_size={self._batch_size}, but each of the "
                f"{share.workers} workers needs one; give a batch_size of {self._num_samples // share.workers} or less."
            )

    @property
    def examples(self) -> int:
        """Examples of all workers together, in one pass."""
        count: int = self._num_samples
        return count

    @property
    def updates(self) -> int:
        """Updates of the job, in one pass."""
        return self._share.updates(self._num_samples, self._batch_size)

    def _get_iterator(self, slice_and_convert_fn: Callable[..., Any], inputs: Any) -> Iterator[Any]:
        order = np.arange(self._num_samples)
        random = self._order.next_pass()
        if self._shuffle and self._shuffle != "batch":
            order = random.permutation(order)
        for indices in self._share.cut(order, self._batch_size):
            mine = random.permutation(indices) if self._shuffle == "batch" else indices
            yield keras.tree.map_structure(partial(slice_and_convert_fn, indices=mine), inputs)


class PyDatasetShare(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
    """Every n-th batch of another `PyDataset`, for n workers.

    If all workers' batches must have the same shape, a smaller last one is left out.
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
    order: Order,
    data: tuple[Any, Any, Any],
    *,
    batch_size: int | None,
    steps_per_epoch: int | None,
    shuffle: Any,
    class_weight: Any,
) -> Any:
    """Returns Keras's data adapter for this worker's part of the data given to `fit`.

    `data` is `fit`'s `(x, y, sample_weight)`.

    Arrays and `PyDataset`s are split. Data that can only be read sequentially (generators, `tf.data`, loaders) is read
    whole by every worker; an epoch is then as long as one of them.

    Raises:
      DataError: there is less data than workers, or a later batch would be refused.
    """
    x, y, sample_weight = data
    are_arrays = can_convert_arrays(data)
    settings = {"class_weight": class_weight, "shuffle": shuffle, "batch_size": batch_size}
    if not share.is_all and are_arrays:
        if not batch_size and steps_per_epoch:
            examples = keras.tree.flatten(x)[0].shape[0]
            settings["batch_size"] = math.ceil(examples / (steps_per_epoch * share.together))
        adapter = ArrayShare(share, order, x, y, sample_weight=sample_weight, steps=steps_per_epoch, **settings)
        share.check_sizes(adapter.examples, adapter.batch_size)
        return Endless(adapter, steps_per_epoch or adapter.updates, goes_on=bool(steps_per_epoch))
    if isinstance(x, keras.utils.PyDataset) and share.workers > 1 and x.num_batches:
        part = PyDatasetShare(x, share)
        if part.of_all < share.workers:
            raise DataError(
                f"fit: a PyDataset of {x.num_batches} batches cannot be split among {share.workers} workers"
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
