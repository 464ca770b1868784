"""Reads a history: its files, as far as they are whole, and the runs that they belong to."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from trainband.errors import DataError, YourError
from trainband.monitor.history.history import History
from trainband.monitor.history.schema import FOLDER, FORMAT, METADATA_KEY, SCHEMA, SUFFIX, Start
from trainband.runtime.regular_files import read_regular, regular_file

MOST_BYTES = 4 << 30
"""Bytes of one file, at most."""

_MOST_SCHEMA_BYTES = 1 << 16
_DAMAGE = (pa.ArrowException, OSError, ValueError, struct.error)
"""Raised when a damaged stream is read from memory."""
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")
_HEADER_TYPE, _BODY_LENGTH = 1, 3
"""Numbers of two fields of the table `Message`."""
_SCHEMA, _RECORD_BATCH = 1, 3
"""Values of the header type."""


class Part(NamedTuple):
    """One file of a history."""

    path: Path
    start: Start
    table: pa.Table


def history(path: str | Path, *, skip_damaged: bool = False) -> History:
    """Reads the history that every run with a `checkpoint_dir` keeps there, including running ones.

    ::

        history = trainband.history("runs/a")
        loss = history.series("loss")
        print(loss.global_step, loss.value)

    Args:
      path: the `checkpoint_dir`, or the folder `history` in it.
      skip_damaged: skip damaged files, listed in `History.damaged`, instead of raising. A file that ends in the
        middle of a batch, as after its process was killed, is not damaged: it is read up to its last whole batch.

    Raises:
      YourError: there is no history there.
      DataError: files of it are damaged; the message names them.
    """
    folder = folder_of(Path(path))
    parts, damaged = list[Part](), dict[str, str]()
    for file in files_in(folder):
        try:
            part = read_file(file)
        except DataError as exc:
            damaged[str(file)] = str(exc)
            continue
        if part is not None:
            parts.append(part)
    if damaged and not skip_damaged:
        raise DataError(
            f"{len(damaged)} of the files of the history in {folder} cannot be read: {' '.join(damaged.values())} "
            "Remove them, or skip them with history(..., skip_damaged=True)."
        )
    return History.of(folder.parent, [(part.start, part.table) for part in parts], damaged)


def folder_of(path: Path) -> Path:
    """Returns the folder with the files of a history.

    Raises:
      YourError: there is none.
    """
    for folder in (path / FOLDER, path):
        if any(True for _ in files_in(folder)):
            return folder
    if not path.exists():
        raise YourError(f"history: {path} does not exist; give the checkpoint_dir of a run.")
    raise YourError(
        f"history: {path} has no history: there is no file *{SUFFIX} in {path / FOLDER}. Runs keep one if they "
        "have a checkpoint_dir; give that directory."
    )


def files_in(folder: Path) -> Iterator[Path]:
    """Yields the files of a history, in the order in which they were begun.

    Raises:
      YourError: the file system refuses.
    """
    try:
        yield from sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise YourError(f"history: {folder} cannot be read: {exc.strerror or exc}.") from exc


def read_file(path: Path) -> Part | None:
    """Reads one file, up to its last whole batch; `None` if not even its schema is whole.

    Raises:
      DataError: it is not a history file, or is damaged.
    """
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}.") from exc
    try:
        whole = whole_batches(data)
        if not whole:
            return None
        with pa.ipc.open_stream(pa.py_buffer(memoryview(data)[:whole])) as reader:
            start = _start_of(path, reader.schema)
            table = reader.read_all()
        table.validate(full=True)
    except DataError:
        raise
    except _DAMAGE as exc:
        raise DataError(f"{path} is damaged: {exc}.") from exc
    if table.schema != SCHEMA:
        raise DataError(f"{path} is damaged: its columns are not those of a history.")
    return Part(path, start, table)


def newest_start(folder: Path) -> Start | None:
    """Returns the header of the newest readable file of a folder; `None` without one.

    Raises:
      OSError: the file system refuses.
    """
    try:
        paths = sorted((path for path in folder.iterdir() if path.suffix == SUFFIX), reverse=True)
    except FileNotFoundError:
        return None
    for path in paths:
        try:
            with regular_file(path) as file:
                data = file.read(_MOST_SCHEMA_BYTES)
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                return _start_of(path, reader.schema)
        except (*_DAMAGE, DataError):
            continue  # reported when the history is read
    return None


def whole_batches(data: bytes) -> int:
    """Returns the number of bytes at the start of an Arrow IPC stream that are its schema and whole batches.

    Dictionaries of the batches are included.

    Source: the Arrow columnar format, "Encapsulated message format", and its `Message.fbs`.

    Raises:
      struct.error, ArrowInvalid: the stream is damaged.
    """
    at = whole = 0
    while len(data) - at >= _PREFIX.size:
        marker, length = _PREFIX.unpack_from(data, at)
        if marker != _CONTINUATION or length < 0:
            raise pa.ArrowInvalid(f"no message begins at byte {at:,}")
        begin, end = at + _PREFIX.size, at + _PREFIX.size + length
        if length == 0 or end > len(data):  # the end of the stream, or of its readable part
            break
        kind, body = _message(data[begin:end], at)
        if end + body > len(data):
            break
        at = end + body
        if kind in (_SCHEMA, _RECORD_BATCH):
            whole = at
    return whole


def _message(metadata: bytes, at: int) -> tuple[int, int]:
    """Returns the type of the message that a flatbuffer `Message` begins, and the number of bytes that follow it.

    Args:
      at: its place in the file, for the error.
    """
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise pa.ArrowInvalid(f"the message at byte {at:,} has no fields")
    (size,) = struct.unpack_from("<H", metadata, vtable)

    def value(number: int, layout: str) -> int:
        slot = 4 + 2 * number
        (offset,) = struct.unpack_from("<H", metadata, vtable + slot) if slot < size else (0,)
        return int(struct.unpack_from(layout, metadata, table + offset)[0]) if offset else 0

    kind, body = value(_HEADER_TYPE, "<B"), value(_BODY_LENGTH, "<q")
    if body < 0:
        raise pa.ArrowInvalid(f"the message at byte {at:,} has a body of {body:,} bytes")
    return kind, body


def _start_of(path: Path, schema: pa.Schema) -> Start:
    about = (schema.metadata or {}).get(METADATA_KEY)
    if about is None:
        raise DataError(f"{path} is not a history file: its schema has no header.")
    try:
        start = msgspec.json.decode(about, type=Start)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise DataError(f"{path} is damaged: {exc}.") from exc
    if start.format > FORMAT:
        raise DataError(f"{path} was written by trainband {start.trainband}, which is newer than this one: update it.")
    return start
