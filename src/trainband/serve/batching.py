"""BatchQueue: decides which requests are computed together, and when. Pure: no threads, no clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from trainband.serve.model import LoadedVersion

Tensors = Mapping[str, NDArray[Any]]


@dataclass(slots=True, eq=False)
class Work:
    """One request's inputs on their way to the device.

    Attributes:
      inputs: by name.
      examples: number of them.
      key: only requests with equal keys share a batch; `None` shares with none.
      arrived: when, on the clock of the queue.
      deadline: when its client stops waiting.
      finish: called with the outputs and their version, or with an error.
      version: that computes it; set when its first part begins, so that all parts have the same.
      at: examples computed so far.
      parts: their outputs.
    """

    inputs: Tensors
    examples: int
    key: Hashable
    arrived: float
    deadline: float
    finish: Callable[[Tensors | Exception, LoadedVersion | None], None]
    version: LoadedVersion | None = None
    at: int = 0
    parts: list[Tensors] = field(default_factory=list)


class BatchQueue:
    """Waiting requests, first come, first served.

    While a batch is computed, requests gather; they form the next one. When nothing is computed, a request starts at
    once, unless recent batches were larger than the queue: then it waits for as many as they had, but no longer than
    `max_delay_s`. That gathers the requests of many clients that all got their answers from one batch, and costs a few
    clients nothing.

    A request with more examples than `max_batch` is computed in parts, and returns to the end of the queue after each,
    so that others need not wait for it.

    Args:
      max_batch: examples in a batch.
      max_delay_s: see above.
    """

    def __init__(self, max_batch: int, max_delay_s: float) -> None:
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._waiting: deque[Work] = deque()
        self._examples = 0
        self._expected = 1.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Work) -> None:
        """Appends a request, or the rest of one."""
        self._waiting.append(work)
        self._examples += work.examples - work.at

    def due_in(self, now: float) -> float | None:
        """Returns the seconds until the next batch is due; `None` while the queue is empty."""
        if not self._waiting:
            return None
        if self._examples >= min(self._max_batch, int(self._expected)) or self._waiting[0].at:
            return 0.0
        return max(0.0, self._waiting[0].arrived + self._max_delay_s - now)

    def pop_batch(self) -> list[Work]:
        """Removes the next batch; empty if nothing is waiting."""
        batch: list[Work] = []
        room = self._max_batch
        while self._waiting:
            work = self._waiting[0]
            if batch and (work.key is None or work.key != batch[0].key or work.examples > room or work.at):
                break
            batch.append(self._waiting.popleft())
            self._examples -= work.examples - work.at
            room -= work.examples
            if room <= 0 or work.key is None:
                break
        if batch:
            taken = min(self._max_batch, sum(work.examples - work.at for work in batch))
            self._expected = max(1.0, (self._expected + taken) / 2)
        return batch

    def expired(self, now: float) -> list[Work]:
        """Removes those whose deadline has passed."""
        gone = [work for work in self._waiting if work.deadline <= now]
        if gone:
            self._waiting = deque(work for work in self._waiting if work.deadline > now)
            self._examples -= sum(work.examples - work.at for work in gone)
        return gone


def buckets_up_to(max_batch: int) -> tuple[int, ...]:
    """Returns the batch sizes to compile: powers of two, and the maximum itself."""
    sizes = []
    size = 1
    while size < max_batch:
        sizes.append(size)
        size *= 2
    return (*sizes, max_batch)
