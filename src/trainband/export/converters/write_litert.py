"""Converts StableHLO to a LiteRT file. Runs in a Python with litert-converter; imports nothing else.

    python write_litert.py DIRECTORY

The directory has `request.json` and `program.stablehlo` (a portable artifact); `model.tflite` and `answer.json` are
added.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def convert(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Writes the file, and returns the versions used."""
    package: Any = import_module("litert_converter")
    ir: Any = import_module("litert_converter.mlir.ir")
    passmanager: Any = import_module("litert_converter.mlir.passmanager")
    stablehlo: Any = import_module("litert_converter.mlir.dialects.stablehlo")
    api: Any = import_module("litert_converter.mlir._mlir_libs.converter_api_ext")
    context = ir.Context()
    api.prepare_mlir_context(context)
    with context:
        module = stablehlo.deserialize_portable_artifact(context, (work / "program.stablehlo").read_bytes())
        api.set_signature(
            module.operation,
            signature_name=request["signature"],
            input_names=request["inputs"],
            output_names=request["outputs"],
        )
        config = api.ConvertToTFLConfig()
        config.model_origin_framework = "JAX"
        config.unsafe_fuse_dynamic_shaped_broadcast = True
        config.strict_qdq_mode = request["quantised"]
        try:
            api.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
            api.export_flatbuffer_to_file(module.operation, str(work / "model.tflite"))
        except ValueError as exc:
            return {"error": f"litert-converter reports: {str(exc)[:2000]}"}
    return {"litert_converter": package.__version__}


def main() -> None:
    """The command line."""
    work = Path(sys.argv[1])
    request = json.loads((work / "request.json").read_text(encoding="utf-8"))
    (work / "answer.json").write_text(json.dumps(convert(work, request)), encoding="utf-8")


if __name__ == "__main__":
    main()
