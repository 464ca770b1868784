"""The schema of a history: its columns, the names of its series and events, and what each file says of itself."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from msgspec import Struct

FOLDER = "history"
"""Of a checkpoint directory."""

SUFFIX = ".arrows"
"""Of a file: Arrow's IPC stream format."""

METADATA_KEY = b"trainband.history"
"""Under which the schema of a file holds its `Start`, as JSON."""

FORMAT = 1
"""Of the files; a reader refuses a higher one."""

EVENT = "event/"
"""Begins the name of each row that is an event and no point of a series."""

_NAME = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("global_step", pa.int64(), nullable=False),
        pa.field("task", _NAME, nullable=False),
        pa.field("name", _NAME, nullable=False),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
"""The columns of a file, one row a point or event:

- `time`: when it was written down: the end of the interval whose mean a point is.
- `global_step`: of the last step in it.
- `task`: who wrote it.
- `name`: of the series (`loss`, `steps_per_second`, `validation/loss`, `worker:1/staleness`), or `event/` and a kind.
- `value`: of the point; of an event, the number that belongs to it, or null.
- `text`: of an event; null in points.
"""


class Start(Struct, frozen=True, kw_only=True):
    """What a file says of itself.

    Attributes:
      format: see `FORMAT`.
      run: which run it belongs to: random, the same in all files of one.
      run_began_at: when that run began, in seconds since 1970.
      sequence: of the file, among those of its directory, from 0.
      job: which job wrote it: random, the same for all its tasks.
      task: which of its tasks.
      started_at: when the file was begun, in seconds since 1970.
      global_step: at which.
      strategy: how the job trains.
      trainband: the version that wrote it.
    """

    run: str
    run_began_at: float
    sequence: int
    job: str
    task: str
    started_at: float
    global_step: int
    strategy: str = ""
    trainband: str = ""
    format: int = FORMAT


class Row(NamedTuple):
    """One row of a history."""

    time: float
    """Seconds since 1970."""
    global_step: int
    name: str
    value: float | None
    text: str | None = None


def next_start(
    before: Start | None,
    *,
    token: str,
    job: str,
    task: str,
    now: float,
    global_step: int,
    resumed: bool,
    strategy: str = "",
    trainband: str = "",
) -> Start:
    """What the next file of a directory says of itself.

    It belongs to the run of the file before it, where the same job wrote that, or where the training resumes from a
    checkpoint of the directory; else it begins another run.

    Args:
      before: what the newest file says; `None` where there is none.
      token: random, for another run.
      job, task, global_step, strategy, trainband: see `Start`.
      now: seconds since 1970.
      resumed: whether the training resumes from a checkpoint of this directory.
    """
    goes_on = before is not None and (resumed or before.job == job)
    return Start(
        run=before.run if before is not None and goes_on else token,
        run_began_at=min(now, before.run_began_at) if before is not None and goes_on else now,
        sequence=0 if before is None else before.sequence + 1,
        job=job,
        task=task,
        started_at=now,
        global_step=global_step,
        strategy=strategy,
        trainband=trainband,
    )
