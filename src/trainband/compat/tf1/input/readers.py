"""Readers: records of files whose names come from a queue."""

from __future__ import annotations

import gzip
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OutOfRangeError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.input.buffers import Buffer
from trainband.compat.tf1.input.queues import QueueBase
from trainband.compat.tf1.input.record_files import TFRecordOptions, opened, records

Records = Callable[[str], Iterator[tuple[bytes, bytes]]]
"""Of the name of a file: its records, each after its key."""

_numbers = itertools.count()


class _Position:
    """How far a reader is in a session. Several threads may read."""

    def __init__(self, of_file: Records) -> None:
        self._of_file = of_file
        self._lock = threading.Lock()
        self._current: Iterator[tuple[bytes, bytes]] | None = None
        self.produced = self.files = 0

    def read(self, names: Buffer, most: int = 1) -> list[tuple[bytes, bytes]]:
        """The next records; fewer than asked for where the input ends.

        Raises:
          OutOfRangeError: there are no more.
        """
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            while len(found) < most:
                if self._current is None:
                    try:
                        self._current = self._of_file(names.take(1)[0][0].decode())
                    except OutOfRangeError:
                        if found:
                            break
                        raise
                try:
                    found += itertools.islice(self._current, most - len(found))
                except Exception:
                    self._current = None
                    raise
                if len(found) < most:
                    self._current = None
                    self.files += 1
            self.produced += len(found)
        return found

    def reset(self) -> None:
        """Begins anew."""
        with self._lock:
            self._current = None
            self.produced = self.files = 0


