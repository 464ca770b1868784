"""What simulated threads of one process wait on: a bell that is rung, a turn that is taken, a stream's frames."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.simulation.network import End
from tests.simulation.process import Future, Process
from trainband.errors import StreamClosed


class Bell:
    """As a condition variable: whoever waits goes on when it is rung."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: list[Future[None]] = []

    def ring(self) -> None:
        """Wakes everybody who waits now, after whatever runs now."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            self._process.after(0.0, lambda future=future: future.resolve(None))  # type: ignore[misc]

    async def wait(self, timeout_s: float) -> None:
        """Until it is rung, or so many seconds."""
        future: Future[None] = Future()
        self._waiting.append(future)
        self._process.in_a_while(timeout_s, lambda: future.resolve(None))
        await future


class Turn:
    """As a lock: one has it at a time."""

    def __init__(self, process: Process) -> None:
        self._bell = Bell(process)
        self._taken = False

    async def take(self, timeout_s: float) -> bool:
        """Waits for it, but no longer than that; returns whether the caller has it now."""
        if self._taken:
            await self._bell.wait(timeout_s)
        if self._taken:
            return False
        self._taken = True
        return True

    def give(self) -> None:
        """Lets another have it."""
        self._taken = False
        self._bell.ring()


class Pipe:
    """One end of a stream with what has come on it."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._frames: deque[Any] = deque()
        self._next: Future[None] | None = None
        end.on_frame, end.on_end = self._arrived, self._wake

    def send(self, frame: Any) -> None:
        """Raises `StreamClosed` if this end knows that the stream has ended."""
        self.end.send(frame)

    def close(self) -> None:
        """Ends it. Whoever waits for a frame gets none any more."""
        self.end.close()
        self._wake()

    async def receive(self, timeout_s: float) -> Any:
        """The next frame, `None` when none has come in time.

        Raises:
          StreamClosed: the stream has ended.
        """
        if not self._frames and not self.end.closed:
            future: Future[None] = Future()
            self._next = future
            self.end.owner.in_a_while(timeout_s, lambda: future.resolve(None))
            await future
        if self._frames:
            return self._frames.popleft()
        if self.end.closed:
            raise StreamClosed("the other end of the stream has gone")
        return None

    def _arrived(self, frame: Any) -> None:
        self._frames.append(frame)
        self._wake()

    def _wake(self) -> None:
        if self._next is not None:
            self._next.resolve(None)
