"""ProgramCompiler: compiles the update program of a definition, once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainband.errors import Refused
from trainband.model.layout import JobLayout
from trainband.ps.description import placement_of
from trainband.ps.program.compiled_program import CompileProgram, Program
from trainband.ps.program.signature import Signature
from trainband.ps.program.update_program import UpdateProgram
from trainband.ps.rules.registry import rule_of
from trainband.runtime import Runtime
from trainband.wire.messages import calls as m


class ProgramCompiler:
    """Compiles update programs and keeps the last one. Thread-safe: slow, so called without the service's lock."""

    def __init__(self, compile_program: CompileProgram, runtime: Runtime) -> None:
        self._compile_program = compile_program
        self._compiling = runtime.lock()
        self._compiled: tuple[m.Define, Program] | None = None

    def compile(self, define: m.Define, sender: str) -> Program:
        """The update program of a definition. Slow.

        Raises:
          Refused, ProtocolError, ModelError: the definition is inconsistent.
        """
        layout = JobLayout.of(placement_of(define.description))
        if not 0 <= define.ps < len(layout.shards):
            raise Refused(f"the definition has {len(layout.shards)} ps, but calls this one number {define.ps}.")
        with self._compiling:  # a caller that retries after a timeout finds it done
            if self._compiled is None or not _same(self._compiled[0], define):
                self._compiled = (define, self._compile(define, layout, sender))
            return self._compiled[1]

    def _compile(self, define: m.Define, layout: JobLayout, sender: str) -> Program:
        rule_of(define.description.rule)
        shard = layout.shards[define.ps]
        signature = Signature.of(shard, _state_sizes(define))
        exported = UpdateProgram(define.initialise, define.update, define.jax, signature)
        program = self._compile_program(exported, sender, [block.trained for block in shard.blocks])
        _check_contents(define, program.state_shapes)
        program.warm_up()  # now, not later under the service's lock, when all would wait
        return program


def _same(one: m.Define, other: m.Define) -> bool:
    return (one.ps, one.initialise, one.update, one.state) == (other.ps, other.initialise, other.update, other.state)


def _state_sizes(define: m.Define) -> list[int]:
    return [sum(piece.size for piece in pieces) for pieces in define.state]


def _check_contents(define: m.Define, state_shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuses a description of the optimizer state that does not fit its program."""
    if _state_sizes(define) != [math.prod(shape) for shape in state_shapes]:
        raise Refused("the definition's sizes of the optimizer state differ from its program's.")
