"""The server through which this process takes part in the cluster of a RunConfig."""

from __future__ import annotations

from trainband.compat.tf1.estimators.run_config import RunConfig
from trainband.compat.tf1.sessions.server import Server

_servers: dict[str, Server] = {}
"""By target, what this process has started."""


def server_of(config: RunConfig) -> Server | None:
    """Return the server of this task, started if need be; `None` where the process is alone."""
    if not config.master:
        return None
    if config.master not in _servers:
        _servers[config.master] = Server(
            config.cluster_spec, config.task_type, config.task_id, config.protocol, config.session_config
        )
    return _servers[config.master]


def started(config: RunConfig) -> str:
    """Return the target for sessions of this task; empty where the process is alone."""
    server = server_of(config)
    return "" if server is None else server.target
