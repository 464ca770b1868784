"""Device placement: what puts variables on ps, and which devices a session has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainband.compat.tf1.graphs.device_spec import DeviceFunction, DeviceSpec
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation

VARIABLE_OPS = ("Variable", "VariableV2", "AutoReloadVariable", "VarHandleOp")
"""The types of operation that `replica_device_setter` puts on a ps."""


class RoundRobin:
    """Puts variables on the ps one after the other."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._next = 0

    def __call__(self, operation: Operation) -> int:  # noqa: ARG002 - it does not matter which
        task, self._next = self._next, (self._next + 1) % self._num_tasks
        return task


class GreedyLoadBalancingStrategy:
    """Puts each variable on the ps with the least load so far.

    Args:
      num_tasks: how many ps.
      load_fn: returns the load of an operation.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._loads = [0.0] * num_tasks
        self._load_fn = load_fn

    def __call__(self, operation: Operation) -> int:
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(operation)
        return task


def byte_size_load_fn(operation: Operation) -> float:
    """Return the size of a variable in bytes, as its load.

    Raises:
      ValueError: its shape is not known.
    """
    output = operation.outputs[0]
    elements = output.get_shape().num_elements()
    if elements is None:
        raise ValueError(f"The load of {operation.name} is unknown, because its shape is.")
    return float(elements * output.dtype.size)


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Callable[[Operation], int] | None = None,
) -> DeviceFunction | None:
    """Return a function for `tf.device` that puts variables on the ps and everything else on the worker.

    Raises:
      TypeError: `ps_strategy` is not callable.
    """
    if cluster is not None:
        if hasattr(cluster, "job"):
            jobs = {job.name: dict(job.tasks) for job in cluster.job}
        else:
            jobs = cluster.as_dict() if hasattr(cluster, "as_dict") else dict(cluster)
        job = DeviceSpec.from_string(ps_device).job or "ps"
        if not jobs.get(job):
            return None
        ps_tasks = len(jobs[job])
    if ps_tasks == 0:
        return None
    strategy = ps_strategy or RoundRobin(ps_tasks)
    if not callable(strategy):
        raise TypeError("ps_strategy must be callable")
    ps, worker = DeviceSpec.from_string(ps_device), DeviceSpec.from_string(worker_device or "")
    types = tuple(ps_ops) if ps_ops is not None else VARIABLE_OPS

    def choose(operation: Operation) -> DeviceSpec:
        here = DeviceSpec.from_string(operation.device)
        if operation.device and not merge_devices:
            return here
        if operation.type in types:
            wanted = ps if ps.task is not None or here.task is not None else replace(ps, task=strategy(operation))
            return here.under(wanted)
        return here.under(worker)

    return choose


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a session.

    Attributes:
      tasks: the task numbers of each job; empty without a cluster.
      here: how many devices of each type this process has.
      soft: whether to use the CPU if a device does not exist.
    """

    tasks: dict[str, tuple[int, ...]]
    here: dict[str, int]
    soft: bool

    def check(self, operation: Operation) -> None:
        """Check that an operation's device exists.

        Raises:
          InvalidArgumentError: it does not; soft placement does not apply to jobs and tasks.
        """
        if not operation.device:
            return
        spec = DeviceSpec.from_string(operation.device)
        jobs = self.tasks or {"localhost": (0,)}
        if spec.job is not None and (
            spec.job not in jobs or (spec.task is not None and spec.task not in jobs[spec.job])
        ):
            raise self._cannot(operation)
        if spec.job is None and spec.task is not None and all(spec.task not in tasks for tasks in jobs.values()):
            raise self._cannot(operation)
        if self.soft or spec.device_type is None:
            return
        if (spec.device_index or 0) >= self.here.get(spec.device_type, 0):
            raise self._cannot(operation)

    def names(self) -> list[str]:
        """All devices, as TensorFlow writes them."""
        jobs = self.tasks or {"localhost": (0,)}
        return [
            f"/job:{job}/replica:0/task:{task}/device:{kind}:{index}"
            for job, tasks in jobs.items()
            for task in tasks
            for kind, count in self.here.items()
            for index in range(count)
        ]

    def _cannot(self, operation: Operation) -> InvalidArgumentError:
        return InvalidArgumentError(
            None,
            operation,
            f"Cannot assign a device for operation {operation.name}: Operation was explicitly assigned to "
            f"{operation.device} but available devices are [ {', '.join(self.names())} ]. Make sure the device "
            "specification refers to a valid device.",
        )
