"""The metrics that parts of this process publish, served to Prometheus if the environment requests it.

A process has one page, whatever it runs: two trainers of a script, or a ps and a worker of a test, share it.
Metrics are collected only when the page is requested.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.metrics import resolve_metrics
from trainband.runtime.exposition import Metric, exposition
from trainband.runtime.metrics_server import MetricsServer
from trainband.runtime.process_metrics import process_families
from trainband.runtime.waiting import Say

Source: TypeAlias = Callable[[], Iterable[Metric]]
"""Makes metrics from frozen statistics; called in a server thread."""

ALONE = "local"
"""The name of a standalone process, as in `Member.task`."""


class TaskMetrics:
    """The metrics page of one process, created when its first part publishes something.

    Args:
      server: makes the server of a page.
    """

    def __init__(self, task: str, server: Callable[[Callable[[], str]], MetricsServer]) -> None:
        self._task = task
        self._sources: list[Source] = []
        self._lock = threading.Lock()
        self.server = server(self.page)

    def page(self) -> str:
        """Returns the current values of all metrics."""
        with self._lock:
            sources = list(self._sources)
        return exposition(self._collected(sources))

    def _collected(self, sources: list[Source]) -> Iterator[Metric]:
        yield from process_families(self._task)
        for source in sources:
            yield from source()

    def add(self, source: Source) -> Callable[[], None]:
        """Adds a source to the page; returns an idempotent function that removes it."""
        with self._lock:
            self._sources.append(source)

        def withdraw() -> None:
            with self._lock:
                if source in self._sources:
                    self._sources.remove(source)

        return withdraw


_lock = threading.Lock()
_of_process: TaskMetrics | None = None


def serve_metrics(cluster: Cluster | None, say: Say) -> TaskMetrics | None:
    """Returns the page of this process, starting its server if needed; `None` if the environment does not request it.

    Args:
      cluster: this task's view of its cluster; `None` for a standalone process.
      say: called with a line that has the address.

    Raises:
      AddressInUse: another process has the port.
      YourError: the environment is invalid.
    """
    global _of_process
    with _lock:
        if _of_process is not None:
            return _of_process
        address = resolve_metrics(cluster)
        if address is None:
            return None
        task = ALONE if cluster is None else str(cluster.task)
        _of_process = TaskMetrics(task, lambda page: MetricsServer(page, host=address.host, port=address.port))
        url = _of_process.server.url
    say(f"metrics of {task} are at {url}")
    return _of_process


def publish(cluster: Cluster | None, source: Source, say: Say) -> Callable[[], None]:
    """Adds a source to this process's page if one is requested; returns a function that removes it.

    Args:
      cluster, say: see `serve_metrics`.
      source: of the metrics.

    Raises:
      AddressInUse, YourError: see `serve_metrics`.
    """
    page = serve_metrics(cluster, say)
    return page.add(source) if page is not None else _nothing


def _nothing() -> None:
    """Removes nothing, because nothing was published."""


def close_metrics() -> None:
    """Ends the page of this process, for tests. A later `publish` creates another."""
    global _of_process
    with _lock:
        if _of_process is not None:
            _of_process.server.close()
            _of_process = None
