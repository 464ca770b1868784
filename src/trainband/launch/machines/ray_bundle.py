"""RayBundle: one bundle of a placement group, and the actor in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainband.cluster.task import Task
from trainband.errors import YourError
from trainband.launch.machines.ray_actor import Piece, Place, TaskActor
from trainband.version import VERSION

_THREADS = 8
"""Threads of an actor: one runs the task while others answer."""
_UNREAD = 256
"""Pieces of output that an actor sends ahead; then the task blocks in its next print."""


class RayBundle:
    """See the module. One thread at a time places and runs; any may send signals and kill.

    Args:
      directory: the launcher's, expected on the node.
    """

    def __init__(self, group: Any, index: int, resources: Mapping[str, float], *, directory: str) -> None:
        self._group = group
        self._index = index
        self._resources = dict(resources)
        self._directory = directory
        self._actor: Any = None
        self._asked: Any = None
        self._runs = 0

    def place(self, timeout_s: float) -> Place | None:
        """Starts the actor if needed and returns where it runs; `None` if it has no place after `timeout_s` seconds.

        Raises:
          YourError: the actor cannot be started there, or has another version of trainband.
        """
        import ray
        from ray import exceptions

        if self._actor is None:
            self._actor = self._start()
        if self._asked is None:
            self._asked = self._actor.place.remote(self._directory)
        try:
            place: Place = ray.get(self._asked, timeout=timeout_s)
        except exceptions.GetTimeoutError:
            return None
        except exceptions.RuntimeEnvSetupError as exc:
            self.kill()
            raise YourError(f"Ray cannot set up the runtime environment of the tasks: {exc}") from None
        except exceptions.RayActorError as exc:
            self.kill()
            if exc.actor_init_failed:
                raise YourError(
                    f"Ray's workers cannot start a task: {_last_line(exc)}. Install trainband {VERSION} in the Python "
                    "of all nodes, or let Ray do it (-o runtime_env=...)."
                ) from None
            return None  # its node has died; Ray moves the bundle to another one
        self._asked = None
        if place.version != VERSION:
            raise YourError(
                f"{place.host} has trainband {place.version}, and this machine {VERSION}; install the same version on "
                "all nodes."
            )
        return place

    def reserve(self, host: str) -> int:
        """Reserves a free port of the actor's node."""
        import ray

        port: int = ray.get(self._actor.reserve.remote(host), timeout=60.0)
        return port

    def run(self, task: Task, first: bytes) -> Iterator[Piece]:
        """Runs a task to completion; see `TaskActor.run`.

        Raises:
          RayActorError: the actor has died or is unreachable.
        """
        import ray

        self._runs += 1
        streaming = self._actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=_UNREAD)
        for piece in streaming.remote(self._runs, task, first):
            yield ray.get(piece)

    def send(self, number: int) -> None:
        """Sends a signal to the task in `run`. Does not wait."""
        actor = self._actor
        if actor is not None:
            actor.send.remote(self._runs, number)

    def is_dead(self, timeout_s: float) -> bool:
        """Whether Ray finds within `timeout_s` seconds that the actor is dead."""
        import ray
        from ray import exceptions

        if self._actor is None:
            return True
        try:
            ray.get(self._actor.place.remote(self._directory), timeout=timeout_s)
        except (exceptions.ActorUnavailableError, exceptions.GetTimeoutError):
            return False
        except exceptions.RayActorError:
            return True
        return False

    def kill(self) -> None:
        """Kills the actor and what it runs. Does not wait. Idempotent."""
        import ray

        actor, self._actor, self._asked = self._actor, None, None
        if actor is not None:
            ray.kill(actor)

    def _start(self) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        custom = {name: value for name, value in self._resources.items() if name not in ("CPU", "GPU")}
        self._runs = 0
        return (
            ray.remote(TaskActor)
            .options(
                num_cpus=self._resources.get("CPU", 0),
                num_gpus=self._resources.get("GPU", 0),
                resources=custom,
                max_restarts=0,
                max_concurrency=_THREADS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=self._index
                ),
            )
            .remote()
        )


def _last_line(exc: Exception) -> str:
    return str(exc).strip().splitlines()[-1].strip().rstrip(".")
