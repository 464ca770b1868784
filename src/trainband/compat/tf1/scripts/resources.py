"""`tf.resource_loader`: files beside the script that asks for them."""

from __future__ import annotations

import sys
from pathlib import Path


def get_data_files_path() -> str:
    """The directory of the file that calls this."""
    return _beside()


def get_root_dir_with_all_resources() -> str:
    """The directory of the file that calls this."""
    return _beside()


def get_path_to_datafile(path: str) -> str:
    """A file beside the one that calls this."""
    return str(Path(_beside()) / path)


def readahead_file_path(path: str, readahead: str = "128M") -> str:
    """The path itself."""
    del readahead
    return path


def load_resource(path: str) -> bytes:
    """The contents of a file beside the one that calls this."""
    return (Path(_beside()) / path).read_bytes()


def _beside() -> str:
    return str(Path(sys._getframe(2).f_code.co_filename).resolve().parent)  # noqa: SLF001 - Python's way to ask
