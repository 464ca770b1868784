"""Heartbeater: a worker's heartbeats to one ps, and the answers."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import DeadlineExceeded, PeerError, Refused
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.recordings import Recordings
from trainband.ps.worker.shard_link import Place
from trainband.ps.worker.urgency import Urgency
from trainband.runtime.formatting import one_line
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode, encode

URGENT_S = 0.1
"""Seconds between heartbeats while something is wrong: the worker may have an urgent decision to make."""


class Heartbeater:
    """One thread that sends heartbeats even while the main thread compiles, reads data or waits for others.

    Args:
      heard: called with each answer, or `None` without one.
    """

    def __init__(
        self,
        place: Place,
        membership: Membership,
        urgency: Urgency,
        recordings: Recordings,
        heard: Callable[[int, m.JobState | None], None],
    ) -> None:
        self.ps, self.address = place
        self._membership = membership
        self._urgency = urgency
        self._wake = urgency.wakes[self.ps]
        self._recordings = recordings
        self._on_answer = heard
        self._timeouts = membership.timeouts
        self._clock = membership.runtime.clock
        self._connection = membership.transport.connect(self.address, self._timeouts)
        self._sound_at = self._clock()
        """When this connection was opened or last brought an answer."""
        self.joins = False
        """Whether it joins a ps that was away when this worker joined the job."""
        self._stopped = False
        self._thread = membership.runtime.thread(self._beat, f"trainband-heartbeat-{self.ps}")

    def __str__(self) -> str:
        return f"ps:{self.ps} at {self.address}"

    @property
    def worker(self) -> int:
        """The worker's number there; below 0 if it has not joined."""
        return self._membership.numbers.get(self.ps, -1)

    def start(self) -> None:
        """Starts sending heartbeats."""
        self._thread.start()

    def stop(self) -> None:
        """Stops sending heartbeats."""
        self._stopped = True
        self._wake.set()

    def wait(self) -> None:
        """Waits until it has stopped, or for as long as a task may take to end."""
        if self._thread.is_alive():
            self._thread.join(self._timeouts.grace_s)

    def leave(self, failure: str, lost: str = "") -> None:
        """Leaves the job at this ps, after `stop`. Raises `PeerError` if the ps does not answer."""
        membership, most = self._membership, LIMITS.failure_length
        if self.worker >= 0:
            said, lost = one_line(failure, most), lost[:most]
            leave = m.Leave(self.worker, membership.incarnation, said, membership.first_batch, lost)
            self._connection.call("leave", encode(leave), timeout_s=self._timeouts.grace_s)

    def send_heartbeat(self) -> m.JobState:
        """Sends a heartbeat; returns the job's state. Raises `PeerError` without an answer."""
        membership = self._membership
        beat = m.Heartbeat(
            self.worker,
            membership.incarnation,
            membership.blocked_by,
            membership.paused,
            membership.first_batch,
            tuple(membership.times.seconds().values()),
            membership.resources.memory(),
        )
        asked = self._clock()
        answer = self._connection.call("heartbeat", encode(beat), timeout_s=self._timeouts.heartbeat_s)
        answered, state = self._clock(), decode(answer, m.JobState, str(self))
        self._sound_at = answered
        self._recordings.record_clock(self.ps, asked, state.clock_s, answered)
        return state

    def close(self) -> None:
        """Disconnects."""
        self._connection.close()

    def send(self, action: str, body: bytes) -> None:
        """Sends one control request. Raises `PeerError` if that fails."""
        self._connection.call(action, body, timeout_s=self._timeouts.heartbeat_s)

    def _beat(self) -> None:
        while True:
            beat_s = self._timeouts.heartbeat_s
            self._wake.wait(min(URGENT_S, beat_s) if self._urgency.is_on() else beat_s)
            self._wake.clear()
            if self._stopped:
                return
            if self.worker < 0:
                if self.joins:
                    self._join()
                continue
            try:
                state = self.send_heartbeat()
            except Refused:
                self._join()  # it does not know this worker: it has restarted
                continue
            except PeerError as exc:
                self._unheard(exc)
                continue
            self._on_answer(self.ps, state)

    def _join(self) -> None:
        try:
            application = encode(self._membership.application())
            answer = self._connection.call("join", application, timeout_s=self._timeouts.connect_s)
            self._membership.numbers[self.ps] = decode(answer, m.Joined, self._connection.address).worker
            if self._stopped:
                self.leave("")  # every other ps has been told already
            self._wake.set()
        except PeerError as exc:
            self._unheard(exc)

    def _unheard(self, exc: PeerError) -> None:
        # The main thread has the same failure on its stream and reports. A connection outlives an answer that is only
        # late: to a ps with more work than processor, new ones of all workers every second are the most work of all.
        # Yet it must outlive neither three heartbeats nor a lease: TCP may notice late that the network is back.
        late_s = self._clock() - self._sound_at
        patience_s = min(3 * self._timeouts.heartbeat_s, self._timeouts.lease_s / 3)
        if not isinstance(exc, DeadlineExceeded) or late_s >= patience_s:
            self._connection.close()
            self._connection = self._membership.transport.connect(self.address, self._timeouts)
            self._sound_at = self._clock()
        self._on_answer(self.ps, None)
