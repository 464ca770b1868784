"""TPUStrategy, and what scripts do before they make one. JAX has the TPUs of this machine from the start."""

from __future__ import annotations

from typing import Any

import jax

from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec
from trainband.compat.tf2.distribute.one_process import MirroredStrategy
from trainband.compat.tf2.distribute.resolvers import ClusterResolver
from trainband.strategies import Mirrored


class TPUClusterResolver(ClusterResolver):
    """The TPUs of this machine.

    Raises:
      ValueError: there are none.
    """

    def __init__(self, tpu: str | None = None, zone: Any = None, project: Any = None, **_: Any) -> None:
        del zone, project
        if jax.default_backend() != "tpu":
            raise ValueError("Please provide a TPU Name to connect to: JAX sees no TPU here.")
        self._name = tpu or "local"

    @classmethod
    def connect(cls, tpu: str | None = None, zone: Any = None, project: Any = None) -> TPUClusterResolver:
        """The resolver, with everything begun that TensorFlow needs."""
        return cls(tpu, zone, project)

    def cluster_spec(self) -> ClusterSpec:
        return ClusterSpec({})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        del task_type, task_id, rpc_layer
        return self._name


class TPUStrategy(MirroredStrategy):
    """All TPUs of this machine compute in step."""

    def __init__(self, tpu_cluster_resolver: Any = None, experimental_device_assignment: Any = None) -> None:
        del experimental_device_assignment
        if tpu_cluster_resolver is None:
            TPUClusterResolver()
        self._begin(Mirrored("tpu", standalone=True))


def initialize_tpu_system(cluster_resolver: Any = None) -> None:
    """Nothing is to be done: JAX has begun."""
    del cluster_resolver


shutdown_tpu_system = initialize_tpu_system
