"""Signatures: which tensors go into a model and which come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainband.compat.ops.dtypes import as_dtype, float32, string
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.protos.graph import SignatureDef, TensorInfo
from trainband.compat.tf1.saved_models import constants


def build_tensor_info(tensor: Any) -> Any:
    """Describe a tensor, a sparse one too, by name, dtype and shape."""
    kind = as_dtype(tensor.dtype)
    made = TensorInfo(dtype=kind.as_datatype_enum, tensor_shape=tensor.get_shape().as_proto())
    if isinstance(tensor, SparseTensor):
        made.coo_sparse.values_tensor_name = tensor.values.name
        made.coo_sparse.indices_tensor_name = tensor.indices.name
        made.coo_sparse.dense_shape_tensor_name = tensor.dense_shape.name
    else:
        made.name = tensor.name
    return made


def get_tensor_from_tensor_info(tensor_info: Any, graph: Graph | None = None, import_scope: str | None = None) -> Any:
    """The tensor that a description names.

    Raises:
      KeyError: there is none of this name.
      ValueError: the description has no name.
    """
    graph = graph or get_default_graph()
    prefix = f"{import_scope}/" if import_scope else ""
    encoding = tensor_info.WhichOneof("encoding")
    if encoding == "name":
        return graph.get_tensor_by_name(f"{prefix}{tensor_info.name}")
    if encoding == "coo_sparse":
        names = tensor_info.coo_sparse
        parts = (names.indices_tensor_name, names.values_tensor_name, names.dense_shape_tensor_name)
        return SparseTensor(*(graph.get_tensor_by_name(f"{prefix}{one}") for one in parts))
    raise ValueError(f"Invalid TensorInfo.encoding: {encoding}")


def build_signature_def(
    inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None, method_name: str | None = None
) -> Any:
    """Make a `SignatureDef` of descriptions of tensors."""
    made = SignatureDef(method_name=method_name or "")
    for kept, given in ((made.inputs, inputs), (made.outputs, outputs)):
        for key, one in (given or {}).items():
            kept[key].CopyFrom(one)
    return made


def predict_signature_def(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """A signature with any inputs and outputs.

    Raises:
      ValueError: one of both is empty.
    """
    if not inputs:
        raise ValueError("Prediction inputs cannot be None or empty.")
    if not outputs:
        raise ValueError("Prediction outputs cannot be None or empty.")
    described = [{key: build_tensor_info(one) for key, one in given.items()} for given in (inputs, outputs)]
    return build_signature_def(described[0], described[1], constants.PREDICT_METHOD_NAME)


def regression_signature_def(examples: Any, predictions: Any) -> Any:
    """A signature from `Example`s to numbers.

    Raises:
      ValueError: a tensor lacks, or has another dtype.
    """
    if predictions is None:
        raise ValueError("Regression predictions cannot be None.")
    inputs = {constants.REGRESS_INPUTS: _of_strings(examples, "Regression examples")}
    outputs = {constants.REGRESS_OUTPUTS: _of_type(predictions, float32, "Regression output")}
    return build_signature_def(inputs, outputs, constants.REGRESS_METHOD_NAME)


def classification_signature_def(examples: Any, classes: Any, scores: Any) -> Any:
    """A signature from `Example`s to classes, their scores, or both.

    Raises:
      ValueError: a tensor lacks, or has another dtype.
    """
    if classes is None and scores is None:
        raise ValueError("Classification classes and scores cannot both be None.")
    inputs = {constants.CLASSIFY_INPUTS: _of_strings(examples, "Classification examples")}
    outputs = {}
    if classes is not None:
        outputs[constants.CLASSIFY_OUTPUT_CLASSES] = _of_type(classes, string, "Classification classes")
    if scores is not None:
        outputs[constants.CLASSIFY_OUTPUT_SCORES] = _of_type(scores, float32, "Classification scores")
    return build_signature_def(inputs, outputs, constants.CLASSIFY_METHOD_NAME)


def is_valid_signature(signature_def: Any) -> bool:
    """Whether TensorFlow Serving takes a signature: its method, its keys and their dtypes."""
    inputs = {key: as_dtype(one.dtype) for key, one in signature_def.inputs.items()}
    outputs = {key: as_dtype(one.dtype) for key, one in signature_def.outputs.items()}
    if signature_def.method_name == constants.PREDICT_METHOD_NAME:
        return bool(inputs) and bool(outputs)
    if signature_def.method_name == constants.REGRESS_METHOD_NAME:
        allowed = {constants.REGRESS_OUTPUTS: float32}
    elif signature_def.method_name == constants.CLASSIFY_METHOD_NAME:
        allowed = {constants.CLASSIFY_OUTPUT_CLASSES: string, constants.CLASSIFY_OUTPUT_SCORES: float32}
    else:
        return False
    fits = bool(outputs) and all(allowed.get(key) == kind for key, kind in outputs.items())
    return fits and inputs == {constants.CLASSIFY_INPUTS: string}


def _of_strings(examples: Any, what: str) -> Any:
    if examples is None:
        raise ValueError(f"{what} cannot be None.")
    return _of_type(examples, string, what)


def _of_type(value: Any, kind: Any, what: str) -> Any:
    tensor = convert(value)
    if tensor.dtype != kind:
        raise ValueError(f"{what} must be a tensor of type {kind.name}, got {tensor.dtype.name}.")
    return build_tensor_info(tensor)
