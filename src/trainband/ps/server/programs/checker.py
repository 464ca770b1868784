"""ProgramChecker: a ps's side of the process that checks update programs."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence

import jax
import msgspec

from trainband.errors import Refused
from trainband.ps.server.program import CompiledProgram, Program, UpdateProgram, unreadable
from trainband.ps.server.programs import inside
from trainband.ps.server.programs.check import check_size
from trainband.ps.server.programs.checker_process import serve
from trainband.ps.server.programs.exchange import Gone, Question, Verdict, receive, send
from trainband.ps.server.programs.limits import MIB, ProgramLimits
from trainband.runtime import SYSTEM

START_S = 60.0
"""For a checker to be ready: where it cannot be forked, it imports JAX first, which takes 2 s on a machine at rest."""
_KEPT = 64
"""How many verdicts are remembered."""
_KEPT_BYTES = 64 * MIB
_log = logging.getLogger("trainband.ps.server.programs")
_SPAWNED = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); "
    "from trainband.ps.server.programs.checker_process import main; main()"
)


class Crashed(Exception):
    """The checker has ended while it checked; its exit status, minus the signal's number for one that was killed."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


class _Process:
    """A checker process and the socket to it."""

    def __init__(self) -> None:
        self._spawned: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self.lacks: str | None = None
        """What of `confine` this system cannot do, in words, once the process has said so."""
        self.was_forked = may_fork()
        mine, its = socket.socketpair()
        self.connection = mine
        with its:
            if self.was_forked:
                self.pid = self._fork(its)
            else:
                command = [sys.executable, "-c", _SPAWNED, str(its.fileno()), msgspec.json.encode(sys.path).decode()]
                null = subprocess.DEVNULL
                self._spawned = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, pass_fds=[its.fileno()])
                self.pid = self._spawned.pid

    def _fork(self, its: socket.socket) -> int:
        parent = os.getpid()
        with warnings.catch_warnings():
            # Threads of C++ libraries (OpenBLAS, jemalloc), which see to it themselves; Python has one thread here.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            try:
                serve(its.detach(), parent=parent)
            finally:
                os._exit(1)
        return pid

    def await_ready(self) -> None:
        """Returns once it waits for programs. Raises `Gone` or `TimeoutError` if it does not get there."""
        if self.lacks is None:
            until = SYSTEM.clock() + START_S
            self.lacks = receive(self.connection, 1 << 16, lambda: until - SYSTEM.clock()).decode()
            if self.lacks:
                _log.info("the process that checks update programs is less confined than it could be: %s", self.lacks)

    def is_alive(self) -> bool:
        """Whether it runs yet."""
        if self._spawned is not None:
            return self._spawned.poll() is None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def end(self) -> int | None:
        """Kills it if it runs yet; its exit status, where that can be known. Idempotent."""
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
        """Of one that has closed its socket."""
        if self._spawned is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._spawned.wait(5.0)
        else:
            with contextlib.suppress(ChildProcessError):  # somebody else has asked already
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.end()


def may_fork() -> bool:
    """Whether a fork of this process now is a Python that works: no other threads, and no devices of JAX's yet."""
    return (
        sys.platform == "linux"
        and threading.active_count() == 1
        and threading.current_thread() is threading.main_thread()
        and not inside.backends_have_started()
    )


