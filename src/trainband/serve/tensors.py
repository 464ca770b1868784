"""Tensors in JSON: lists of numbers to arrays and back, without Python loops over elements."""

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
"""JavaScript's floats that JSON lacks; like TensorFlow Serving and Triton, the server accepts and returns them."""


WINDOW = 64 << 10
"""Bytes of JSON, and elements, that are read and written at once: about 2 ms."""
MOST_SLOW = 512 << 10
"""Bytes of JSON that Python's own parser reads at once, when msgspec cannot: about 40 ms."""
MOST_OBJECTS, MOST_QUOTES = 8192, 65536
MOST_DESCRIPTION = 4096
"""Bytes of JSON besides a tensor's elements, for each of its fields."""
MOST_LENGTH = 1 << 40
MOST_AXES = 32
_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_NOT_LISTS = bytes(code for code in range(256) if code not in b"[],")
_NOT_BRACES = bytes(code for code in range(256) if code not in b"{}")
_WITHOUT_BRACKETS = bytes.maketrans(b"[]", b"  ")
_OPENING = ord("{")


def element_type(spec: TensorSpec) -> type:
    """Returns the JSON type of one element."""
    kind = np.dtype(spec.dtype).kind
    return bool if kind == "b" else int if kind in "iu" else float


def nested_type(element: type, rank: int) -> Any:
    """Returns the type of nested lists of elements."""
    kind: Any = element
    for _ in range(rank):
        kind = list[kind]
    return kind


