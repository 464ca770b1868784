"""Distributed datasets: of each global batch, every replica has its part."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.distribute.values import PerReplica, flattened, regrouped
from trainband.compat.tf2.eager.captured import NotCaptured, is_tracing
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.tensor import Tensor

MOST_AHEAD = 8
"""How many steps the processes tell one another of at a time."""


class InputContext:
    """For which of several processes a function makes a dataset.

    Args:
      num_input_pipelines: how many processes make one.
      input_pipeline_id: which of them this is.
      num_replicas_in_sync: how many replicas there are over all of them.
    """

    def __init__(self, num_input_pipelines: int = 1, input_pipeline_id: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.num_input_pipelines = num_input_pipelines
        self.input_pipeline_id = input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of each replica.

        Raises:
          ValueError: the replicas do not divide the global one.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync}."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines})"
        )


class ValueContext:
    """For which replica a function makes a value."""

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.replica_id_in_sync_group = replica_id_in_sync_group
        self.num_replicas_in_sync = num_replicas_in_sync


class InputOptions:
    """How data comes to the replicas: taken, and left to this package."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


class DistributedDataset:
    """The batches of the replicas of this process.

    Args:
      strategy: whose replicas they are.
      dataset: of batches of one replica.
    """

    def __init__(self, strategy: Any, dataset: Any) -> None:
        self._strategy = strategy
        self._dataset = dataset

    def __iter__(self) -> DistributedIterator:
        if is_tracing():
            raise NotCaptured
        return DistributedIterator(self._strategy, self._dataset)

    @property
    def element_spec(self) -> Any:
        """What is known of one replica's batch."""
        return self._dataset.element_spec

    @property
    def cardinality(self) -> Any:
        """How many steps there are, as far as is known."""
        found = int(self._dataset.cardinality())
        return convert(np.int64(found if found < 0 else -(-found // self._strategy.num_local_replicas)))

    def __len__(self) -> int:
        return math.ceil(len(self._dataset) / int(self._strategy.num_local_replicas))


class DistributedIterator:
    """One pass over the batches of the replicas of this process. It ends when the data of all processes has.

    A replica whose data has ended before gets batches without examples. The processes tell one another of several
    batches at a time, up to `MOST_AHEAD`, which are read ahead.
    """

    def __init__(self, strategy: Any, dataset: Any) -> None:
        self._strategy = strategy
        self._elements = iter(dataset)
        self._spec = self._template = dataset.element_spec
        self._ahead: deque[Any] = deque()
        self._steps = 1
        self._over = False

    @property
    def element_spec(self) -> Any:
        """What is known of one replica's batch."""
        return self._spec

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        if is_tracing():
            raise NotCaptured
        if not self._ahead and not self._over:
            self._read()
        if not self._ahead:
            raise StopIteration
        return self._ahead.popleft()

    def _read(self) -> None:
        """Reads the batches of the next steps, and finds what all replicas have of them."""
        local = self._strategy.num_local_replicas
        steps = [list(itertools.islice(self._elements, local)) for _ in range(self._steps)]
        mine = []
        for found in steps:
            digests = {_digest(one) for one in found}
            mine += [len(found), len(found) == local and len(digests) == 1, min(digests, default=0)]
        said = self._strategy.numbers(mine).reshape(-1, len(steps), 3)
        for number, found in enumerate(steps):
            counts, alike, digests = said[:, number].T
            if not counts.any():
                self._over = True
                return
            uniform = bool(alike.all()) and len(set(digests.tolist())) == 1
            self._template = found[0] if found else self._template
            found += [_without_examples(self._template) for _ in range(local - len(found))]
            self._ahead.append(_each(found, uniform))
        if self._strategy.num_processes > 1:
            self._steps = min(MOST_AHEAD, 2 * self._steps)

    def get_next(self) -> Any:
        """The next batches.

        Raises:
          OutOfRangeError: there are none.
        """
        found = next(self, None)
        if found is None:
            from trainband.compat.tf1.graphs.errors import OutOfRangeError

            raise OutOfRangeError(None, None, "End of sequence")
        return found

    def get_next_as_optional(self) -> Any:
        """The next batches, if there are any."""
        return Optional(next(self, None))


class Optional:
    """A value that may be missing."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def has_value(self) -> Tensor:
        """Whether it is there."""
        return convert(self._value is not None)

    def get_value(self) -> Any:
        """It.

        Raises:
          InvalidArgumentError: it is not there.
        """
        if self._value is None:
            from trainband.compat.tf1.graphs.errors import InvalidArgumentError

            raise InvalidArgumentError(None, None, "The given optional does not have a value.")
        return self._value


def _each(found: list[Any], uniform: bool) -> Any:
    if len(found) > 1:
        return regrouped(found, uniform=uniform)
    leaves, structure = flattened(found[0])
    return jax.tree.unflatten(structure, [PerReplica([one], uniform=uniform) for one in leaves])


def _digest(element: Any) -> int:
    """A number that is the same for elements of the same shapes."""
    leaves, structure = flattened(element)
    return zlib.crc32(str((structure, [convert(one).aval for one in leaves])).encode()) & 0x7FFFFFFF


def _without_examples(element: Any) -> Any:
    def empty(leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            shape, dtype = leaf.aval
        else:
            shape, dtype = tuple(size or 0 for size in leaf.shape.as_list()), leaf.dtype.as_numpy_dtype
        return Tensor(np.zeros((0, *shape[1:]), dtype))

    return jax.tree.map(empty, element, is_leaf=lambda one: hasattr(one, "shape"))


def distributed(strategy: Any, dataset: Any) -> Any:
    """A dataset of global batches, each replica's part by itself."""
    if strategy.num_replicas_in_sync == 1:
        return dataset
    batches = dataset.rebatched(strategy.num_replicas_in_sync)
    return DistributedDataset(
        strategy, batches.auto_sharded(strategy.num_processes, strategy.process, job=strategy.job)
    )


def from_function(strategy: Any, dataset_fn: Callable[[InputContext], Any]) -> Any:
    """Batches of replicas, of a dataset that a function makes for this process."""
    count = strategy.num_replicas_in_sync
    dataset = dataset_fn(InputContext(strategy.num_processes, strategy.process, count))
    return dataset if count == 1 else DistributedDataset(strategy, dataset)


def rows(arrays: Any) -> Any:
    """A dataset of the rows of arrays."""
    from trainband.compat.tf2.data.dataset import Dataset

    return Dataset.from_tensor_slices(arrays)
