"""Frames: the JSON sent to the page. Each is made once, however many viewers there are."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from trainband.monitor.live_feed import LiveFeed, Run
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.timeline import Event
from trainband.version import VERSION

MOST_ROWS = 2000
"""Rows of the series that a page gets when it opens; more than a screen has pixels to show."""


MEMORY_OF = 200
"""Workers up to which a page gets the parts of each one's memory: of more, they would be a quarter of its bytes."""


class Frames:
    """Frames of a feed. Thread-safe.

    Args:
      has_values: whether the page may ask for the values of variables.
      has_profile: whether it may order recordings of steps.
    """

    def __init__(self, feed: LiveFeed, *, has_values: bool = False, has_profile: bool = False) -> None:
        self.feed = feed
        """The source of the frames."""
        self._has_values = has_values
        self._has_profile = has_profile
        self._lock = threading.Lock()
        self._now: tuple[int, bytes] = (-1, b"")
        self._changed: tuple[int, bytes] = (-1, b"")

    def now(self) -> tuple[int, bytes]:
        """Returns the number and the JSON of the newest snapshot, without the variables."""
        with self._lock:
            number = self.feed.number
            if self._now[0] != number:
                self._now = (number, msgspec.json.encode(job_of(self.feed.snapshot)))
            return self._now

    def full(self) -> bytes:
        """Returns everything that the feed remembers."""
        feed = self.feed
        return msgspec.json.encode(
            {
                "job": job_of(feed.snapshot),
                **self._seldom(),
                "series": feed.columns(MOST_ROWS),
                "is_past": feed.has_past,
                "sparks": feed.sparks(),
                "events": events_of(feed.events_after()),
                "viewer": {
                    "trainband": VERSION,
                    "now": time.time(),
                    "has_values": self._has_values,
                    "has_profile": self._has_profile,
                },
            }
        )

    def changed(self) -> tuple[int, bytes]:
        """Returns the parts that are only sent when they change, after a number that changes with them."""
        with self._lock:
            feed = self.feed
            if self._changed[0] != feed.changes:
                self._changed = (feed.changes, msgspec.json.encode(self._seldom()))
            return self._changed

    def _seldom(self) -> dict[str, Any]:
        feed = self.feed
        return {
            "variables": named(feed.snapshot.variables),
            "checkpoints": named(feed.checkpoints),
            "runs": runs_of(feed.runs),
            "notes": feed.notes,
            "series": feed.columns(MOST_ROWS) if feed.has_past else None,
        }


def runs_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns runs without their curves."""
    names = ("name", "started_at", "ended_at", "steps", "points", "reason")
    return [{name: getattr(run, name) for name in names} for run in runs]


def job_of(snapshot: JobSnapshot) -> dict[str, Any]:
    """Returns a snapshot by name, without variables; the workers as a table, which takes a third of the bytes."""
    fields = {
        name: named(getattr(snapshot, name))
        for name in snapshot.__struct_fields__
        if name not in ("workers", "variables")
    }
    workers = snapshot.workers
    if len(workers) > MEMORY_OF:
        workers = tuple(msgspec.structs.replace(one, memory_parts={}) for one in workers)
    return {**fields, "workers": table(workers)}


def table(records: Sequence[Struct]) -> dict[str, Any]:
    """Returns records of one kind as their field names and a list of values for each record."""
    if not records:
        return {"columns": [], "rows": []}
    columns = records[0].__struct_fields__
    return {"columns": columns, "rows": [[_short(getattr(one, name)) for name in columns] for one in records]}


def events_of(events: Sequence[tuple[int, Event]]) -> list[dict[str, Any]]:
    """Returns events by name, with their numbers."""
    return [{"number": number, **named(event)} for number, event in events]


def named(value: Any) -> Any:
    """Converts records to objects with named fields, recursively."""
    if isinstance(value, Struct):
        return {name: named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [named(one) for one in value]
    if isinstance(value, dict):
        return {key: named(one) for key, one in value.items()}
    return _short(value)


def _short(value: Any) -> Any:
    """Rounds floats to six significant digits, except for times; `None` for values that JSON cannot express."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")