class JsonReader:
    """Reads a value of one type: from a raw part of a body, or from a value parsed by `json`.

    Args:
      kind: the type.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, value: Any) -> Any:
        """Returns the value.

        Raises:
          msgspec.MsgspecError: it is of another type.
        """
        if isinstance(value, msgspec.Raw):
            return self._decoder.decode(value)
        return msgspec.convert(value, self._kind)


def read_body(body: bytes | memoryview, fast: msgspec.json.Decoder[Any], slow: Any) -> Any:
    """Reads a request in JSON.

    Args:
      body: as received.
      fast: for standard JSON; leaves its tensors unread, as `msgspec.Raw`.
      slow: a type for JSON with `NaN` or `Infinity`, with tensors parsed.

    Raises:
      DataError: it is neither.
    """
    text = bytes(body)
    if len(text) > WINDOW and (text.count(b"{") > MOST_OBJECTS or text.count(b'"') > MOST_QUOTES):
        raise DataError(
            f"the body has more than {MOST_OBJECTS:,} objects or {MOST_QUOTES // 2:,} names; give each input as one "
            "list, or as a binary tensor."
        )
    try:
        found = fast.decode(text)
    except _UNREADABLE as exc:
        if not any(word in text for word in NOT_NUMBERS):
            raise DataError(f"cannot read the request: {_reason(exc)}.") from exc
    else:
        _require_different_keys(text)
        return found
    if len(text) > MOST_SLOW:
        raise DataError(f"a body with NaN or Infinity may have at most {MOST_SLOW:,} bytes; send a binary tensor.")
    try:
        return msgspec.convert(json.loads(text, object_pairs_hook=_as_dict), slow)
    except _UNREADABLE as exc:
        raise DataError(f"cannot read the request: {_reason(exc)}.") from exc


def read_small(value: Any, reader: JsonReader, what: str) -> Any:
    """Reads a part of a request that describes a tensor.

    Raises:
      DataError: it is too large, or of another type.
    """
    if isinstance(value, msgspec.Raw) and len(value) > MOST_DESCRIPTION:
        raise DataError(f"{what} has more than {MOST_DESCRIPTION:,} bytes.")
    try:
        return reader.read(value)
    except _UNREADABLE as exc:
        raise DataError(f"cannot read {what}: {_reason(exc)}.") from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(exc)


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise DataError(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice.")
    return found


def _require_different_keys(text: bytes) -> None:
    """Refuses an object with a duplicate key: two programs on the way may each use a different one.

    Args:
      text: valid JSON.
    """
    if text.count(b'"') <= 2:
        return
    if b"\\" in text:  # a key may be written in several ways
        if len(text) > MOST_SLOW:
            raise DataError(f"a body of more than {MOST_SLOW:,} bytes must not contain a backslash.")
        try:
            json.loads(text, object_pairs_hook=_as_dict)
        except _UNREADABLE as exc:
            raise DataError(f"cannot read the request: {_reason(exc)}.") from exc
        return
    parts = text.split(b'"')  # strings, and the text between them
    open_objects: list[set[bytes]] = []
    for at in range(0, len(parts), 2):
        if at and parts[at].lstrip()[:1] == b":":
            if parts[at - 1] in open_objects[-1]:
                raise DataError(f"the key {parts[at - 1][:100].decode(errors='replace')!r} is given twice.")
            open_objects[-1].add(parts[at - 1])
        for brace in parts[at].translate(None, _NOT_BRACES):
            if brace == _OPENING:
                open_objects.append(set())
            else:
                open_objects.pop()


class TensorReader:
    """Reads one input's elements.

    A long list is read in windows, so that other threads can run between them: each call of msgspec or NumPy blocks
    them.

    Args:
      spec: of the input.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self._dtype = np.dtype(spec.dtype)
        self._element = element_type(spec)
        self._lists = [JsonReader(nested_type(self._element, rank)) for rank in range(len(spec.shape) + 1)]
        self._flat = JsonReader(list[self._element])  # type: ignore[name-defined]

    def require_shape(self, shape: Sequence[int]) -> None:
        """Checks a shape from a client against the input's.

        Raises:
          DataError: no tensor of this shape fits.
        """
        if len(shape) != len(self.spec.shape) or not all(0 <= length <= MOST_LENGTH for length in shape):
            shown = f"{list(shape)}" if len(shape) <= 8 else f"of {len(shape):,} axes"
            raise DataError(f"the input {self.spec.name!r} has shape {shown}; expected {self.spec}.")

    def flat(self, value: Any, shape: Sequence[int]) -> NDArray[Any]:
        """Reads a tensor from a list in row-major order, or from nested lists.

        Raises:
          DataError: it is neither, or has another number of elements.
        """
        if _is_long(value):
            array = self._in_windows(value)
        else:
            try:
                numbers = self._flat.read(value)
            except _UNREADABLE:
                array = self.nested(value)
            else:
                array = self.array(numbers)
        if array.ndim != 1 and array.shape != tuple(shape):
            raise DataError(
                f"the input {self.spec.name!r} has shape {list(shape)}, but its data has {list(array.shape)}."
            )
        if array.size != math.prod(shape):
            raise DataError(
                f"the input {self.spec.name!r} of shape {list(shape)} needs {math.prod(shape)} elements, but has "
                f"{array.size}."
            )
        return array.reshape(shape)

    def nested(self, value: Any, *, is_row: bool = False) -> NDArray[Any]:
        """Reads a tensor from nested lists.

        Args:
          value: the lists.
          is_row: whether they lack the first axis.

        Raises:
          DataError: it is not one.
        """
        if _is_long(value):
            return self._in_windows(value)
        try:
            lists = self._lists[max(0, len(self.spec.shape) - is_row)].read(value)
        except _UNREADABLE as exc:
            raise self._unreadable(exc) from exc
        return self.array(lists)

    def array(self, value: Any) -> NDArray[Any]:
        """Converts Python numbers to an array of the input's dtype.

        Raises:
          DataError: the lists differ in length, or a number does not fit.
        """
        try:
            with np.errstate(over="ignore"):  # a float too large is infinity
                return np.array(value, self._dtype)
        except (ValueError, OverflowError) as exc:
            reason = str(exc).partition(". The detected")[0].partition(" The requested")[0].rstrip(".")
            raise DataError(f"the input {self.spec.name!r} is not a tensor: {reason}; expected {self.spec}.") from exc

    def _in_windows(self, value: Any) -> NDArray[Any]:
        """Reads nested lists of any depth from valid JSON."""
        text = bytes(value)
        shape = _shape_of(text)
        if shape is None:
            raise DataError(
                f"the input {self.spec.name!r} is not a tensor: its lists differ in length; expected {self.spec}."
            )
        flat = np.empty(math.prod(shape), self._dtype)
        at = filled = 0
        while at < len(text):
            end = text.find(b",", at + WINDOW)
            end = len(text) if end < 0 else end
            try:  # with the shape known, the brackets are redundant
                part = self._flat.read(msgspec.Raw(b"[" + text[at:end].translate(_WITHOUT_BRACKETS) + b"]"))
            except _UNREADABLE as exc:
                raise self._unreadable(exc) from exc
            flat[filled : filled + len(part)] = self.array(part)
            filled += len(part)
            at = end + 1
        if filled != flat.size:  # a list without elements
            raise DataError(f"the input {self.spec.name!r} is not a tensor: an empty list; expected {self.spec}.")
        return flat.reshape(shape)

    def _unreadable(self, exc: Exception) -> DataError:
        return DataError(f"cannot read the input {self.spec.name!r}: {_reason(exc)}; expected {self.spec}.")


