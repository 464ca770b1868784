"""Operations on text, which Python computes."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, bool_, int32, int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.hashes import fingerprint, old_hash
from trainband.compat.tf1.input.sparse import sparse


def _each(
    type_: str, function: Callable[..., Any], inputs: Sequence[Tensor], name: str | None, dtype: DType = string
) -> Tensor:
    """Record a function of single elements; inputs of one element go with all of the others."""

    def compute(_: Any, *arrays: Any) -> list[Any]:
        wide = np.broadcast_arrays(*arrays)
        found = np.empty(wide[0].shape, dtype.numpy)
        for place in np.ndindex(*found.shape):
            found[place] = function(*(array[place] for array in wide))
        return [found]

    shapes = [one.shape for one in inputs]
    known = [shape for shape in shapes if shape.sizes != ()]
    static = known[0] if known and all(shape == known[0] for shape in known[1:]) else TensorShape(None)
    if not known:
        static = TensorShape([])
    return record_source(type_, compute, inputs, dtypes=[dtype], shapes=[static], name=name).outputs[0]


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """Texts one after the other."""
    between = separator.encode()
    return _each("StringJoin", lambda *parts: between.join(parts), [convert(one, string) for one in inputs], name)


def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:  # noqa: A002
    """A part of each text, from a position on.

    Raises:
      InvalidArgumentError (in a run): the position is out of range.
    """

    def part(text: bytes, start: Any, many: Any) -> bytes:
        whole: Any = text.decode() if unit == "UTF8_CHAR" else text
        size = whole.__len__()
        if not -size <= start <= size:
            raise InvalidArgumentError(
                None, None, f"pos {start} out of range for string b'{text.decode(errors='replace')}'"
            )
        first = int(start) if start >= 0 else size + int(start)
        found = whole[first : first + int(many)]
        return found.encode() if isinstance(found, str) else bytes(found)

    return _each("Substr", part, [convert(input, string), convert(pos), convert(len)], name)


def regex_replace(
    input: Any,  # noqa: A002
    pattern: Any,
    rewrite: Any,
    replace_global: bool = True,
    name: str | None = None,
) -> Tensor:
    """Each text with the matches of a pattern replaced; a backslash and a number stand for a group."""

    def replace(text: bytes, wanted: bytes, new: bytes) -> bytes:
        return re.sub(wanted, new.replace(b"\\0", b"\\g<0>"), text, count=0 if replace_global else 1)

    return _each(
        "RegexReplace", replace, [convert(input, string), convert(pattern, string), convert(rewrite, string)], name
    )


def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Whether a pattern matches the whole of each text."""
    inputs = [convert(input, string), convert(pattern, string)]
    return _each("RegexFullMatch", lambda text, wanted: re.fullmatch(wanted, text) is not None, inputs, name, bool_)


def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in lower case."""
    return _each("StringLower", lambda text: _cased(text, encoding, "lower"), [convert(input, string)], name)


def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in upper case."""
    return _each("StringUpper", lambda text: _cased(text, encoding, "upper"), [convert(input, string)], name)


def _cased(text: bytes, encoding: str, method: str) -> bytes:
    whole: Any = text.decode() if encoding == "utf-8" else text
    found = getattr(whole, method)()
    return found.encode() if isinstance(found, str) else bytes(found)


def string_strip(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Each text without spaces at its ends."""
    return _each("StringStrip", lambda text: text.strip(), [convert(input, string)], name)


def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:  # noqa: A002
    """How many bytes, or characters, each text has."""
    return _each(
        "StringLength",
        lambda text: len(text.decode() if unit == "UTF8_CHAR" else text),
        [convert(input, string)],
        name,
        int32,
    )


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in base 64, as URLs have it."""

    def encode(text: bytes) -> bytes:
        found = base64.urlsafe_b64encode(text)
        return found if pad else found.rstrip(b"=")

    return _each("EncodeBase64", encode, [convert(input, string)], name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """What was encoded in base 64."""

    def decode(text: bytes) -> bytes:
        return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))

    return _each("DecodeBase64", decode, [convert(input, string)], name)


