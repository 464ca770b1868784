"""Loads an exported model with nothing but JAX.

    python load.py                            prints what the model takes and gives
    python load.py inputs.npz outputs.npz     runs it

Or, from Python, `load(directory)({"images": images})`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export as jax_export

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read_weights(path: Path) -> dict[str, Any]:
    """The arrays of a safetensors file, by name, as they lie in it."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            weights[name] = data[start + first : start + last].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return weights


def read(directory: str | Path) -> tuple[Any, dict[str, Any]]:
    """(the exported function of weights and inputs, the weights)."""
    manifest = json.loads((Path(directory) / "manifest.json").read_text(encoding="utf-8"))
    made = manifest["format"]
    low = jax_export.minimum_supported_calling_convention_version
    high = jax_export.maximum_supported_calling_convention_version
    version = made["calling_convention_version"]
    advice = f"the program was exported by JAX {made['jax']}, and this is JAX {jax.__version__}"
    if not low <= version <= high:
        raise ValueError(
            f"{advice}, which loads calling conventions {low} to {high}, not {version}: "
            f"{'install a newer JAX' if version > high else 'export the checkpoint again with this JAX'}."
        )
    try:
        exported = jax_export.deserialize(bytearray((Path(directory) / made["program"]).read_bytes()))
    except Exception as exc:
        raise ValueError(f"{directory}/{made['program']} cannot be loaded ({exc}); {advice}.") from exc
    return exported, read_weights(Path(directory) / made["weights"])


def load(directory: str | Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """`predict(inputs) -> outputs`, of NumPy arrays by name."""
    exported, stored = read(directory)
    weights = jax.device_put(stored)
    function = jax.jit(exported.call)
    return lambda inputs: jax.tree.map(np.asarray, function(weights, dict(inputs)))


def main() -> None:
    """The command line of `load.py` beside an exported model."""
    here = Path(__file__).parent
    if len(sys.argv) == 3:
        with np.load(sys.argv[1]) as inputs:
            np.savez(sys.argv[2], **load(here)(dict(inputs)))
        return
    signature = json.loads((here / "manifest.json").read_text(encoding="utf-8"))["signature"]
    for role in ("inputs", "outputs"):
        for spec in signature[role]:
            print(f"{role[:-1]:6} {spec['name']}: {spec['dtype']}[{', '.join(map(str, spec['shape']))}]")


if __name__ == "__main__":
    main()