def _is_long(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and len(value) > WINDOW


def _shape_of(text: bytes) -> tuple[int, ...] | None:
    """Returns the shape of nested lists in valid JSON; `None` if there is none. An empty list counts as one element."""
    step = WINDOW << 4
    marks = b"".join(text[at : at + step].translate(None, _NOT_LISTS) for at in range(0, len(text), step))
    rank = len(marks) - len(marks.lstrip(b"["))
    if not 0 < rank <= MOST_AXES:
        return None
    block, shape = b"", []
    for level in range(1, rank + 1):  # from the innermost list: where does the first one of this level end?
        end = marks.find(b"]" * level)
        count, rest = divmod(end + 2 * level - rank - 1, len(block) + 1)
        if end < 0 or rest or count < 1:
            return None
        block = b"[" + (block + b",") * (count - 1) + block + b"]"
        shape.append(count)
    return tuple(reversed(shape)) if block == marks else None


def json_of(array: NDArray[Any]) -> msgspec.Raw:
    """Encodes an array as nested lists in JSON, in windows, with JavaScript's `NaN` and `Infinity`."""
    array = _writable(array)
    return msgspec.Raw(_written(array, _is_plain(array)))


def json_of_rows(arrays: Mapping[str, NDArray[Any]]) -> msgspec.Raw:
    """Encodes arrays of equal length as a list of JSON objects with one row of every array each; see `json_of`."""
    arrays = {name: _writable(array) for name, array in arrays.items()}
    is_plain = all(_is_plain(array) for array in arrays.values())
    count = len(next(iter(arrays.values())))
    step = WINDOW // 2 * count // max(1, sum(array.size for array in arrays.values()))
    parts = []
    for at in range(0, count, step or 1):
        if step:
            lists = [array[at : at + step].tolist() for array in arrays.values()]
            rows = [dict(zip(arrays, row, strict=True)) for row in zip(*lists, strict=True)]
        else:  # a row is longer than a window
            rows = [{name: msgspec.Raw(_written(array[at], is_plain)) for name, array in arrays.items()}]
        parts.append(_encoded(rows, is_plain or not step)[1:-1])
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype.kind in "iubf" else array.astype(np.float32)


def _is_plain(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iub" or bool(np.isfinite(array).all())


def _encoded(value: Any, is_plain: bool) -> bytes:
    return msgspec.json.encode(value) if is_plain else json.dumps(value, separators=(",", ":")).encode()


def _written(array: NDArray[Any], is_plain: bool) -> bytes:
    if array.size <= WINDOW // 2 or array.ndim == 0:
        return _encoded(array.tolist(), is_plain)
    rows = WINDOW // 2 * len(array) // array.size
    if rows == 0:
        return b"[" + b",".join(_written(row, is_plain) for row in array) + b"]"
    parts = (_written(array[at : at + rows], is_plain)[1:-1] for at in range(0, len(array), rows))
    return b"[" + b",".join(parts) + b"]"
