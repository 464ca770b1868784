"""Session targets, and the store that belongs to each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.sessions.store import LocalStore, Store

_servers: dict[str, Callable[[Graph, ConfigProto], Store]] = {}
"""By target, the function of a server of this process that makes stores for its sessions."""


def register(target: str, make: Callable[[Graph, ConfigProto], Store]) -> None:
    """Register a server of this process."""
    _servers[target] = make


def store_for(target: str, graph: Graph, config: Any) -> Store:
    """A store for a new session.

    Raises:
      UnimplementedError: the target is a server of another process.
    """
    if target in ("", "local"):
        return LocalStore(config)
    if target not in _servers:
        raise UnimplementedError(
            None,
            None,
            f"The session target {target!r} is no server of this process. In trainband, each task runs its own "
            "session, with the target of the tf.train.Server that it has created.",
        )
    return _servers[target](graph, config)