class ProgramChecker:
    """Has programs checked, one at a time, by a process that is started again when a program has ended it.

    Thread-safe. What it has found of a program it remembers.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM.lock()
        self._process: _Process | None = None
        self._owner = os.getpid()
        self._is_closed_at_exit = False
        self._found: OrderedDict[bytes, Verdict] = OrderedDict()

    def prepare(self) -> None:
        """Starts the process if that is cheap now, because it can be forked."""
        with self._lock:
            if may_fork() and self._living() is None:
                with contextlib.suppress(OSError):  # the first check says so, if it is so then, too
                    self._process = _Process()

    def check(
        self, program: UpdateProgram, sender: str, trained: Sequence[bool], limits: ProgramLimits
    ) -> UpdateProgram:
        """The program as the checker has written it anew.

        Raises:
          Refused: it is none that a ps runs, or has ended the checker, or took too long.
          ProtocolError: the bytes are no program that this version of JAX reads.
        """
        if program.signature is None:
            raise TypeError("a program without a signature cannot be checked")
        try:
            check_size(program, limits)
        except Refused as exc:
            raise Refused(f"the update program of {sender} is refused: {exc}") from None
        x64 = bool(jax.config.read("jax_enable_x64"))
        time_s = limits.time_of(len(program.initialise) + len(program.update))
        question = Question(
            program.initialise, program.update, program.jax, program.signature, tuple(trained), limits, time_s, x64
        )
        encoded = msgspec.msgpack.encode(question)
        digest = hashlib.sha256(encoded).digest()
        with self._lock:
            verdict = self._found.get(digest) or self._asked(encoded, digest, question)
        if verdict.unreadable:
            raise unreadable(program, sender, verdict.unreadable)
        if verdict.refused:
            raise Refused(f"the update program of {sender} {verdict.refused}")
        return UpdateProgram(verdict.initialise, verdict.update, program.jax, program.signature)

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        process = self._living()
        return process.pid if process is not None else None

    def close(self) -> None:
        """Ends the process. The next check starts another one."""
        with self._lock:
            self._end()

    def _living(self) -> _Process | None:
        if self._owner != os.getpid():  # this is a fork of the process that had it
            self._process, self._owner = None, os.getpid()
        return self._process

    def _end(self) -> int | None:
        process, self._process = self._living(), None
        return process.end() if process is not None else None

    def _asked(self, encoded: bytes, digest: bytes, question: Question) -> Verdict:
        try:
            verdict = self._answered(encoded, question)
        except TimeoutError:
            self._end()
            verdict = Verdict(refused=_too_long(question.time_s))
        except Crashed as exc:
            verdict = Verdict(refused=_crashed(exc.status, question.time_s))
        self._found[digest] = verdict
        while len(self._found) > _KEPT or sum(len(v.update) for v in self._found.values()) > _KEPT_BYTES:
            self._found.popitem(last=False)
        return verdict

    def _answered(self, encoded: bytes, question: Question) -> Verdict:
        process = self._ready()
        until = SYSTEM.clock() + question.time_s
        try:
            process.connection.settimeout(question.time_s)
            send(process.connection, encoded)
            most = 4 * question.limits.program_bytes + MIB
            answer = receive(process.connection, most, lambda: until - SYSTEM.clock())
            return msgspec.msgpack.decode(answer, type=Verdict)
        except (Gone, msgspec.MsgspecError):
            self._process = None
            raise Crashed(process.exit_status()) from None

    def _ready(self) -> _Process:
        """A process that waits for a program; the one of before if it lives."""
        process = self._living()
        if process is not None and not process.is_alive():
            self._end()
            process = None
        try:
            if process is None:
                process = self._process = _Process()
            process.await_ready()
        except (OSError, Gone, TimeoutError) as exc:
            self._end()
            raise Refused(
                f"this ps cannot start the process that checks update programs ({exc or type(exc).__name__}); look at "
                "the memory and the processes that its machine has left."
            ) from exc
        if not self._is_closed_at_exit:
            self._is_closed_at_exit = True
            SYSTEM.at_exit(self.close)
        return process


def _too_long(time_s: float) -> str:
    return (
        f"did not finish in {time_s:.3g} s, in which it must be parsed, checked, compiled and run once: make the "
        "optimizer simpler, or let it take longer with ProgramLimits(time_s=...)."
    )


def _crashed(status: int | None, time_s: float) -> str:
    number = -status if status is not None and status < 0 else 0
    if number in (signal.SIGXCPU, signal.SIGALRM):
        return _too_long(time_s)
    how = f" (signal {number})" if number else "" if status is None else f" (exit status {status})"
    return (
        f"crashed the checker{how}: it is damaged, or needs more memory than ProgramLimits(memory_bytes=...) allows or "
        "the machine has. Export it again, with a JAX that is not newer than the one of the ps."
    )


_shared = ProgramChecker()
"""One process checks for every ps of this one. Nothing is started before it is asked for."""


class CheckedPrograms:
    """Compiles the programs that the checker has found harmless. See `CompileProgram`.

    Args:
      limits: what a program may take.
      checker: whose process checks; the one of this process.
    """

    def __init__(self, limits: ProgramLimits | None = None, checker: ProgramChecker = _shared) -> None:
        self._limits = limits or ProgramLimits()
        self._checker = checker

    def prepare(self) -> None:
        """See `ProgramChecker.prepare`."""
        self._checker.prepare()

    def __call__(self, program: UpdateProgram, sender: str, trained: Sequence[bool], /) -> Program:
        return CompiledProgram(self._checker.check(program, sender, trained, self._limits), sender, trained)
