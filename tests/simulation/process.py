"""A simulated process: its threads are greenlets, and it can be stopped, go on, and die at any moment."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.scheduler import Action, Scheduler


class Clock(NamedTuple):
    """Of a machine: when it began to count, and how fast it does."""

    began_at: float = 0.0
    rate: float = 1.0


TRUE = Clock()


class Failed(NamedTuple):
    """A thread has ended with an error that nobody has caught."""

    name: str
    error: BaseException


class Thread(greenlet):
    """See `trainband.runtime.Thread`: a greenlet of a process, which the scheduler resumes."""

    def __init__(self, process: Process, work: Callable[[], object], name: str, number: int) -> None:
        super().__init__(self._run, parent=process.scheduler.hub)
        self.process = process
        self.name = name
        self.number = number
        self._work = work
        self._started = False
        self._ended = Signal(process)

    def start(self) -> None:
        """Is run as soon as the scheduler comes to it."""
        self._started = True
        self.process.threads[self] = None
        self.process.soon(lambda: self.process.resume(self))

    def is_alive(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._started and not self._ended.given

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end."""
        if self._started:
            self._ended.wait(timeout)

    def _run(self) -> None:
        try:
            self._work()
        except GreenletExit:
            return
        except BaseException as exc:  # of no interest to the scheduler, to which it would go
            self.process.failed(Failed(self.name, exc))
        finally:
            self.process.threads.pop(self, None)
            self._ended.give()


class Process:
    """One life of a task. While it is paused nothing runs in it, and what comes is kept; once dead it is dead.

    Attributes:
      name: of the task.
      life: its number among all lives of all tasks.
      host: the name of its machine.
      on_death: what the network does when this process dies.
      on_sigterm: what it does when it is asked to end; `None`: it dies.
    """

    def __init__(
        self, name: str, life: int, host: str, scheduler: Scheduler, dice: random.Random, clock: Clock = TRUE
    ) -> None:
        self.name = name
        self.life = life
        self.host = host
        self.scheduler = scheduler
        self.dice = dice
        self.alive = True
        self.paused_at: float | None = None
        self.died_at: float | None = None
        self.on_death: list[Action] = []
        self.on_sigterm: Action | None = None
        self.is_asked = False
        self.threads: dict[Thread, None] = {}
        self.failed: Callable[[Failed], None] = lambda _: None
        self._clock = clock
        self._kept: deque[Action] = deque()
        self._threads_begun = 0

    def __repr__(self) -> str:
        return f"{self.name}/{self.life}"

    @property
    def now(self) -> float:
        """Simulated seconds, in truth: for the history."""
        return self.scheduler.now

    def clock(self) -> float:
        """What it takes for the time."""
        return (self.scheduler.now - self._clock.began_at) * self._clock.rate

    # --- what runs in it

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        """A thread that has yet to be started."""
        self._threads_begun += 1
        return Thread(self, work, name, self._threads_begun)

    def receive(self, action: Action) -> None:
        """Runs an action in this process: now, when it goes on, or never."""
        if not self.alive:
            return
        if self.paused_at is not None:
            self._kept.append(action)
        else:
            action()

    def soon(self, action: Action) -> None:
        """Runs an action in this process when it is its turn."""
        self.scheduler.after(0.0, lambda: self.receive(action))

    def after(self, delay_s: float, action: Action) -> None:
        """Runs an action in this process after a while by its clock."""
        self.scheduler.after(delay_s / self._clock.rate, lambda: self.receive(action))

    def resume(self, thread: Thread) -> None:
        """Lets a thread run until it waits for something; called by the scheduler."""
        if not thread.dead:
            thread.switch()

    def stop_here(self) -> None:
        """Gives the turn to the scheduler; returns when this thread is resumed.

        Raises:
          GreenletExit: the process is dead.
        """
        if not self.alive:
            raise GreenletExit
        self.scheduler.hub.switch()
        if not self.alive:
            raise GreenletExit

    def yield_turn(self) -> None:
        """Lets others run that can, in any order."""
        thread = current()
        self.scheduler.after(self.dice.random() * 1e-4, lambda: self.receive(lambda: self.resume(thread)))
        self.stop_here()

    # --- its fate

    def pause(self) -> None:
        """Stops it, as SIGSTOP does."""
        if self.alive and self.paused_at is None:
            self.paused_at = self.now

    def go_on(self) -> None:
        """Has it go on, as SIGCONT does; what has come meanwhile comes now."""
        if self.paused_at is None or not self.alive:
            return
        self.paused_at = None
        kept, self._kept = self._kept, deque()
        for action in kept:
            self.soon(action)

    def die(self) -> None:
        """Ends it, as SIGKILL does: nothing of it runs any more."""
        if not self.alive:
            return
        self.alive, self.died_at = False, self.now
        self._kept.clear()
        for action in list(self.on_death):
            action()

    def sigterm(self, killed: Action) -> None:
        """Asks it to end; `killed` is called where it did not listen."""

        def ask() -> None:
            note, self.on_sigterm, self.is_asked = self.on_sigterm, None, True
            if note is None:
                self.die()
                killed()
            else:
                note()

        self.receive(ask)

    def bury(self) -> None:
        """Lets go of its threads, when the simulation is over."""
        self.alive = False
        for thread in list(self.threads):
            if thread:
                with suppress(GreenletExit):
                    thread.throw(GreenletExit)


class Signal:
    """Something that is given once, for which threads of one process wait."""

    def __init__(self, process: Process) -> None:
        self.given = False
        self._process = process
        self._wakes: list[Action] = []

    def give(self) -> None:
        """Wakes all who wait, and lets pass all who come."""
        self.given = True
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns whether it was given in time."""
        if not self.given:
            sleep(self._process, timeout_s, self._wakes)
        return self.given


def current() -> Thread:
    """The thread that is running."""
    thread = getcurrent()
    assert isinstance(thread, Thread), "only a simulated thread can wait"
    return thread


def sleep(process: Process, timeout_s: float | None, wakes: list[Action] | None = None) -> bool:
    """Waits so long by the process's clock, or until what is appended to `wakes` is called; whether that was it."""
    thread = current()
    is_over = is_woken = False

    def go_on() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            process.resume(thread)

    def wake() -> None:
        nonlocal is_woken
        if not is_over:
            is_woken = True
            process.soon(go_on)

    if wakes is not None:
        wakes.append(wake)
    if timeout_s is not None:
        process.after(max(0.0, timeout_s), go_on)
    process.stop_here()
    if wakes is not None and not is_woken:
        wakes.remove(wake)
    return is_woken
