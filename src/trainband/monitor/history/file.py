"""HistoryFile: one file of a history while it is being written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from trainband.monitor.history.schema import METADATA_KEY, SCHEMA, SUFFIX, Row, Start

_MICROSECONDS = 1_000_000


class HistoryFile:
    """An Arrow IPC stream; each `append` adds one batch and hands it to the operating system.

    A process that dies leaves a file of whole batches, perhaps with the start of another one at its end.

    Args:
      folder: of the file; created if missing.

    Raises:
      OSError: the file system refuses; `append` and `close` raise it, too.
    """

    def __init__(self, folder: Path, start: Start) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name_of(start)
        """Path of the file."""
        self._task = start.task
        self._names: dict[str, int] = {}
        self._file: IO[bytes] = self.path.open("xb")
        try:
            schema = SCHEMA.with_metadata({METADATA_KEY: msgspec.json.encode(start)})
            # New names are written as they appear, so that the file can be read at any time.
            options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
            self._schema = schema
            self._writer: Any = pa.ipc.new_stream(self._file, schema, options=options)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def append(self, rows: Sequence[Row]) -> None:
        """Adds rows."""
        if not rows:
            return
        numbers = [self._names.setdefault(row.name, len(self._names)) for row in rows]
        columns = [
            pa.array([int(row.time * _MICROSECONDS) for row in rows], pa.timestamp("us", "UTC")),
            pa.array([row.global_step for row in rows], pa.int64()),
            pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array([self._task])),
            pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(list(self._names), pa.string())),
            # NaN is a value; a missing value is null.
            pa.array([row.value for row in rows], pa.float64(), from_pandas=False),
            pa.array([row.text for row in rows], pa.string()),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._file.flush()

    def close(self) -> None:
        """Ends the stream and closes the file."""
        try:
            self._writer.close()
        finally:
            self._file.close()


def name_of(start: Start) -> str:
    """Returns the name of a file; names sort in the order in which the files were begun."""
    when = datetime.fromtimestamp(start.started_at, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    task = re.sub(r"[^A-Za-z0-9]+", "-", start.task)[:40]
    return f"{start.sequence:06}-{when}-{task}{SUFFIX}"
