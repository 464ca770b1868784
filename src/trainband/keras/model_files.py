"""Checks untrusted files of Keras models before Keras reads them.

Keras refuses code in them (`safe_mode`), and more with each release. These checks hold for all releases that trainband
supports: they bound the data read, and allow no other file.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path

from trainband.checkpoint.hdf5 import checked_hdf5, opened_hdf5
from trainband.checkpoint.manifest import is_plain_name
from trainband.errors import DataError
from trainband.runtime.regular_files import UnusableFile, open_regular, read_regular

MOST_JSON_BYTES = 64 << 20
"""Bytes of a model's description."""
MOST_MEMBERS = 10_000
SMALL_BYTES = 64 << 20
"""A member of at most this size may be compressed well; a larger one is weights, which hardly compress."""
_MOST_RATIO = 50
_SHARDED = ".weights.json"


def check_model_file(path: Path) -> None:
    """Checks a `.keras` or HDF5 file.

    Raises:
      OSError: the file system refuses.
      DataError: it refers to other files, or is larger than it seems; names the file.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            is_hdf5 = file.read(4) == b"\x89HDF"
            if not is_hdf5 and zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    _check_archive(archive, path)
    except (UnusableFile, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as exc:
        raise DataError(f"cannot read {path}: {getattr(exc, 'strerror', None) or exc}.") from exc
    if is_hdf5:
        with opened_hdf5(path):
            pass
    if path.name.endswith(_SHARDED):
        _check_shards(path)


def _check_shards(path: Path) -> None:
    try:
        listed = json.loads(read_regular(path, MOST_JSON_BYTES))["weight_map"].values()
        names = {name for one in listed for name in ([one] if isinstance(one, str) else one)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path} does not list weight files: {exc}.") from exc
    for name in names:
        if not isinstance(name, str) or not is_plain_name(name):
            raise DataError(f"{path} names a file outside its directory: {str(name)[:100]!r}.")
        with opened_hdf5(path.with_name(name)):
            pass


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise DataError(f"{path} contains {len(members):,} files; the limit is {MOST_MEMBERS:,}.")
    if len({one.filename for one in members}) < len(members):
        raise DataError(f"{path} contains two files of the same name.")
    for one in members:
        if not all(is_plain_name(part) for part in one.filename.rstrip("/").split("/")):
            raise DataError(f"{path} contains a file outside its directory: {one.filename[:100]!r}.")
        most = max(SMALL_BYTES, _MOST_RATIO * one.compress_size)
        if one.filename.endswith(".json"):
            most = MOST_JSON_BYTES
        if one.file_size > most:
            raise DataError(
                f"{path}: {one.filename[:100]!r} would unpack to {one.file_size:,} bytes; the limit is {most:,}."
            )
        if one.filename.endswith(".h5"):
            with archive.open(one) as file, checked_hdf5(file, f"{path}, {one.filename}"):
                pass
