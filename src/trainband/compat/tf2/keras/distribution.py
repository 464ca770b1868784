"""Where Keras meets the strategies of this face: what a model with steps of its own does on several replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from trainband.compat.tf2.data.dataset import Dataset
from trainband.compat.tf2.distribute import context
from trainband.compat.tf2.distribute.input import InputContext
from trainband.compat.tf2.keras.inside import JAXTrainer, loss_tracker
from trainband.compat.tf2.keras.sources import arrays, is_dataset
from trainband.compat.tf2.keras.steps import flat_logs
from trainband.errors import ModelError
from trainband.keras.keras_internals import DataAdapter
from trainband.keras.shares import Share
from trainband.runtime.overrides import override

_STRATEGY = "_strategy_of_face"


def input_context(share: Share) -> InputContext:
    """What a function that makes a worker's dataset is given."""
    return InputContext(share.workers, share.index, share.together)


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope a model was made; `None` for none."""
    return model.__dict__.get(_STRATEGY)


class ReplicaAdapter(DataAdapter):  # type: ignore[misc]
    """Batches of replicas. Keras's loop is given empty ones, as it can hold none of these; steps take the next.

    Args:
      dataset: a distributed one.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._read: deque[Any] = deque()

    def take(self) -> Any:
        """The batch of the next step."""
        return self._read.popleft()

    @override
    def get_numpy_iterator(self) -> Iterator[Any]:
        self._read.clear()
        for batch in self._dataset:
            self._read.append(batch)
            yield ()

    @override
    def get_jax_iterator(self) -> Iterator[Any]:
        return self.get_numpy_iterator()

    @property
    @override
    def num_batches(self) -> int | None:
        found = self._dataset.cardinality
        count = int(found() if callable(found) else found)
        return count if count >= 0 else None

    @property
    @override
    def batch_size(self) -> None:
        pass

    @property
    @override
    def has_partial_batch(self) -> bool:
        return False

    @property
    @override
    def partial_batch_size(self) -> None:
        pass


def replica_adapter(model: Any, x: Any, y: Any, weights: Any, batch_size: int | None, shuffle: Any) -> ReplicaAdapter:
    """The batches of the replicas, of what `fit` was given.

    Raises:
      ModelError: the strategy has no replicas in lockstep.
    """
    strategy = strategy_of(model)
    if not hasattr(strategy, "experimental_distribute_dataset"):
        raise ModelError(
            f"fit: {type(model).__name__} has a train_step of its own, and {type(strategy).__name__} has no replicas "
            "that make steps together; override call() or compute_loss(), or write the loop with a ClusterCoordinator."
        )
    if not is_dataset(x):
        parts = arrays(tuple(one for one in (x, y, weights) if one is not None))
        whole = Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])
        if shuffle:
            whole = whole.shuffle(max(1, int(whole.cardinality())))
        x = whole.batch(batch_size or 32)
    return ReplicaAdapter(strategy.experimental_distribute_dataset(x))


def runner(model: Any, adapter: ReplicaAdapter) -> Callable[[Any, Any], Any]:
    """What runs a step of a model on all replicas: of (step, batch)."""
    strategy = strategy_of(model)

    def run(step: Any, _: Any) -> Any:
        found = strategy.run(step, args=(adapter.take(),))
        first = flat_logs(strategy.experimental_local_results(found)[0])
        if not isinstance(first, dict):
            return first
        together = dict(model.get_metrics_result())  # of all replicas
        tracker = loss_tracker(model)
        if tracker in model.metrics and not float(tracker.count.numpy()):
            together.pop(tracker.name, None)  # the step gives its loss by itself
        return {name: together.get(name, value) for name, value in first.items()}

    return run


def install() -> None:
    """Has models know the strategy in whose scope they are made."""
    init = JAXTrainer.__init__

    def init_here(self: Any) -> None:
        init(self)
        if context.has_strategy():
            object.__setattr__(self, _STRATEGY, context.get_strategy())

    JAXTrainer.__init__ = init_here
