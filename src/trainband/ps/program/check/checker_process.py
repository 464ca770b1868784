"""CheckerProcess: forks or starts the process that checks a ps's programs, and ends it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from functools import cache

import msgspec

from trainband.cluster.resolvers.checker_environment import checker_environment
from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.checker_main import serve
from trainband.ps.program.check.records import receive
from trainband.runtime import SYSTEM

START_S = 60.0
"""Seconds for a checker to be ready: unless it is forked, it first imports JAX, which takes 2 s on an idle machine."""
_log = logging.getLogger("trainband.ps.program.check")
_SPAWNED = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); "
    "from trainband.ps.program.check.checker_main import main; main()"
)


def may_fork() -> bool:
    """Whether a fork of this process would work now: no other threads, and no JAX devices yet."""
    return (
        sys.platform == "linux"
        and threading.active_count() == 1
        and threading.current_thread() is threading.main_thread()
        and not inside.backends_have_started()
    )


class CheckerProcess:
    """The ps's handle of the process that checks, with the socket to it."""

    def __init__(self) -> None:
        self._spawned: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self.lacks: str | None = None
        """The steps of `confine` that this system lacks, once the process has reported them."""
        self.was_forked = may_fork()
        mine, its = socket.socketpair()
        self.connection = mine
        with its:
            if self.was_forked:
                self.pid = self._fork(its)
            else:
                command = [sys.executable, "-c", _SPAWNED, str(its.fileno()), msgspec.json.encode(sys.path).decode()]
                null = subprocess.DEVNULL
                self._spawned = subprocess.Popen(
                    command, stdin=null, stdout=null, stderr=null, pass_fds=[its.fileno()], env=checker_environment()
                )
                self.pid = self._spawned.pid

    def _fork(self, its: socket.socket) -> int:
        parent = os.getpid()
        with warnings.catch_warnings():
            # C++ libraries (OpenBLAS, jemalloc) handle a fork of their threads themselves; Python has one thread here.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            try:
                serve(its.detach(), parent=parent)
            finally:
                os._exit(1)
        return pid

    def await_ready(self) -> None:
        """Returns once it waits for programs. Raises `Gone` or `TimeoutError` if it fails to."""
        if self.lacks is None:
            until = SYSTEM.clock() + START_S
            self.lacks = receive(self.connection, 1 << 16, lambda: until - SYSTEM.clock()).decode()
            if self.lacks:
                warn_once(self.lacks)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        if self._spawned is not None:
            return self._spawned.poll() is None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def end(self) -> int | None:
        """Kills it if it still runs; returns its exit status, if known. Idempotent."""
        self.connection.close()
        if self._spawned is not None:
            self._spawned.kill()
            return self._spawned.wait()
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                    os.kill(self.pid, signal.SIGKILL)
                    self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def exit_status(self) -> int | None:
        """The exit status of a process that has closed its socket."""
        if self._spawned is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._spawned.wait(5.0)
        else:
            with contextlib.suppress(ChildProcessError):  # its status was already collected
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.end()


@cache
def warn_once(lacks: str) -> None:
    """Warns, once, of a missing confinement."""
    _log.warning("the process that checks update programs is less confined than it should be: %s", lacks)
