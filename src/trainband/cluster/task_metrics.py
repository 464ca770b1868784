"""The metrics of this process: what its parts publish, served to Prometheus where the environment asks for it.

A process has one page, whatever it runs: two trainers of a script, or a ps and a worker of a test, are on it together.
Nothing is collected before somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.metrics import resolve_metrics
from trainband.runtime.exposition import Metric, exposition
from trainband.runtime.metrics_server import MetricsServer
from trainband.runtime.process_metrics import process_families
from trainband.runtime.waiting import Say

Source: TypeAlias = Callable[[], list[Metric]]
"""Makes metrics of frozen statistics; called in a thread of the server."""

ALONE = "local"
"""The name of a process that stands alone, as in `Member.task`."""


class TaskMetrics:
    """The page of one process, which begins when the first of its parts publishes something.

    Args:
      task: whose it is.
      server: makes what serves a page.
    """

    def __init__(self, task: str, server: Callable[[Callable[[], str]], MetricsServer]) -> None:
        self._task = task
        self._sources: list[Source] = []
        self._lock = threading.Lock()
        self.server = server(self.page)

    def page(self) -> str:
        """All metrics as they are now."""
        with self._lock:
            sources = list(self._sources)
        return exposition(self._collected(sources))

    def _collected(self, sources: list[Source]) -> Iterator[Metric]:
        yield from process_families((("task", self._task),))
        for source in sources:
            yield from source()

    def add(self, source: Source) -> Callable[[], None]:
        """Puts what a source tells on the page; returns what takes it away again, which may be called twice."""
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
    """The page of this process, which begins to be served now if it was not before; `None` where nobody asks for it.

    Args:
      cluster: and which of its tasks this is; `None` for a process that stands alone.
      say: where the line goes that says at which address.

    Raises:
      AddressInUse: another process has the port.
      YourError: what the environment says cannot be.
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
    """Has this process's page, where one is asked for, tell what a source says; returns what takes that away again.

    Args:
      cluster, say: see `serve_metrics`.
      source: of the metrics.

    Raises:
      AddressInUse, YourError: see `serve_metrics`.
    """
    page = serve_metrics(cluster, say)
    return page.add(source) if page is not None else _nothing


def _nothing() -> None:
    """Takes nothing away, because nothing was published."""


def close_metrics() -> None:
    """Ends the page of this process, for tests. A later `publish` begins another."""
    global _of_process
    with _lock:
        if _of_process is not None:
            _of_process.server.close()
            _of_process = None
