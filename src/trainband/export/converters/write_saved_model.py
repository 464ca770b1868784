"""Converts StableHLO and weights to a TensorFlow SavedModel. Runs in a Python with TensorFlow; imports nothing else.

    python write_saved_model.py DIRECTORY

The directory has `request.json`, `program.stablehlo` (a portable artifact) and `weights.npz`; `saved_model/` and
`answer.json` are added. The program becomes an operation XlaCallModule, as in the native serialisation of jax2tf.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def save(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the SavedModel, and returns the versions used."""
    tf: Any = import_module("tensorflow")
    xla: Any = import_module("tensorflow.compiler.tf2xla.python.xla")
    newest = xla.call_module_maximum_supported_version()
    if request["version"] > newest:
        return {
            "error": f"TensorFlow {tf.__version__} runs calling conventions up to {newest}, but this JAX writes "
            f"{request['version']}; install a newer TensorFlow."
        }
    module = tf.Module()
    with np.load(work / "weights.npz") as stored:
        module.weights = [
            tf.Variable(
                stored[str(at)].view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape),
                trainable=False,
                name=name.replace("/", "."),
            )
            for at, (name, dtype, shape) in enumerate(request["weights"])
        ]
    program = (work / "program.stablehlo").read_bytes()
    kept = request["kept"]

    def call(**inputs: Any) -> dict[str, Any]:
        arguments = [*module.weights, *(inputs[name] for name, _, _ in request["inputs"])]
        results = xla.call_module(
            [arguments[at] for at in kept],
            version=request["version"],
            Tout=[tf.as_dtype(dtype) for _, dtype, _ in request["outputs"]],
            Sout=[shape for _, _, shape in request["outputs"]],
            platforms=[platform.upper() for platform in request["platforms"]],
            disabled_checks=[],
            function_list=[],
            has_token_input_output=False,
            use_shardy_partitioner=request["shardy"],
            module=program,
        )
        return {name: tf.identity(result) for (name, _, _), result in zip(request["outputs"], results)}  # noqa: B905

    specs = {name: tf.TensorSpec(shape, tf.as_dtype(dtype), name=name) for name, dtype, shape in request["inputs"]}
    module.predict = tf.function(call, autograph=False)
    concrete = module.predict.get_concrete_function(**specs)
    tf.saved_model.save(module, str(work / "saved_model"), signatures={request["signature"]: concrete})
    return {"tensorflow": tf.__version__}


def main() -> None:
    """The command line."""
    work = Path(sys.argv[1])
    request = json.loads((work / "request.json").read_text(encoding="utf-8"))
    (work / "answer.json").write_text(json.dumps(save(work, request)), encoding="utf-8")


if __name__ == "__main__":
    main()
