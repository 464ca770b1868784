"""Diagnosis: finds the operation that a format lacks or computes wrongly, and the formats that support it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.extend.core import JaxprEqn, jaxpr_as_fun

from trainband.errors import TrainbandError
from trainband.export.operations import line_of_operation, part_of, program_jaxpr
from trainband.export.targets import target
from trainband.export.targets.base import Options
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.signature import Signature, specs_of

EVERYTHING = ("stablehlo", "saved-model")
"""Formats that hold all that XLA computes, hence all that JAX can trace."""
QUICK = ("onnx", "litert")
"""Formats with gaps that are quick to try."""

Try = Callable[[InferenceProgram, str, Path], None]
"""Exports a program to a format in an empty directory, and compares it; raises the error found."""


def diagnosed(program: InferenceProgram, to: str, attempt: Try) -> str:
    """Returns an addition to the error of an export; empty if no operation is to blame.

    The program is cut after an operation, by bisection, until one is found that fails although those before it do not.
    """
    if to not in QUICK:
        return ""
    closed = program_jaxpr(program)
    eqns = closed.jaxpr.eqns

    def works(at: int, format_: str = to) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            try:
                attempt(_until(program, closed, at), format_, Path(directory))
            except (TrainbandError, ValueError, RuntimeError):
                return False
        return True

    try:
        return _first_that_fails(eqns, to, works)
    except _OtherOperations:
        return ""


class _OtherOperations(Exception):
    """A program that uses other operations for a known batch size: no index identifies the same one."""


def _first_that_fails(eqns: Sequence[JaxprEqn], to: str, works: Callable[..., bool]) -> str:
    low, high = -1, len(eqns) - 1  # below low works, above high fails
    if high < 0 or works(high):
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        if works(middle):
            low = middle
        else:
            high = middle
    eqn = eqns[high]
    line = line_of_operation(eqn)
    have = [*EVERYTHING, *(other for other in QUICK if other != to and works(high, other))]
    return (
        f" The first operation that fails there is {eqn.primitive.name}{f' ({line})' if line else ''}; "
        f"{', '.join(have[:-1])} and {have[-1]} support it."
    )


def _until(program: InferenceProgram, closed: Any, at: int) -> InferenceProgram:
    """Returns the program that ends with one operation."""
    primitives = [eqn.primitive for eqn in closed.jaxpr.eqns[: at + 1]]
    outputs = {f"output_{i}": var.aval for i, var in enumerate(closed.jaxpr.eqns[at].outvars)}

    def computed(weights: Tensors, inputs: Tensors) -> dict[str, Any]:
        given = {spec.name: inputs[spec.name] for spec in program.signature.inputs}
        # Traced again, because a trace for any batch size cannot compute a specific one.
        fixed = replace(program, signature=replace(program.signature, inputs=specs_of(given)))
        again = program_jaxpr(fixed)
        eqns = again.jaxpr.eqns[: at + 1]
        if [eqn.primitive for eqn in eqns] != primitives:
            raise _OtherOperations
        function = jaxpr_as_fun(part_of(again, eqns[at].outvars))
        return dict(zip(outputs, function(*(weights[name] for name in program.weights), *given.values()), strict=True))

    return InferenceProgram(
        function=computed,
        weights=program.weights,
        signature=Signature(program.signature.inputs, specs_of(outputs)),
        name=program.name,
        example=program.example,
    )


def attempt_with(options: Options, compare: Callable[..., Any]) -> Try:
    """Returns a function that tries an export."""

    def attempt(program: InferenceProgram, to: str, directory: Path) -> None:
        chosen = target(to, Options(converter=options.converter if to == "litert" else None))
        compare(program, chosen.load(directory, chosen.write(program, directory)), to)

    return attempt
