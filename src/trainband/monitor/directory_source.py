"""DirectorySource: a checkpoint directory for viewers: its checkpoints, and the histories of its runs."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trainband.checkpoint.directory import CheckpointDirectory
from trainband.checkpoint.reader import Checkpoint
from trainband.errors import CheckpointError, TrainbandError, YourError
from trainband.job.statistics import SliceStatus, VariableStatus
from trainband.monitor.live_feed import MOST_CHECKPOINTS, CheckpointRow, Curve, LiveFeed, Run
from trainband.monitor.snapshot import JobSnapshot, Severity
from trainband.monitor.tensor_summary import PREFIX, TensorSummary, summarise
from trainband.monitor.timeline import Event
from trainband.runtime import Clock

if TYPE_CHECKING:
    from trainband.monitor.history import History

LOOK_S = 2.0
OFTEN_S = 0.5
"""Seconds between two reads for a job known to be running."""
MOST_SHARE = 0.02
"""Share of a core for rereading histories: one that takes long is read less often."""
QUIET_S = 30.0
"""A run without an end whose history has not grown for this long is no longer running; in a run of many hours, whose
points are far apart, `QUIET_POINTS` times their distance.
"""
QUIET_POINTS = 3
MOST_RUNS = 20
"""Runs shown, newest first."""

_TASK = re.compile(r"\b(?:ps|worker|chief|evaluator):\d+")
_COLUMNS = {
    "steps_per_second": "rate",
    "examples_per_second": "examples_rate",
    "loss": "loss",
    "learning_rate": "learning_rate",
}
"""Series of a history that the page knows by other names."""
_KINDS: dict[str, tuple[str, Severity]] = {
    "start": ("began", "good"),
    "end": ("ended", "good"),
    "chief": ("chief", "info"),
    "join": ("joined", "good"),
    "leave": ("left", "info"),
    "death": ("lost", "error"),
    "failover": ("failover", "warning"),
    "restart": ("restarted", "warning"),
    "restore": ("restored", "warning"),
    "checkpoint": ("checkpoint", "info"),
    "refusal": ("non_finite", "warning"),
    "non_finite_loss": ("non_finite", "warning"),
    "limit": ("limit", "warning"),
}
"""Timeline kind of each event of a history."""


class DirectorySource:
    """Keeps a feed up to date with a directory, from its own thread, while it is open.

    It only reads.

    Args:
      path: the `checkpoint_dir` of a training run.
      alone: whether the directory is the only source; it then also supplies the job's state and events.
      lives: whether the job is known to run until `end` is called, however rarely its history grows.
      clock: seconds since 1970.

    Raises:
      YourError: there is no such directory.
    """

    def __init__(
        self, path: Path, feed: LiveFeed, *, alone: bool, lives: bool = False, clock: Clock = time.time
    ) -> None:
        if not path.is_dir():
            raise YourError(f"--checkpoint-dir {path} is not a directory; give the checkpoint_dir of a training run.")
        self._path = path
        self._feed = feed
        self._alone = alone
        self._lives = lives
        self._clock = clock
        self._checkpoints: list[CheckpointRow] = []
        self._read: tuple[object, ...] = ()
        self._variables_of: tuple[int, tuple[VariableStatus, ...]] = (-1, ())
        self._published_events = 0
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainband-directory", daemon=True)

    def poll(self) -> None:
        """Reads what is new."""
        rows = list(checkpoints_in(self._path))
        if rows != self._checkpoints:
            self._checkpoints = rows
            self._feed.set_checkpoints(rows)
        files = _files(self._path / "history")
        if files != self._read or self._feed.number == 0:
            self._read = files
            history, notes = _history_of(self._path, empty=not files)
            self._feed.set_runs(runs_of(history) if history is not None else (), notes)
            if self._alone:
                self._publish(history)
        elif self._alone:
            self._age()

    @property
    def has_checkpoints(self) -> bool:
        """Whether a checkpoint can be read."""
        return bool(self._checkpoints)

    def summary(self, name: str) -> TensorSummary:
        """Summarises the values of a variable in the newest checkpoint. Thread-safe; one caller at a time.

        Raises:
          CheckpointError: there is no checkpoint yet, or it has no such variable.
        """
        with self._reading:
            newest = CheckpointDirectory(self._path, lambda _: None).newest()
            if newest is None:
                raise CheckpointError(f"there is no checkpoint in {self._path} yet.")
            return summarise(newest, name)

    def end(self) -> None:
        """Marks the job as ended, when its owner reports so, and reads the rest."""
        self._stop_reading()
        self._lives = False
        self.poll()
        now, before = self._clock(), self._feed.snapshot
        if before.state == "running":  # its chief was killed, or did not record the end
            self._feed.publish(
                replace(before, at=now, state="ended", since=now, rate=0.0, examples_rate=0.0, left_s=None)
            )

    def __enter__(self) -> DirectorySource:
        self.poll()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        least_s = pause_s = OFTEN_S if self._lives else LOOK_S
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self.poll()
            pause_s = max(least_s, (time.monotonic() - began) / MOST_SHARE)

    def _publish(self, history: History | None) -> None:
        now = self._clock()
        before = self._feed.snapshot
        runs = self._feed.runs
        if history is None or not runs:
            newest = self._checkpoints[0] if self._checkpoints else None
            if newest is not None:
                state = JobSnapshot(newest.created_at, before.source, "ended", newest.created_at, heard_at=now)
                told = replace(
                    state, global_step=newest.global_step, metrics=newest.metrics, variables=self._variables()
                )
                self._feed.publish(told, derive=False)
            return
        events = list(events_of(history))
        self._feed.add_events(events[self._published_events :])
        self._published_events = len(events)
        run = runs[0]
        columns = past_of(run)
        if columns["at"]:
            self._feed.set_past(columns)
        told = replace(snapshot_of(run, before.source, now, lives=self._lives), variables=self._variables())
        self._feed.publish(told, derive=False)

    def _variables(self) -> tuple[VariableStatus, ...]:
        """Returns those of the newest checkpoint, which is read once."""
        step = next((row.global_step for row in self._checkpoints if not row.damage), None)
        if step is not None and step != self._variables_of[0]:
            try:
                found = variables_of(Checkpoint.open(CheckpointDirectory(self._path, lambda _: None).path_of(step)))
            except CheckpointError:
                return self._variables_of[1]  # removed meanwhile: there is a newer one
            self._variables_of = (step, found)
        return self._variables_of[1]

    def _age(self) -> None:
        """Marks a run whose history has stopped growing."""
        runs, before = self._feed.runs, self._feed.snapshot
        if runs:
            told = snapshot_of(runs[0], before.source, self._clock(), lives=self._lives)
            if (told.state, told.rate) != (before.state, before.rate):
                self._feed.publish(replace(told, variables=self._variables()), derive=False)


def variables_of(checkpoint: Checkpoint) -> tuple[VariableStatus, ...]:
    """Returns the params of a checkpoint, and which ps wrote which rows."""
    manifest = checkpoint.manifest
    return tuple(
        VariableStatus(
            name=name.removeprefix(PREFIX),
            shape=tuple(whole.shape),
            dtype=str(whole.dtype),
            nbytes=whole.nbytes,
            slices=tuple(
                SliceStatus(f"ps:{part.ps}", stored.piece.start, stored.piece.stop)
                for part, stored in manifest.places[name]
            ),
        )
        for name, whole in manifest.tensors.items()
        if name.startswith(PREFIX)
    )


def checkpoints_in(path: Path) -> Iterator[CheckpointRow]:
    """Yields the checkpoints of a directory, newest first, with the damage of each."""
    directory = CheckpointDirectory(path, lambda _: None)  # each row reports its own damage
    try:
        best, steps = directory.best, directory.steps()
    except CheckpointError:
        return
    for step in list(reversed(steps))[:MOST_CHECKPOINTS]:
        where = directory.path_of(step)
        try:
            manifest = Checkpoint.open(where).manifest
        except CheckpointError as exc:
            if where.exists():  # else removed meanwhile
                yield CheckpointRow(step, 0, 0.0, path=where.name, damage=str(exc))
            continue
        yield CheckpointRow(
            global_step=step,
            nbytes=manifest.nbytes,
            created_at=manifest.created_at,
            best=f"{best[1]} {best[2]:.6g}" if best is not None and best[0] == step else "",
            metrics=manifest.metrics,
            strategy=manifest.strategy,
            trainband=manifest.trainband,
            path=where.name,
        )


def runs_of(history: History) -> tuple[Run, ...]:
    """Returns the runs of a history, newest first, without the per-task series."""
    found = []
    ends = {event.run: event.value for event in history.events if event.kind in ("start", "chief")}
    for run in reversed(history.runs[-MOST_RUNS:]):
        curves = {}
        mine = history.table.filter(_equal(history.table["run"], run.number))
        for name in sorted(_names(mine["name"])):
            if name.startswith("event/") or _TASK.match(name):
                continue  # the page draws no curve for each of 1,000 workers
            series = history.series(name, run=run.number)
            at = (series.time.astype("datetime64[us]").astype("int64") / 1e6).tolist()
            values = [value if math.isfinite(value) else None for value in series.value.tolist()]
            curves[name] = Curve(series.global_step.tolist(), at, values)
        found.append(
            Run(
                name=f"run {run.number}",
                started_at=run.began_at.timestamp(),
                ended_at=run.ended_at.timestamp(),
                steps=_reached(mine),
                points=sum(len(curve.at) for curve in curves.values()),
                reason=run.reason,
                curves=curves,
                ends_at=None if (end := ends.get(run.number)) is None else int(end),
            )
        )
    return tuple(found)


def events_of(history: History) -> Iterator[Event]:
    """Yields the events of a history for the timeline."""
    several = len(history.runs) > 1
    for event in history.events:
        kind, severity = _KINDS.get(event.kind, (event.kind, "info"))
        named = _TASK.search(event.text)
        text = event.text[:1].upper() + event.text[1:] if named is None or named.start() else event.text
        text = text or kind.capitalize()
        text = text if text.endswith((".", "!", "?")) else f"{text}."
        yield Event(
            at=event.time.timestamp(),
            kind=kind,
            severity=severity,
            task=named[0] if named is not None else "",
            text=f"Run {event.run}: {text}" if several else text,
            step=event.global_step,
        )


def past_of(run: Run) -> dict[str, list[float | None]]:
    """Returns the series that the page knows, by time."""
    rows: dict[float, dict[str, float | None]] = {}
    for name, curve in run.curves.items():
        if name not in _COLUMNS:
            continue
        for step, at, value in zip(curve.step, curve.at, curve.value, strict=True):
            rows.setdefault(at, {"global_step": step})[_COLUMNS[name]] = value
    columns: dict[str, list[float | None]] = {"at": [*sorted(rows)]}
    for name in ("global_step", *_COLUMNS.values()):
        columns[name] = [rows[at].get(name) for at in sorted(rows)]
    return columns


def snapshot_of(run: Run, source: str, now: float, *, lives: bool = False) -> JobSnapshot:
    """Returns the state of a run, from its history alone unless the job is known to be running."""
    from trainband.monitor.history.curves import spacing

    grows = now - run.ended_at < max(QUIET_S, QUIET_POINTS * spacing(run.ended_at - run.started_at))
    goes_on = lives or (not run.reason and grows)
    newest = {name: curve.value[-1] for name, curve in run.curves.items() if curve.value}
    rate, examples_rate = (
        (newest.get(name) or 0.0) if goes_on and grows else 0.0 for name in ("steps_per_second", "examples_per_second")
    )
    return JobSnapshot(
        at=now if goes_on else run.ended_at,
        source=source,
        state="running" if goes_on else "ended",
        since=run.started_at if goes_on else run.ended_at,
        reason="" if goes_on else run.reason,
        heard_at=run.ended_at,
        global_step=run.steps,
        last_step=run.ends_at,
        left_s=max(0, run.ends_at - run.steps) / rate if run.ends_at is not None and rate > 0 else None,
        rate=rate,
        examples_rate=examples_rate,
        loss=newest.get("loss"),
        metrics={name: value for name, value in newest.items() if value is not None and not _TASK.match(name)},
    )


def _history_of(path: Path, *, empty: bool) -> tuple[History | None, list[str]]:
    """Returns the history in a directory, and notes about it for viewers."""
    if empty:
        return None, [f"There is no history in {path}; runs write one to the folder history of their checkpoint_dir."]
    from trainband.monitor.history import history

    try:
        found = history(path, skip_damaged=True)
    except TrainbandError as exc:
        return None, [str(exc)]
    return found, [f"A file of the history was skipped. {reason}" for reason in found.damaged.values()]


def _reached(rows: Any) -> int:
    """Returns the last global step of a run, which is lower than an earlier one if it resumed from a checkpoint."""
    import pyarrow as pa
    import pyarrow.compute as pc

    resumed = pc.is_in(rows["name"].cast(pa.string()), pa.array(["event/start", "event/chief", "event/restore"]))
    begun = pc.max(pc.indices_nonzero(resumed)).as_py() or 0
    return pc.max(rows["global_step"].slice(begun)).as_py() or 0


def _files(folder: Path) -> tuple[object, ...]:
    try:
        return tuple(sorted((one.name, one.stat().st_size) for one in folder.iterdir()))
    except OSError:
        return ()


def _names(column: Any) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[str] = pc.unique(column.cast(pa.string())).to_pylist()
    return found


def _equal(column: Any, number: int) -> Any:
    import pyarrow.compute as pc

    return pc.equal(column, number)
