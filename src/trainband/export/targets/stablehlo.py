"""StableHLO: a program of `jax.export` with its weights, loadable by any JAX in its window of versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax import export as jax_export
from numpy.typing import NDArray

from trainband.errors import ModelError, YourError
from trainband.export import loader
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram
from trainband.model.signature import structs
from trainband.model.weights_file import write_weights

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that a program is lowered for; none needs to be present."""

PROGRAM, WEIGHTS, LOADER = "program.jax_export", "weights.safetensors", "load.py"


class StableHLO:
    """Writes and loads programs of `jax.export`."""

    name = "stablehlo"

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        if options.int8:
            raise YourError(
                "--int8 is for litert; for stablehlo, compress the checkpoint (trainband compress) and export that."
            )

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        weights = {name: jax.ShapeDtypeStruct(weight.shape, weight.dtype) for name, weight in program.weights.items()}
        inputs = structs(program.signature.inputs)
        jitted = jax.jit(program.function)
        try:
            exported = jax_export.export(jitted, platforms=PLATFORMS)(weights, inputs)
        except Exception as exc:
            # A Pallas kernel, for example, is of one platform; such a program is exported for the present one.
            here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
            try:
                exported = jax_export.export(jitted, platforms=(here,))(weights, inputs)
            except Exception:
                reason = (str(exc).splitlines() or [""])[0]
                raise ModelError(f"{program.name} cannot be exported to StableHLO: {reason}") from exc
        (directory / PROGRAM).write_bytes(exported.serialize())
        write_weights(directory / WEIGHTS, program.weights)
        (directory / LOADER).write_text(Path(loader.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        return {
            "program": PROGRAM,
            "weights": WEIGHTS,
            "loader": LOADER,
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "calling_convention_version": exported.calling_convention_version,
            "platforms": list(exported.platforms),
        }

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        del written
        run: Run = loader.load(directory)
        return run


def read(directory: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Returns the exported function of weights and inputs, and the weights."""
    return loader.read(directory)
