"""SyncReplicasOptimizer: each update from the mean of several workers' gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.graph import Operation
from trainband.compat.tf1.operations.array import constant
from trainband.compat.tf1.operations.control_flow import group, no_op
from trainband.compat.tf1.training.optimizer import Optimizer
from trainband.compat.tf1.training.queue_runner import QueueRunner
from trainband.compat.tf1.training.session_run_hook import SessionRunHook
from trainband.runtime.overrides import override


class SyncReplicasOptimizer:
    """Wraps an optimizer. On parameter servers, trainband's rule `Sync` replaces TensorFlow's queues and tokens:
    an update is the mean of `replicas_to_aggregate` gradients, and every worker waits for it. Without a cluster, it
    is the wrapped optimizer.

    Args:
      opt: the optimizer.
      replicas_to_aggregate: how many gradients make an update.
      total_num_replicas: how many workers there are; more of them than are aggregated are backups.
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Any = None,
        use_locking: bool = False,  # noqa: ARG002
        name: str = "sync_replicas",
        replica_id: int | None = None,  # noqa: ARG002 - of TensorFlow before 1.0
    ) -> None:
        self._opt = opt
        self._aggregate = int(replicas_to_aggregate)
        self.total_num_replicas = int(total_num_replicas or replicas_to_aggregate)
        """How many workers there are."""
        self._averages = variable_averages, variables_to_average
        self.name = name
        """Its name."""
        self._applied = False

    def minimize(self, loss: Any, global_step: Any = None, var_list: Any = None, **more: Any) -> Operation:
        """An operation that makes one step and counts it: the global step is needed."""
        name = more.pop("name", None)
        return self.apply_gradients(self._opt.compute_gradients(loss, var_list, **more), global_step, name)

    def compute_gradients(self, *args: Any, **more: Any) -> list[tuple[Any, Any]]:
        """(gradient, variable) for each variable, by the wrapped optimizer."""
        return self._opt.compute_gradients(*args, **more)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Operation:
        """Record an operation that pushes gradients; their mean is applied once enough have arrived.

        Raises:
          ValueError: there is no global step.
        """
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        train = self._opt.apply_gradients(grads_and_vars, global_step, name or self.name)
        train.attributes["synchronous"] = self._aggregate
        self._applied = True
        averages, variables = self._averages
        if averages is not None:
            with train.graph.control_dependencies([train]):
                ops = [train, averages.apply(variables)]
            return group(*ops)
        return train

    def get_slot(self, *args: Any, **more: Any) -> Any:
        """The variable that holds a slot of another, of the wrapped optimizer."""
        return self._opt.get_slot(*args, **more)

    def get_slot_names(self) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        return self._opt.get_slot_names()

    def variables(self) -> list[Any]:
        """All that the wrapped optimizer keeps."""
        return self._opt.variables()

    # TensorFlow's queues need these; trainband's ps do not.

    @property
    def is_applied(self) -> bool:
        """Whether `apply_gradients` was called."""
        return self._applied

    def get_clean_up_op(self) -> Operation:
        """Does nothing."""
        return no_op("clean_up")

    def _needs_applied(self, what: str) -> None:
        if not self._applied:
            raise ValueError(f"{what} should be called after apply_gradients().")

    @property
    def chief_init_op(self) -> Operation:
        """Does nothing."""
        return no_op("chief_init_op")

    @property
    def local_step_init_op(self) -> Operation:
        """Does nothing."""
        return no_op("local_step_init_op")

    @property
    def ready_for_local_init_op(self) -> Any:
        """Return the names of uninitialised variables: none."""
        return constant(np.array([], dtype=object))

    def get_init_tokens_op(self, num_tokens: int = -1) -> Operation:
        """Does nothing."""
        del num_tokens
        self._needs_applied("get_init_tokens_op()")
        return no_op("init_tokens")

    def get_chief_queue_runner(self) -> Any:
        """Return a queue runner that runs nothing."""
        self._needs_applied("get_chief_queue_runner()")
        return QueueRunner.idle()

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """Return a hook that checks that there is something to synchronise."""
        del is_chief, num_tokens
        return _SyncReplicasHook(self)


class _SyncReplicasHook(SessionRunHook):
    """Checks that there is something to synchronise."""

    def __init__(self, optimizer: SyncReplicasOptimizer) -> None:
        self._optimizer = optimizer

    @override
    def begin(self) -> None:
        if not self._optimizer.is_applied:
            raise ValueError("SyncReplicasOptimizer.apply_gradient should be called before using the hook.")
