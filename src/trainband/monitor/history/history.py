"""History: the metrics and events of the runs of one directory, as read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainband.errors import YourError
from trainband.monitor import html
from trainband.monitor.history.schema import EVENT, SCHEMA, Start
from trainband.runtime.formatting import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVENTS_SHOWN = 12
"""Events shown in a notebook."""

_RESTORE = f"{EVENT}restore"
"""From the step of such an event on, the job repeats later steps that were already written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: a training run, including each time that it was resumed.

    Attributes:
      number: in its directory, from 1.
      id: random.
      began_at, ended_at: times of its first and its last row, UTC.
      first_step, last_step: global steps.
      tasks: the tasks that wrote it, in order.
      starts: how many times a process has begun or resumed it.
      reason: why it ended; empty while it runs, or if its process was killed.
      strategy: how it trained.
    """

    number: int
    id: str
    began_at: datetime
    ended_at: datetime
    first_step: int
    last_step: int
    tasks: tuple[str, ...]
    starts: int
    reason: str
    strategy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
      run: the number of its run.
      time: when, UTC.
      global_step: at which.
      task: that wrote it.
      kind: `start`, `end`, `chief`, `join`, `leave`, `death`, `failover`, `restart`, `restore`, `checkpoint`,
        `refusal`, `non_finite_loss` or `limit`.
      text: a description.
      value: a number that belongs to it, if any.
    """

    run: int
    time: datetime
    global_step: int
    task: str
    kind: str
    text: str
    value: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The points of one series of one run, in order.

    Attributes:
      name: of the series.
      run: the number of its run.
      time: datetime64[us], UTC: when each interval ended.
      global_step: int64: the last step of each.
      value: float64: the mean over each.
    """

    name: str
    run: int
    time: NDArray[np.datetime64] = field(repr=False)
    global_step: NDArray[np.int64] = field(repr=False)
    value: NDArray[np.float64] = field(repr=False)

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class History:
    """Result of `trainband.history`.

    Attributes:
      directory: of the runs.
      table: pyarrow's Table of all rows, points and events, with the columns `run` (int32, from 1), `time`
        (timestamp[us, UTC]), `global_step` (int64), `task`, `name` (dictionary of string), `value` (float64) and
        `text` (string). Points of steps after one from which the training later resumed are left out, as
        TensorBoard does.
      left_out: those points, in the same columns.
      runs: the runs, the oldest first.
      damaged: why each damaged file was skipped.
    """

    directory: Path
    table: pa.Table
    left_out: pa.Table
    runs: tuple[Run, ...]
    damaged: Mapping[str, str]

    @staticmethod
    def of(directory: Path, parts: Sequence[tuple[Start, pa.Table]], damaged: Mapping[str, str]) -> History:
        """Combines the files of a directory.

        Args:
          directory: of the runs.
          parts: the start and the rows of each file, in the order in which they were begun.
          damaged: why other files could not be read.
        """
        by_run: dict[str, list[tuple[Start, pa.Table]]] = {}
        for start, table in parts:
            by_run.setdefault(start.run, []).append((start, table))
        kept, left_out, runs = [], [], []
        for number, (name, files) in enumerate(by_run.items(), 1):
            rows = pa.concat_tables([table.cast(SCHEMA) for _, table in files]).unify_dictionaries().combine_chunks()
            rows = rows.replace_schema_metadata(None)
            rows = rows.add_column(0, "run", pa.array(np.full(len(rows), number, np.int32)))
            is_left_out = _is_left_out(rows)
            left_out.append(rows.filter(pa.array(is_left_out)))
            kept.append(rows.filter(pa.array(~is_left_out)))
            runs.append(_run(number, name, [start for start, _ in files], kept[-1]))
        empty = SCHEMA.insert(0, pa.field("run", pa.int32())).empty_table()
        return History(
            directory=directory,
            table=pa.concat_tables([empty, *kept], promote_options="permissive") if kept else empty,
            left_out=pa.concat_tables([empty, *left_out], promote_options="permissive") if left_out else empty,
            runs=tuple(runs),
            damaged=dict(damaged),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all series, sorted."""
        return tuple(name for name in sorted(_strings(self.table, "name")) if not name.startswith(EVENT))

    @property
    def events(self) -> tuple[Event, ...]:
        """The events, in order."""
        rows = self.table.filter(pc.starts_with(self.table["name"].cast(pa.string()), EVENT))
        rows = rows.set_column(1, "at", rows["time"].cast(pa.int64()))
        return tuple(
            Event(
                run=row["run"],
                time=_utc(row["at"]),
                global_step=row["global_step"],
                task=row["task"],
                kind=row["name"].removeprefix(EVENT),
                text=row["text"] or "",
                value=row["value"],
            )
            for row in rows.to_pylist()
        )

    def series(self, name: str, *, run: int | None = None) -> Series:
        """Returns the points of one series.

        Args:
          name: `loss`, `steps_per_second`, ...: one of `names`.
          run: the number of the run; the newest by default.

        Raises:
          YourError: there is no such run, or it has no such series.
        """
        number = self._number(run)
        rows = self.table.filter(
            pc.and_(pc.equal(self.table["name"].cast(pa.string()), name), pc.equal(self.table["run"], number))
        )
        if not len(rows):
            mine = self.table.filter(pc.equal(self.table["run"], number))
            there = [one for one in sorted(_strings(mine, "name")) if not one.startswith(EVENT)]
            raise YourError(
                f"history: run {number} of {self.directory} has no series {name!r}; it has "
                f"{', '.join(there) or 'none yet'}."
            )
        return Series(
            name=name,
            run=number,
            time=rows["time"].to_numpy(),
            global_step=rows["global_step"].to_numpy(),
            value=rows["value"].to_numpy(),
        )

    def to_pandas(self) -> Any:
        """Returns the table as a pandas DataFrame.

        Raises:
          YourError: pandas is not installed.
        """
        try:
            import_module("pandas")  # which pyarrow needs here
        except ImportError:
            raise YourError("History.to_pandas needs pandas, which is not installed: pip install pandas.") from None
        return self.table.to_pandas()

    def plot(
        self, name: str = "loss", path: str | Path | None = None, *, runs: Sequence[int] | None = None
    ) -> Figure | Path:
        """Draws a series by global step, one line per run.

        Args:
          name: of the series.
          path: of the file to write; `None` returns a figure, which notebooks show.
          runs: the numbers of the runs; by default, all that have the series.

        Raises:
          YourError: no run has such a series, or matplotlib is not installed.
        """
        from trainband.monitor.figure import finished, new_figure

        numbers = [run.number for run in self.runs if self._has(name, run.number)] if runs is None else runs
        found = [self.series(name, run=number) for number in numbers] or [self.series(name)]
        figure, axes = new_figure()
        for one in found:
            axes.plot(one.global_step, one.value, linewidth=1.4, label=f"run {one.run}")
        axes.set(xlabel="global step", ylabel=name, title=str(self.directory.name))
        return finished(figure, axes, path, log=all(len(one) and np.nanmin(one.value) > 0 for one in found))

    def __repr__(self) -> str:
        rows = f"{len(self.table):,} rows"
        broken = f", {len(self.damaged)} damaged files skipped" if self.damaged else ""
        return f"<History of {self.directory}: {len(self.runs)} runs, {len(self.names)} series, {rows}{broken}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                run.number,
                f"{run.began_at:%Y-%m-%d %H:%M:%S} UTC",
                duration((run.ended_at - run.began_at).total_seconds()),
                f"{run.first_step:,} to {run.last_step:,}",
                run.starts,
                ", ".join(run.tasks),
                run.reason,
            )
            for run in self.runs
        ]
        curves = []
        for name in ("loss", "validation/loss", "steps_per_second"):
            if self.runs and self._has(name, self.runs[-1].number):
                one = self.series(name)
                curves.append(html.curve(name, one.global_step.tolist(), one.value.tolist(), log=name.endswith("loss")))
        last = self.events[-EVENTS_SHOWN:]
        told = [(f"{e.time:%Y-%m-%d %H:%M:%S}", f"{e.global_step:,}", e.run, e.task, e.kind, e.text) for e in last]
        return html.block(
            f"history of {self.directory}",
            html.table(rows, ("run", "began", "for", "global steps", "starts", "written by", "ended")),
            *curves,
            html.table(told, ("time (UTC)", "global step", "run", "task", "event", "")),
            *(html.block("damaged", html.table(self.damaged.items())) for _ in [0] if self.damaged),
        )

    def _has(self, name: str, number: int) -> bool:
        mine = self.table.filter(pc.equal(self.table["run"], number))
        return name in _strings(mine, "name")

    def _number(self, run: int | None) -> int:
        if not self.runs:
            raise YourError(f"history: {self.directory} has no runs yet.")
        if run is None:
            return self.runs[-1].number
        if not any(one.number == run for one in self.runs):
            raise YourError(f"history: {self.directory} has runs 1 to {len(self.runs)}, not run {run!r}.")
        return run


