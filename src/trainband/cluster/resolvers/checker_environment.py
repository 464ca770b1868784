"""The environment of the process that checks update programs: what libraries need, and no path of a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_KEPT = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LC_", "PYTHON", "JAX_", "XLA_", "TF_CPP_", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "NIX_")
_THREADS = "OPENBLAS_NUM_THREADS"


def checker_environment() -> dict[str, str]:
    """Returns the part of the ps's environment that a checker gets.

    OpenBLAS starts threads when imported, and Landlock binds only later threads, so OpenBLAS may start none.
    """
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return {**kept, _THREADS: "1"}


def allow_threads() -> None:
    """Allows later imports to start threads again."""
    os.environ.pop(_THREADS, None)


def library_directories() -> Iterator[Path]:
    """Yields the other directories in which the dynamic linker looks for libraries."""
    for name in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if Path(name).is_absolute():
            yield Path(name)
