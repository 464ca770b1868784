"""ProgramChecker: the ps's side of the process that checks update programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections import OrderedDict
from collections.abc import Sequence

import jax
import msgspec

from trainband.errors import ProtocolError, Refused
from trainband.ps.program.check.check import check_size
from trainband.ps.program.check.checker_process import CheckerProcess, may_fork, warn_once
from trainband.ps.program.check.confinement import LIMITED_BY_PS, limit, resident_bytes
from trainband.ps.program.check.records import FunctionQuestion, Gone, Question, Verdict, receive, send
from trainband.ps.program.compiled_program import CompiledProgram, Program
from trainband.ps.program.limits import MIB, ProgramLimits
from trainband.ps.program.slow_updates import SlowUpdates
from trainband.ps.program.update_program import UpdateProgram, unreadable
from trainband.runtime import SYSTEM
from trainband.runtime.waiting import Say, say_on_stderr

_KEPT = 64
"""How many verdicts are remembered."""
_KEPT_BYTES = 64 * MIB
_MOST_IDLE_BYTES = 768 * MIB
"""A checker that holds more than this ends after its answer: compiling an update of 1,000 large blocks leaves 1 GB."""


class Crashed(Exception):
    """The checker ended during a check. `status`: its exit status, or minus the number of the signal that killed it."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


class ProgramChecker:
    """Checks programs, one at a time, in a process that is restarted if a program ends it.

    Thread-safe. Remembers its verdicts.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM.lock()
        self._process: CheckerProcess | None = None
        self._owner = os.getpid()
        self._is_closed_at_exit = False
        self._found: OrderedDict[bytes, Verdict] = OrderedDict()

    def prepare(self) -> None:
        """Starts the process if it can be forked, which is cheap.

        The checker gets a copy of this process's memory, so call it before that holds a secret.
        """
        with self._lock:
            if may_fork() and self._living() is None:
                with contextlib.suppress(OSError):  # the first check reports it if it fails again
                    self._process = CheckerProcess()

    def check(
        self, program: UpdateProgram, sender: str, trained: Sequence[bool], limits: ProgramLimits
    ) -> UpdateProgram:
        """The program as rewritten by the checker.

        Raises:
          Refused: a ps may not run it, or it ended the checker or took too long.
          ProtocolError: this version of JAX cannot read it.
        """
        if program.signature is None:
            raise TypeError("a program without a signature cannot be checked")
        try:
            check_size("initialise", program.initialise, limits)
            check_size("update", program.update, limits)
        except Refused as exc:
            raise Refused(f"the update program of {sender} is refused: {exc}") from None
        x64 = bool(jax.config.read("jax_enable_x64"))
        time_s = limits.time_of(len(program.initialise) + len(program.update))
        question = Question(
            program.initialise, program.update, program.jax, program.signature, tuple(trained), limits, time_s, x64
        )
        verdict = self._asked(question)
        if verdict.unreadable:
            raise unreadable(program, sender, verdict.unreadable)
        if verdict.refused:
            raise Refused(f"the update program of {sender} {verdict.refused}")
        initialise, update = verdict.functions
        return UpdateProgram(initialise, update, program.jax, program.signature, verdict.update_s)

    def check_function(
        self, data: bytes, sender: str, limits: ProgramLimits, *, platform: str = "", nbytes: int = 0
    ) -> tuple[bytes, float | None]:
        """A function of arrays as rewritten by the checker, and the seconds of a run, if it made one.

        Args:
          platform: where a closure will run (its check runs nothing); empty for an update.
          nbytes: of the variables that an update may take.

        Raises:
          Refused: a task may not run it, or it ended the checker or took too long.
          ProtocolError: this version of JAX cannot read it.
        """
        what = f"the program of {sender}"
        try:
            check_size("closure" if platform else "update", data, limits)
        except Refused as exc:
            raise Refused(f"{what} is refused: {exc}") from None
        verdict = self._asked(FunctionQuestion(data, platform, limits, nbytes, limits.time_of(len(data))))
        if verdict.unreadable:
            raise ProtocolError(
                f"{what} cannot be loaded by JAX {jax.__version__} here ({verdict.unreadable}); install one version of "
                "JAX on all tasks."
            )
        if verdict.refused:
            raise Refused(f"{what} {verdict.refused}")
        return verdict.functions[0], verdict.update_s

    @property
    def pid(self) -> int | None:
        """The process's id, while it runs."""
        process = self._living()
        return process.pid if process is not None else None

    def close(self) -> None:
        """Ends the process. The next check starts another one."""
        with self._lock:
            self._end()

    def _living(self) -> CheckerProcess | None:
        if self._owner != os.getpid():  # this is a fork of the process that had it
            self._process, self._owner = None, os.getpid()
        return self._process

    def _end(self) -> int | None:
        process, self._process = self._living(), None
        return process.end() if process is not None else None

    def _asked(self, question: Question | FunctionQuestion) -> Verdict:
        encoded = msgspec.msgpack.encode(question)
        digest = hashlib.sha256(encoded).digest()
        with self._lock:
            verdict = self._found.get(digest) or self._found_out(encoded, question)
            self._found[digest] = verdict
            while len(self._found) > _KEPT or sum(map(_size, self._found.values())) > _KEPT_BYTES:
                self._found.popitem(last=False)
        return verdict

    def _found_out(self, encoded: bytes, question: Question | FunctionQuestion) -> Verdict:
        try:
            return self._answered(encoded, question)
        except TimeoutError:
            self._end()
            return Verdict(refused=_too_long(question.time_s))
        except Crashed as exc:
            return Verdict(refused=crashed(exc.status, question.time_s))

    def _answered(self, encoded: bytes, question: Question | FunctionQuestion) -> Verdict:
        process = self._ready()
        until = SYSTEM.clock() + question.time_s
        try:
            process.connection.settimeout(question.time_s)
            if LIMITED_BY_PS:
                try:
                    limit(process.pid, question.limits.memory_of(question.nbytes), question.time_s)
                except PermissionError:  # in some sandboxes
                    warn_once("this process may not set its limits of memory and time")
            send(process.connection, encoded)
            most = 4 * question.limits.program_bytes + MIB
            answer = receive(process.connection, most, lambda: until - SYSTEM.clock())
            verdict = msgspec.msgpack.decode(answer, type=Verdict)
            if resident_bytes(process.pid) > _MOST_IDLE_BYTES:
                self._end()
            return verdict
        except (Gone, ProcessLookupError, FileNotFoundError, msgspec.MsgspecError):
            self._process = None
            raise Crashed(process.exit_status()) from None

    def _ready(self) -> CheckerProcess:
        """A process that waits for a program; the last one if it is alive."""
        process = self._living()
        if process is not None and not process.is_alive():
            self._end()
            process = None
        try:
            if process is None:
                process = self._process = CheckerProcess()
            process.await_ready()
        except (OSError, Gone, TimeoutError) as exc:
            self._end()
            raise Refused(
                f"this ps cannot start the process that checks update programs ({exc or type(exc).__name__}); check "
                "the free memory and the process limit of its machine."
            ) from exc
        if not self._is_closed_at_exit:
            self._is_closed_at_exit = True
            SYSTEM.at_exit(self.close)
        return process


