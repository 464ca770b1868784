"""RayMachines: the tasks of a job in Ray actors, each in a bundle of one placement group."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import tf_config
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, YourError
from trainband.launch.environment import travelling
from trainband.launch.machine import TaskProgram
from trainband.launch.machines.ray_actor import STOP_S, Place
from trainband.launch.machines.ray_bundle import RayBundle
from trainband.launch.machines.ray_task import RayTask
from trainband.launch.machines.remote_task import header
from trainband.launch.process import Reaper
from trainband.runtime.waiting import Say, Waiting

_TURN_S = 0.2


class RayMachines:
    """A Ray cluster, as `Machines`.

    Args:
      resources: returns what a task needs: `{"CPU": 1.0, "GPU": 2.0}`.
      connect: connects to Ray, and returns a function that disconnects.
      place_s: how long it may take until Ray has the resources.
      grows: whether the cluster may gain resources.
      threads: the size of each task's XLA thread pool; the CPUs of its bundle when `None`.
      variables: the names of further environment variables that tasks get.
    """

    is_here = False

    def __init__(
        self,
        resources: Callable[[Task], Mapping[str, float]],
        connect: Callable[[], Callable[[], None]],
        *,
        strategy: str,
        place_s: float,
        grows: bool,
        threads: int | None,
        variables: Collection[str],
        say: Say,
    ) -> None:
        self._resources = resources
        self._connect = connect
        self._strategy = strategy
        self._place_s = place_s
        self._grows = grows
        self._threads = threads
        self._variables = variables
        self._say = say
        self._disconnect: Callable[[], None] | None = None
        self._group: Any = None
        self._bundles: dict[Task, RayBundle] = {}
        self._directory = str(Path.cwd())
        self._has_working_dir = False
        self.interrupted: Callable[[], bool] = lambda: False
        """Whether the job has been asked to end; `plan` then stops waiting."""

    def plan(self, sizes: Mapping[str, int]) -> ClusterSpec:
        """Waits until Ray has placed each task."""
        import ray

        if self._disconnect is None:
            self._disconnect = self._connect()
            environment = ray.get_runtime_context().runtime_env
            self._has_working_dir = "working_dir" in environment
        tasks = [Task(job, index) for job, size in sizes.items() for index in range(size)]
        if list(self._bundles) != tasks:
            self._remove_group()
            self._make_group(tasks)
        places = self._wait_for_places()
        addresses: dict[Task, str] = {}
        for task, place in places.items():
            self._directory_at(place)
            port = self._bundles[task].reserve(place.host)
            addresses[task] = f"[{place.host}]:{port}" if ":" in place.host else f"{place.host}:{port}"
        return ClusterSpec({job: [addresses[Task(job, i)] for i in range(size)] for job, size in sizes.items()})

    def start(self, cluster: Cluster, program: TaskProgram, *, reaper: Reaper, keep_lines: int) -> RayTask:  # noqa: ARG002 - Ray does its job
        """Returns at once; the task is placed later."""
        task = cluster.task
        sent = TaskProgram(
            command=program.command, environment=travelling(program.environment, self._variables), files=program.files
        )
        threads = self._threads or max(1, int(self._resources(task).get("CPU", 1)))

        def first(place: Place) -> bytes:
            return header(
                sent, tf_config.write(cluster), directory=self._directory_at(place), threads=threads, stop_s=STOP_S
            )

        host = cluster.spec.address(task).rpartition(":")[0].strip("[]") if task.job == "ps" else None
        return RayTask(task, self._bundles[task], first, host=host, place_s=self._place_s, keep_lines=keep_lines)

    def close(self) -> None:
        if self._disconnect is not None:
            try:
                self._remove_group()
            finally:
                disconnect, self._disconnect = self._disconnect, None
                disconnect()

    def _make_group(self, tasks: list[Task]) -> None:
        from ray.util.placement_group import placement_group

        wanted = {task: {name: n for name, n in self._resources(task).items() if n} for task in tasks}
        if not self._grows:
            check_possible(wanted, _nodes())
        self._group = placement_group(list(wanted.values()), strategy=self._strategy, name="trainband")
        self._bundles = {
            task: RayBundle(self._group, index, wanted[task], directory=self._directory)
            for index, task in enumerate(tasks)
        }

    def _wait_for_places(self) -> dict[Task, Place]:
        """Returns where each task will run.

        Raises:
          YourError: Ray cannot place one of them, or the job was asked to end.
        """
        import ray

        waiting = Waiting(self._place_s, self._say)
        places: dict[Task, Place] = {}
        while missing := [task for task in self._bundles if task not in places]:
            began = time.monotonic()
            for task in missing:
                place = self._bundles[task].place(_TURN_S if task == missing[0] else 0.0)
                if place is not None:
                    places[task] = place
            if self.interrupted():
                raise YourError("interrupted before Ray had placed all tasks.")
            missing = [task for task in missing if task not in places]
            if missing:
                try:
                    waiting.check(
                        f"Ray to place {', '.join(f'{task} ({describe(self._resources(task))})' for task in missing)}; "
                        f"free now: {describe(ray.available_resources())}",
                        "wait until other jobs end, request less, add nodes, or allow more time (-o place_s=SECONDS)",
                    )
                except DeadlineExceeded as exc:
                    raise YourError(str(exc)) from None
                time.sleep(max(0.0, began + _TURN_S - time.monotonic()))
        return {task: places[task] for task in self._bundles}

    def _directory_at(self, place: Place) -> str:
        if self._has_working_dir:
            return place.directory
        if not place.has_directory:
            raise YourError(
                f"the Ray node {place.host} lacks the tasks' working directory {self._directory}. Share "
                "it, or let Ray copy it to all nodes (-o working_dir=.)."
            )
        return self._directory

    def _remove_group(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for bundle in self._bundles.values():
            bundle.kill()
        self._bundles = {}
        group, self._group = self._group, None
        if group is not None:
            remove_placement_group(group)


def describe(resources: Mapping[str, float]) -> str:
    """Returns resources as text: `4 CPU, 1 GPU`."""
    shown = {
        name: value
        for name, value in sorted(resources.items())
        if value and name not in ("memory", "object_store_memory") and "_group_" not in name and ":" not in name
    }
    return ", ".join(f"{value:g} {name}" for name, value in shown.items()) or "nothing"


def _nodes() -> dict[str, Mapping[str, float]]:
    """Returns the total resources of each live node, by its address."""
    import ray

    return {
        f"{node['NodeManagerAddress']} {node['NodeID']}": node["Resources"] for node in ray.nodes() if node["Alive"]
    }


def check_possible(wanted: Mapping[Task, Mapping[str, float]], nodes: Mapping[str, Mapping[str, float]]) -> None:
    """Refuses what the nodes could not provide even if they were idle.

    Raises:
      YourError: one task needs more than any node has, or all together more than all nodes have.
    """
    have = "; ".join(f"{name.split()[0]} has {describe(resources)}" for name, resources in nodes.items())
    advice = "Request less, or add nodes; if the cluster grows by itself, use -o grows=true."
    for task, bundle in wanted.items():
        if not bundle:
            raise YourError(
                f"{task} requests no resources, and a Ray bundle cannot be empty; give it part of a CPU (0.1)."
            )
        if not any(all(node.get(name, 0.0) >= n for name, n in bundle.items()) for node in nodes.values()):
            raise YourError(f"no Ray node can ever run {task}, which needs {describe(bundle)}: {have}. {advice}")
    for name in dict.fromkeys(name for bundle in wanted.values() for name in bundle):
        total = sum(bundle.get(name, 0.0) for bundle in wanted.values())
        there = sum(node.get(name, 0.0) for node in nodes.values())
        if total > there:
            raise YourError(
                f"the job's {len(wanted)} tasks need {total:g} {name} in all, and the Ray cluster has {there:g}: "
                f"{have}. {advice}"
            )
