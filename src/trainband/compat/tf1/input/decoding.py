"""Decoding of text and bytes into numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype, float32, string, uint8
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, known_value


def decode_raw(
    bytes: Any = None,  # noqa: A002
    out_type: Any = uint8,
    little_endian: bool = True,
    name: str | None = None,
    input_bytes: Any = None,
) -> Tensor:
    """Bytes as numbers: a new last axis.

    Raises:
      InvalidArgumentError (in a run): elements have different sizes, or no whole number of numbers.
    """
    texts = convert(bytes if bytes is not None else input_bytes, string)
    dtype = as_dtype(out_type)
    stored = dtype.numpy.newbyteorder("<" if little_endian else ">") if dtype.size > 1 else dtype.numpy

    def decode(_: Any, values: Any) -> list[Any]:
        if values.ndim == 0:
            data, count = values.item(), len(values.item())
        else:
            sizes = {len(one) for one in values.flat} or {0}
            if len(sizes) > 1:
                raise InvalidArgumentError(
                    None, op, f"DecodeRaw requires input strings to all be the same size, but they are {sorted(sizes)}"
                )
            data, (count,) = b"".join(values.flat), sizes
        if count % dtype.size:
            raise InvalidArgumentError(
                None,
                op,
                f"Input to DecodeRaw has length {count} that is not a multiple of {dtype.size}, the size of "
                f"{dtype.name}",
            )
        found = np.frombuffer(data, stored).astype(dtype.numpy, copy=False)
        return [found.reshape(*values.shape, count // dtype.size)]

    op = record_source(
        "DecodeRaw", decode, [texts], dtypes=[dtype], shapes=[texts.shape.concatenate([None])], name=name
    )
    return op.outputs[0]


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The columns of comma-separated values, as tensors of the shape of `records`.

    Args:
      record_defaults: for each column what stands for an empty field, which also says the dtype; an empty list of a
        dtype, or a dtype, makes the field required.

    Raises:
      InvalidArgumentError (in a run): a record has another number of fields, or one is not of its dtype.
    """
    texts = convert(records, string)
    columns = [_Column(one) for one in record_defaults]
    wanted = None if select_cols is None else list(select_cols)
    if wanted is not None and len(wanted) != len(columns):
        raise ValueError("Length of select_cols and record_defaults do not match.")
    if wanted is not None and any(one < 0 for one in wanted):
        raise ValueError("select_cols contains negative values.")
    if wanted is not None and any(a >= b for a, b in itertools.pairwise(wanted)):
        raise ValueError("select_cols is not strictly increasing.")

    def decode(_: Any, values: Any) -> list[Any]:
        rows = [_fields(one, field_delim, use_quote_delim) for one in values.flat]
        for number, row in enumerate(rows):
            if wanted is not None:
                row = rows[number] = [row[place] for place in wanted if place < len(row)]
            if len(row) != len(columns):
                raise InvalidArgumentError(
                    None, op, f"Expect {len(columns)} fields but have {len(row)} in record {number}"
                )
        found = []
        for place, column in enumerate(columns):
            array = column.array([row[place] for row in rows], place, na_value.encode())
            found.append(array.reshape(values.shape))
        return found

    op = record_source(
        "DecodeCSV",
        decode,
        [texts],
        dtypes=[column.dtype for column in columns],
        shapes=[texts.shape] * len(columns),
        name=name,
    )
    return list(op.outputs)


class _Column:
    def __init__(self, default: Any) -> None:
        self._default: Any = None
        if isinstance(default, DType) or (isinstance(default, type) and issubclass(default, np.generic)):
            self.dtype = as_dtype(default)
            return
        known = known_value(default) if isinstance(default, Tensor) else None
        if isinstance(default, Tensor) and known is None:
            known = np.asarray(default.op.compute()[0])
        value = array_of(default) if known is None else known
        self.dtype = as_dtype(value.dtype)
        if value.size:
            self._default = value.reshape(-1)[0]

    def array(self, fields: Sequence[bytes], place: int, missing: bytes) -> Any:
        """The fields of this column as numbers or text."""
        if self._default is not None:
            fields = [self._default if one in (b"", missing) else one for one in fields]
        elif any(one in (b"", missing) for one in fields):
            number = next(i for i, one in enumerate(fields) if one in (b"", missing))
            raise InvalidArgumentError(None, None, f"Field {place} is required but missing in record {number}!")
        if self.dtype == string:
            found = np.empty(len(fields), object)
            found[:] = fields
            return found
        try:
            return np.array([_number(one, self.dtype) for one in fields], self.dtype.numpy)
        except (ValueError, OverflowError):
            for number, one in enumerate(fields):
                try:
                    np.array(_number(one, self.dtype), self.dtype.numpy)
                except (ValueError, OverflowError) as exc:
                    shown = one.decode(errors="replace")
                    kind = {"float32": "float", "float64": "double"}.get(self.dtype.name, self.dtype.name)
                    raise InvalidArgumentError(
                        None, None, f"Field {place} in record {number} is not a valid {kind}: {shown}"
                    ) from exc
            raise


def _number(text: Any, dtype: DType) -> Any:
    if dtype.is_floating and isinstance(text, bytes) and b"x" in text.lower():
        return float.fromhex(text.decode())
    return (float if dtype.is_floating else int)(text)


def _fields(record: bytes, delimiter: str, quotes: bool) -> list[bytes]:
    text, comma = record.rstrip(b"\r\n"), delimiter.encode()
    if not quotes or b'"' not in text:
        return text.split(comma)
    found, place = list[bytes](), 0
    while True:
        if text[place : place + 1] == b'"':
            end = _QUOTED.match(text, place)
            if end is None or text[end.end() : end.end() + 1] not in (b"", comma):
                raise InvalidArgumentError(None, None, "Quoted field has to end with quote followed by delim or end")
            found.append(end.group()[1:-1].replace(b'""', b'"'))
            place = end.end()
        else:
            field = text[place:].partition(comma)[0]
            if not {b'"'[0], *b"\r\n"}.isdisjoint(field):
                raise InvalidArgumentError(None, None, "Unquoted fields cannot have quotes/CRLFs inside")
            found.append(field)
            place += len(field)
        if place >= len(text):
            return found
        place += 1


_QUOTED = re.compile(rb'"(?:[^"]|"")*"')


def string_to_number(string_tensor: Any, out_type: Any = float32, name: str | None = None) -> Tensor:
    """Text as numbers.

    Raises:
      InvalidArgumentError (in a run): it is none.
    """
    texts, dtype = convert(string_tensor, string), as_dtype(out_type)

    def decode(_: Any, values: Any) -> list[Any]:
        found = np.empty(values.shape, dtype.numpy)
        for place, text in np.ndenumerate(values):
            try:
                found[place] = _number(text, dtype)
            except (ValueError, OverflowError) as exc:
                raise InvalidArgumentError(
                    None, op, f"StringToNumberOp could not correctly convert string: {text.decode(errors='replace')}"
                ) from exc
        return [found]

    op = record_source("StringToNumber", decode, [texts], dtypes=[dtype], shapes=[texts.shape], name=name)
    return op.outputs[0]
