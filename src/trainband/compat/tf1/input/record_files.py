"""TFRecord files: `tf.python_io`. Each record has its length and two checksums."""

from __future__ import annotations

import functools
import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from trainband.compat.tf1.graphs.errors import DataLossError, NotFoundError
from trainband.compat.tf1.input.crc32c import masked_crc32c
from trainband.runtime.regular_files import UnusableFile, regular_file

_HEAD = struct.Struct("<QI")


class TFRecordCompressionType:
    """How a record file is compressed."""

    NONE, ZLIB, GZIP = range(3)


class TFRecordOptions:
    """How a record file is written or read; only the compression counts.

    Raises:
      ValueError: no such compression.
    """

    compression_type_map = {0: "", 1: "ZLIB", 2: "GZIP"}  # noqa: RUF012 - TensorFlow's

    def __init__(self, compression_type: Any = None, **_: Any) -> None:
        self.get_compression_type_string(compression_type)
        self.compression_type = compression_type
        """As it was given."""

    @classmethod
    def get_compression_type_string(cls, options: Any) -> str:
        """The name of a compression: empty, `ZLIB` or `GZIP`."""
        if isinstance(options, TFRecordOptions):
            return cls.get_compression_type_string(options.compression_type)
        name = cls.compression_type_map.get(options, options) if options else ""
        if name not in ("", "ZLIB", "GZIP"):
            raise ValueError(f'Not a valid compression_type: "{options}"')
        return str(name)


class TFRecordWriter:
    """Writes records. A context manager.

    Args:
      path: the file, which is replaced.
      options: `TFRecordOptions`, or the name of a compression.
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        kind = TFRecordOptions.get_compression_type_string(options)
        name = Path(_text(path))
        try:
            self._file: Any = gzip.open(name, "wb") if kind == "GZIP" else name.open("wb")  # noqa: SIM115
        except FileNotFoundError as exc:
            raise NotFoundError(None, None, f"{name}; No such file or directory") from exc
        self._packer = zlib.compressobj() if kind == "ZLIB" else None

    def write(self, record: Any) -> None:
        """Adds a record."""
        if isinstance(record, str):
            record = record.encode()
        head = len(record).to_bytes(8, "little")
        whole = b"".join((head, _length_check(len(record)), record, masked_crc32c(record).to_bytes(4, "little")))
        self._file.write(whole if self._packer is None else self._packer.compress(whole))

    def flush(self) -> None:
        """Hands everything to the operating system."""
        if self._packer is not None:
            self._file.write(self._packer.flush(zlib.Z_FULL_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if not self._file.closed:
            if self._packer is not None:
                self._file.write(self._packer.flush())
            self._file.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@functools.lru_cache(maxsize=4096)
def _length_check(length: int) -> bytes:
    return masked_crc32c(length.to_bytes(8, "little")).to_bytes(4, "little")


def _text(path: Any) -> str:
    return path.decode() if isinstance(path, bytes) else str(path)


def opened(path: str) -> IO[bytes]:
    """A file to read.

    Raises:
      NotFoundError: there is none.
    """
    try:
        return regular_file(path)
    except (FileNotFoundError, UnusableFile) as exc:
        raise NotFoundError(None, None, f"{path}; {exc.strerror}") from exc


def records(path: Any, compression: str = "") -> Iterator[tuple[int, bytes]]:
    """The records of a file, each after the place where it begins.

    Raises:
      NotFoundError: there is no such file.
      DataLossError: the file is damaged, or ends within a record.
    """
    name = _text(path)
    with opened(name) as raw:
        file: Any = raw
        if compression == "GZIP":
            file = gzip.GzipFile(fileobj=raw)
        elif compression == "ZLIB":
            file = io.BytesIO(_unzipped(raw.read(), name))
        read, offset = file.read, 0
        while True:
            try:
                head = read(12)
                if not head:
                    return
                if len(head) < 12:
                    raise _lost(name, "truncated record", offset)
                length = _HEAD.unpack(head)[0]
                if head[8:] != _length_check(length):
                    raise _lost(name, "corrupted record", offset)
                data, check = read(length), read(4)
            except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
                raise _lost(name, f"damaged compression ({exc})", offset) from exc
            if len(data) < length or len(check) < 4:
                raise _lost(name, "truncated record", offset)
            if int.from_bytes(check, "little") != masked_crc32c(data):
                raise _lost(name, "corrupted record", offset)
            yield offset, data
            offset += length + 16


def _unzipped(data: bytes, name: str) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as exc:
        raise _lost(name, f"damaged compression ({exc})", 0) from exc


def _lost(name: str, what: str, offset: int) -> DataLossError:
    return DataLossError(None, None, f"{what} at {offset} in {name}")


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of a file, one after the other.

    Raises:
      NotFoundError: there is no such file.
      DataLossError: the file is damaged.
    """
    kind = TFRecordOptions.get_compression_type_string(options)
    return (record for _, record in records(path, kind))
