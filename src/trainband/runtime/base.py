"""The seam between trainband and the machine that it runs on: time, threads, and synchronization.

Every class that has its own thread or waits uses a `Runtime` and nothing else from `threading` or `time`. So the same
classes run as real threads (`runtime/system.py`) and as coroutines of a simulation that decides which runs next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from trainband.runtime.memory import ProcessMemory

Clock = Callable[[], float]
"""Seconds from an arbitrary start that never decrease: `time.monotonic` in production."""


class Lock(Protocol):
    """Like `threading.Lock`, or `threading.RLock` if documented as recursive."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Condition(Protocol):
    """Like `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object: ...

    def notify_all(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Event(Protocol):
    """Like `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """Like `threading.Thread`; always a daemon."""

    def start(self) -> None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Runtime(Protocol):
    """The services of a machine that a task uses."""

    @property
    def host(self) -> str:
        """The name of this machine."""
        ...

    @property
    def pid(self) -> int:
        """The id of this process."""
        ...

    def memory(self) -> ProcessMemory:
        """Memory of this process and those that it started; zeros if unknown."""
        ...

    def available_memory(self) -> int | None:
        """Bytes that this process may still take; `None` if unknown."""
        ...

    def threads_and_descriptors(self) -> tuple[int, int]:
        """Threads and open descriptors of this process; zeros if unknown."""
        ...

    def clock(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def lock(self) -> Lock: ...

    def recursive_lock(self) -> Lock: ...

    def condition(self, lock: Lock | None = None) -> Condition:
        """Returns a condition of this lock, which is not recursive, or of its own."""
        ...

    def event(self) -> Event: ...

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        """Returns a thread that does this once started."""
        ...

    def this_thread(self) -> int:
        """Returns the identity of the calling thread."""
        ...

    def run_all(self, works: Sequence[Callable[[], object]], name: str) -> None:
        """Does all of these at the same time; returns when all are done, and raises the first one's error."""
        ...

    def started_at(self, pid: int) -> int | None:
        """When a live process of this machine was started, in ticks of any clock; `None` if it does not exist."""
        ...

    def token(self, nbytes: int = 8) -> str:
        """Returns random hexadecimal digits, as a unique name."""
        ...

    def at_exit(self, call: Callable[[], object]) -> None:
        """Calls this when the process ends by itself."""
        ...

    def not_at_exit(self, call: Callable[[], object]) -> None:
        """Undoes `at_exit`."""
        ...

    def exit_with(self, code: int, where: Callable[[BaseException], bool]) -> None:
        """Sets the exit code of the process for an uncaught error for which `where` is true."""
        ...

    def exit_now(self, code: int) -> None:
        """Ends the process immediately, from any thread."""
        ...

    def require_room(self, task: str, peers: int, why: str) -> None:
        """Raises `ResourceExhausted` if a task lacks the resources to talk to this many peers."""
        ...

    def sigterm_raises(self) -> AbstractContextManager[None]:
        """Context in which SIGTERM raises in the main thread, see `trainband.runtime.signals.sigterm_raises`."""
        ...

    def on_request_to_end(self, note: Callable[[str], None], *, ctrl_c: bool = True) -> AbstractContextManager[None]:
        """Context in which the first SIGTERM or Ctrl-C calls `note`, see `runtime.signals.on_request_to_end`."""
        ...