def _is_left_out(rows: pa.Table) -> NDArray[np.bool_]:
    """Marks the rows that are points of steps after one from which the training later resumed."""
    names = rows["name"].cast(pa.string())
    steps = rows["global_step"].to_numpy()
    limits = np.full(len(steps), np.iinfo(np.int64).max)
    is_restore = np.asarray(pc.equal(names, _RESTORE).to_numpy(zero_copy_only=False), bool)
    limits[is_restore] = steps[is_restore]
    later = np.minimum.accumulate(limits[::-1])[::-1]
    is_point = ~np.asarray(pc.starts_with(names, EVENT).to_numpy(zero_copy_only=False), bool)
    return np.asarray((steps > later) & is_point, bool)


def _run(number: int, name: str, starts: Sequence[Start], rows: pa.Table) -> Run:
    names = rows["name"].cast(pa.string())
    began = datetime.fromtimestamp(starts[0].run_began_at, UTC)
    texts = rows.filter(pc.is_in(names, pa.array([f"{EVENT}start", f"{EVENT}chief", f"{EVENT}end"])))
    last = texts.slice(max(0, len(texts) - 1)).to_pylist()
    has_ended = bool(last) and last[0]["name"] == f"{EVENT}end"
    steps = rows["global_step"]
    return Run(
        number=number,
        id=name,
        began_at=began,
        ended_at=_utc(pc.max(rows["time"].cast(pa.int64())).as_py()) if len(rows) else began,
        first_step=starts[0].global_step,
        last_step=pc.max(steps).as_py() if len(rows) else starts[-1].global_step,
        tasks=tuple(dict.fromkeys(start.task for start in starts)),
        starts=pc.sum(pc.equal(names, f"{EVENT}start")).as_py() or 0,
        reason=last[0]["text"] or "" if has_ended else "",
        strategy=starts[-1].strategy,
    )


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _strings(table: pa.Table, column: str) -> list[str]:
    return [value for value in pc.unique(table[column].cast(pa.string())).to_pylist() if value is not None]
