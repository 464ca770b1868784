"""Readers of files: lines, records of one length, fields of comma-separated values. They know nothing of graphs."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from trainband.compat.ops.dtypes import DType, string
from trainband.compat.tf1.datasets.elements import boxed
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.runtime.regular_files import READ_WHOLE, fixed_path, read_regular, regular_file


def lines(path: str, compression: str) -> Iterator[bytes]:
    """The lines of a file, without their ends."""
    with opened(path, compression) as file:
        for line in file:
            yield line.rstrip(b"\n").removesuffix(b"\r")


def fixed_records(path: str, compression: str, length: int, header: int, footer: int) -> Iterator[bytes]:
    """Records of `length` bytes each, after a header and before a footer.

    Raises:
      InvalidArgumentError: what is between these is no whole number of records.
    """
    with opened(path, compression) as file:
        content = file.read()
    body = content[header : len(content) - footer]
    if len(body) % length:
        raise InvalidArgumentError(
            None,
            None,
            f'Excluding the header ({header} bytes) and footer ({footer} bytes), input file "{path}" has body '
            f"length {len(body)} bytes, which is not an exact multiple of the record length ({length} bytes).",
        )
    for begin in range(0, len(body), length):
        yield body[begin : begin + length]


def opened(path: str, compression: str = "") -> BinaryIO:
    """A file to read, decompressed.

    Raises:
      NotFoundError: it is not there.
      InvalidArgumentError: the compression is none of `""`, `"GZIP"` and `"ZLIB"`.
    """
    try:
        if compression == "GZIP":
            with fixed_path(path) as fixed:
                return io.BufferedReader(gzip.open(fixed))
        if compression == "ZLIB":
            return io.BytesIO(zlib.decompress(read_regular(path, READ_WHOLE)))
        if compression:
            raise InvalidArgumentError(None, None, f"Unsupported compression_type: {compression}.")
        return regular_file(path)
    except FileNotFoundError as exc:
        raise NotFoundError(None, None, f"{path}; No such file or directory") from exc


def field_of(text: str, place: int, kind: tuple[DType, Any], na_value: str) -> Any:
    """A field as a scalar, or the default of its column where it is empty.

    Raises:
      InvalidArgumentError: it is missing, or not of the dtype.
    """
    dtype, default = kind
    if text in ("", na_value):
        if default is None:
            raise InvalidArgumentError(None, None, f"Field {place} is required but missing in record!")
        return boxed(default) if dtype == string else dtype.numpy.type(default)
    if dtype == string:
        return boxed(text.encode())
    try:
        return dtype.numpy.type(text)
    except ValueError as exc:
        raise InvalidArgumentError(None, None, f"Field {place} in record is not a valid {dtype.name}: {text}") from exc
