"""The production runtime: the threads and the clock of this machine."""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from trainband.runtime import limits, signals
from trainband.runtime.available_memory import available_bytes
from trainband.runtime.base import Clock, Condition, Event, Lock, Thread
from trainband.runtime.memory import ProcessMemory, process_memory
from trainband.runtime.overrides import override


class SystemRuntime:
    """The `Runtime` of this machine.

    Args:
      clock: replaces this machine's, for tests.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.sleep = time.sleep
        self.lock: Callable[[], Lock] = threading.Lock
        self.recursive_lock: Callable[[], Lock] = threading.RLock
        self.event: Callable[[], Event] = threading.Event

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def pid(self) -> int:
        return os.getpid()

    def memory(self) -> ProcessMemory:
        return process_memory()

    def available_memory(self) -> int | None:
        return available_bytes()

    def threads_and_descriptors(self) -> tuple[int, int]:
        return limits.threads_and_descriptors()

    def condition(self, lock: Any = None) -> Condition:
        return threading.Condition(lock if lock is not None else threading.Lock())

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        return _Thread(target=work, name=name, daemon=True)

    def this_thread(self) -> int:
        return threading.get_ident()

    def run_all(self, works: Sequence[Callable[[], object]], name: str) -> None:
        with ThreadPoolExecutor(len(works), thread_name_prefix=name) as pool:
            try:
                running = [pool.submit(work) for work in works]
            except RuntimeError as exc:
                raise limits.no_thread(name, exc) from exc
        for future in running:
            future.result()

    def started_at(self, pid: int) -> int | None:
        try:
            # The command's name, in brackets, may contain anything; the state follows it, and the start 19 fields on.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return None if fields[0] in (b"Z", b"X") else int(fields[19])
        except (OSError, ValueError, IndexError):
            return None

    def token(self, nbytes: int = 8) -> str:
        return secrets.token_hex(nbytes)

    def at_exit(self, call: Callable[[], object]) -> None:
        atexit.register(call)

    def not_at_exit(self, call: Callable[[], object]) -> None:
        atexit.unregister(call)

    def exit_with(self, code: int, where: Callable[[BaseException], bool]) -> None:
        before = sys.excepthook

        def hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
            before(kind, exc, trace)
            if where(exc):
                raise SystemExit(code)

        sys.excepthook = hook

    def exit_now(self, code: int) -> None:
        with suppress(Exception):  # this is the end, whatever the terminal says
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def require_room(self, task: str, peers: int, why: str) -> None:
        limits.require(task, peers, why)

    def sigterm_raises(self) -> AbstractContextManager[None]:
        return signals.sigterm_raises()

    def on_request_to_end(self, note: Callable[[str], None], *, ctrl_c: bool = True) -> AbstractContextManager[None]:
        return signals.on_request_to_end(note, ctrl_c=ctrl_c)


def freeze_loaded_objects() -> None:
    """Excludes what is loaded now from garbage collection: modules, which stay to the end. Once per process.

    With JAX these are 130,000 objects, and the interpreter visits all of them several times as it ends: that took
    0.45 s of CPU time, and now takes 0.08 s. When 64 workers ended together on two cores, the last ones were late.
    """
    if not gc.get_freeze_count():
        gc.freeze()


class _Thread(threading.Thread):
    """A thread that raises `ResourceExhausted` if it cannot be started."""

    @override
    def start(self) -> None:
        try:
            super().start()
        except RuntimeError as exc:
            if self.ident is not None:  # it was started before, which is a bug in trainband
                raise
            raise limits.no_thread(self.name, exc) from exc


SYSTEM = SystemRuntime()
"""The default runtime."""