class ReaderBase:
    """Reads records of files one after the other.

    Args:
      of_file: what the records of a file are.
      type_: of the operation.
      name: of the operation.
    """

    def __init__(self, of_file: Records, type_: str, name: str | None = None) -> None:
        self._type = type_
        self._name = get_default_graph().unique_name(name or type_)
        self._key = ("reader", next(_numbers))
        self._of_file = of_file

    @property
    def reader_ref(self) -> ReaderBase:
        """Itself."""
        return self

    @property
    def supports_serialize(self) -> bool:
        """No: where a reader is cannot be kept."""
        return False

    def read(self, queue: QueueBase, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The next record: a key that says where it is from, and its content.

        Raises:
          OutOfRangeError (in a run): the queue is closed, and all files are read.
        """

        def read(resources: Any) -> Any:
            return self._position(resources).read(self._names(queue, resources))[0]

        op = record_source(
            "ReaderReadV2", read, dtypes=[string] * 2, shapes=[[], []], name=name or f"{self._name}_Read"
        )
        return op.outputs[0], op.outputs[1]

    def read_up_to(self, queue: QueueBase, num_records: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The next records, as many as asked for or fewer where the input ends."""

        def read(resources: Any, most: Any) -> list[Any]:
            found = self._position(resources).read(self._names(queue, resources), int(most))
            keys, values = np.empty(len(found), object), np.empty(len(found), object)
            keys[:], values[:] = zip(*found, strict=True)
            return [keys, values]

        op = record_source(
            "ReaderReadUpToV2",
            read,
            [convert(num_records, int64)],
            dtypes=[string] * 2,
            shapes=[[None]] * 2,
            name=name or f"{self._name}_ReadUpTo",
        )
        return op.outputs[0], op.outputs[1]

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records it has read."""
        return self._counted("ReaderNumRecordsProducedV2", lambda position: position.produced, name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files it has read."""
        return self._counted("ReaderNumWorkUnitsCompletedV2", lambda position: position.files, name)

    def reset(self, name: str | None = None) -> Operation:
        """An operation that makes it begin anew."""

        def reset(resources: Any) -> list[Any]:
            self._position(resources).reset()
            return []

        return record_source("ReaderResetV2", reset, name=name or f"{self._name}_Reset")

    def _counted(self, type_: str, count: Callable[[_Position], int], name: str | None) -> Tensor:
        def source(resources: Any) -> list[Any]:
            return [np.int64(count(self._position(resources)))]

        return record_source(type_, source, dtypes=[int64], shapes=[[]], name=name or f"{self._name}_Count").outputs[0]

    def _position(self, resources: Any) -> _Position:
        found: _Position = resources.get(self._key) or resources.setdefault(self._key, _Position(self._of_file))
        return found

    def _names(self, queue: QueueBase, resources: Any) -> Buffer:
        buffer = queue.buffer(resources)
        if getattr(resources, "closed", False):
            buffer.close()
        return buffer


class TextLineReader(ReaderBase):
    """The lines of text files, without their ends; keys are `file:number`."""

    def __init__(self, skip_header_lines: Any = None, name: str | None = None) -> None:
        skipped = int(skip_header_lines or 0)

        def of_file(path: str) -> Iterator[tuple[bytes, bytes]]:
            with opened(path) as file:
                for number, line in enumerate(file, 1):
                    if number > skipped:
                        yield f"{path}:{number}".encode(), line.removesuffix(b"\n").replace(b"\r", b"")

        super().__init__(of_file, "TextLineReaderV2", name)


class TFRecordReader(ReaderBase):
    """The records of TFRecord files; keys are `file:offset`."""

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        kind = TFRecordOptions.get_compression_type_string(options)

        def of_file(path: str) -> Iterator[tuple[bytes, bytes]]:
            return ((f"{path}:{offset}".encode(), record) for offset, record in records(path, kind))

        super().__init__(of_file, "TFRecordReaderV2", name)


class WholeFileReader(ReaderBase):
    """The contents of files; keys are their names."""

    def __init__(self, name: str | None = None) -> None:
        def of_file(path: str) -> Iterator[tuple[bytes, bytes]]:
            with opened(path) as file:
                yield path.encode(), file.read()

        super().__init__(of_file, "WholeFileReaderV2", name)


class IdentityReader(ReaderBase):
    """What is in the queue, as keys and contents."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(lambda text: iter([(text.encode(), text.encode())]), "IdentityReaderV2", name)


class FixedLengthRecordReader(ReaderBase):
    """Records of so many bytes; keys are `file:number`.

    Args:
      record_bytes: of a record.
      header_bytes, footer_bytes: at the beginning and end of each file, left out.
      hop_bytes: from one record to the next, if that is not their size.

    Raises:
      ValueError: a size is not possible.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        size, before, after, hop = (
            int(record_bytes),
            int(header_bytes or 0),
            int(footer_bytes or 0),
            int(hop_bytes or 0),
        )
        if size <= 0 or before < 0 or after < 0 or hop < 0:
            raise ValueError(f"record_bytes must be > 0 and the others >= 0, not {size}, {before}, {after}, {hop}")
        kind = TFRecordOptions.get_compression_type_string(encoding)

        def of_file(path: str) -> Iterator[tuple[bytes, bytes]]:
            data = _content(path, kind)
            end = len(data) - after
            for number, place in enumerate(range(before, end - size + 1, hop or size)):
                yield f"{path}:{number}".encode(), data[place : place + size]

        super().__init__(of_file, "FixedLengthRecordReaderV2", name)


def _content(path: str, kind: str) -> bytes:
    with opened(path) as file:
        data = file.read()
    return gzip.decompress(data) if kind == "GZIP" else zlib.decompress(data) if kind == "ZLIB" else data


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The content of a file.

    Raises:
      NotFoundError (in a run): there is none.
    """

    def read(_: Any, path: Any) -> list[Any]:
        with opened(path.item().decode()) as file:
            return [_scalar(file.read())]

    return record_source(
        "ReadFile", read, [convert(filename, string)], dtypes=[string], shapes=[[]], name=name
    ).outputs[0]


def write_file(filename: Any, contents: Any, name: str | None = None) -> Operation:
    """An operation that writes a file, and makes its directory if need be."""

    def write(_: Any, path: Any, content: Any) -> list[Any]:
        if path.ndim or content.ndim:
            raise InvalidArgumentError(None, op, "write_file needs one name and one content")
        file = Path(path.item().decode())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.item())
        return []

    op = record_source("WriteFile", write, [convert(filename, string), convert(contents, string)], name=name)
    return op


def _scalar(value: bytes) -> Any:
    found = np.empty((), object)
    found[()] = value
    return found
