"""What a checker does with an update program before anything runs: parses, verifies and writes it anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import export

from trainband.errors import Refused
from trainband.ps.server.program import UpdateProgram
from trainband.ps.server.programs import inside
from trainband.ps.server.programs.inside import Unreadable
from trainband.ps.server.programs.limits import MIB, ProgramLimits
from trainband.ps.server.programs.operations import DTYPES
from trainband.ps.server.programs.signature import Signature
from trainband.ps.server.programs.verifier import Verifier


def check_size(program: UpdateProgram, limits: ProgramLimits) -> None:
    """Raises `Refused` for more bytes than a program may have."""
    for name, data in (("initialise", program.initialise), ("update", program.update)):
        if len(data) > limits.program_bytes:
            raise Refused(
                f"its function {name} has {len(data) / MIB:,.1f} MiB, and {limits.program_bytes / MIB:,.1f} MiB are "
                "allowed: make large constants a part of the params or of the optimizer's state, or let the ps take "
                "more with ProgramLimits(program_bytes=...)."
            )


def checked(program: UpdateProgram, signature: Signature, limits: ProgramLimits) -> UpdateProgram:
    """The same program, written by this process from what it has verified.

    Raises:
      Refused: it is no update program for such a shard, or does what none may do.
      Unreadable: JAX cannot read it.
    """
    check_size(program, limits)
    try:
        exported = [export.deserialize(bytearray(data)) for data in (program.initialise, program.update)]
    except Exception as exc:
        raise Unreadable(str(exc)) from exc
    signature.check(exported[0], exported[1])
    return UpdateProgram(
        _canonical("initialise", exported[0], signature, limits),
        _canonical("update", exported[1], signature, limits),
        program.jax,
        signature,
    )


def _canonical(name: str, exported: export.Exported, signature: Signature, limits: ProgramLimits) -> bytes:
    takes = [_tensor(exported.in_avals[i]) for i in exported.module_kept_var_idx]
    gives = [_tensor(aval) for aval in exported.out_avals]
    with inside.module_of(exported) as module:
        Verifier(name, module.operation, limits, signature.elements, signature.nbytes).check(takes, gives)
        return inside.canonical(exported, module, name)


def _tensor(aval: Any) -> tuple[tuple[int, ...], str]:
    name = np.dtype(aval.dtype).name
    if name not in DTYPES:
        raise Refused(f"it has arrays of {name}, which no update program may have.")
    return tuple(aval.shape), DTYPES[name]
