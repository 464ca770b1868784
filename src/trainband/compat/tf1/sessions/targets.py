"""Session targets, and the store that belongs to each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.sessions.store import LocalStore, Store
from trainband.runtime.waiting import say_on_stderr

Make = Callable[[Graph, ConfigProto], Store]

_servers: dict[str, Make] = {}
"""By target, the function of a server of this process that makes stores for its sessions."""
_workers: list[str] = []
"""The targets of those of them that are workers of a job."""


def register(target: str, make: Make) -> None:
    """Register a server of this process."""
    _servers[target] = make


def register_worker(target: str, make: Make) -> None:
    """Register a server of this process that is a worker of a job."""
    register(target, make)
    _workers.append(target)


def store_for(target: str, graph: Graph, config: Any) -> Store:
    """A store for a new session.

    A worker whose script names another task takes part in the job by itself: the variables are those on the ps all the
    same.

    Raises:
      UnimplementedError: the target is a server of another process, and this one is no worker.
    """
    if target in ("", "local"):
        return LocalStore(config)
    if target not in _servers and _workers:
        say_on_stderr(
            f"the session target {target} is that of another process; this worker runs the session itself, as if it "
            f"were {_workers[-1]}, on the same variables"
        )
        target = _workers[-1]
    if target not in _servers:
        raise UnimplementedError(
            None,
            None,
            f"The session target {target!r} is not a server of this process. In trainband, each task runs its own "
            'session: create tf.train.Server(cluster, job_name="worker", task_index=...) in this process, in a '
            'cluster with a job "ps", and give its target to the session.',
        )
    return _servers[target](graph, config)
