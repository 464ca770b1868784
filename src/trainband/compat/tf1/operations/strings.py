"""`tf.strings`, and its older names: work on text, which Python does before the compiled part of a run."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, bool_, int32, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, record


def each(
    type_: str, function: Callable[..., Any], inputs: Sequence[Tensor], name: str | None, dtype: DType = string
) -> Tensor:
    """Record a function of single elements; inputs without axes are repeated."""
    compute = np.frompyfunc(function, len(inputs), 1)
    shape = next((one.shape for one in inputs if one.shape.ndims != 0), inputs[0].shape)
    for one in inputs:
        if one.shape.ndims != 0:
            shape.assert_is_compatible_with(one.shape)

    def computed(*values: Any) -> Any:
        return np.asarray(compute(*values), dtype.numpy)

    result: Tensor = record(type_, computed, inputs, name=name, dtypes=[dtype], shapes=[shape]).outputs[0]
    return result


def _texts(value: Any) -> Tensor:
    return convert(value, string)


def join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """Join texts, element by element."""
    glue = separator.encode()
    return each("StringJoin", lambda *texts: glue.join(texts), [_texts(one) for one in inputs], name)


def as_string(
    input: Any,  # noqa: A002 - TensorFlow's name
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers as text.

    Raises:
      InvalidArgumentError (in a run): such numbers cannot be written in this way.
    """
    numbers = convert(input)
    kinds = numbers.dtype
    problem = ""
    if not (kinds.is_floating or kinds.is_complex) and (scientific or shortest or precision >= 0):
        what = "scientific and shortest format" if scientific or shortest else "precision"
        problem = f"{what} not supported for datatype {kinds.name}"
    if scientific and shortest:
        problem = "Cannot select both scientific and shortest notation"
    if len(fill) > 1:
        problem = f"Fill string must be one or fewer characters, got {fill!r}"
    kind = "d" if kinds.is_integer else "e" if scientific else "g" if shortest else "f"
    form = f"%{fill}{width if width >= 0 else ''}{f'.{precision}' if precision >= 0 else ''}{kind}"

    def write(value: Any) -> bytes:
        if problem:
            raise ValueError(problem)
        if kinds.is_bool:
            return str(value).lower().encode()
        if kinds.is_complex:
            return f"({form % value.real},{form % value.imag})".encode()
        text: str = form % value
        return text.encode()

    return each("AsString", write, [numbers], name)


def substr(
    input: Any,  # noqa: A002
    pos: Any,
    len: Any,  # noqa: A002
    name: str | None = None,
    unit: str = "BYTE",
) -> Tensor:
    """A part of each text, from a place on, which counts from the end if it is negative.

    Raises:
      InvalidArgumentError (in a run): a text is shorter than the place.
    """

    def cut(text: bytes, start: int, count: int) -> bytes:
        whole: Any = text.decode() if unit == "UTF8_CHAR" else text
        size = whole.__len__()
        if not -size <= start <= size:
            raise InvalidArgumentError(None, result.op, f"pos {start} out of range for string b'{text.decode()}'")
        first = start + size if start < 0 else start
        part = whole[first : first + max(0, count)]
        return part.encode() if isinstance(part, str) else bytes(part)

    result = each("Substr", cut, [_texts(input), convert(pos), convert(len)], name)
    return result


def regex_replace(
    input: Any,  # noqa: A002
    pattern: Any,
    rewrite: Any,
    replace_global: bool = True,
    name: str | None = None,
) -> Tensor:
    """Each text with what a regular expression matches replaced; the rewrite names its groups."""

    def replace(text: bytes, expression: bytes, replacement: bytes) -> bytes:
        template = re.sub(rb"\\(\d)", rb"\\g<\1>", replacement)
        return re.sub(expression, template, text, count=0 if replace_global else 1)

    return each("RegexReplace", replace, [_texts(input), _texts(pattern), _texts(rewrite)], name)


def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Whether a regular expression matches the whole of each text."""
    texts = [_texts(input), _texts(pattern)]
    return each("RegexFullMatch", lambda text, one: re.fullmatch(one, text) is not None, texts, name, bool_)


def strip(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Each text without white space at its ends."""
    return each("StringStrip", bytes.strip, [_texts(input)], name)


