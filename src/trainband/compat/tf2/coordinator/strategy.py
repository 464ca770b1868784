"""`tf.distribute.ParameterServerStrategy`: variables on parameter servers, closures on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf2.coordinator.cluster import Cluster
from trainband.compat.tf2.coordinator.fit import models_fit_on
from trainband.compat.tf2.coordinator.spec import tasks_of
from trainband.compat.tf2.distribute import context
from trainband.compat.tf2.distribute.strategy import Strategy
from trainband.compat.tf2.eager.parts import divide
from trainband.compat.tf2.eager.replica import telling_of_variables
from trainband.runtime.overrides import override


class ParameterServerStrategy(Strategy):
    """Trains on parameter servers. The coordinator's script makes it, and waits for all ps; workers and ps serve.

    Args:
      cluster_resolver: says where the tasks are; by default `TF_CONFIG`.
      variable_partitioner: into how many parts the variables that optimizers update are divided, by rows.

    Raises:
      ValueError: the cluster has no ps or no worker.
      DeadlineExceeded: a ps has not come up.
    """

    def __init__(
        self, cluster_resolver: Any = None, variable_partitioner: Callable[..., Sequence[int]] | None = None
    ) -> None:
        super().__init__()
        self._resolver = cluster_resolver
        self.coordinator: Any = None
        """The `ClusterCoordinator`, once there is one."""
        self.cluster = Cluster(tasks_of(cluster_resolver), lambda: context.cross_replica(self), variable_partitioner)
        """The servers."""

    @property
    @override
    def cluster_resolver(self) -> Any:
        return self._resolver

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self.cluster.workers

    @contextmanager
    @override
    def scope(self) -> Iterator[Strategy]:
        with super().scope(), models_fit_on(self.cluster), telling_of_variables(self._divide):
            yield self

    def _divide(self, variable: Any) -> None:
        divide(variable, self.cluster.variables.rows(variable))
