"""The simulator's runtime: locks, conditions and events whose waits are the scheduler's to end.

A thread gives up its turn wherever it waits, and at random wherever it takes a lock: so every order in which the
threads of a process can come to a lock is tried sooner or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

from greenlet import GreenletExit

from tests.simulation.process import Process, Thread, current, sleep
from tests.simulation.scheduler import Action
from trainband.runtime.memory import ProcessMemory
from trainband.runtime.signals import PREEMPTED

YIELDS = 0.05
"""How often a thread that takes a lock lets others go first."""


class SimulatedLock:
    """See `trainband.runtime.Lock`."""

    def __init__(self, process: Process, *, recursive: bool = False) -> None:
        self._process = process
        self._recursive = recursive
        self._owner: Thread | None = None
        self._depth = 0
        self._wakes: list[Action] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        thread, process = current(), self._process
        if self._owner is thread and self._recursive:
            self._depth += 1
            return True
        if blocking and process.dice.random() < YIELDS:
            process.yield_turn()
        deadline = process.clock() + timeout if timeout >= 0 else None
        while self._owner is not None:
            if not blocking or (deadline is not None and process.clock() >= deadline):
                return False
            sleep(process, None if deadline is None else deadline - process.clock(), self._wakes)
        self._owner, self._depth = thread, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        if self._wakes:
            wakes, self._wakes = self._wakes, []
            self._process.dice.shuffle(wakes)
            for wake in wakes:
                wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class SimulatedCondition:
    """See `trainband.runtime.Condition`."""

    def __init__(self, process: Process, lock: SimulatedLock) -> None:
        self._process = process
        self._lock = lock
        self._wakes: list[Action] = []

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return sleep(self._process, timeout, self._wakes)
        finally:
            if self._process.alive:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        deadline = None if timeout is None else self._process.clock() + timeout
        while not (found := predicate()):
            left = None if deadline is None else deadline - self._process.clock()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        wakes, self._wakes = self._wakes, []
        self._process.dice.shuffle(wakes)
        for wake in wakes:
            wake()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.release()


class SimulatedEvent:
    """See `trainband.runtime.Event`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._wakes: list[Action] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            sleep(self._process, timeout, self._wakes)
        return self._is_set


class SimulatedRuntime:
    """See `trainband.runtime.Runtime`: that of one process."""

    def __init__(self, process: Process, started_at: Callable[[int], int | None]) -> None:
        self._process = process
        self.started_at = started_at
        self.clock = process.clock
        self.thread = process.thread

    @property
    def host(self) -> str:
        return self._process.host

    @property
    def pid(self) -> int:
        return self._process.life

    def memory(self) -> ProcessMemory:
        return ProcessMemory()

    def available_memory(self) -> int | None:
        return None

    def threads_and_descriptors(self) -> tuple[int, int]:
        return 0, 0

    def sleep(self, seconds: float) -> None:
        sleep(self._process, seconds)

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self._process)

    def recursive_lock(self) -> SimulatedLock:
        return SimulatedLock(self._process, recursive=True)

    def condition(self, lock: Any = None) -> SimulatedCondition:
        return SimulatedCondition(self._process, lock if lock is not None else self.lock())

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self._process)

    def this_thread(self) -> int:
        return current().number

    def run_all(self, works: Sequence[Callable[[], object]], name: str) -> None:
        errors: list[Exception] = []

        def run(work: Callable[[], object]) -> None:
            try:
                work()
            except Exception as exc:
                errors.append(exc)

        threads = [self.thread(lambda work=work: run(work), name) for work in works]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def token(self, nbytes: int = 8) -> str:
        return f"{self._process.dice.getrandbits(8 * nbytes):0{2 * nbytes}x}"

    def at_exit(self, call: Callable[[], object]) -> None:
        """Nothing: simulated processes end by dying, or when their program has."""

    def not_at_exit(self, call: Callable[[], object]) -> None:
        """Nothing either."""

    def exit_with(self, code: int, where: Callable[[BaseException], bool]) -> None:
        """Nothing: no launcher looks at the code."""

    def exit_now(self, code: int) -> None:
        del code
        self._process.die()
        raise GreenletExit

    def require_room(self, task: str, peers: int, why: str) -> None:
        """There is always room."""

    def sigterm_raises(self) -> AbstractContextManager[None]:
        return nullcontext()  # a process that does not listen dies

    def on_request_to_end(self, note: Callable[[str], None], *, ctrl_c: bool = True) -> AbstractContextManager[None]:
        del ctrl_c
        return self._recorded(lambda: note(PREEMPTED))

    @contextmanager
    def _recorded(self, note: Callable[[], None]) -> Iterator[None]:
        process = self._process
        if process.on_sigterm is not None or process.is_asked:
            yield
            return
        process.on_sigterm = note
        try:
            yield
        finally:
            process.on_sigterm = None
