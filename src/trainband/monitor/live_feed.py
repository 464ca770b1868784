"""LiveFeed: the state shown to viewers, kept once for all of them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainband.monitor.series import Series, thinned
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.timeline import Event, events_between

NAMES = tuple(
    "global_step rate examples_rate loss learning_rate staleness workers bytes_in_rate bytes_out_rate".split()
)
"""Values kept as series."""
MOST_EVENTS = 2000
MOST_CHECKPOINTS = 200
SPARK_POINTS = 60
"""Points of each worker's rate: at one a second, the last minute."""


class CheckpointRow(Struct, frozen=True):
    """A checkpoint, in a directory or as reported by a ps."""

    global_step: int
    nbytes: int
    created_at: float
    """Seconds since 1970."""
    seconds: float | None = None
    """Seconds it took; `None` if unknown."""
    best: str = ""
    """The metric by which it is the best, with its value; empty for others."""
    metrics: dict[str, float] = {}
    strategy: str = ""
    trainband: str = ""
    path: str = ""
    damage: str = ""
    """What is wrong with it."""


class Curve(Struct, frozen=True):
    """One series of a run."""

    step: list[int]
    at: list[float]
    value: list[float | None]


class Run(Struct, frozen=True):
    """A run whose history is in a directory."""

    name: str
    started_at: float
    ended_at: float
    steps: int
    """The last global step."""
    points: int
    """Number of points in all curves together; it grows when there are new points."""
    reason: str
    """Why it ended; empty while it runs."""
    curves: dict[str, Curve]
    ends_at: int | None = None
    """The global step at which it ends; `None` if unknown."""


class LiveFeed:
    """The newest snapshot of a job and a bounded memory of earlier ones.

    One thread publishes; any number of threads read. A reader takes the newest state when it comes: a slow one skips
    the states between, and nothing waits for it.

    Args:
      source: the address or directory that is shown.
    """

    def __init__(self, source: str) -> None:
        self.snapshot = JobSnapshot(at=0.0, source=source)
        """The newest."""
        self.number = 0
        """How many snapshots have been published."""
        self.changes = 0
        """How often the variables, the checkpoints or the runs have changed."""
        self.checkpoints: tuple[CheckpointRow, ...] = ()
        """Newest first."""
        self.runs: tuple[Run, ...] = ()
        """Newest first."""
        self.notes: tuple[str, ...] = ()
        """Sentences about what could not be read."""
        self._lock = threading.Lock()
        self._events: deque[tuple[int, Event]] = deque(maxlen=MOST_EVENTS)
        self._event_count = 0
        self._series = Series(NAMES)
        self._sparks: dict[str, deque[float]] = {}
        self._past: dict[str, list[float | None]] | None = None
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    def publish(self, snapshot: JobSnapshot, *, derive: bool = True) -> tuple[Event, ...]:
        """Publishes a snapshot; returns the events since the previous one.

        Args:
          derive: whether to derive the events from the difference; `False` if another source reports them.
        """
        with self._lock:
            before = self.snapshot
            events = events_between(before, snapshot) if derive else ()
            self.snapshot = snapshot
            self.number += 1
            self.changes += snapshot.variables != before.variables
            self._add(events)
            if snapshot.state == "running" and self._past is None:
                self._series.add(snapshot.at, figures(snapshot))
                self._record_rates(snapshot)
            if snapshot.checkpoint is not None and snapshot.checkpoint != before.checkpoint:
                new = snapshot.checkpoint
                row = CheckpointRow(new.global_step, new.nbytes, snapshot.at, new.seconds)
                others = [one for one in self.checkpoints if one.global_step != row.global_step]
                self.checkpoints = tuple([row, *others][:MOST_CHECKPOINTS])
                self.changes += 1
        self._notify()
        return events

    def set_checkpoints(self, checkpoints: Sequence[CheckpointRow]) -> None:
        """Replaces the checkpoints of a directory, newest first; known durations are kept."""
        with self._lock:
            took = {one.global_step: one.seconds for one in self.checkpoints}
            self.changes += 1
            self.checkpoints = tuple(
                replace(one, seconds=took.get(one.global_step)) if one.seconds is None else one for one in checkpoints
            )[:MOST_CHECKPOINTS]
        self._notify()

    def set_runs(self, runs: Sequence[Run], notes: Sequence[str] = ()) -> None:
        """Replaces the histories of a directory, newest first, and the notes about them."""
        with self._lock:
            self.changes += 1
            self.runs = tuple(runs)
            self.notes = tuple(notes)
        self._notify()

    def set_past(self, columns: dict[str, list[float | None]]) -> None:
        """Replaces the series with one from another source, `at` and any of `NAMES`."""
        with self._lock:
            self.changes += 1
            unknown: list[float | None] = [None] * len(columns["at"])
            self._past = {name: columns.get(name, unknown) for name in ("at", *NAMES)}
        self._notify()

    def add_events(self, events: Sequence[Event]) -> None:
        """Adds events from another source."""
        with self._lock:
            self._add(events)
        self._notify()

    def events_after(self, number: int = 0) -> list[tuple[int, Event]]:
        """Returns the events from a number on, oldest first, with their numbers, as far as they are kept."""
        with self._lock:
            return [(n, event) for n, event in self._events if n > number]

    def columns(self, most: int | None = None) -> dict[str, list[float | None]]:
        """Returns the series; see `Series.columns`."""
        with self._lock:
            return self._series.columns(most) if self._past is None else thinned(self._past, most)

    @property
    def has_past(self) -> bool:
        """Whether the series is from another source."""
        return self._past is not None

    def sparks(self) -> dict[str, list[float]]:
        """Returns the last rates of each worker."""
        with self._lock:
            return {task: list(rates) for task, rates in self._sparks.items()}

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` on every change, in the publishing thread; it must not block.

        Returns:
          A function that stops the calls.
        """
        with self._lock:
            number = self._next_listener
            self._next_listener += 1
            self._listeners[number] = tell

        def end() -> None:
            with self._lock:
                self._listeners.pop(number, None)

        return end

    def _add(self, events: Sequence[Event]) -> None:
        for event in events:
            self._event_count += 1
            self._events.append((self._event_count, event))

    def _record_rates(self, snapshot: JobSnapshot) -> None:
        names = {worker.task for worker in snapshot.workers}
        for gone in self._sparks.keys() - names:
            del self._sparks[gone]
        for worker in snapshot.workers:
            rates = self._sparks.setdefault(worker.task, deque(maxlen=SPARK_POINTS))
            rates.append(round(worker.rate, 3) if math.isfinite(worker.rate) else 0.0)

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for tell in listeners:
            tell()


def figures(snapshot: JobSnapshot) -> Mapping[str, float | None]:
    """Returns the current values of `NAMES`."""
    return {
        "global_step": snapshot.global_step,
        "rate": snapshot.rate,
        "examples_rate": snapshot.examples_rate,
        "loss": snapshot.loss,
        "learning_rate": snapshot.learning_rate,
        "staleness": snapshot.staleness_median,
        "workers": snapshot.live_workers,
        # A first look has no rates, and an update needs a gradient.
        "bytes_in_rate": snapshot.bytes_in_rate or (None if snapshot.rate else 0.0),
        "bytes_out_rate": snapshot.bytes_out_rate or (None if snapshot.rate else 0.0),
    }
