"""Heartbeater: a worker's signs of life to one ps, and what it hears in return."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import PeerError, Refused
from trainband.ps.worker.clock_readings import ClockReadings
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.formatting import printable
from trainband.wire import messages as m
from trainband.wire.codec import decode, encode
from trainband.wire.limits import LIMITS
from trainband.wire.transport import Connection, Timeouts, Transport

URGENT_S = 0.1
"""Between two heartbeats while something has gone wrong: what the worker may have to decide does not wait."""


class Heartbeater:
    """One thread: it beats whatever the main thread does, be it compiling, reading data, or waiting for others.

    Args:
      ps: the number of the ps.
      address: where it is.
      incarnation: of this worker.
      transport: how bytes travel.
      timeouts: how long to wait for what.
      runtime: this task's.
      readings: of the clocks of the ps, of which each answer is one.
      blocked_by: the workers that this one waits for, at any ps.
      paused: whether this one's data is used up.
      spent: the seconds that its steps have spent on each of `step_times.PARTS`.
      memory: what it uses.
      urgent: whether something has gone wrong, be it at another ps.
      join: joins the ps over this connection; returns this worker's number there.
      heard: called with each answer; with `None` where there was none.
    """

    def __init__(
        self,
        ps: int,
        address: str,
        incarnation: str,
        transport: Transport,
        timeouts: Timeouts,
        runtime: Runtime = SYSTEM,
        readings: ClockReadings | None = None,
        *,
        blocked_by: Callable[[], tuple[str, ...]],
        paused: Callable[[], bool],
        first_batch: Callable[[], str],
        spent: Callable[[], tuple[float, ...]] = tuple,
        memory: Callable[[], m.Memory] = m.Memory,
        urgent: Callable[[], bool],
        join: Callable[[Connection], int],
        heard: Callable[[int, m.JobState | None], None],
    ) -> None:
        self.ps = ps
        self.address = address
        self.worker = -1
        """This worker's number there; under 0, it has not joined."""
        self._incarnation = incarnation
        self._blocked_by = blocked_by
        self._paused = paused
        self._first_batch = first_batch
        self._spent = spent
        self._memory = memory
        self._urgent = urgent
        self._transport = transport
        self._timeouts = timeouts
        self._join = join
        self._heard = heard
        self._connection = transport.connect(address, timeouts)
        self._clock = runtime.clock
        self._readings = readings
        self._wake = runtime.event()
        self.knocks = False
        """Whether it joins the ps by itself where this worker has not, because it was not there."""
        self._stopped = False
        self._thread = runtime.thread(self._beat, f"trainband-heartbeat-{ps}")

    def __str__(self) -> str:
        return f"ps:{self.ps} at {self.address}"

    def start(self) -> None:
        """Begins to beat."""
        self._thread.start()

    def wake(self) -> None:
        """Beats at once."""
        self._wake.set()

    def stop(self) -> None:
        """Beats no more."""
        self._stopped = True
        self._wake.set()

    def wait(self) -> None:
        """Returns when it beats no more, or is waiting for an answer for longer than a task's end may take."""
        if self._thread.is_alive():
            self._thread.join(self._timeouts.grace_s)

    def leave(self, failure: str, lost: str = "") -> None:
        """Leaves the job at this ps, after `stop`. Raises `PeerError` where the ps does not hear it."""
        if self.worker >= 0:
            said = printable(failure, LIMITS.failure_length, newline="\n")
            leave = encode(
                m.Leave(self.worker, self._incarnation, said, self._first_batch(), lost[: LIMITS.failure_length])
            )
            self._connection.call("leave", leave, timeout_s=self._timeouts.grace_s)

    def look(self) -> m.JobState:
        """How the job is now; a sign of life, too. Raises `PeerError` where the ps does not say."""
        beat = m.Heartbeat(
            self.worker,
            self._incarnation,
            self._blocked_by(),
            self._paused(),
            self._first_batch(),
            self._spent(),
            self._memory(),
        )
        asked = self._clock()
        answer = self._connection.call("heartbeat", encode(beat), timeout_s=self._timeouts.heartbeat_s)
        answered, state = self._clock(), decode(answer, m.JobState, str(self))
        if self._readings is not None:
            self._readings.note(self.ps, asked, state.clock_s, answered)
        return state

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()

    def tell(self, action: str, body: bytes) -> None:
        """One control request. Raises `PeerError` where it does not arrive."""
        self._connection.call(action, body, timeout_s=self._timeouts.heartbeat_s)

    def _beat(self) -> None:
        while True:
            beat_s = self._timeouts.heartbeat_s
            self._wake.wait(min(URGENT_S, beat_s) if self._urgent() else beat_s)
            self._wake.clear()
            if self._stopped:
                return
            if self.worker < 0:
                if self.knocks:
                    self._join_again()
                continue
            try:
                state = self.look()
            except Refused:
                self._join_again()  # it knows no such worker: it has died and come back
                continue
            except PeerError:
                self._unheard()
                continue
            self._heard(self.ps, state)

    def _join_again(self) -> None:
        try:
            self.worker = self._join(self._connection)
            if self._stopped:
                self.leave("")  # it has been said already, everywhere else
            self._wake.set()
        except PeerError:
            self._unheard()

    def _unheard(self) -> None:
        # The main thread meets the same trouble on its stream, and tells.
        self._connection.close()
        self._connection = self._transport.connect(self.address, self._timeouts)
        self._heard(self.ps, None)
