"""Runs a TensorFlow SavedModel once. Runs in a Python with TensorFlow; imports nothing else.

    python run_saved_model.py DIRECTORY

The directory has `request.json` and `inputs.npz`; `outputs.npz` and `answer.json` are added.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def run(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the outputs as bytes, and returns their dtypes and shapes."""
    tf: Any = import_module("tensorflow")
    signature = tf.saved_model.load(request["model"]).signatures[request["signature"]]
    with np.load(work / "inputs.npz") as stored:
        inputs = {
            name: tf.constant(stored[name].view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))
            for name, dtype, shape in request["inputs"]
        }
    try:
        outputs = {name: tensor.numpy() for name, tensor in signature(**inputs).items()}
    except tf.errors.OpError as exc:
        return {"error": f"TensorFlow reports: {exc.message[:2000]}"}
    flat: dict[str, Any] = {name: np.frombuffer(array.tobytes(), np.uint8) for name, array in outputs.items()}
    np.savez(work / "outputs.npz", **flat)
    return {"outputs": [[name, array.dtype.name, list(array.shape)] for name, array in outputs.items()]}


def main() -> None:
    """The command line."""
    work = Path(sys.argv[1])
    request = json.loads((work / "request.json").read_text(encoding="utf-8"))
    (work / "answer.json").write_text(json.dumps(run(work, request)), encoding="utf-8")


if __name__ == "__main__":
    main()
