"""Wakeups: what wakes up the threads that keep a replica in step with the other one, and what ends them."""

from __future__ import annotations

from trainband.runtime import Lock, Runtime


class Wakeups:
    """Of one replica.

    Args:
      lock: the service's, which guards the replica.
      runtime: this task's.
    """

    def __init__(self, lock: Lock, runtime: Runtime) -> None:
        self.lock = lock
        self.changed = runtime.condition(lock)
        """The replica has got another role, the other one has confirmed more, or a stream has ended."""
        self.wake = runtime.event()
        """The next look at the other replica is due at once."""
        self.stopped = False
        """Whether this replica is kept no longer."""

    def notify(self) -> None:
        """Something has changed that a thread may wait for. Called under the lock."""
        self.changed.notify_all()
        self.wake.set()

    def stop(self) -> None:
        """Ends whatever waits here. Called without the lock."""
        with self.lock:
            self.stopped = True
            self.changed.notify_all()
        self.wake.set()
