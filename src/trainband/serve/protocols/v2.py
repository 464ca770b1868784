"""The open inference protocol, version 2, over HTTP, with the extension for binary tensors.

Source: https://github.com/kserve/open-inference-protocol and Triton's `extension_binary_data.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.signature import TensorSpec
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.protocols.base import Response, Write, number
from trainband.serve.statistics import ServerMetrics
from trainband.serve.tensors import JsonReader, TensorReader, json_of, read_body, read_small
from trainband.version import VERSION

_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}
_MISSING = {"classification": "classification", "shared_memory_region": "system_shared_memory"}
"""Triton's extension of each unsupported output parameter."""

HEADER_LENGTH = b"inference-header-content-length"


class _FastInput(msgspec.Struct):
    name: str
    shape: msgspec.Raw
    datatype: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    data: msgspec.Raw = msgspec.Raw(b"")


class _FastOutput(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _FastRequest(msgspec.Struct):
    inputs: list[_FastInput]
    id: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    outputs: list[_FastOutput] = []


class _Input(msgspec.Struct):
    name: str
    shape: Any
    datatype: str
    parameters: Any = {}
    data: Any = None


class _Output(msgspec.Struct):
    name: str
    parameters: Any = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: Any = {}
    outputs: list[_Output] = []


_SHAPE, _PARAMETERS = JsonReader(list[int]), JsonReader(dict[str, Any])
MOST_ID = 1024

EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]


def server_metadata() -> dict[str, Any]:
    """Returns the server's metadata."""
    return {"name": "trainband", "version": VERSION, "extensions": EXTENSIONS}


