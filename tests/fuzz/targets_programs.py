"""A fuzz target of update programs: whatever the bytes, the ps refuses them or runs them, and lives on."""

from __future__ import annotations

from functools import cache

import numpy as np
import optax

from tests.ps.hostile import mutate_and_check, program_of
from tests.ps.plans import plan_of
from trainband.ps.program.check.checker import ProgramChecker
from trainband.ps.program.update_program import UpdateProgram

_checker = ProgramChecker()


@cache
def _programs() -> list[tuple[UpdateProgram, tuple[bool, ...]]]:
    params = {"w": np.ones(5, np.float32)}
    return [program_of(plan_of(params, optimizer)) for optimizer in (optax.sgd(0.1), optax.adam(1e-3), optax.lamb(0.1))]


def fuzz_program(data: bytes) -> None:
    """An optimizer's program with some of its bytes changed, cut out or repeated."""
    program, trained = _programs()[len(data) % 3]
    mutate_and_check(data or b"\0", program, trained, _checker)
