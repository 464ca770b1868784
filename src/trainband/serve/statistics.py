"""ServerMetrics: what a server counts."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainband.runtime.exposition import Family, Metric, exposition
from trainband.serve.executor import BatchStatistics
from trainband.serve.metrics import Counter, Histogram
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import SourceState, SourceStatus

_SIZES = tuple(float(2**power) for power in range(11))


class ServerMetrics:
    """Each is counted by one thread alone: `rejected` by the source's, all others by the event loop's.

    Args:
      clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.requests = Counter("trainband_serve_requests_total", "Requests answered, by protocol and status code.")
        self.durations = Histogram(
            "trainband_serve_request_duration_seconds", "From a request's headers to its response, by protocol."
        )
        self.examples = Counter("trainband_serve_examples_total", "Examples computed.")
        self.padding = Counter("trainband_serve_padding_examples_total", "Examples computed only to fill batches up.")
        self.batch_sizes = Histogram("trainband_serve_batch_size", "Examples in a batch, without padding.", _SIZES)
        self.batch_durations = Histogram(
            "trainband_serve_batch_duration_seconds", "From a batch's start to its outputs, copies included."
        )
        self.rejected = Counter("trainband_serve_rejected_versions_total", "Versions of another model, passed over.")
        self.in_flight = 0

    def note_batch(self, batch: BatchStatistics) -> None:
        """Counts a batch."""
        self.examples.add(batch.examples)
        self.padding.add(batch.padded - batch.examples)
        self.batch_sizes.observe(batch.examples)
        self.batch_durations.observe(batch.seconds)

    def text(self, model: ServedModel | None, status: SourceStatus, *, name: str, waiting: int, ready: bool) -> str:
        """What a scrape answers.

        Args:
          model: that is served; `None` while it is loaded.
          status: of its source.
          name: of the model.
          waiting: requests in the queue.
          ready: whether the server takes requests.
        """
        gauges = [
            Family("gauge", "trainband_serve_ready", "Whether the server is ready.", {(): float(ready)}),
            Family("gauge", "trainband_serve_requests_in_flight", "Requests under way.", {(): float(self.in_flight)}),
            Family("gauge", "trainband_serve_queue_depth", "Requests that wait for a batch.", {(): float(waiting)}),
            Family(
                "gauge",
                "trainband_serve_source_state",
                "Where the versions come from: 1 for the state that it is in.",
                {(("state", state.value),): float(state is status.state) for state in SourceState},
            ),
        ]
        swaps = Counter("trainband_serve_version_swaps_total", "Versions that took the place of another.")
        if model is not None:
            version = model.current
            swaps.add(model.swaps)
            gauges.append(
                Family("gauge", "trainband_serve_version", "The global step that answers.", {(): version.number})
            )
            if version.made_at is not None:
                gauges += [
                    Family(
                        "gauge",
                        "trainband_serve_version_age_seconds",
                        "Since training made the weights that answer.",
                        {(): max(0.0, self._clock() - version.made_at)},
                    ),
                    Family(
                        "gauge",
                        "trainband_serve_version_delay_seconds",
                        "From when training made the weights that answer until they answered.",
                        {(): version.delay_s or 0.0},
                    ),
                ]
        metrics: list[Metric] = [
            self.requests,
            self.durations,
            self.examples,
            self.padding,
            self.batch_sizes,
            self.batch_durations,
            swaps,
            self.rejected,
            *gauges,
        ]
        return exposition(metrics, (("model", name),))