class V2:
    """Reads and answers requests of the protocol for one model.

    Args:
      model: to serve.
    """

    name = "v2"

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._readers = {spec.name: TensorReader(spec) for spec in model.signature.inputs}
        self._outputs = [spec.name for spec in model.signature.outputs]
        self._decoder = msgspec.json.Decoder(_FastRequest)

    def metadata(self, version: LoadedVersion) -> dict[str, Any]:
        signature = self._model.signature
        return {
            "name": self._model.name,
            "versions": [str(version.number)],
            "platform": "jax_trainband",
            "inputs": [_tensor_metadata(spec) for spec in signature.inputs],
            "outputs": [_tensor_metadata(spec) for spec in signature.outputs],
        }

    def config(self, max_batch: int) -> dict[str, Any]:
        """Returns a model's data for Triton's extension `model_configuration`; `max_batch` limits the batches."""
        signature = self._model.signature
        batched = signature.batched
        return {
            "name": self._model.name,
            "platform": "jax_trainband",
            "backend": "trainband",
            "max_batch_size": max_batch if batched else 0,
            "input": [_tensor_config(spec, batched=batched) for spec in signature.inputs],
            "output": [_tensor_config(spec, batched=batched) for spec in signature.outputs],
        }

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> tuple[dict[str, NDArray[Any]], Write]:
        length = number(headers, HEADER_LENGTH)
        if length is not None and length > len(body):
            raise DataError(
                f"Inference-Header-Content-Length is {length}, but the body has {len(body):,} bytes; it must be the "
                "length of the JSON at the start of the body."
            )
        view = memoryview(body)
        binary = view[len(body) if length is None else length :]
        request = read_body(body if length is None else view[:length], self._decoder, _Request)
        if len(request.id) > MOST_ID or not _is_text(request.id):
            raise DataError(f"the id of the request must be text of at most {MOST_ID} characters.")
        inputs: dict[str, NDArray[Any]] = {}
        at = 0
        for given in request.inputs:
            if given.name in inputs:
                raise DataError(f"the input {given.name!r} is given twice.")
            inputs[given.name], at = self._read_input(given, binary, at)
        if at != len(binary):
            raise DataError(
                f"the body has {len(binary):,} bytes after its JSON, but the binary_data_size of its inputs total {at}."
            )
        parameters = read_small(request.parameters, _PARAMETERS, "parameters")
        all_binary = parameters.get("binary_data_output") is True
        asked: dict[str, bool] = {}
        for output in request.outputs:
            if output.name not in self._outputs or output.name in asked:
                raise DataError(
                    f"there is no {'second ' * (output.name in asked)}output {output.name!r}; the outputs are "
                    f"{', '.join(self._outputs)}."
                )
            parameters = read_small(output.parameters, _PARAMETERS, f"parameters of the output {output.name!r}")
            for parameter, extension in _MISSING.items():
                if parameter in parameters:
                    raise DataError(
                        f"the output {output.name!r} asks for {parameter!r}, of the extension {extension!r}, which "
                        "this server does not support; leave it out, and process the whole output."
                    )
            asked[output.name] = parameters.get("binary_data", all_binary) is True
        wanted = list(asked) or self._outputs
        as_bytes = {name for name in wanted if asked.get(name, all_binary)}

        def write(outputs: Mapping[str, NDArray[Any]], version: LoadedVersion) -> Response:
            return self._response(request.id, {name: outputs[name] for name in wanted}, as_bytes, version)

        return inputs, write

    def _read_input(self, given: _FastInput | _Input, binary: memoryview, at: int) -> tuple[NDArray[Any], int]:
        """Returns the input, and where the binary data of the next one begins."""
        reader = self._readers.get(given.name)
        expected = self._model.signature.expected()
        if reader is None:
            raise DataError(f"there is no input {given.name!r}; the inputs are {expected}.")
        spec = reader.spec
        if given.datatype != _DATATYPES.get(spec.dtype):
            raise DataError(
                f"the input {given.name!r} is of datatype {given.datatype!r}; expected {_DATATYPES.get(spec.dtype)} "
                f"({spec})."
            )
        shape = read_small(given.shape, _SHAPE, f"the shape of the input {given.name!r}")
        reader.require_shape(shape)
        size = read_small(given.parameters, _PARAMETERS, f"parameters of the input {given.name!r}").get(
            "binary_data_size"
        )
        if size is None:
            if given.data is None or (isinstance(given.data, msgspec.Raw) and not len(given.data)):
                raise DataError(f"the input {given.name!r} has no data.")
            return reader.flat(given.data, shape), at
        dtype = np.dtype(spec.dtype)
        wanted = math.prod(shape) * dtype.itemsize
        if type(size) is not int or size != wanted:
            raise DataError(
                f"the input {given.name!r} of shape {shape} takes {wanted} bytes as {given.datatype}, but its "
                f"binary_data_size is {str(size)[:40]}."
            )
        if at + size > len(binary):
            raise DataError(
                f"the body ends within the input {given.name!r}: expected {size} bytes, got {len(binary) - at}."
            )
        return np.frombuffer(binary[at : at + size], dtype).reshape(shape), at + size

    def _response(
        self, request_id: str, outputs: Mapping[str, NDArray[Any]], as_bytes: set[str], version: LoadedVersion
    ) -> Response:
        described: list[dict[str, Any]] = []
        raw: list[bytes] = []
        for name, array in outputs.items():
            datatype = _DATATYPES.get(array.dtype.name, "")
            one: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
            if name in as_bytes:
                raw.append(array.tobytes())
                one["parameters"] = {"binary_data_size": array.nbytes}
            else:
                one["data"] = json_of(array.reshape(-1))
            described.append(one)
        value = {"model_name": self._model.name, "model_version": str(version.number), "outputs": described}
        if request_id:
            value["id"] = request_id
        head = msgspec.json.encode(value)
        if not raw:
            return Response(head)
        length = {"Inference-Header-Content-Length": str(len(head))}
        return Response(b"".join([head, *raw]), content_type="application/octet-stream", headers=length)


def _is_text(text: str) -> bool:
    """Whether UTF-8 can encode it: JSON can contain halves of characters."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": _DATATYPES.get(spec.dtype, spec.dtype),
        "shape": [n if isinstance(n, int) else -1 for n in spec.shape],
    }


def _tensor_config(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    kind = _DATATYPES.get(spec.dtype, spec.dtype)
    dims = [n if isinstance(n, int) else -1 for n in spec.shape[batched:]]
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": dims}


def statistics(name: str, version: str, metrics: ServerMetrics) -> dict[str, Any]:
    """Returns a model's data for Triton's extension `statistics`. Values that are not counted are 0."""
    nothing = {"count": 0, "ns": 0}
    requests, seconds = metrics.answered()
    failed = metrics.failed()
    batches, computing = metrics.computed()
    infer = {"count": batches, "ns": round(1e9 * computing)}
    return {
        "model_stats": [
            {
                "name": name,
                "version": version,
                "last_inference": 0,
                "inference_count": int(metrics.examples.total()),
                "execution_count": batches,
                "inference_stats": {
                    "success": {"count": requests, "ns": round(1e9 * seconds)},
                    "fail": {"count": failed, "ns": 0},
                    "queue": nothing,
                    "compute_input": nothing,
                    "compute_infer": infer,
                    "compute_output": nothing,
                },
                "batch_stats": [],
            }
        ]
    }
