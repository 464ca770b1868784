"""Writers of event files, and which of them, which step and which condition hold in a thread."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from trainband.compat.tf2.eager.captured import keep_out_of_traces
from trainband.compat.tf2.eager.execute import convert
from trainband.runtime.waiting import say_on_stderr
from trainband.train.tensorboard_file import EventFile

_log = logging.getLogger(__name__)


class SummaryWriter:
    """Writes an event file into a directory, which is made when something is written.

    Args:
      directory: where; `None` writes nothing.
      suffix: the end of the file's name.
    """

    def __init__(self, directory: Path | None, suffix: str = "") -> None:
        self._directory = directory
        self._suffix = suffix
        self._file: EventFile | None = None
        self._is_closed = False

    def write(self, summary: Any, step: int) -> bool:
        """Write a summary. Returns whether it is written.

        Raises:
          RuntimeError: the writer is closed.
        """
        return self.write_event(Event(wall_time=time.time(), step=step, summary=summary))

    def write_event(self, event: Any) -> bool:
        """Write an event. Returns whether it is written.

        Raises:
          RuntimeError: the writer is closed.
        """
        if self._is_closed:
            raise RuntimeError("SummaryWriter is already closed")
        if self._directory is None:
            return False
        if self._file is None:
            self._file = EventFile(self._directory, say_on_stderr, suffix=self._suffix)
            atexit.register(self.close)  # many scripts leave it open
        self._file.write(event)
        return True

    @contextmanager
    def as_default(self, step: Any = None) -> Iterator[SummaryWriter]:
        """Writes here what is summarised inside."""
        before = STATE.writer, STATE.step
        self.set_as_default(step)
        try:
            yield self
        finally:
            self.flush()
            STATE.writer, STATE.step = before

    def set_as_default(self, step: Any = None) -> None:
        """Writes here what is summarised from now on."""
        STATE.writer = self
        STATE.step = STATE.step if step is None else step

    def init(self) -> None:
        """Does nothing: files are made when something is written."""

    def flush(self) -> None:
        """Write everything to the disk."""
        if self._file is not None and not self._is_closed:
            self._file.flush()

    def close(self) -> None:
        """Write everything to the disk and close the file. Idempotent."""
        if self._file is not None and not self._is_closed:
            atexit.unregister(self.close)
            self._file.close()
        self._is_closed = True


class _State(threading.local):
    """What holds in a thread."""

    def __init__(self) -> None:
        self.writer: SummaryWriter | None = None
        self.step: Any = None
        self.condition: Any = True


STATE = _State()


def create_file_writer(
    logdir: Any,
    max_queue: Any = None,
    flush_millis: Any = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: Any = None,
) -> SummaryWriter:
    """A writer into a directory; events reach the disk within seconds."""
    del max_queue, flush_millis, name, experimental_trackable, experimental_mesh
    if logdir is None:
        raise ValueError("Argument `logdir` cannot be None")
    suffix = filename_suffix or ""
    return SummaryWriter(Path(convert(logdir).numpy().decode() if hasattr(logdir, "numpy") else str(logdir)), suffix)


def create_noop_writer() -> SummaryWriter:
    """A writer that writes nothing."""
    return SummaryWriter(None)


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> None:
    """Write to the disk what a writer, or that of the thread, has."""
    del name
    if (chosen := writer or STATE.writer) is not None:
        chosen.flush()


@contextmanager
def record_if(condition: Any) -> Iterator[None]:
    """Writes summaries inside only where a condition holds: a boolean, a tensor, or a function that gives one."""
    before, STATE.condition = STATE.condition, condition
    try:
        yield
    finally:
        STATE.condition = before


def should_record_summaries() -> Any:
    """Whether summaries are written."""
    return STATE.writer is not None and _holds()


def _holds() -> bool:
    condition = STATE.condition
    return bool(condition() if callable(condition) else condition)


def get_step() -> Any:
    """The step for summaries that are given none."""
    return STATE.step


def set_step(step: Any) -> None:
    """Say the step for summaries that are given none: a number, or a variable."""
    STATE.step = step


@contextmanager
def summary_scope(name: str, default_name: str = "summary", values: Any = None) -> Iterator[tuple[str, str]]:
    """A scope of a name; gives the tag and the scope."""
    del values
    tag = name or default_name
    yield tag, f"{tag}/"


def record(make: Callable[[], Any], step: Any) -> bool:
    """Write the summary that a function makes, unless there is no writer or the condition does not hold.

    Raises:
      ValueError: no step is known.
    """
    keep_out_of_traces()
    if STATE.writer is None or not _holds():
        return False
    known = STATE.step if step is None else step
    if known is None:
        raise ValueError(
            "No step set. Please specify one either through the `step` argument or through "
            "tf.summary.experimental.set_step()"
        )
    return STATE.writer.write(make(), int(known))


def write_raw_pb(tensor: Any, step: Any = None, name: str | None = None) -> bool:
    """Write summaries that are messages already."""
    del name
    return record(lambda: Summary.FromString(bytes(tensor.numpy() if hasattr(tensor, "numpy") else tensor)), step)


def _no_trace(*_: Any, **__: Any) -> None:
    """Does nothing: what runs is traced with jax.profiler."""
    _log.warning("tf.summary.trace_* does nothing here; jax.profiler.trace(log_dir) shows what runs.")


trace_on = trace_off = trace_export = graph = _no_trace
