"""Checkpoints as files, and the file `checkpoint` that says which is the newest.

A checkpoint is one safetensors file, `PREFIX.safetensors`. TensorFlow's own (`PREFIX.index` and `PREFIX.data-*`) are
read, too, and so is what a job with ps has saved (a directory that `trainband checkpoint ls` lists), by the path that
`latest_checkpoint` gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import deserialize, safe_open
from safetensors.numpy import save

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.checkpoint.disk import write_durably
from trainband.compat.checkpoints.tensor_bundle import index_of, read_bundle
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.errors import DataLossError
from trainband.errors import TrainbandError
from trainband.runtime.regular_files import READ_WHOLE, fixed_path, read_regular
from trainband.runtime.waiting import say_on_stderr

SUFFIX = ".safetensors"
_KINDS = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
    "C64": "complex64",
}
"""The types of safetensors, by TensorFlow's names."""
_MOST_STATE_BYTES = 64 << 20
_LINE = re.compile(r'^\s*(\w+)\s*:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass
class CheckpointState:
    """What the file `checkpoint` of a directory says: the newest checkpoint, and all that are kept."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(checkpoint_dir: Any, latest_filename: str | None = None) -> CheckpointState | None:
    """Return what is known about a directory's checkpoints, or `None` if it has none."""
    directory = Path(str(checkpoint_dir))
    path = directory / (latest_filename or "checkpoint")
    if not path.is_file():
        newest = _newest_of_job(directory)
        return None if newest is None else CheckpointState(newest, [newest])
    found: dict[str, list[str]] = {}
    for key, value in _LINE.findall(read_regular(path, _MOST_STATE_BYTES).decode()):
        named = Path(value.replace('\\"', '"').replace("\\\\", "\\"))
        found.setdefault(key, []).append(str(named if named.is_absolute() else directory / named))
    newest_paths = found.get("model_checkpoint_path", [])
    if not newest_paths:
        return None
    return CheckpointState(newest_paths[0], found.get("all_model_checkpoint_paths", newest_paths))


def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    """The newest checkpoint of a directory; `None` where there is none."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not checkpoint_exists(state.model_checkpoint_path):
        return None
    return state.model_checkpoint_path


def checkpoint_exists(checkpoint_prefix: Any) -> bool:
    """Whether there is a checkpoint of this name."""
    return bool(files_of(checkpoint_prefix))


def files_of(checkpoint_prefix: Any) -> list[Path]:
    """The file or directory of a checkpoint of this name, if there is one."""
    prefix = str(checkpoint_prefix)
    places = (Path(prefix + SUFFIX), index_of(prefix), Path(prefix) / "manifest.json")
    return [path for path in places if path.is_file()][:1]


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[Any]) -> list[float]:
    """When checkpoints were written, in seconds since 1970; those that do not exist are left out."""
    return [path.stat().st_mtime for prefix in checkpoint_prefixes for path in files_of(prefix)]


def remove_checkpoint(
    checkpoint_prefix: Any, checkpoint_format_version: Any = None, meta_graph_suffix: str = ""
) -> None:
    """Deletes a checkpoint."""
    del checkpoint_format_version
    if index_of(str(checkpoint_prefix)).is_file():
        for path in Path(str(checkpoint_prefix)).parent.glob(
            f"{escape(Path(str(checkpoint_prefix)).name)}.data-*-of-*"
        ):
            path.unlink(missing_ok=True)
        index_of(str(checkpoint_prefix)).unlink()
    Path(f"{checkpoint_prefix}.{meta_graph_suffix or 'meta'}").unlink(missing_ok=True)
    Path(str(checkpoint_prefix) + SUFFIX).unlink(missing_ok=True)


def _newest_of_job(directory: Path) -> str | None:
    if not directory.is_dir() or not any(directory.glob("step-*/manifest.json")):
        return None
    newest = CheckpointDirectory(directory, say_on_stderr).newest()
    return None if newest is None else str(newest.path)


def read_checkpoint(prefix: str) -> dict[str, Any]:
    """All values of a checkpoint, by their variables' names.

    Raises:
      ValueError: there is none of this name.
      DataLossError: it is damaged.
    """
    path = Path(prefix + SUFFIX)
    if path.is_file():
        try:
            return load(path)
        except Exception as exc:
            raise DataLossError(None, None, f"{path} is not a complete checkpoint: {exc}") from exc
    if index_of(prefix).is_file():
        return read_bundle(prefix)
    if (Path(prefix) / "manifest.json").is_file():
        return _read_job(Path(prefix))
    raise ValueError(f"The passed save_path is not a valid checkpoint: {prefix}")


def load(path: Path) -> dict[str, Any]:
    """All values of a safetensors file."""
    return {
        name: np.frombuffer(one["data"], as_dtype(_KINDS[one["dtype"]]).numpy).reshape(one["shape"]).copy()
        for name, one in deserialize(read_regular(path, READ_WHOLE))  # type: ignore[no-untyped-call]
    }


def metadata_of(prefix: str) -> dict[str, str]:
    """What a checkpoint says besides its values."""
    path = Path(prefix + SUFFIX)
    if not path.is_file():
        return {}
    with fixed_path(path) as fixed, safe_open(fixed, "np") as file:
        return file.metadata() or {}


def write_checkpoint(prefix: str, values: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Writes a checkpoint, and the directories above it."""
    path = Path(prefix + SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, save({name: np.asarray(one, order="C") for name, one in values.items()}, dict(metadata)))


def _read_job(path: Path) -> dict[str, Any]:
    try:
        checkpoint = Checkpoint.open(path)
        found: dict[str, Any] = {}
        for tensor in checkpoint.manifest.tensors:
            if tensor.startswith(("params/", "model_state/")):
                found[tensor.partition("/")[2]] = checkpoint.read(tensor)
            elif tensor.startswith("optimizer/"):
                found[tensor] = checkpoint.read(tensor)
    except TrainbandError as exc:
        raise DataLossError(None, None, str(exc)) from exc
    found.setdefault(
        "global_step", np.asarray(checkpoint.global_step, np.int64)
    )  # unless the script counts steps itself
    return found


def update_checkpoint_state(
    save_dir: Any,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
) -> None:
    """Writes the file `checkpoint` of a directory."""
    directory = Path(str(save_dir))

    def shown(path: str) -> str:
        try:
            relative = Path(path).absolute().relative_to(directory.absolute())
        except ValueError:
            relative = Path(path)
        return str(relative).replace("\\", "\\\\").replace('"', '\\"')

    lines = [f'model_checkpoint_path: "{shown(model_checkpoint_path)}"']
    known = list(all_model_checkpoint_paths or [model_checkpoint_path])
    lines += [f'all_model_checkpoint_paths: "{shown(path)}"' for path in known]
    path = directory / (latest_filename or "checkpoint")
    write_durably(path, ("\n".join(lines) + "\n").encode())