def as_string(
    input: Any,  # noqa: A002
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers as text.

    Raises:
      ValueError: both scientific and shortest are asked for.
    """
    tensor = convert(input)
    if scientific and shortest:
        raise ValueError("Cannot select both scientific and shortest notation")
    size = ("" if width < 0 else f"{fill}{width}") + (
        "" if precision < 0 or not tensor.dtype.is_floating else f".{precision}"
    )
    letter = ("e" if scientific else "g" if shortest else "f") if tensor.dtype.is_floating else "d"

    def show(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bool | np.bool_):
            return b"true" if value else b"false"
        return bytes((f"%{size}{letter}" % value).encode())

    return _each("AsString", show, [tensor], name)


def string_to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Tensor:  # noqa: A002
    """A bucket for each text, by its fingerprint."""
    return _each(
        "StringToHashBucketFast", lambda text: fingerprint(text) % num_buckets, [convert(input, string)], name, int64
    )


def string_to_hash_bucket(
    string_tensor: Any = None,
    num_buckets: int = 1,
    name: str | None = None,
    input: Any = None,  # noqa: A002
) -> Tensor:
    """A bucket for each text, by an older hash."""
    texts = convert(string_tensor if string_tensor is not None else input, string)
    return _each("StringToHashBucket", lambda text: old_hash(text) % num_buckets, [texts], name, int64)


def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Texts along axes one after the other."""
    texts = convert(inputs, string)
    chosen = axis if reduction_indices is None else reduction_indices
    kept = bool(keep_dims if keepdims is None else keepdims)

    def join(_: Any, array: Any) -> list[Any]:
        axes = range(array.ndim)[::-1] if chosen is None else [int(one) % array.ndim for one in np.ravel(chosen)]
        left = [i for i in range(array.ndim) if i not in axes]
        rows = np.transpose(array, [*left, *axes]).reshape([*(array.shape[i] for i in left), -1])
        found = np.empty(rows.shape[:-1], object)
        for place in np.ndindex(*found.shape):
            found[place] = separator.encode().join(rows[place])
        return [found.reshape([1 if i in axes else n for i, n in enumerate(array.shape)]) if kept else found]

    rank = texts.shape.ndims
    static = None
    if rank is not None:
        gone = set(range(rank)) if chosen is None else {int(one) % rank for one in np.ravel(chosen)}
        static = [1 if i in gone else n for i, n in enumerate(texts.shape.as_list()) if kept or i not in gone]
    return record_source("ReduceJoin", join, [texts], dtypes=[string], shapes=[static], name=name).outputs[0]


def string_split(
    source: Any,
    sep: Any = None,
    skip_empty: bool = True,
    delimiter: Any = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The parts of each of several texts, as rows of a sparse tensor.

    Args:
      delimiter: the characters at which to split; a space when left out, between all bytes when empty.
    """
    if result_type != "SparseTensor":
        raise ValueError("string_split gives SparseTensor; ragged tensors are not supported.")
    between = delimiter if delimiter is not None else sep
    inputs = [convert(source, string), convert(" " if between is None else between, string)]

    def split(texts: Any, marks: Any) -> tuple[Any, Any, Any]:
        characters = marks.item()
        pattern = b"[" + re.escape(characters) + b"]" if characters else b""
        rows = [re.split(pattern, text) if characters else [bytes([one]) for one in text] for text in texts]
        if skip_empty:
            rows = [[one for one in row if one] for row in rows]
        indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
        values = np.empty(len(indices), object)
        values[:] = [one for row in rows for one in row]
        longest = max((len(row) for row in rows), default=0)
        return np.array(indices, np.int64).reshape(-1, 2), values, np.array([len(rows), longest], np.int64)

    return sparse("StringSplit", split, inputs, string, [None, None], name)
