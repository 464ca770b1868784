"""The open inference protocol, version 2, over HTTP, with the extension for binary tensors.

Source: https://github.com/kserve/open-inference-protocol and Triton's `extension_binary_data.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.signature import TensorSpec
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.protocols.base import Response, Write, number
from trainband.serve.tensors import TensorReader, as_lists, read_body, write_json
from trainband.version import VERSION

T = TypeVar("T")

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
HEADER_LENGTH = b"inference-header-content-length"


class _Input(msgspec.Struct, Generic[T]):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: T | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, Generic[T]):
    inputs: list[_Input[T]]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


class _FastInput(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw(b"")


class _FastRequest(msgspec.Struct):
    inputs: list[_FastInput]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


def server_metadata() -> dict[str, Any]:
    """What the server is."""
    return {"name": "trainband", "version": VERSION, "extensions": ["binary_tensor_data", "model_repository"]}


class V2:
    """See the module.

    Args:
      model: that is served.
    """

    name = "v2"

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._readers = {spec.name: TensorReader(spec) for spec in model.signature.inputs}
        self._outputs = [spec.name for spec in model.signature.outputs]
        self._decoder = msgspec.json.Decoder(_FastRequest)

    def metadata(self, version: LoadedVersion) -> dict[str, Any]:
        """See `InferenceProtocol`."""
        signature = self._model.signature
        return {
            "name": self._model.name,
            "versions": [str(version.number)],
            "platform": "jax_trainband",
            "inputs": [_tensor_metadata(spec) for spec in signature.inputs],
            "outputs": [_tensor_metadata(spec) for spec in signature.outputs],
        }

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> tuple[dict[str, NDArray[Any]], Write]:
        """See `InferenceProtocol`."""
        length = number(headers, HEADER_LENGTH)
        if length is not None and length > len(body):
            raise DataError(
                f"Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes; it counts the bytes "
                "of the JSON that the body begins with."
            )
        view = memoryview(body)
        binary = view[len(body) if length is None else length :]
        request = read_body(body if length is None else view[:length], self._decoder, _Request[Any])
        inputs: dict[str, NDArray[Any]] = {}
        at = 0
        for given in request.inputs:
            if given.name in inputs:
                raise DataError(f"the input {given.name!r} is given twice.")
            inputs[given.name], at = self._read_input(given, binary, at)
        if at != len(binary):
            raise DataError(
                f"the body has {len(binary)} bytes after its JSON, and the binary_data_size of the inputs are {at}."
            )
        wanted = [output.name for output in request.outputs] or self._outputs
        for output in request.outputs:
            if output.name not in self._outputs:
                raise DataError(f"there is no output {output.name!r}; the outputs are {', '.join(self._outputs)}.")
            if "classification" in output.parameters or "shared_memory_region" in output.parameters:
                raise DataError(f"the output {output.name!r} asks for an extension that this server does not have.")
        all_binary = request.parameters.get("binary_data_output") is True
        asked = {output.name: output.parameters.get("binary_data", all_binary) is True for output in request.outputs}
        as_bytes = {name for name in wanted if asked.get(name, all_binary)}

        def write(outputs: Mapping[str, NDArray[Any]], version: LoadedVersion) -> Response:
            return self._response(request.id, {name: outputs[name] for name in wanted}, as_bytes, version)

        return inputs, write

    def _read_input(self, given: _FastInput | _Input[Any], binary: memoryview, at: int) -> tuple[NDArray[Any], int]:
        """(the input, where the binary data of the next one begins)."""
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
        if any(length < 0 for length in given.shape):
            raise DataError(f"the input {given.name!r} says shape {given.shape}; expected {spec}.")
        size = given.parameters.get("binary_data_size")
        if size is None:
            if given.data is None or (isinstance(given.data, msgspec.Raw) and not len(given.data)):
                raise DataError(f"the input {given.name!r} has no data.")
            return reader.flat(given.data, given.shape), at
        dtype = np.dtype(spec.dtype)
        wanted = math.prod(given.shape) * dtype.itemsize
        if not isinstance(size, int) or size != wanted:
            raise DataError(
                f"the input {given.name!r} of shape {given.shape} takes {wanted} bytes as {given.datatype}, and its "
                f"binary_data_size is {size!r}."
            )
        if at + size > len(binary):
            raise DataError(
                f"the body ends within the input {given.name!r}: {size} bytes were to come, {len(binary) - at} did."
            )
        return np.frombuffer(binary[at : at + size], dtype).reshape(given.shape), at + size

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
                one["data"] = as_lists(array.reshape(-1))
            described.append(one)
        value = {"model_name": self._model.name, "model_version": str(version.number), "outputs": described}
        if request_id:
            value["id"] = request_id
        head = write_json(value, {name: array for name, array in outputs.items() if name not in as_bytes})
        if not raw:
            return Response(head)
        length = {"Inference-Header-Content-Length": str(len(head))}
        return Response(b"".join([head, *raw]), content_type="application/octet-stream", headers=length)


def _tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": _DATATYPES.get(spec.dtype, spec.dtype),
        "shape": [n if isinstance(n, int) else -1 for n in spec.shape],
    }