def _size(verdict: Verdict) -> int:
    return sum(len(one) for one in verdict.functions)


def _too_long(time_s: float) -> str:
    return (
        f"did not finish in {time_s:.3g} s, in which it must be parsed, checked, compiled and, if it is small, "
        "run once: make it simpler, or raise ProgramLimits(time_s=...)."
    )


def crashed(status: int | None, time_s: float) -> str:
    """Why a program that ended its checker is refused."""
    number = -status if status is not None and status < 0 else 0
    if number in (signal.SIGXCPU, signal.SIGALRM):
        return _too_long(time_s)
    if number == signal.SIGSYS:
        return "made a system call that no update program needs, so the kernel ended its checker."
    how = f" (signal {number})" if number else "" if status is None else f" (exit status {status})"
    return (
        f"crashed the checker{how}: it is damaged, or needs more memory than ProgramLimits(memory_bytes=...) allows or "
        "the machine has. Export it again with a JAX that is not newer than the ps's."
    )


SHARED = ProgramChecker()
"""The one checker for all tasks of this process. It starts on first use."""


class CheckedPrograms:
    """A `CompileProgram` that compiles only programs that pass the check.

    Args:
      checker: by default, the one of this process.
      say: prints warnings of updates that are much slower than in the check.
    """

    def __init__(
        self, limits: ProgramLimits | None = None, checker: ProgramChecker = SHARED, say: Say = say_on_stderr
    ) -> None:
        self._limits = limits or ProgramLimits()
        self._checker = checker
        self._say = say

    def prepare(self) -> None:
        """Starts the checker's process if it can be forked yet; call it before this process holds a secret."""
        self._checker.prepare()

    def __call__(self, program: UpdateProgram, sender: str, trained: Sequence[bool], /) -> Program:
        found = self._checker.check(program, sender, trained, self._limits)
        return CompiledProgram(found, sender, trained, SlowUpdates(sender, found.checked_s, self._say).record)
