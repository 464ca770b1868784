"""Diagnosis: which operation of a program a format lacks, or computes wrongly, and which formats have it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.extend.core import jaxpr_as_fun

from trainband.errors import TrainbandError
from trainband.export.operations import line_of_operation, part_of, program_jaxpr
from trainband.export.targets import target
from trainband.export.targets.base import Options
from trainband.model.inference import InferenceProgram, Tensors
from trainband.model.signature import Signature, specs_of

EVERYTHING = ("stablehlo", "saved-model")
"""Formats that hold what XLA computes, which is all that JAX can trace."""
QUICK = ("onnx", "litert")
"""Formats that lack something, and that are tried in little time."""

Try = Callable[[InferenceProgram, str, Path], None]
"""Exports a program to a format in an empty directory, and compares; raises what is wrong."""


def diagnosed(program: InferenceProgram, to: str, attempt: Try) -> str:
    """What is to be added to the error of an export; empty if no operation is to blame.

    The program is cut after each operation in turn, by bisection, until one is found that fails where those before it
    do not.
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

    low, high = -1, len(eqns) - 1  # what is below works, what is above does not
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
        f"{', '.join(have[:-1])} and {have[-1]} have it."
    )


def _until(program: InferenceProgram, closed: Any, at: int) -> InferenceProgram:
    """The program that ends with one operation."""
    part = part_of(closed, closed.jaxpr.eqns[at].outvars)
    function = jaxpr_as_fun(part)
    names = list(program.weights)
    outputs = {f"output_{i}": var.aval for i, var in enumerate(part.jaxpr.outvars)}

    def computed(weights: Tensors, inputs: Tensors) -> dict[str, Any]:
        arrays = [*(weights[name] for name in names), *(inputs[spec.name] for spec in program.signature.inputs)]
        return dict(zip(outputs, function(*arrays), strict=True))

    return InferenceProgram(
        function=computed,
        weights=program.weights,
        signature=Signature(program.signature.inputs, specs_of(outputs)),
        name=program.name,
        example=program.example,
    )


def attempt_with(options: Options, compare: Callable[..., Any]) -> Try:
    """How exports are tried."""

    def attempt(program: InferenceProgram, to: str, directory: Path) -> None:
        chosen = target(to, Options(converter=options.converter if to == "litert" else None))
        compare(program, chosen.load(directory, chosen.write(program, directory)), to)

    return attempt
