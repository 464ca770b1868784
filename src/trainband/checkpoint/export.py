"""Export: checkpoints in formats that other programs read without trainband.

A safetensors file and a NumPy archive name tensors as the checkpoint does (`params/hidden/kernel`); an Orbax
checkpoint is a tree of dicts with the parts of these names as keys, and the global step as its `step`. The workers'
own tensors (such as random keys) mean nothing elsewhere and are left out. If each ps has its own copy of a tensor,
such as an optimizer's count, that of ps:0 is exported.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.disk import move_into_place, refusal, sync
from trainband.checkpoint.manifest import DTYPES, Piece
from trainband.checkpoint.reader import CODES, MODEL_PREFIXES, PARAMS_PREFIXES, Checkpoint
from trainband.errors import CheckpointError, YourError

FORMATS = ("safetensors", "orbax", "npz")

_ORBAX_MARK = "_CHECKPOINT_METADATA"


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of `export`.

    Attributes:
      nbytes: size of all files.
      tensors: number of tensors.
      widened: tensors stored as float32, because the format does not have their dtype.
    """

    path: Path
    nbytes: int
    tensors: int
    widened: tuple[Piece, ...]


def export(checkpoint: Checkpoint, out: Path, to: str, *, optimizer: bool = True, force: bool = False) -> Exported:
    """Writes a checkpoint's model in another format; `out` appears whole or not at all.

    Rows are copied straight from the files, each range checked against its checksum, so a safetensors file or a NumPy
    archive only needs memory for the largest range. Orbax receives all tensors at once.

    Args:
      checkpoint: the checkpoint.
      out: the file to create; for Orbax, the directory.
      to: one of `FORMATS`.
      optimizer: whether to include the optimizer state.
      force: whether to replace an existing `out`.

    Raises:
      YourError: `out` exists or cannot be created; or the checkpoint holds nothing to export; or Orbax is not
        installed.
      DamagedCheckpoint: the checkpoint does not match its manifest.
      CheckpointError: a file system error, or the format cannot hold the checkpoint.
    """
    prefixes = MODEL_PREFIXES if optimizer else PARAMS_PREFIXES
    # A model state of one array is named "model_state", without a slash.
    pieces = [piece for name, piece in checkpoint.manifest.tensors.items() if f"{name}/".startswith(prefixes)]
    if not pieces:
        raise YourError(f"{checkpoint.path} has nothing to export under {', '.join(prefixes)}.")
    widened = tuple(piece for piece in pieces if to == "npz" and _npz_dtype(piece).name != piece.dtype)
    _require_free(checkpoint, out, to, force)
    write = {"safetensors": _write_safetensors, "orbax": _write_orbax, "npz": _write_npz}[to]
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        made = temporary / out.name
        write(checkpoint, pieces, made)
        nbytes = _nbytes(made)
        move_into_place(made, out)
        sync(out.parent)
    except OSError as exc:
        raise refusal("write", out, exc, sum(piece.nbytes for piece in pieces)) from exc
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(out, nbytes, len(pieces), widened)


def _require_free(checkpoint: Checkpoint, out: Path, to: str, force: bool) -> None:
    if not out.name or not out.parent.is_dir():
        raise YourError(f"cannot write {out.name or out}: there is no directory {out.parent}; create it first.")
    if checkpoint.path.resolve() in (out.resolve(), *out.resolve().parents):
        raise YourError(f"{out} would be inside the checkpoint {checkpoint.path}; write it elsewhere.")
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise YourError(f"{out} already exists; write to another path, or replace it with --force.")
    # A mistyped path must not destroy an unrelated directory.
    if to == "orbax" and not (out / _ORBAX_MARK).is_file():
        raise YourError(f"{out} is not an Orbax checkpoint, so it is not replaced; write to another path.")
    if to != "orbax" and not out.is_file():
        raise YourError(f"{out} is not a file, so it is not replaced; write to another path.")


def _in_rows(checkpoint: Checkpoint, tensor: str) -> Iterator[NDArray[Any]]:
    """Yields a tensor's rows in order, one stored range at a time."""
    ranges = {(stored.piece.start, stored.piece.stop) for _, stored in checkpoint.manifest.places[tensor]}
    for start, stop in sorted(ranges):
        yield checkpoint.read(tensor, start, stop, prefer_ps=0)


