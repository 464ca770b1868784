"""Orders recordings of a running job's steps, and waits for those of its workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trainband.errors import DeadlineExceeded, TrainbandError
from trainband.monitor.trace import Event, trace_of
from trainband.runtime import SYSTEM, Clock
from trainband.runtime.step_recording import LONGEST_S, StepRecording
from trainband.wire.messages.recording import RecordingOrder, Recordings

LOOK_S = 0.5
MOST_WAIT_S = LONGEST_S + 5.0
"""A worker sends its recording with the heartbeat after its last step, or after `LONGEST_S`."""


class Asker(Protocol):
    """Asks one ps for recordings."""

    def record_steps(self, steps: int) -> RecordingOrder: ...

    def recordings(self) -> Recordings: ...

    def close(self) -> None: ...


def record(
    asker: Asker,
    steps: int,
    *,
    heard: Callable[[int, int], object] | None = None,
    stop: threading.Event | None = None,
    most_s: float = MOST_WAIT_S,
    clock: Clock = SYSTEM.clock,
) -> Sequence[StepRecording]:
    """Records the next steps of the workers, and waits for the recordings.

    Args:
      steps: of each worker.
      heard: called with the number of recordings received, and of those expected.
      stop: ends the wait early, with those received.
      most_s: seconds to wait; those received by then are returned.
      clock: monotonic.

    Raises:
      PeerError: no ps answers, or no worker is training.
      DeadlineExceeded: no worker has sent its steps.
    """
    stop = stop or threading.Event()
    order = asker.record_steps(steps)
    deadline = clock() + most_s
    recordings: Sequence[StepRecording] = ()
    while clock() < deadline and not stop.wait(LOOK_S):
        found = asker.recordings()
        if found.order is None or found.order.order != order.order:
            break  # the ps has restarted, or another order has replaced this one
        recordings = found.recordings
        if heard is not None:
            heard(len(recordings), len(order.workers))
        if found.complete:
            break
    if not recordings:
        raise DeadlineExceeded(
            f"none of {', '.join(order.workers[:8])}{', ...' if len(order.workers) > 8 else ''} has sent its steps; "
            f"each does so within a heartbeat after them, or {LONGEST_S:g} s. Check whether the workers train."
        )
    return recordings


class RecorderState(Struct, frozen=True):
    """State of a recording, as shown by the page."""

    state: Literal["none", "recording", "done", "failed"] = "none"
    number: int = 0
    """Counts the recordings of this page's server."""
    steps: int = 0
    came: int = 0
    workers: int = 0
    error: str = ""
    at: float = 0.0
    """Time of the order, in seconds since 1970."""


class PageRecorder:
    """Records steps for the page, one recording at a time, in its own thread; the last one is kept.

    Args:
      connect: returns a connection to a ps of the job. It may raise `TrainbandError`.
      clock: seconds since 1970.
    """

    def __init__(self, connect: Callable[[], Asker], clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.state = RecorderState()
        """Frozen; replaced as a whole."""
        self.trace: Event | None = None
        """The trace of the last successful recording."""

    def start(self, steps: int) -> RecorderState:
        """Begins a recording, unless one is running; returns its state."""
        with self._lock:
            if self.state.state == "recording":
                return self.state
            self.state = RecorderState("recording", self.state.number + 1, steps, at=self._clock())
            self._thread = threading.Thread(target=self._run, name="trainband-page-recorder", daemon=True)
            self._thread.start()
            return self.state

    def close(self) -> None:
        """Stops waiting."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        begun = self.state
        try:
            asker = self._connect()
            try:
                recordings = record(asker, begun.steps, heard=self._record_progress, stop=self._stop)
            finally:
                asker.close()
            self.trace = trace_of(recordings)
            self._become("done")
        except TrainbandError as exc:
            self._become("failed", str(exc))
        except Exception as exc:  # a bug of this page: shown, rather than leaving viewers waiting
            self._become("failed", f"{type(exc).__name__}: {exc}")
            raise

    def _record_progress(self, came: int, of: int) -> None:
        self.state = replace(self.state, came=came, workers=of)

    def _become(self, state: Literal["done", "failed"], error: str = "") -> None:
        self.state = replace(self.state, state=state, error=error)
