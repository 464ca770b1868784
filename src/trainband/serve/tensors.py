"""Tensors in JSON: lists of numbers to arrays and back, without a loop over elements in Python."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.model.signature import TensorSpec

NOT_NUMBERS = (b"NaN", b"Infinity")
"""What JavaScript writes for floats that JSON has not; TensorFlow Serving and Triton take and give them, so we do."""


def element_type(spec: TensorSpec) -> type:
    """What one element is in JSON."""
    kind = np.dtype(spec.dtype).kind
    return bool if kind == "b" else int if kind in "iu" else float


def nested_type(element: type, rank: int) -> Any:
    """Lists of lists of elements."""
    kind: Any = element
    for _ in range(rank):
        kind = list[kind]
    return kind


class JsonReader:
    """Reads a value of one type: from a part of a body as it came, or from what `json` has made of it.

    Args:
      kind: the type.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, value: Any) -> Any:
        """The value.

        Raises:
          msgspec.MsgspecError: it is of another type.
        """
        if isinstance(value, msgspec.Raw):
            return self._decoder.decode(value)
        return msgspec.convert(value, self._kind)


def read_body(body: bytes | memoryview, fast: msgspec.json.Decoder[Any], slow: Any) -> Any:
    """A request in JSON.

    Args:
      body: what came.
      fast: for JSON as it should be; leaves the tensors in it unread, as `msgspec.Raw`.
      slow: a type for JSON with `NaN` or `Infinity` in it, with tensors as they come.

    Raises:
      DataError: it is neither.
    """
    try:
        return fast.decode(body)
    except msgspec.MsgspecError as exc:
        text = bytes(body)
        if not any(word in text for word in NOT_NUMBERS):
            raise DataError(f"the body cannot be read as a request: {exc}.") from exc
    try:
        return msgspec.convert(json.loads(text), slow)
    except (ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise DataError(f"the body cannot be read as a request: {exc}.") from exc


class TensorReader:
    """Reads one input's elements.

    Args:
      spec: of the input.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self._dtype = np.dtype(spec.dtype)
        element = element_type(spec)
        self._flat = JsonReader(list[element])  # type: ignore[valid-type]
        self._nested = JsonReader(nested_type(element, len(spec.shape)))

    def flat(self, value: Any, shape: Sequence[int]) -> NDArray[Any]:
        """A tensor whose elements are one list in row-major order, or lists of lists.

        Raises:
          DataError: it is neither, or has another number of elements.
        """
        try:
            array = self.array(self._flat.read(value))
        except msgspec.MsgspecError:
            array = self.nested(value)
            if array.shape != tuple(shape):
                raise DataError(
                    f"the input {self.spec.name!r} says shape {list(shape)}, and its data has {list(array.shape)}."
                ) from None
        if array.size != math.prod(shape):
            raise DataError(
                f"the input {self.spec.name!r} says shape {list(shape)}, which is {math.prod(shape)} elements, and has "
                f"{array.size}."
            )
        return array.reshape(shape)

    def nested(self, value: Any) -> NDArray[Any]:
        """A tensor as lists of lists.

        Raises:
          DataError: it is something else.
        """
        try:
            return self.array(self._nested.read(value))
        except msgspec.MsgspecError as exc:
            raise DataError(f"the input {self.spec.name!r} cannot be read: {exc}; expected {self.spec}.") from exc

    def array(self, value: Any) -> NDArray[Any]:
        """Python's numbers as an array of the input's dtype.

        Raises:
          DataError: the lists differ in length, or a number does not fit.
        """
        try:
            with np.errstate(over="ignore"):  # a float too large is infinity
                return np.array(value, self._dtype)
        except (ValueError, OverflowError) as exc:
            reason = str(exc).partition(". The detected")[0].partition(" The requested")[0].rstrip(".")
            raise DataError(f"the input {self.spec.name!r} is no tensor: {reason}; expected {self.spec}.") from exc


def as_lists(array: NDArray[Any]) -> Any:
    """Python's numbers of an array."""
    return (array if array.dtype.kind in "iubf" else array.astype(np.float32)).tolist()


def write_json(value: Any, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A response in JSON, with `NaN` and `Infinity` as JavaScript writes them where an array has such.

    Args:
      value: the response.
      arrays: whose elements are in it.
    """
    for array in arrays.values():
        if array.dtype.kind not in "iub" and not np.isfinite(array).all():
            return json.dumps(value, separators=(",", ":")).encode()
    return msgspec.json.encode(value)
