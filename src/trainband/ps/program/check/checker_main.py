"""The checker process: reads programs from the network, so that a crash of XLA does not crash the ps.

It is forked by a ps, or started by one as `python -c`, and answers `Question` with `Verdict` until the ps is gone.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
from pathlib import Path

import jax
import msgspec
import numpy as np
from jax import export
from jax.stages import Compiled

from trainband.cluster.resolvers.checker_environment import allow_threads
from trainband.errors import Refused, TrainbandError
from trainband.ps.program.check import confinement
from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.check import checked, checked_function
from trainband.ps.program.check.jax_internals import Unreadable
from trainband.ps.program.check.records import FunctionQuestion, Gone, Question, Verdict, receive, send
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.program.limits import GIB, MIB, RUN_BYTES
from trainband.ps.program.update_program import UpdateProgram
from trainband.runtime import SYSTEM

_WORDS = 2000
_questions: msgspec.msgpack.Decoder[Question | FunctionQuestion] = msgspec.msgpack.Decoder(Question | FunctionQuestion)


def serve(descriptor: int, *, parent: int) -> None:
    """Checks until the other end closes. Returns only in a process that is about to end.

    Args:
      descriptor: of the socket to the ps.
      parent: see `confine`.
    """
    _close_other_files(descriptor)
    cache = str(jax.config.jax_compilation_cache_dir or "")
    lacking = confinement.confine(parent=parent, cache=cache)
    allow_threads()
    gc.freeze()  # keeps a fork's memory shared with the ps
    jax.config.update("jax_platforms", "cpu")
    # It may read the cache of compiled programs, which ps have written from checked programs, but writes nothing there:
    # machine code from this process could bypass the check.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    with socket.socket(fileno=descriptor) as connection:
        try:
            send(connection, lacking.encode())
            while True:
                question = _questions.decode(receive(connection, 4 * GIB, lambda: None))
                if not confinement.LIMITED_BY_PS:
                    confinement.limit(os.getpid(), question.limits.memory_of(question.nbytes), question.time_s)
                signal.setitimer(signal.ITIMER_REAL, question.time_s + 5.0)  # in case the ps is gone, or stopped
                verdict = _verdict(question)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                send(connection, msgspec.msgpack.encode(verdict))
                del question, verdict
        except Gone:
            return


def _close_other_files(descriptor: int) -> None:
    """Closes the ps's open files: the launcher would wait for its pipes, and its ports would stay taken."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    highest = os.sysconf("SC_OPEN_MAX")
    for number in _open_descriptors() or range(3, highest):
        if number > 2 and number != descriptor:
            os.closerange(number, number + 1)


def _open_descriptors() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:
        return []


def _verdict(question: Question | FunctionQuestion) -> Verdict:
    try:
        return _of_function(question) if isinstance(question, FunctionQuestion) else _of_program(question)
    except Unreadable as exc:
        return Verdict(unreadable=str(exc)[:_WORDS])
    except TrainbandError as exc:
        return Verdict(refused=f"is refused: {exc}"[:_WORDS])
    except Exception as exc:
        why = f"{type(exc).__name__}: {exc}"
        return Verdict(refused=f"cannot be checked, compiled or run here ({why[:_WORDS]}); compute it differently.")
    finally:
        jax.clear_caches()


def _of_program(question: Question) -> Verdict:
    program = UpdateProgram(question.initialise, question.update, question.jax)
    with jax.enable_x64(question.x64):
        canonical = checked(program, question.signature, question.limits)
        compiled = CompiledProgram(canonical, "the ps", question.trained)
        may_run = _may_run(question, *compiled.compile())
        return Verdict((canonical.initialise, canonical.update), compiled.run_once() if may_run else None)


def _of_function(question: FunctionQuestion) -> Verdict:
    with jax.enable_x64(True):
        canonical = checked_function(question.data, question.platform, question.limits)
        if question.platform:  # a closure runs on a worker that serves only its definer
            return Verdict((canonical,))
        function = export.deserialize(bytearray(canonical))
        compiled = jax.jit(function.call).lower(*function.in_avals).compile()
        if not _may_run(question, compiled):
            return Verdict((canonical,))
        zeros = [np.zeros(aval.shape, aval.dtype) for aval in function.in_avals]
        began = SYSTEM.clock()
        jax.block_until_ready(compiled(*zeros))
        return Verdict((canonical,), SYSTEM.clock() - began)


def _may_run(question: Question | FunctionQuestion, *compiled: Compiled) -> bool:
    """Whether the check may run the compiled program: a large update would take memory that its ps needs.

    Raises:
      Refused: a run would need more memory than is allowed, here or on the ps.
    """
    needs = max(inside.memory_of(one) for one in compiled)
    most = min(question.limits.memory_of(question.nbytes), confinement.physical_memory())
    if needs > most:
        raise Refused(
            f"a run of it needs {needs / MIB:,.0f} MiB with its arguments, and ProgramLimits(memory_bytes=...) allows, "
            f"or this machine has, {most / MIB:,.0f} MiB."
        )
    return needs <= RUN_BYTES


def main() -> None:
    """Entry point of a checker that was not forked: the descriptor is its argument."""
    serve(int(sys.argv[1]), parent=0)


if __name__ == "__main__":
    main()
