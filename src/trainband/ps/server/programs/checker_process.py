"""The checker process: reads programs that came from the network, so that no crash of XLA's is the ps's.

It is forked from a ps, or started by one as `python -c`, and answers `Question` with `Verdict` until the ps is gone.
"""

from __future__ import annotations

import gc
import math
import os
import socket
import sys
from pathlib import Path

import jax
import msgspec

from trainband.errors import TrainbandError
from trainband.ps.server.program import CompiledProgram, UpdateProgram
from trainband.ps.server.programs import confinement
from trainband.ps.server.programs.check import checked
from trainband.ps.server.programs.exchange import Gone, Question, Verdict, receive, send
from trainband.ps.server.programs.inside import Unreadable
from trainband.ps.server.programs.limits import GIB

_WORDS = 2000


def serve(descriptor: int, *, parent: int) -> None:
    """Checks until the other end closes. Returns only in a process that is about to end.

    Args:
      descriptor: of the socket to the ps.
      parent: see `confine`.
    """
    _keep_only(descriptor)
    lacking = confinement.confine(parent=parent)
    gc.freeze()  # what a fork shares with the ps stays shared
    jax.config.update("jax_platforms", "cpu")
    # It may read the cache of compiled programs, which ps have written of programs that were checked, and writes
    # nothing there: machine code that it had made would be as good as a program that nobody has checked.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    with socket.socket(fileno=descriptor) as connection:
        try:
            send(connection, lacking.encode())
            while True:
                question = msgspec.msgpack.decode(receive(connection, 4 * GIB, lambda: None), type=Question)
                confinement.allow(question.limits.memory_of(question.signature.nbytes), question.time_s)
                verdict = _verdict(question)
                confinement.rest()
                send(connection, msgspec.msgpack.encode(verdict))
                del question, verdict
        except Gone:
            return


def _keep_only(descriptor: int) -> None:
    """Closes what the ps has open: the launcher would wait for its pipes, and nobody could have its ports."""
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


def _verdict(question: Question) -> Verdict:
    program = UpdateProgram(question.initialise, question.update, question.jax)
    try:
        jax.config.update("jax_enable_x64", question.x64)
        canonical = checked(program, question.signature, question.limits)
        CompiledProgram(canonical, "the ps", question.trained).run_once()
    except Unreadable as exc:
        return Verdict(unreadable=str(exc)[:_WORDS])
    except TrainbandError as exc:
        return Verdict(refused=f"is refused: {exc}"[:_WORDS])
    except Exception as exc:
        why = f"{type(exc).__name__}: {exc}"
        return Verdict(refused=f"cannot be checked, compiled or run here ({why[:_WORDS]}); use another optimizer.")
    finally:
        jax.clear_caches()
    return Verdict(canonical.initialise, canonical.update)


def main() -> None:
    """Entry point of a checker that was not forked: the descriptor is its argument."""
    serve(int(sys.argv[1]), parent=0)


if __name__ == "__main__":
    main()
