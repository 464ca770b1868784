"""Schema of a history: its columns, the names of its series and events, and the header of each file."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from msgspec import Struct

from trainband.version import VERSION

FOLDER = "history"
"""Folder in a checkpoint directory."""

SUFFIX = ".arrows"
"""Suffix of a file: Arrow's IPC stream format."""

METADATA_KEY = b"trainband.history"
"""Key in the schema of a file that holds its `Start`, as JSON."""

FORMAT = 1
"""Version of the files; a reader refuses a higher one."""

EVENT = "event/"
"""Prefix of the name of a row that is an event, not a point of a series."""

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
"""The columns of a file, one row per point or event:

- `time`: when it was written: for a point, the end of its interval.
- `global_step`: of the last step in it.
- `task`: the writer.
- `name`: of the series (`loss`, `steps_per_second`, `validation/loss`, `worker:1/staleness`), or `event/` and a kind.
- `value`: of the point; of an event, the number that belongs to it, or null.
- `text`: of an event; null in points.
"""


class Start(Struct, frozen=True, kw_only=True):
    """The header of a file.

    Attributes:
      format: see `FORMAT`.
      run: random id of its run, the same in all its files.
      run_began_at: when that run began, in seconds since 1970.
      sequence: of the file, among those of its directory, from 0.
      job: random id of the job that wrote it, the same for all its tasks.
      task: the writer.
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
) -> Start:
    """Returns the header of the next file of a directory.

    It belongs to the run of the previous file if the same job wrote that, or if the training resumes from a checkpoint
    of the directory; otherwise it begins another run.

    Args:
      before: the header of the newest file, if any.
      token: random, for another run.
      job, task, global_step, strategy: see `Start`.
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
        trainband=VERSION,
    )
