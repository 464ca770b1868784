"""TensorFlow Serving's REST interface: `:predict` with rows (`instances`) or columns (`inputs`), status and metadata.

Source: https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.signature import TensorSpec
from trainband.serve.model import LoadedVersion, ServedModel
from trainband.serve.protocols.base import Response, Write
from trainband.serve.tensors import (
    WINDOW,
    JsonReader,
    TensorReader,
    element_type,
    json_of,
    json_of_rows,
    nested_type,
    read_body,
)

T = TypeVar("T")

SIGNATURE = "serving_default"
_DTYPES = {
    "bool": "DT_BOOL",
    "uint8": "DT_UINT8",
    "uint16": "DT_UINT16",
    "uint32": "DT_UINT32",
    "uint64": "DT_UINT64",
    "int8": "DT_INT8",
    "int16": "DT_INT16",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "float16": "DT_HALF",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "bfloat16": "DT_BFLOAT16",
}


class _Body(msgspec.Struct):
    instances: msgspec.Raw = msgspec.Raw(b"")
    inputs: msgspec.Raw = msgspec.Raw(b"")
    signature_name: str = SIGNATURE


class _SlowBody(msgspec.Struct, Generic[T]):
    instances: T | None = None
    inputs: T | None = None
    signature_name: str = SIGNATURE


def status(version: LoadedVersion) -> dict[str, Any]:
    """Returns the status of the model."""
    ok = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version.number), "state": "AVAILABLE", "status": ok}]}


class TensorFlowServing:
    """Reads and answers requests of the interface for one model.

    Args:
      model: to serve.
    """

    name = "tensorflow"

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        specs = model.signature.inputs
        self._readers = {spec.name: TensorReader(spec) for spec in specs}
        self._alone = specs[0].name if len(specs) == 1 else None
        self._decoder = msgspec.json.Decoder(_Body)
        named = [(spec.name, nested_type(element_type(spec), max(0, len(spec.shape) - 1))) for spec in specs]
        self._rows = JsonReader(list[msgspec.defstruct("Instance", named, forbid_unknown_fields=True)])  # type: ignore[misc]
        raws = msgspec.defstruct("Fields", [(spec.name, msgspec.Raw) for spec in specs], forbid_unknown_fields=True)
        self._raw_rows = JsonReader(list[raws])  # type: ignore[valid-type]
        self._whole: msgspec.json.Decoder[Any] | None = None
        """Reads a body of only the rows of a single input, in one go."""
        if self._alone is not None:
            rows = nested_type(element_type(specs[0]), len(specs[0].shape))
            whole = msgspec.defstruct("Rows", [("instances", rows)], forbid_unknown_fields=True)
            self._whole = msgspec.json.Decoder(whole)
        self._raw_columns = JsonReader(dict[str, msgspec.Raw])
        self._single = len(model.signature.outputs) == 1

    def metadata(self, version: LoadedVersion) -> dict[str, Any]:
        signature = self._model.signature
        return {
            "model_spec": {"name": self._model.name, "signature_name": "", "version": str(version.number)},
            "metadata": {
                "signature_def": {
                    "signature_def": {
                        SIGNATURE: {
                            "inputs": {spec.name: _tensor_info(spec) for spec in signature.inputs},
                            "outputs": {spec.name: _tensor_info(spec) for spec in signature.outputs},
                            "method_name": "tensorflow/serving/predict",
                        }
                    }
                }
            },
        }

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> tuple[dict[str, NDArray[Any]], Write]:  # noqa: ARG002
        if self._whole is not None and len(body) <= WINDOW:
            assert self._alone is not None
            whole = None
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # other bodies are handled below
                whole = self._whole.decode(body)
            if whole is not None and body.count(b'"') == 2:  # no key twice
                array = self._readers[self._alone].array(whole.instances)
                if array.ndim:
                    return {self._alone: array}, self._writes_rows(len(array))
        request = read_body(body, self._decoder, _SlowBody[Any])
        if request.signature_name not in (SIGNATURE, ""):
            raise DataError(f"there is no signature {request.signature_name!r}; there is {SIGNATURE!r}.")
        rows, columns = _none_if_missing(request.instances), _none_if_missing(request.inputs)
        if (rows is None) == (columns is None):
            raise DataError("give either instances (rows) or inputs (columns).")
        if rows is not None:
            inputs, count = self._read_rows(rows)
            return inputs, self._writes_rows(count)
        return self._read_columns(columns), self._columns_response

    def _read_rows(self, rows: Any) -> tuple[dict[str, NDArray[Any]], int]:
        """Returns the inputs and the number of rows."""
        if self._alone is not None and not _holds_objects(rows):
            array = self._readers[self._alone].nested(rows)
            if not array.ndim:
                raise DataError("instances must be a list of rows.")
            return {self._alone: array}, len(array)
        is_long = isinstance(rows, msgspec.Raw) and len(rows) > WINDOW
        try:
            read = (self._raw_rows if is_long else self._rows).read(rows)
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            raise DataError(
                f"cannot read the instances: {exc}; each must be an object with one row of each of "
                f"{self._model.signature.expected()}."
            ) from exc
        if is_long:
            return {name: self._stacked(name, read) for name in self._readers}, len(read)
        inputs = {name: reader.array([getattr(row, name) for row in read]) for name, reader in self._readers.items()}
        return inputs, len(read)

    def _stacked(self, name: str, rows: Sequence[Any]) -> NDArray[Any]:
        reader = self._readers[name]
        parts = [reader.nested(getattr(row, name), is_row=True) for row in rows]
        if len({part.shape for part in parts}) != 1:
            raise DataError(f"the instances differ in the shape of {name!r}; expected {reader.spec}.")
        return np.stack(parts)

    def _read_columns(self, columns: Any) -> dict[str, NDArray[Any]]:
        named: Mapping[str, Any]
        if _is_object(columns):
            named = self._raw_columns.read(columns) if isinstance(columns, msgspec.Raw) else columns
        elif self._alone is None:
            raise DataError(f"inputs must be an object of {self._model.signature.expected()}.")
        else:
            named = {self._alone: columns}
        inputs = {}
        for name, value in named.items():
            if name not in self._readers:
                raise DataError(f"there is no input {name!r}; the inputs are {self._model.signature.expected()}.")
            inputs[name] = self._readers[name].nested(value)
        return inputs

    def _writes_rows(self, count: int) -> Write:
        return lambda outputs, version: self._rows_response(outputs, count)  # noqa: ARG005 - rows do not name the version

    def _rows_response(self, outputs: Mapping[str, NDArray[Any]], count: int) -> Response:
        for name, array in outputs.items():
            if array.shape[:1] != (count,):
                raise DataError(
                    f"the output {name!r} has no row for each instance ({list(array.shape)}); use inputs instead of "
                    "instances."
                )
        written = json_of(next(iter(outputs.values()))) if self._single else json_of_rows(outputs)
        return Response(msgspec.json.encode({"predictions": written}))

    def _columns_response(self, outputs: Mapping[str, NDArray[Any]], version: LoadedVersion) -> Response:
        del version
        written = {name: json_of(array) for name, array in outputs.items()}
        return Response(msgspec.json.encode({"outputs": next(iter(written.values())) if self._single else written}))


def _none_if_missing(value: Any) -> Any:
    """Returns `None` for a missing value."""
    return None if isinstance(value, msgspec.Raw) and not len(value) else value


def _is_object(value: Any) -> bool:
    return _start(value)[:1] == b"{" if isinstance(value, msgspec.Raw) else isinstance(value, dict)


def _holds_objects(rows: Any) -> bool:
    """Whether the first row is an object."""
    if isinstance(rows, msgspec.Raw):
        return _start(rows)[1:].lstrip()[:1] == b"{"
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict)


def _start(raw: msgspec.Raw) -> bytes:
    return bytes(memoryview(raw)[:1024])  # no real JSON begins with more spaces


def _tensor_info(spec: TensorSpec) -> dict[str, Any]:
    dims = [{"size": str(n) if isinstance(n, int) else "-1", "name": ""} for n in spec.shape]
    return {
        "dtype": _DTYPES.get(np.dtype(spec.dtype).name, "DT_INVALID"),
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": spec.name,
    }
