"""EventFile: figures of a training as TensorBoard reads them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import histogram, scalar

from trainband.runtime import Clock
from trainband.runtime.waiting import Say

FLUSH_S = 5.0
"""Between two writes to the disk, which cost milliseconds each."""

BINS = 30
"""Of a histogram, as TensorFlow makes them."""

_numbers = itertools.count()


class EventFile:
    """One file of a TensorBoard run, written by whoever calls; a context manager. It has a name of its own always.

    (tensorboardX's SummaryWriter has two threads, does not wait for them when it flushes, and opens the same file
    again, empty, for a second one in the same second.) A disk that refuses stops no training: that is said, once, and
    what follows is lost.

    Args:
      directory: of the run; it is made if it is not there.
      say: where lines for people go.
      suffix: the end of the file's name.
      resumed_at: the global step at which the training resumes. What an earlier run wrote of later ones into the
        same directory, TensorBoard forgets.
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
        self._writer: Any = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06}"
            self._writer = RecordWriter(str(directory.absolute() / f"{name}{suffix}"))
        except OSError as exc:
            self._give_up(exc)
        self._flushed = clock()
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_at is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=resumed_at + 1, session_log=start))

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Notes values by their names: a number or scalar array as a point of a curve, other arrays as histograms.

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
        """Notes an event that somebody else has made."""
        self._write(event)
        self._flush_now_and_then()

    def flush(self) -> None:
        """Brings all that was added onto the disk."""
        self._flushed = self._clock()
        if self._writer is not None:
            try:
                self._writer.flush()
            except OSError as exc:
                self._give_up(exc)

    def close(self) -> None:
        """Brings everything onto the disk and lets go of the file. Idempotent."""
        self.flush()
        self._let_go()

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
        if self._writer is not None:
            try:
                self._writer.write(event.SerializeToString())
            except OSError as exc:
                self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        self._let_go()
        self._say(
            f"WARNING: no summaries can be written into {self._directory} ({exc.strerror or exc}); "
            "the training goes on without. Free space or name another output_dir, and start again."
        )

    def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):  # it writes what it still has, and has been told that it cannot
                writer.close()
