"""Feed: what viewers are shown, kept once for all of them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainband.monitor.series import RESOLUTIONS, Resolution, Series, thinned
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.timeline import Event, events_between

NAMES = (
    "global_step",
    "rate",
    "examples_rate",
    "loss",
    "learning_rate",
    "staleness",
    "workers",
    "bytes_in_rate",
    "bytes_out_rate",
)
"""The figures of which a series is kept."""
MOST_EVENTS = 2000
MOST_CHECKPOINTS = 200
SPARK_POINTS = 60
"""Of each worker's rate: at one a second, the last minute."""


class CheckpointRow(Struct, frozen=True):
    """A checkpoint, in a directory or as a ps told of it."""

    global_step: int
    nbytes: int
    created_at: float
    """In seconds since 1970."""
    seconds: float | None = None
    """That it took; `None` where nobody has said."""
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
    """One run whose history is in a directory."""

    name: str
    started_at: float
    ended_at: float
    steps: int
    """The last global step."""
    points: int
    """Of all curves together: more than before means that there is news."""
    reason: str
    """Why it ended; empty while it goes on."""
    curves: dict[str, Curve]
    ends_at: int | None = None
    """The global step at which it is to end; `None` where nobody has said."""


class Feed:
    """The newest snapshot of a job and what is remembered of the earlier ones, within bounds.

    One thread publishes; any number of threads read. A reader takes what is newest when it comes: one that is slow
    skips what was in between, and nobody waits for it.

    Args:
      source: the address or directory that is shown.
      resolutions: of the series.
    """

    def __init__(self, source: str, resolutions: Sequence[Resolution] = RESOLUTIONS) -> None:
        self._lock = threading.Lock()
        self._snapshot = JobSnapshot(at=0.0, source=source)
        self._number = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=MOST_EVENTS)
        self._event_count = 0
        self._series = Series(NAMES, resolutions)
        self._sparks: dict[str, deque[float]] = {}
        self._checkpoints: tuple[CheckpointRow, ...] = ()
        self._runs: tuple[Run, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._past: dict[str, list[float | None]] | None = None
        self._changes = 0
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    def publish(self, snapshot: JobSnapshot, *, derive: bool = True) -> tuple[Event, ...]:
        """Takes a new snapshot; returns what has happened since the one before it.

        Args:
          derive: whether that is to be found out; where somebody else tells the events, it is not.
        """
        with self._lock:
            before = self._snapshot
            events = events_between(before, snapshot) if derive else ()
            self._snapshot = snapshot
            self._number += 1
            self._changes += snapshot.variables != before.variables
            self._add(events)
            if snapshot.state == "running" and self._past is None:
                self._series.add(snapshot.at, figures(snapshot))
                self._note_rates(snapshot)
            if snapshot.checkpoint is not None and snapshot.checkpoint != before.checkpoint:
                new = snapshot.checkpoint
                row = CheckpointRow(new.global_step, new.nbytes, snapshot.at, new.seconds)
                others = [one for one in self._checkpoints if one.global_step != row.global_step]
                self._checkpoints = tuple([row, *others][:MOST_CHECKPOINTS])
                self._changes += 1
        self._tell()
        return events

    def set_checkpoints(self, checkpoints: Sequence[CheckpointRow]) -> None:
        """Takes what a directory holds, newest first, in place of what was known; what they took stays known."""
        with self._lock:
            took = {one.global_step: one.seconds for one in self._checkpoints}
            self._changes += 1
            self._checkpoints = tuple(
                one if one.seconds is not None else _took(one, took.get(one.global_step)) for one in checkpoints
            )[:MOST_CHECKPOINTS]
        self._tell()

    def set_runs(self, runs: Sequence[Run], notes: Sequence[str] = ()) -> None:
        """Takes the histories of a directory, newest first, and what is to be said about them."""
        with self._lock:
            self._changes += 1
            self._runs = tuple(runs)
            self._notes = tuple(notes)
        self._tell()

    def set_past(self, columns: dict[str, list[float | None]]) -> None:
        """Takes a series that somebody else has kept, `at` and any of `NAMES`, in place of its own."""
        with self._lock:
            self._changes += 1
            unknown: list[float | None] = [None] * len(columns["at"])
            self._past = {name: columns.get(name, unknown) for name in ("at", *NAMES)}
        self._tell()

    def add_events(self, events: Sequence[Event]) -> None:
        """Takes events that somebody else has seen."""
        with self._lock:
            self._add(events)
        self._tell()

    @property
    def snapshot(self) -> JobSnapshot:
        """The newest."""
        return self._snapshot

    @property
    def number(self) -> int:
        """How many snapshots have been published."""
        return self._number

    @property
    def changes(self) -> int:
        """How often the variables, the checkpoints or the runs have changed."""
        return self._changes

    @property
    def checkpoints(self) -> tuple[CheckpointRow, ...]:
        """Newest first."""
        return self._checkpoints

    @property
    def runs(self) -> tuple[Run, ...]:
        """Newest first."""
        return self._runs

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what could not be read."""
        return self._notes

    def events_after(self, number: int = 0) -> list[tuple[int, Event]]:
        """The events from a number on, oldest first, with their numbers; as many as are still known."""
        with self._lock:
            return [(n, event) for n, event in self._events if n > number]

    def columns(self, most: int | None = None) -> dict[str, list[float | None]]:
        """The series; see `Series.columns`."""
        with self._lock:
            return self._series.columns(most) if self._past is None else thinned(self._past, most)

    @property
    def has_past(self) -> bool:
        """Whether the series is one that somebody else has kept."""
        return self._past is not None

    def sparks(self) -> dict[str, list[float]]:
        """The last rates of each worker."""
        with self._lock:
            return {task: list(rates) for task, rates in self._sparks.items()}

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Has `tell` called, in the thread that publishes, whenever there is news; it must not block.

        Returns:
          what ends this.
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

    def _note_rates(self, snapshot: JobSnapshot) -> None:
        names = {worker.task for worker in snapshot.workers}
        for gone in self._sparks.keys() - names:
            del self._sparks[gone]
        for worker in snapshot.workers:
            rates = self._sparks.setdefault(worker.task, deque(maxlen=SPARK_POINTS))
            rates.append(round(worker.rate, 3) if math.isfinite(worker.rate) else 0.0)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for tell in listeners:
            tell()


def figures(snapshot: JobSnapshot) -> Mapping[str, float | None]:
    """The values of `NAMES` at a moment."""
    return {
        "global_step": snapshot.global_step,
        "rate": snapshot.rate,
        "examples_rate": snapshot.examples_rate,
        "loss": snapshot.loss,
        "learning_rate": snapshot.learning_rate,
        "staleness": snapshot.staleness_median,
        "workers": snapshot.live_workers,
        # A first look knows no speed, and an update needs a gradient.
        "bytes_in_rate": snapshot.bytes_in_rate or (None if snapshot.rate else 0.0),
        "bytes_out_rate": snapshot.bytes_out_rate or (None if snapshot.rate else 0.0),
    }


def _took(row: CheckpointRow, seconds: float | None) -> CheckpointRow:
    return replace(row, seconds=seconds)