def _write_values(file: BinaryIO, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    file.write(np.require(values, dtype.newbyteorder("<"), "C").reshape(-1).view(np.uint8).data)


def _write_safetensors(checkpoint: Checkpoint, pieces: Sequence[Piece], path: Path) -> None:
    """Writes the header and the values one after another; the library's writer needs all values in memory."""
    # The widest first, as the library does, so that each is aligned to its dtype.
    ordered = sorted(pieces, key=lambda piece: (-DTYPES[piece.dtype].itemsize, piece.tensor))
    metadata = {
        "global_step": str(checkpoint.global_step),
        "strategy": checkpoint.manifest.strategy,
        "trainband": checkpoint.manifest.trainband,
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for piece in ordered:
        offsets = (end, end := end + piece.nbytes)
        header[piece.tensor] = {"dtype": CODES[piece.dtype], "shape": piece.shape, "data_offsets": offsets}
    data = msgspec.json.encode(header)
    data += b" " * (-len(data) % 8)
    with path.open("xb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        for piece in ordered:
            for values in _in_rows(checkpoint, piece.tensor):
                _write_values(file, values, DTYPES[piece.dtype])
        file.flush()
        os.fsync(file.fileno())


def _write_npz(checkpoint: Checkpoint, pieces: Sequence[Piece], path: Path) -> None:
    """Writes what `np.savez` would, which needs all values in memory."""
    with path.open("xb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            with archive.open("step.npy", "w") as entry:
                np.lib.format.write_array(entry, np.array(checkpoint.global_step, np.int64))
            for piece in pieces:
                dtype = _npz_dtype(piece).newbyteorder("<")
                description = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": piece.shape,
                }
                with archive.open(f"{piece.tensor}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, description)
                    for values in _in_rows(checkpoint, piece.tensor):
                        _write_values(entry, values.astype(dtype, copy=False), dtype)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def _npz_dtype(piece: Piece) -> np.dtype[Any]:
    """NumPy files only describe NumPy's own dtypes: another program would read bfloat16 as raw bytes."""
    dtype = DTYPES[piece.dtype]
    return dtype if dtype.isbuiltin == 1 else np.dtype(np.float32)


def _write_orbax(checkpoint: Checkpoint, pieces: Sequence[Piece], path: Path) -> None:
    try:
        import orbax.checkpoint as orbax
    except ImportError as exc:
        raise YourError(
            f"Orbax cannot be imported ({exc}); install it with pip install 'trainband[orbax]', or export to "
            "safetensors or npz."
        ) from exc
    for piece in pieces:
        if not piece.size:
            raise CheckpointError(
                f"Orbax cannot store {piece}, an array without elements; export to safetensors or npz."
            )
    tree = nested({piece.tensor: checkpoint.read(piece.tensor, prefer_ps=0) for piece in pieces})
    tree["step"] = checkpoint.global_step
    try:
        with orbax.StandardCheckpointer() as saver:
            saver.save(path.absolute(), tree)
            saver.wait_until_finished()
    except OSError:
        raise
    except Exception as exc:  # the errors of Orbax and its dependencies have no common class
        reason = (str(exc).splitlines() or [""])[0] or type(exc).__name__
        raise CheckpointError(f"Orbax cannot write {path.name}: {reason}") from exc


def nested(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tensors by name as a tree of dicts: `params/hidden/kernel` is `tree["params"]["hidden"]["kernel"]`.

    Raises:
      CheckpointError: one name is a prefix of another, so no tree can hold both.
    """
    tree: dict[str, Any] = {}
    for name, values in tensors.items():
        *folders, leaf = name.split("/")
        node: Any = tree
        for folder in folders:
            node = node.setdefault(folder, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or leaf in node:
            raise CheckpointError(
                f"the name {name} overlaps another tensor's, which a tree of dicts cannot hold; "
                "export to safetensors or npz."
            )
        node[leaf] = values
    return tree


def _nbytes(path: Path) -> int:
    with contextlib.suppress(NotADirectoryError):
        return sum(_nbytes(child) for child in path.iterdir())
    return path.stat().st_size