def length(input: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:  # noqa: A002
    """The number of bytes, or characters, of each text."""
    count = (lambda text: len(text.decode())) if unit == "UTF8_CHAR" else len
    return each("StringLength", count, [_texts(input)], name, int32)


def lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in small letters."""
    return each("StringLower", _recoded(bytes.lower, str.lower, encoding), [_texts(input)], name)


def upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in capital letters."""
    return each("StringUpper", _recoded(bytes.upper, str.upper, encoding), [_texts(input)], name)


def _recoded(of_bytes: Callable[[bytes], bytes], of_text: Callable[[str], str], encoding: str) -> Callable[..., bytes]:
    return (lambda text: of_text(text.decode()).encode()) if encoding else of_bytes


def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:  # noqa: A002
    """Each text in base 64, with the letters for web addresses."""

    def encode(text: bytes) -> bytes:
        found = base64.urlsafe_b64encode(text)
        return found if pad else found.rstrip(b"=")

    return each("EncodeBase64", encode, [_texts(input)], name)


def decode_base64(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """The reverse of `encode_base64`."""
    return each(
        "DecodeBase64", lambda text: base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)), [_texts(input)], name
    )


def decode_compressed(bytes: Any, compression_type: str = "", name: str | None = None) -> Tensor:  # noqa: A002
    """Each text unpacked: `ZLIB`, `GZIP`, or as it is.

    Raises:
      ValueError: no such compression.
    """
    if compression_type not in ("", "ZLIB", "GZIP"):
        raise ValueError(f"Only ZLIB, GZIP or NONE are supported compressions, got {compression_type!r}.")

    def unpack(data: Any) -> Any:
        return data if not compression_type else zlib.decompress(data, zlib.MAX_WBITS | 32)

    return each("DecodeCompressed", unpack, [_texts(bytes)], name)


def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: Any = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: Any = None,
) -> Tensor:
    """Texts joined along some axes, in their order, or all."""
    texts = _texts(inputs)
    given = axis if axis is not None else reduction_indices
    keeps, glue = bool(keepdims if keepdims is not None else keep_dims), separator.encode()
    sizes = texts.shape.sizes
    if sizes is None:
        shape = TensorShape(None)
    else:
        gone = {one % len(sizes) for one in _axes(given, len(sizes))}
        left = [1 if i in gone else size for i, size in enumerate(sizes) if keeps or i not in gone]
        shape = TensorShape(left)

    def compute(value: Any) -> Any:
        axes = [one % value.ndim for one in _axes(given, value.ndim)]
        rest = [i for i in range(value.ndim) if i not in axes]
        # the first of the axes is joined first
        moved = value.transpose([*rest, *reversed(axes)]).reshape([*(value.shape[i] for i in rest), -1])
        found = np.empty(moved.shape[:-1], object)
        for place in np.ndindex(found.shape):
            found[place] = glue.join(moved[place])
        return np.expand_dims(found, tuple(sorted(axes))) if keeps else found

    result: Tensor = record("ReduceJoin", compute, [texts], name=name, dtypes=[string], shapes=[shape]).outputs[0]
    return result


def _axes(axis: Any, rank: int) -> list[int]:
    return list(reversed(range(rank))) if axis is None else [int(one) for one in np.ravel(axis)]


def format_(template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: str | None = None) -> Tensor:
    """A text with tensors in place of its `{}`.

    Raises:
      ValueError: there are more or fewer places than tensors.
    """
    tensors = [convert(one) for one in (inputs if isinstance(inputs, list | tuple) else [inputs])]
    parts = template.split(placeholder)
    if len(parts) != len(tensors) + 1:
        raise ValueError(f"{len(parts) - 1} placeholder(s) in template does not match {len(tensors)} tensor(s).")

    def compute(*values: Any) -> Any:
        shown = [_shown(value, summarize) for value in values]
        text = "".join(one for pair in zip(parts, [*shown, ""], strict=True) for one in pair)
        return np.array(text.encode(), object)

    result: Tensor = record("StringFormat", compute, tensors, name=name, dtypes=[string], shapes=[[]]).outputs[0]
    return result


def _shown(value: Any, summarize: int, indent: str = "") -> str:
    if value.ndim == 0:
        one = value.item() if value.dtype == object else value[()]
        return f'"{one.decode()}"' if isinstance(one, bytes) else str(one)
    rows = [_shown(value[i], summarize, f"{indent} ") for i in range(len(value))]
    if 0 <= 2 * summarize < len(rows):
        rows = [*rows[:summarize], "...", *rows[-summarize:]]
    return f"[{(' ' if value.ndim == 1 else chr(10) + indent + ' ').join(rows)}]"
