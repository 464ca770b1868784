"""The seam between trainband and the machine that it runs on: time, threads, and what they wait for each other with.

Whatever has a thread of its own or waits takes a `Runtime` and nothing else from `threading` or `time`. So the same
classes run as real threads (`runtime/system.py`) and as coroutines of a simulation that decides who goes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

Clock = Callable[[], float]
"""Seconds from an arbitrary start, never going back: `time.monotonic` in production."""


class Lock(Protocol):
    """As `threading.Lock`, or `threading.RLock` where it is said to be recursive."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Condition(Protocol):
    """As `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object: ...

    def notify_all(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Event(Protocol):
    """As `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """As `threading.Thread`; always a daemon."""

    def start(self) -> None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Runtime(Protocol):
    """What a task gets from its machine."""

    @property
    def host(self) -> str:
        """The name of this machine."""
        ...

    @property
    def pid(self) -> int:
        """The number of this process."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of this process; 0 where this machine doesn't say."""
        ...

    def clock(self) -> float:
        """See `Clock`."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def lock(self) -> Lock: ...

    def recursive_lock(self) -> Lock: ...

    def condition(self, lock: Lock | None = None) -> Condition:
        """Of this lock, which is not recursive, or of one of its own."""
        ...

    def event(self) -> Event: ...

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        """A thread that does this once it is started."""
        ...

    def this_thread(self) -> int:
        """Tells the thread that asks from all others."""
        ...

    def run_all(self, works: Sequence[Callable[[], object]], name: str) -> None:
        """Does all of these at the same time; returns when all are done, and raises the first one's error."""
        ...

    def started_at(self, pid: int) -> int | None:
        """When a live process of this machine was started, in ticks of any clock; `None` if there is none."""
        ...

    def token(self, nbytes: int = 8) -> str:
        """Random, in hexadecimal digits: a name that nothing else has."""
        ...

    def at_exit(self, call: Callable[[], object]) -> None:
        """Has this called when the process ends by itself."""
        ...

    def not_at_exit(self, call: Callable[[], object]) -> None:
        """Takes `at_exit` back."""
        ...

    def require_room(self, task: str, peers: int, why: str) -> None:
        """Raises `ResourceExhausted` where a task cannot have what it needs to speak with so many others."""
        ...

    def sigterm_raises(self) -> AbstractContextManager[None]:
        """Within, SIGTERM raises in the main thread, see `trainband.runtime.signals.sigterm_raises`."""
        ...

    def on_request_to_end(self, note: Callable[[str], None], *, ctrl_c: bool = True) -> AbstractContextManager[None]:
        """Within, the first SIGTERM or Ctrl-C calls `note`, see `trainband.runtime.signals.on_request_to_end`."""
        ...
