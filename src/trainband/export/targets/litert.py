"""LiteRT (formerly TensorFlow Lite): one file for phones and small machines.

The converter is Google's `litert-converter`, which takes StableHLO and needs no TensorFlow.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export as jax_export
from jax.extend.core import jaxpr_as_fun
from numpy.typing import NDArray

from trainband.errors import ModelError, YourError
from trainband.export.converters.environment import PACKAGES, Converter, run_script
from trainband.export.converters.stablehlo import portable
from trainband.export.litert_rewrites import rewrites, with_quantised_constants
from trainband.export.operations import program_jaxpr
from trainband.export.quantised import quantised_weights
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram

MODEL = "model.tflite"
SIGNATURE = "serving_default"
"""Name that programs look for in LiteRT files."""


class LiteRT:
    """Writes and loads LiteRT."""

    name = "litert"

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        self._options = options

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        _interpreter()  # reports a missing package before the work, not after
        converter = Converter.found(PACKAGES[self.name], self._options.converter, "an export to LiteRT")
        if self._options.int8:
            program = quantised_weights(program)
        closed = program_jaxpr(program, rewrites=rewrites(dynamic=_is_dynamic(program)))
        closed, quantised = with_quantised_constants(closed, list(program.weights.values()))
        function = jaxpr_as_fun(closed)
        weights = list(program.weights.values())
        # Variable lengths belong to the jaxpr's own scope.
        inputs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars[len(weights) :]]
        jitted = jax.jit(lambda *arrays: function(*weights, *arrays), keep_unused=True)
        try:
            exported = jax_export.export(jitted, platforms=("cpu",))(*inputs)
        except Exception as exc:
            raise ModelError(f"{program.name} cannot be written as StableHLO: {_first_line(exc)}") from exc
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            (work / "program.stablehlo").write_bytes(portable(exported, converter.stablehlo))
            request = {
                "signature": SIGNATURE,
                "inputs": [spec.name for spec in program.signature.inputs],
                "outputs": [spec.name for spec in program.signature.outputs],
                "quantised": quantised,
            }
            answer = run_script(converter.python, "write_litert.py", work, request, f"{program.name} as LiteRT")
            shutil.move(work / MODEL, directory / MODEL)
        return {"model": MODEL, "signature": SIGNATURE, "int8": bool(quantised), **answer}

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        path = directory / written["model"]
        interpreter = _interpreter()(model_path=str(path))
        runner = interpreter.get_signature_runner(written["signature"])
        wanted = set(runner.get_input_details())

        def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            given = {name: array for name, array in inputs.items() if name in wanted}
            return {name: array.copy() for name, array in runner(**given).items()}

        return run


def _is_dynamic(program: InferenceProgram) -> bool:
    return any(spec.dynamic for spec in program.signature.inputs)


def _interpreter() -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ModuleNotFoundError as exc:
        raise YourError(
            f"testing an export to LiteRT needs {exc.name}, which is not installed: pip install 'trainband[litert]'."
        ) from exc
    return Interpreter


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
