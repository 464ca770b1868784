"""Update programs that no chief of ours would send, made as an attacker would: from the text of a module."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
from jax import export
from jax._src.interpreters import mlir
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tests.ps.plans import plan_of

from trainband.errors import ProtocolError, Refused
from trainband.ps.program.check.checker import ProgramChecker
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.signature import Signature
from trainband.ps.program.update_program import UpdateProgram
from trainband.ps.worker.plan import Plan

SIZE = 8
VECTOR = f"tensor<{SIZE}xf32>"
ENDLESS = f"""
  %r = stablehlo.while(%x = %p) : {VECTOR}
    cond {{ %true = stablehlo.constant dense<true> : tensor<i1>  stablehlo.return %true : tensor<i1> }}
    do {{ stablehlo.return %x : {VECTOR} }}
  return %r : {VECTOR}
"""
CALLBACK = f"""
  %r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%p)
    {{mhlo.backend_config = {{index = 1094795585 : ui64}}}} : ({VECTOR}) -> {VECTOR}
  return %r : {VECTOR}
"""


@cache
def plan() -> Plan:
    """Of one vector without an optimizer's state: params and gradient go in, params come out."""
    return plan_of({"w": np.zeros(SIZE, np.float32)}, optax.sgd(1.0))


def program_of(plan: Plan, ps: int = 0) -> tuple[UpdateProgram, tuple[bool, ...]]:
    """What the chief exports for a ps, and which of its blocks are trained."""
    optimizer = plan.shard_optimizer(ps)
    shard = plan.layout.shards[ps]
    sizes = [sum(piece.size for piece in pieces) for pieces in optimizer.state_contents]
    program = replace(optimizer.export(), signature=Signature.of(shard, sizes))
    return program, tuple(block.trained for block in shard.blocks)


@cache
def honest() -> UpdateProgram:
    """Of `plan`."""
    return program_of(plan())[0]


def of_text(body: str, functions: str = "") -> UpdateProgram:
    """`honest`, but its update is this body of a function of %p and %g."""
    text = f"""module {{
      func.func public @main(%p: {VECTOR}, %g: {VECTOR}) -> {VECTOR} {{ {body} }}
      {functions}
    }}"""
    return of_module(text)


def of_module(text: str) -> UpdateProgram:
    """`honest`, but its update has this module."""
    program = honest()
    return replace(program, update=with_module(program.update, text))


def with_module(function: bytes, text: str) -> bytes:
    """An exported function, but with this module."""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        data = _jax.mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), False)
    exported = export.deserialize(bytearray(function))
    return bytes(replace(exported, mlir_module_serialized=data).serialize())


def of_function(update: Callable[[jax.Array, jax.Array], Any]) -> UpdateProgram:
    """`honest`, but its update gives `update(params, gradient)`."""
    block = jax.ShapeDtypeStruct((SIZE,), np.float32)

    def whole(params: Any, state: Any, gradient: Any) -> Any:
        del state
        return (update(params[0], gradient[0]),), ()

    exported = export.export(jax.jit(whole, keep_unused=True), platforms=["cpu"])((block,), (), (block,))
    return replace(honest(), update=bytes(exported.serialize()))


def mutated(program: UpdateProgram, seed: int) -> UpdateProgram:
    """`program` with a few bytes of one of its functions changed, cut out or repeated."""
    dice = random.Random(seed)
    part = dice.choice(("initialise", "update", "update", "update"))
    changed = mutated_bytes(getattr(program, part), dice)
    return replace(program, initialise=changed) if part == "initialise" else replace(program, update=changed)


def mutated_bytes(given: bytes, dice: random.Random) -> bytes:
    """The same bytes, but for a few that are changed, cut out or repeated."""
    data = bytearray(given)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                data[at] ^= 1 << dice.randrange(8)
            case 2:
                del data[at : at + dice.randrange(1, 9)]
            case _:
                data[at:at] = data[at : at + dice.randrange(1, 9)]
    return bytes(data)


def mutate_and_check(data: bytes, program: UpdateProgram, trained: tuple[bool, ...], checker: ProgramChecker) -> bool:
    """Has a program that `data` has changed checked; whether it was accepted. Anything but a refusal is raised."""
    limits = ProgramLimits(time_s=20.0, time_s_per_mib=1.0)
    try:
        checker.check(mutated(program, int.from_bytes(data, "little")), "worker:0", trained, limits)
    except (Refused, ProtocolError):
        return False
    return True
