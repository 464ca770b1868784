"""Checks a program before it runs: parses, verifies and rewrites it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import export

from trainband.errors import Refused
from trainband.ps.program.check import jax_internals as inside
from trainband.ps.program.check.jax_internals import Unreadable
from trainband.ps.program.check.operations import CLOSURES, DTYPES, UPDATE, Rules
from trainband.ps.program.check.verifier import Verifier
from trainband.ps.program.limits import MIB, ProgramLimits
from trainband.ps.program.signature import Signature, check_surroundings
from trainband.ps.program.update_program import UpdateProgram


def check_size(name: str, data: bytes, limits: ProgramLimits) -> None:
    """Raises `Refused` if a function has too many bytes."""
    if len(data) > limits.program_bytes:
        raise Refused(
            f"its function {name} has {len(data) / MIB:,.1f} MiB, and {limits.program_bytes / MIB:,.1f} MiB are "
            "allowed: move large constants into the params or the optimizer's state, or raise "
            "ProgramLimits(program_bytes=...)."
        )


def checked(program: UpdateProgram, signature: Signature, limits: ProgramLimits) -> UpdateProgram:
    """The same program, rewritten by this process from its verified parts.

    Raises:
      Refused: it is not an update program for such a shard, or does something forbidden.
      Unreadable: JAX cannot read it.
    """
    exported = []
    for name, data in (("initialise", program.initialise), ("update", program.update)):
        check_size(name, data, limits)
        exported.append(_read(data))
    signature.check(exported[0], exported[1])
    return UpdateProgram(
        _canonical("initialise", exported[0], limits, UPDATE, signature.elements, signature.nbytes),
        _canonical("update", exported[1], limits, UPDATE, signature.elements, signature.nbytes),
        program.jax,
        signature,
    )


def checked_function(data: bytes, platform: str, limits: ProgramLimits) -> bytes:
    """Returns the same exported function, rewritten by this process from its verified parts.

    Args:
      platform: where a closure will run; empty for an update.

    Raises:
      Refused: it does something forbidden.
      Unreadable: JAX cannot read it.
    """
    name, rules = ("closure", CLOSURES[platform]) if platform else ("update", UPDATE)
    check_size(name, data, limits)
    exported = _read(data)
    check_surroundings(name, exported, platform or "cpu")
    elements = sum(aval.size for aval in exported.in_avals)
    return _canonical(name, exported, limits, rules, elements, 8 * elements)


def _read(data: bytes) -> export.Exported:
    try:
        return export.deserialize(bytearray(data))
    except Exception as exc:
        raise Unreadable(str(exc) or type(exc).__name__) from exc


def _canonical(
    name: str, exported: export.Exported, limits: ProgramLimits, rules: Rules, elements: int, nbytes: int
) -> bytes:
    takes = [_tensor(exported.in_avals[i], rules) for i in exported.module_kept_var_idx]
    gives = [_tensor(aval, rules) for aval in exported.out_avals]
    with inside.module_of(exported) as module:
        Verifier(name, module.operation, limits, elements, nbytes, rules).check(takes, gives)
        return inside.canonical(exported, module, name)


def _tensor(aval: Any, rules: Rules) -> tuple[tuple[int, ...], str]:
    name = np.dtype(aval.dtype).name
    if name not in DTYPES:
        raise Refused(f"it has arrays of {name}, which no {rules.kind} may have.")
    return tuple(aval.shape), DTYPES[name]
