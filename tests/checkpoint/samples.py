"""A small checkpoint of two ps, with a tensor in two files, a scalar, an empty tensor and one that lies on each ps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import CheckpointDirectory, Manifest, Part, Piece, WorkerEntry, write_part

KERNEL = np.arange(60, dtype=np.float32).reshape(10, 6)
STEPS = np.array(7, np.int32)
EMPTY = np.zeros((0, 3), np.float32)
HALF = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
CREATED_AT = 1_700_000_000.0


def rows(tensor: str, values: NDArray[Any], start: int = 0, stop: int | None = None) -> tuple[Piece, NDArray[Any]]:
    """Rows of a tensor, as `write_part` takes them."""
    count = values.shape[0] if values.ndim else 1
    piece = Piece(tensor, values.shape, values.dtype.name, start, count if stop is None else stop)
    return piece, values[piece.start : piece.stop] if values.ndim else values


def write_parts(directory: Path, shift: float = 0.0) -> tuple[Part, Part]:
    """The two files; `shift` is added to the kernel, to tell one checkpoint from another."""
    kernel = KERNEL + np.float32(shift)
    first = [rows("params/hidden/kernel", kernel, 0, 4), rows("optimizer/0/count", STEPS)]
    second = [
        rows("params/hidden/kernel", kernel, 4, 10),
        rows("params/hidden/empty", EMPTY),
        rows("model_state/mean", HALF),
        rows("optimizer/0/count", np.array(9, np.int32)),
    ]
    return (
        write_part(directory, "ps-0.safetensors", ps=0, version=7, pieces=first),
        write_part(directory, "ps-1.safetensors", ps=1, version=9, pieces=second),
    )


def manifest(parts: tuple[Part, ...], step: int = 7, created_at: float = CREATED_AT, **more: Any) -> Manifest:
    """A manifest for these files."""
    return Manifest(
        step, created_at, "0.1.0", "ParameterServer", parts, {"worker:0": WorkerEntry("worker:0", 4, "{}")}, **more
    )


def commit(home: CheckpointDirectory, step: int, created_at: float = CREATED_AT, shift: float = 0.0) -> Path:
    """A committed checkpoint in a directory."""
    partial = home.create_partial(step)
    return home.commit(partial, manifest(write_parts(partial, shift), step, created_at)).path


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Alters one byte of a file; a negative `at` counts from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(bytes(data))
