"""Job: which coordinator a server serves, what runs for it, and whether its job has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainband.errors import RefusalCode, Refused
from trainband.runtime import Clock
from trainband.runtime.waiting import Say, Waiting
from trainband.wire.transport import Stream

LOOK_S = 0.5
"""Between two looks of `Job.wait` at what runs."""


class _Run:
    """A closure that runs."""

    __slots__ = ("orphaned_at", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.orphaned_at: float | None = None


class Job:
    """What the streams of a server share with each other and with its main thread. Thread-safe.

    Args:
      name: of the task that serves, for messages.
      clock: monotonic seconds.
      has_chief: whether the cluster lists a chief, which coordinates.
    """

    def __init__(self, name: str, clock: Clock = time.monotonic, *, has_chief: bool = True) -> None:
        self._name = name
        self._has_chief = has_chief
        self._clock = clock
        self._condition = threading.Condition()
        self._streams: list[Stream] = []
        self._runs: list[_Run] = []
        self._has_ended = False

    def attach(self, stream: Stream) -> None:
        """A coordinator has opened its stream. It has the server until that stream is gone.

        It may not open a second one either: workers know its session, and one of them could call itself the chief.

        Raises:
          Refused: a coordinator is connected.
        """
        with self._condition:
            living = [one for one in self._streams if one.alive]
            if living:
                raise Refused(
                    f"{self._name} serves another coordinator, which is connected from {living[0].peer}: a job has one "
                    "coordinator. End that one, or wait until its connections are gone.",
                    RefusalCode.NAME_TAKEN,
                )
            self._streams.append(stream)
            self._has_ended = False

    def detach(self, stream: Stream) -> None:
        """A stream of a coordinator is over."""
        with self._condition:
            self._streams.remove(stream)
            self._condition.notify_all()

    @contextmanager
    def running(self, stream: Stream) -> Iterator[None]:
        """Inside, a closure runs for who is at the other end of a stream."""
        run = _Run(stream)
        with self._condition:
            self._runs.append(run)
        try:
            yield
        finally:
            with self._condition:
                self._runs.remove(run)

    def end(self) -> None:
        """The coordinator has said that the job has ended."""
        with self._condition:
            self._has_ended = True
            self._condition.notify_all()

    def wait(self, say: Say, absent_s: float, orphan_s: float) -> str | None:
        """Waits until the job has ended, and returns `None` then.

        Where a closure has run for `orphan_s` seconds since its coordinator has gone, it returns why this process has
        to end at once: nothing can interrupt XLA.

        Raises:
          DeadlineExceeded: no coordinator was there for `absent_s` seconds.
        """
        waiting: Waiting | None = None
        while True:
            with self._condition:
                if self._has_ended:
                    return None
                for run in self._runs:
                    if self._is_orphan(run, orphan_s):
                        return (
                            f"a closure still runs {orphan_s:.0f} s after its coordinator has gone, and nothing can "
                            f"interrupt it. Start {self._name} again to serve another coordinator"
                        )
                if self._streams:
                    waiting = None
                else:
                    waiting = waiting or Waiting(absent_s, say, self._clock)
                self._condition.wait(LOOK_S)
            if waiting is not None:
                waiting.check(*self._coordinator())

    def _coordinator(self) -> tuple[str, str]:
        """What a server without a coordinator waits for, and what to do about it."""
        awaited = f"the coordinator to come to {self._name}"
        if self._has_chief:
            return awaited, "check that the chief's script runs"
        # It may come all the same: a coordinator need not be in the cluster that its servers were given.
        return (
            f"{awaited}, whose cluster has no chief",
            "start the script with a chief too (trainband run --chief, or a chief in TF_CONFIG), or check that the "
            "script that coordinates runs",
        )

    def _is_orphan(self, run: _Run, orphan_s: float) -> bool:
        now = self._clock()
        if run.stream.alive:
            run.orphaned_at = None
        elif run.orphaned_at is None:
            run.orphaned_at = now
        return run.orphaned_at is not None and now - run.orphaned_at >= orphan_s
