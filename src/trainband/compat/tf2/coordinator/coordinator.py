"""`tf.distribute.coordinator.ClusterCoordinator`: schedules functions on the workers of a ParameterServerStrategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.tf2.coordinator.current_worker import on_worker
from trainband.compat.tf2.coordinator.feeds import PerWorkerDataset
from trainband.compat.tf2.coordinator.remote_value import PerWorkerValues, RemoteValue, fetched
from trainband.compat.tf2.coordinator.strategy import ParameterServerStrategy
from trainband.compat.tf2.coordinator.tracing import python_of


class ClusterCoordinator:
    """Schedules functions on workers. One for a strategy: asked for again, it is the same.

    Args:
      strategy: a `ParameterServerStrategy`.

    Raises:
      ValueError: it is another strategy.
    """

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        if not isinstance(strategy, ParameterServerStrategy):
            raise ValueError(
                "Only `tf.distribute.experimental.ParameterServerStrategy` is supported to work with "
                f"`ClusterCoordinator` currently, got {strategy!r}."
            )
        found: ClusterCoordinator | None = strategy.coordinator
        if found is None:
            found = strategy.coordinator = super().__new__(cls)
        return found

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy."""
        return self._strategy

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Has a worker run a function, and returns at once.

        Args:
          fn: a function or a `tf.function`. Variables, and iterators of `create_per_worker_dataset` in the arguments,
            are those of the worker that runs it.

        Raises:
          Exception: what a function that was scheduled before has raised. Those that were waiting are cancelled.
        """
        return self._strategy.cluster.schedule(fn, args or (), kwargs or {})

    def join(self) -> None:
        """Waits until all functions have run.

        Raises:
          Exception: what one of them has raised. Those that were waiting are cancelled.
        """
        self._strategy.cluster.join()

    def done(self) -> bool:
        """Whether all functions have run. Raises as `join` does."""
        return self._strategy.cluster.is_done

    def fetch(self, val: Any) -> Any:
        """Waits for the results in a structure, and gives their values."""
        return fetched(val)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """A dataset for each worker.

        Args:
          dataset_fn: a function that gives the dataset of a worker; or a dataset, of which each worker gets all.
        """
        return self._strategy.cluster.datasets(python_of(dataset_fn) if callable(dataset_fn) else lambda: dataset_fn)

    def create_per_worker_resource(self, resource_fn: Callable[[], Any]) -> PerWorkerValues:
        """What a function gives, for each worker."""
        found = []
        for worker in range(self._strategy.cluster.workers):
            with on_worker(worker):
                found.append(python_of(resource_fn)())
        return PerWorkerValues(found)
