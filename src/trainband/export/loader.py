"""Loads an exported model, needing only JAX.

    python load.py                            prints its inputs and outputs
    python load.py inputs.npz outputs.npz     runs it

Or, from Python, `load(directory)({"images": images})`.
"""

from __future__ import annotations

import hashlib
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
    """Reads the arrays of a safetensors file, by name, as views of it.

    Raises:
      ValueError: it is not one.
    """
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    weights = {}
    try:
        if start > len(data):
            raise ValueError("it is truncated")
        for name, entry in json.loads(data[8:start].tobytes()).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                if not 0 <= first <= last <= len(data) - start:
                    raise ValueError(f"{name} lies outside it")
                part = data[start + first : start + last]
                weights[name] = part.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"{path} is not a weights file: {exc}.") from exc
    return weights


def read(directory: str | Path) -> tuple[Any, dict[str, Any]]:
    """Returns the exported function of weights and inputs, and the weights.

    Raises:
      ValueError: a file is missing or has changed since the export, or this JAX cannot load the program.
    """
    manifest = json.loads((Path(directory) / "manifest.json").read_text(encoding="utf-8"))
    made = manifest["format"]
    low = jax_export.minimum_supported_calling_convention_version
    high = jax_export.maximum_supported_calling_convention_version
    version = made["calling_convention_version"]
    advice = f"the program was exported by JAX {made['jax']}; this is JAX {jax.__version__}"
    if not low <= version <= high:
        raise ValueError(
            f"{advice}, which loads calling conventions {low} to {high}, not {version}: "
            f"{'install a newer JAX' if version > high else 'export the checkpoint again with this JAX'}."
        )
    program, weights = (_exported_file(Path(directory), manifest, kind) for kind in ("program", "weights"))
    try:
        exported = jax_export.deserialize(bytearray(program.read_bytes()))
    except Exception as exc:
        raise ValueError(f"{program} cannot be loaded ({exc}); {advice}.") from exc
    stored = read_weights(weights)
    (wanted, _), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    for name, aval in wanted.items():
        if name not in stored or (stored[name].shape, stored[name].dtype) != (aval.shape, aval.dtype):
            raise ValueError(f"the program needs {name} as {aval}, which {weights} does not have.")
    return exported, stored


def _exported_file(directory: Path, manifest: Any, kind: str) -> Path:
    """Returns a file named by the manifest, which must be beside it and unchanged since the export."""
    name = manifest["format"][kind]
    path: Path = directory / name
    if Path(name).name != name or not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"the manifest names {name!r} as the {kind}, which is not in {directory}.")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest["sha256"].get(name):
            raise ValueError(f"{path} is not the file that was exported.")
    return path


def load(directory: str | Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns `predict(inputs) -> outputs`, for NumPy arrays by name."""
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
