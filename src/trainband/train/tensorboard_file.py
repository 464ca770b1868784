"""EventFile: figures of a training run in TensorBoard's format."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import histogram, scalar

from trainband.runtime import Clock
from trainband.runtime.regular_files import new_regular
from trainband.runtime.waiting import Say

FLUSH_S = 5.0
"""Between two writes to the disk, which cost milliseconds each."""

BINS = 30
"""Number of bins of a histogram, as in TensorFlow."""

_numbers = itertools.count()


class EventFile:
    """One file of a TensorBoard run, written by the calling thread; a context manager. Its name is always unique.

    (tensorboardX's SummaryWriter has two threads, does not wait for them when it flushes, and opens the same file
    again, empty, for a second one in the same second.) A disk error does not stop the training: a warning is printed
    once, and later figures are lost.

    Args:
      directory: of the run; created if missing.
      say: receives lines for people.
      suffix: the end of the file's name.
      resumed_at: the global step at which the training resumes. TensorBoard drops later steps that an earlier run
        wrote to the same directory.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: Path,
        say: Say,
        *,
        suffix: str = "",
        resumed_at: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._directory = directory
        self._say = say
        self._clock = clock
        self._file: BinaryIO | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06}"
            self._file = new_regular(directory.absolute() / f"{name}{suffix}")
        except OSError as exc:
            self._disable(exc)
        self._flushed = clock()
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=resumed_at + 1, session_log=start))

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds values by name: a number or scalar array as a point of a curve, other arrays as histograms.

        Of a histogram, only finite values count.
        """
        for name, value in values.items():
            array = np.asarray(value)
            if array.ndim == 0:
                self._write(Event(wall_time=time.time(), step=step, summary=scalar(name, array)))
                continue
            numbers = array.astype(np.float64).ravel()
            finite = numbers[np.isfinite(numbers)]
            if finite.size:
                self._write(Event(wall_time=time.time(), step=step, summary=histogram(name, finite, BINS)))
        self._flush_now_and_then()

    def write(self, event: Event) -> None:
        """Adds an existing event."""
        self._write(event)
        self._flush_now_and_then()

    def flush(self) -> None:
        """Writes everything added to the disk."""
        self._flushed = self._clock()
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as exc:
                self._disable(exc)

    def close(self) -> None:
        """Writes everything to the disk and closes the file. Idempotent."""
        self.flush()
        self._close_file()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush_now_and_then(self) -> None:
        if self._clock() - self._flushed >= FLUSH_S:
            self.flush()

    def _write(self, event: Event) -> None:
        if self._file is not None:
            try:
                self._file.write(_record(event.SerializeToString()))
            except OSError as exc:
                self._disable(exc)

    def _disable(self, exc: OSError) -> None:
        self._close_file()
        self._say(
            f"WARNING: could not write summaries to {self._directory} ({exc.strerror or exc}); "
            "training continues without them. Free space or pass another output_dir, and restart."
        )

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it writes its buffer, which has failed already
                file.close()


def _record(data: bytes) -> bytes:
    """Returns a record of a TFRecord file: its length and its bytes, each followed by a checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
