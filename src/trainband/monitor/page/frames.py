"""Frames: what the page is sent, as JSON. Each is made once, however many look."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from trainband.monitor.feed import Feed, Run
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.timeline import Event
from trainband.version import VERSION

MOST_ROWS = 2000
"""Of the series that a page gets when it opens; more than a screen has pixels to show."""


class Frames:
    """The frames of a feed. Any thread may ask.

    Args:
      feed: what is shown.
      has_values: whether the page may ask for the values of variables.
      has_profile: whether it may have steps recorded.
    """

    def __init__(self, feed: Feed, *, has_values: bool = False, has_profile: bool = False) -> None:
        self._feed = feed
        self._has_values = has_values
        self._has_profile = has_profile
        self._lock = threading.Lock()
        self._now: tuple[int, bytes] = (-1, b"")
        self._changed: tuple[int, bytes] = (-1, b"")

    @property
    def feed(self) -> Feed:
        """What is shown."""
        return self._feed

    def now(self) -> tuple[int, bytes]:
        """The number of the newest snapshot and the JSON of it, without the variables."""
        with self._lock:
            number = self._feed.number
            if self._now[0] != number:
                self._now = (number, msgspec.json.encode(job_of(self._feed.snapshot)))
            return self._now

    def full(self) -> bytes:
        """Everything that the feed remembers."""
        feed = self._feed
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
        """What a page is only sent when it has changed, behind a number that tells whether it has."""
        with self._lock:
            feed = self._feed
            if self._changed[0] != feed.changes:
                self._changed = (feed.changes, msgspec.json.encode(self._seldom()))
            return self._changed

    def _seldom(self) -> dict[str, Any]:
        feed = self._feed
        return {
            "variables": named(feed.snapshot.variables),
            "checkpoints": named(feed.checkpoints),
            "runs": runs_of(feed.runs),
            "notes": feed.notes,
            "series": feed.columns(MOST_ROWS) if feed.has_past else None,
        }


def runs_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs without their curves."""
    names = ("name", "started_at", "ended_at", "steps", "points", "reason")
    return [{name: getattr(run, name) for name in names} for run in runs]


def job_of(snapshot: JobSnapshot) -> dict[str, Any]:
    """A snapshot by its names, without variables; the workers as a table, which takes a third of the bytes."""
    fields = {
        name: named(getattr(snapshot, name))
        for name in snapshot.__struct_fields__
        if name not in ("workers", "variables")
    }
    return {**fields, "workers": table(snapshot.workers)}


def table(records: Sequence[Struct]) -> dict[str, Any]:
    """Records of one kind as the names of their fields and a list of values for each record."""
    if not records:
        return {"columns": [], "rows": []}
    columns = records[0].__struct_fields__
    return {"columns": columns, "rows": [[_short(getattr(one, name)) for name in columns] for one in records]}


def events_of(events: Sequence[tuple[int, Event]]) -> list[dict[str, Any]]:
    """Events by their names, with their numbers."""
    return [{"number": number, **named(event)} for number, event in events]


def named(value: Any) -> Any:
    """Records as objects with named fields, down to the last."""
    if isinstance(value, Struct):
        return {name: named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [named(one) for one in value]
    if isinstance(value, dict):
        return {key: named(one) for key, one in value.items()}
    return _short(value)


def _short(value: Any) -> Any:
    """Floats with six significant digits, but for times, and none that JSON has no word for."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")
