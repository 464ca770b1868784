"""A simulated process: it can be stopped, go on, and die at any moment; and what runs in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from tests.simulation.scheduler import Action, Scheduler

Value = TypeVar("Value")


class Future(Generic[Value]):
    """Something that will be known later. The first answer counts; later ones are forgotten."""

    __slots__ = ("_error", "_value", "done", "wake")

    def __init__(self) -> None:
        self.done = False
        self.wake: Action | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def resolve(self, value: Value) -> None:
        """Makes it known."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """Whoever waits gets this error."""
        self._settle(None, error)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        if self.wake is not None:
            self.wake()

    def __await__(self) -> Generator[Future[Value], None, Value]:
        """Waits until it is known."""
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        value: Value = self._value
        return value


class Clock(NamedTuple):
    """Of a machine: when it began to count, and how fast it does."""

    began_at: float = 0.0
    rate: float = 1.0


TRUE = Clock()


class Process:
    """One life of a task. While it is paused nothing runs in it, and what comes is kept; once dead it is dead."""

    def __init__(self, name: str, incarnation: str, scheduler: Scheduler, clock: Clock = TRUE) -> None:
        self._clock = clock
        self.name = name
        self.incarnation = incarnation
        self.scheduler = scheduler
        self.alive = True
        self.paused = False
        self._kept: deque[Action] = deque()
        self._threads: set[Coroutine[Future[Any], None, None]] = set()
        self.on_death: list[Action] = []
        """What the network does when this process dies."""

    def __repr__(self) -> str:
        return f"{self.name}/{self.incarnation}"

    @property
    def now(self) -> float:
        """Simulated seconds, in truth: for the history."""
        return self.scheduler.now

    @property
    def clock(self) -> float:
        """What it takes for the time."""
        return (self.scheduler.now - self._clock.began_at) * self._clock.rate

    def receive(self, action: Action) -> None:
        """Runs an action in this process: now, when it goes on, or never."""
        if not self.alive:
            return
        if self.paused:
            self._kept.append(action)
        else:
            action()

    def after(self, delay_s: float, action: Action) -> None:
        """Runs an action in this process after a while by its clock."""
        self.in_a_while(delay_s, lambda: self.receive(action))

    def every(self, period_s: float, action: Action) -> None:
        """Runs an action again and again."""

        def again() -> None:
            action()
            self.after(period_s, again)

        self.after(period_s, again)

    def sleep(self, delay_s: float) -> Future[None]:
        """Is known after a while by its clock."""
        future: Future[None] = Future()
        self.in_a_while(delay_s, lambda: future.resolve(None))
        return future

    def in_a_while(self, delay_s: float, action: Action) -> None:
        """Has the machine do something after a while by its clock, whatever became of this process."""
        self.scheduler.after(delay_s / self._clock.rate, action)

    def spawn(self, coroutine: Coroutine[Future[Any], None, None]) -> None:
        """Runs a thread of this process, as far as it gets at once; it goes on whenever what it awaits is known."""
        if not self.alive:
            coroutine.close()
            return
        self._threads.add(coroutine)
        try:
            future = coroutine.send(None)
        except StopIteration:
            self._threads.discard(coroutine)
            return
        future.wake = lambda: self.receive(lambda: self.spawn(coroutine))

    def pause(self) -> None:
        """As SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """As SIGCONT."""
        self.paused = False
        while self._kept and not self.paused:
            self.receive(self._kept.popleft())

    def end(self) -> None:
        """Once nothing happens any more: lets go of everything."""
        self.die()
        for coroutine in self._threads:
            coroutine.close()
        self._threads.clear()

    def die(self) -> None:
        """As SIGKILL, or as the end of the program."""
        if not self.alive:
            return
        self.alive = False
        self._kept.clear()
        for action in self.on_death:
            action()
