"""ServerMetrics: the counters of a server."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainband.runtime.exposition import Families, Family, Labels, exposition
from trainband.serve.executor import BatchStatistics
from trainband.serve.histogram import Histogram
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import SourceState, SourceStatus

_SIZES = tuple(float(2**power) for power in range(11))


class ServerMetrics:
    """Each counter has one writing thread: the source's for `rejected`, the event loop's for all others.

    Args:
      clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        text = "Requests answered, by protocol and status code."
        self.requests = Family("counter", "trainband_serve_requests_total", text)
        text = "From a request's headers to its response, by protocol."
        self.durations = Histogram("trainband_serve_request_duration_seconds", text)
        self.examples = Family("counter", "trainband_serve_examples_total", "Examples computed.")
        text = "Examples computed only to fill batches."
        self.padding = Family("counter", "trainband_serve_padding_examples_total", text)
        self.batch_sizes = Histogram("trainband_serve_batch_size", "Examples in a batch, without padding.", _SIZES)
        text = "From a batch's start to its outputs, copies included."
        self.batch_durations = Histogram("trainband_serve_batch_duration_seconds", text)
        text = "Skipped versions of another model."
        self.rejected = Family("counter", "trainband_serve_rejected_versions_total", text)
        self.in_flight = 0

    def record_batch(self, batch: BatchStatistics) -> None:
        """Counts a batch."""
        self.examples.add(batch.examples)
        self.padding.add(batch.padded - batch.examples)
        self.batch_sizes.observe(batch.examples)
        self.batch_durations.observe(batch.seconds)

    def answered(self) -> tuple[int, float]:
        """Answered predictions, and the seconds that all these requests took."""
        good = sum(count for _, labels, count in self.requests.samples() if _is_prediction(labels, "200"))
        return int(good), self.durations.total()[1]

    def failed(self) -> int:
        """Prediction requests that failed."""
        asked = sum(count for _, labels, count in self.requests.samples() if _is_prediction(labels))
        return int(asked) - self.answered()[0]

    def computed(self) -> tuple[int, float]:
        """Batches computed, and the seconds that they took."""
        return self.batch_durations.total()

    def text(self, model: ServedModel | None, status: SourceStatus, *, name: str, waiting: int, ready: bool) -> str:
        """Returns the text for a scrape.

        Args:
          model: that is served; `None` while it loads.
          status: of its source.
          name: of the model.
          waiting: requests in the queue.
          ready: whether the server takes requests.
        """
        found = Families()
        if model is not None:
            text = "Versions that replaced another."
            found.counter("trainband_serve_version_swaps_total", text, model.swaps)
        found.gauge("trainband_serve_ready", "Whether the server is ready.", float(ready))
        found.gauge("trainband_serve_requests_in_flight", "Requests in progress.", self.in_flight)
        found.gauge("trainband_serve_queue_depth", "Requests waiting for a batch.", waiting)
        text = "State of the source of versions: 1 for the current state."
        for state in SourceState:
            value = float(state is status.state)
            found.gauge("trainband_serve_source_state", text, value, ("state", state.value))
        if model is not None:
            version = model.current
            found.gauge("trainband_serve_version", "Global step of the version served.", version.number)
            if version.made_at is not None:
                text, age_s = "Age of the served weights since training made them.", self._clock() - version.made_at
                found.gauge("trainband_serve_version_age_seconds", text, max(0.0, age_s))
                text = "Age of the served weights when they began to answer."
                found.gauge("trainband_serve_version_delay_seconds", text, version.delay_s or 0.0)
        counted = (self.requests, self.durations, self.examples, self.padding, self.batch_sizes, self.batch_durations)
        return exposition([*counted, self.rejected, *found], (("model", name),))


def _is_prediction(labels: Labels, code: str = "") -> bool:
    found = dict(labels)
    return found.get("protocol") != "other" and (not code or found.get("code") == code)
