"""SavedModel: a directory for TensorFlow, TensorFlow Serving and Keras's TFSMLayer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from numpy.typing import NDArray

from trainband.errors import ModelError, YourError
from trainband.export.converters.environment import PACKAGES, Converter, run_script
from trainband.export.converters.stablehlo import portable
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram
from trainband.model.signature import TensorSpec, structs

MODEL = "saved_model"
SIGNATURE = "serving_default"
"""Name that TensorFlow Serving looks for."""
PLATFORMS = ("cpu", "cuda", "tpu")


class SavedModel:
    """Writes and loads SavedModels."""

    name = "saved-model"

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        if options.int8:
            raise YourError(
                "--int8 is for litert; for saved-model, compress the checkpoint (trainband compress) and export that."
            )
        self._options = options

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        converter = self._converter()
        names = list(program.weights)
        inputs = structs(program.signature.inputs)
        outputs = [spec.name for spec in program.signature.outputs]

        def flat(*arrays: Any) -> list[Any]:
            weights = dict(zip(names, arrays[: len(names)], strict=True))
            computed = program.function(weights, dict(zip(inputs, arrays[len(names) :], strict=True)))
            return [computed[name] for name in outputs]

        weights = [jax.ShapeDtypeStruct(weight.shape, weight.dtype) for weight in program.weights.values()]
        exported = _exported(program, flat, [*weights, *inputs.values()])
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            (work / "program.stablehlo").write_bytes(portable(exported, converter.stablehlo))
            weights_as_bytes: dict[str, Any] = {
                str(at): _bytes(leaf) for at, leaf in enumerate(program.weights.values())
            }
            np.savez(work / "weights.npz", **weights_as_bytes)
            request = {
                "signature": SIGNATURE,
                "version": exported.calling_convention_version,
                "platforms": exported.platforms,
                "kept": exported.module_kept_var_idx,
                "shardy": bool(getattr(jax.config, "jax_use_shardy_partitioner", True)),
                "weights": [[name, leaf.dtype.name, leaf.shape] for name, leaf in program.weights.items()],
                "inputs": [_described(spec) for spec in program.signature.inputs],
                "outputs": [_described(spec) for spec in program.signature.outputs],
            }
            answer = run_script(
                converter.python, "write_saved_model.py", work, request, f"{program.name} as a SavedModel"
            )
            shutil.move(work / MODEL, directory / MODEL)
        return {"model": MODEL, "signature": SIGNATURE, "platforms": list(exported.platforms), **answer}

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        """Starts TensorFlow for each call."""
        python = self._converter().python
        model = (directory / written["model"]).absolute()

        def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            with tempfile.TemporaryDirectory() as name:
                work = Path(name)
                as_bytes: dict[str, Any] = {name: _bytes(array) for name, array in inputs.items()}
                np.savez(work / "inputs.npz", **as_bytes)
                request = {
                    "model": str(model),
                    "signature": written["signature"],
                    "inputs": [[name, array.dtype.name, array.shape] for name, array in inputs.items()],
                }
                answer = run_script(python, "run_saved_model.py", work, request, f"{model} in TensorFlow")
                with np.load(work / "outputs.npz") as stored:
                    return {
                        name: stored[name].view(jnp.dtype(dtype)).reshape(shape)
                        for name, dtype, shape in answer["outputs"]
                    }

        return run

    def _converter(self) -> Converter:
        return Converter.found(PACKAGES[self.name], self._options.converter, "a SavedModel")


def _exported(program: InferenceProgram, function: Any, arguments: list[Any]) -> Any:
    jitted = jax.jit(function)
    try:
        return jax_export.export(jitted, platforms=PLATFORMS)(*arguments)
    except Exception as exc:
        # A program with platform-specific operations is exported for the CPU, where it is tried.
        try:
            return jax_export.export(jitted, platforms=("cpu",))(*arguments)
        except Exception:
            reason = (str(exc).splitlines() or [""])[0]
            raise ModelError(f"{program.name} cannot be exported as a SavedModel: {reason}") from exc


def _described(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.dtype, [length if isinstance(length, int) else None for length in spec.shape]]


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the bytes of an array, because .npz only supports NumPy's dtypes."""
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
