"""ONNX: one file for ONNX Runtime and many others, in browsers, on phones and in C++."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, jaxpr_as_fun
from numpy.typing import NDArray

from trainband.errors import ModelError, YourError
from trainband.export.onnx_rewrites import REWRITES, add_plugins
from trainband.export.operations import line_of_operation, operations, program_jaxpr
from trainband.export.targets.base import NO_OPTIONS, Options, Run
from trainband.model.inference import InferenceProgram

MODEL, WEIGHTS = "model.onnx", "model.onnx.data"
OPSET = 21
"""The newest that runtimes of browsers and phones have supported for some time."""
LARGEST_FILE = 1 << 30
"""Bytes of weights from which on they are stored beside the model: a protobuf message is limited to 2 GB."""


class ONNX:
    """Writes and loads ONNX."""

    name = "onnx"

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        if options.int8:
            raise YourError(
                "--int8 is for litert; for onnx, compress the checkpoint (trainband compress) and export that."
            )

    def write(self, program: InferenceProgram, directory: Path) -> dict[str, Any]:
        with _unpatched():
            onnx, jax2onnx = _required("onnx"), _required("jax2onnx")
            model = _converted(program, jax2onnx, onnx)
        path = directory / MODEL
        beside = program.nbytes > LARGEST_FILE
        onnx.save(model, str(path), save_as_external_data=beside, location=WEIGHTS if beside else None)
        try:
            onnx.checker.check_model(str(path), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as exc:
            raise ModelError(f"{program.name} does not convert to a valid ONNX model: {_first_line(exc)}") from exc
        return {
            "model": MODEL,
            "opset": model.opset_import[0].version,
            "onnx": onnx.__version__,
            "jax2onnx": getattr(jax2onnx, "__version__", None) or _version("jax2onnx"),
        }

    def load(self, directory: Path, written: Mapping[str, Any]) -> Run:
        runtime = _required("onnxruntime")
        session = runtime.InferenceSession(str(directory / written["model"]), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))

        return run


def _converted(program: InferenceProgram, jax2onnx: Any, onnx: Any) -> Any:
    """Returns the model in onnx's form, with the weights as its initializers."""
    # jax2onnx supports one float width: the model casts half-precision weights to float32 when it runs.
    halves = {name for name, weight in program.weights.items() if weight.dtype in (jnp.float16, jnp.bfloat16)}
    closed = program_jaxpr(program, rewrites=REWRITES, dtypes=dict.fromkeys(halves, jnp.float32))
    jaxpr = closed.jaxpr
    outputs = [spec.name for spec in program.signature.outputs]
    inputs = [spec.name for spec in program.signature.inputs]
    taken = {*inputs, *outputs}
    weights = {f"weights/{name}" if name in taken else name: weight for name, weight in program.weights.items()}
    used = {id(atom) for eqn in jaxpr.eqns for atom in eqn.invars}
    variables = dict(zip([*weights, *inputs], jaxpr.invars, strict=True))
    needed = {name: var for name, var in variables.items() if id(var) in used}

    with _quiet("jax2onnx", "onnx_ir"):
        add_plugins()
        _require_plugins(program, closed)
        function = jaxpr_as_fun(closed)

        def of_needed(*arrays: Any) -> Any:
            given = dict(zip(needed, arrays, strict=True))
            # Unneeded weights become constants that nothing reads.
            return function(*(given[name] if name in given else _nothing(var) for name, var in variables.items()))

        try:
            model = jax2onnx.to_onnx(
                of_needed,
                [var.aval for var in needed.values()],
                model_name=program.name,
                opset=OPSET,
                input_names=list(needed),
                output_names=outputs,
            )
        except Exception as exc:
            raise ModelError(f"{program.name}: {_where(exc)}: jax2onnx reports: {_first_line(exc)}") from exc

    graph = model.graph
    values = {value.name: value for value in graph.input}
    del graph.input[:]
    for spec in program.signature.inputs:
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        graph.input.append(onnx.helper.make_tensor_value_info(spec.name, element, list(map(_dim, spec.shape))))
    casts = []
    for name, weight in weights.items():
        if name not in values:
            continue
        if name in {f"weights/{half}" if half in taken else half for half in halves}:
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(weight), f"{name}/stored"))
            casts.append(onnx.helper.make_node("Cast", [f"{name}/stored"], [name], to=onnx.TensorProto.FLOAT))
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(weight), name))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _require_plugins(program: InferenceProgram, closed: Any) -> None:
    from jax2onnx.plugins.plugin_system import PLUGIN_REGISTRY

    for eqn in operations(closed):
        if eqn.primitive.name not in PLUGIN_REGISTRY:
            raise ModelError(f"{program.name} uses {named(eqn)}, which jax2onnx cannot write as ONNX.")


def named(eqn: JaxprEqn) -> str:
    """Describes an operation."""
    line = line_of_operation(eqn)
    return f"the operation {eqn.primitive.name}{f' ({line})' if line else ''}"


def _where(exc: BaseException) -> str:
    """Describes the operation at which a converter failed."""
    found = None
    traceback = exc.__traceback__
    while traceback is not None:
        held = traceback.tb_frame.f_locals
        found = next((held[key] for key in ("inner_eqn", "eqn") if isinstance(held.get(key), JaxprEqn)), found)
        traceback = traceback.tb_next
    return f"{named(found)} cannot be written as ONNX" if found is not None else "it cannot be written as ONNX"


def _dim(length: int | str) -> int | str:
    return length if isinstance(length, int) else length.replace(" ", "")


def _nothing(var: Any) -> Any:
    return np.zeros([length if isinstance(length, int) else 1 for length in var.aval.shape], var.aval.dtype)


@contextlib.contextmanager
def _unpatched() -> Iterator[None]:
    """Restores JAX's functions: those of jax2onnx 0.13 stay patched, and take fewer arguments (`jnp.cumsum(x, 0)`)."""
    before = [(module, dict(vars(module))) for module in (jax, jax.nn, jax.lax, jnp, jnp.linalg)]
    try:
        yield
    finally:
        for module, names in before:
            for name, value in names.items():
                if callable(value) and vars(module).get(name) is not value:
                    setattr(module, name, value)


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silences warnings of libraries, which are for their authors."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _required(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        raise YourError(
            f"an export to ONNX needs {exc.name}, which is not installed: pip install 'trainband[onnx]'."
        ) from exc


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
