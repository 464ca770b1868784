"""Saver: checkpoints as files, and the file `checkpoint` that says which is the newest.

A checkpoint is one safetensors file, `PREFIX.safetensors`. TensorFlow's own files are not read. What a job with ps
has saved (a directory that `trainband checkpoint ls` lists) can be restored too, by the path that `latest_checkpoint`
gives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.compat.tf1.graphs.errors import DataLossError, InvalidArgumentError, NotFoundError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.sessions.slots import optimizer_tensor
from trainband.errors import TrainbandError
from trainband.wire.patience import say_on_stderr

SUFFIX = ".safetensors"
_LINE = re.compile(r'^\s*(\w+)\s*:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)


@dataclass
class CheckpointState:
    """What the file `checkpoint` of a directory says: the newest checkpoint, and all that are kept."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(checkpoint_dir: Any, latest_filename: str | None = None) -> CheckpointState | None:
    """What is known of a directory's checkpoints; `None` where there are none."""
    directory = Path(str(checkpoint_dir))
    path = directory / (latest_filename or "checkpoint")
    if not path.is_file():
        newest = _newest_of_job(directory)
        return None if newest is None else CheckpointState(newest, [newest])
    found: dict[str, list[str]] = {}
    for key, value in _LINE.findall(path.read_text(encoding="utf-8")):
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
    prefix = str(checkpoint_prefix)
    return Path(prefix + SUFFIX).is_file() or (Path(prefix) / "manifest.json").is_file()


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """The names and shapes in a checkpoint, or in the newest of a directory."""
    values = read_checkpoint(latest_checkpoint(ckpt_dir_or_file) or str(ckpt_dir_or_file))
    return [(name, list(value.shape)) for name, value in sorted(values.items())]


def load_variable(ckpt_dir_or_file: Any, name: str) -> Any:
    """One value of a checkpoint, or of the newest of a directory."""
    values = read_checkpoint(latest_checkpoint(ckpt_dir_or_file) or str(ckpt_dir_or_file))
    plain = name.removesuffix(":0")
    if plain not in values:
        raise NotFoundError(None, None, f"Key {plain} not found in checkpoint")
    return values[plain]


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
            return load_file(path)
        except Exception as exc:
            raise DataLossError(None, None, f"{path} is no whole checkpoint: {exc}") from exc
    if (Path(prefix) / "manifest.json").is_file():
        return _read_job(Path(prefix))
    raise ValueError(f"The passed save_path is not a valid checkpoint: {prefix}")


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
    found["global_step"] = np.asarray(checkpoint.global_step, np.int64)
    return found


class Saver:
    """Saves variables and restores them.

    Args:
      var_list: which, or a mapping of the names in the file to variables; all that can be saved when left out.
      max_to_keep: so many of the newest are kept; 0 or `None`: all.
      keep_checkpoint_every_n_hours: besides, one every so many hours is.

    Raises:
      ValueError: there is nothing to save.
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,  # noqa: ARG002 - one file
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10_000.0,
        name: str | None = None,  # noqa: ARG002
        restore_sequentially: bool = False,  # noqa: ARG002
        saver_def: Any = None,  # noqa: ARG002
        builder: Any = None,  # noqa: ARG002
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: Any = None,  # noqa: ARG002
        pad_step_number: bool = False,
        save_relative_paths: bool = True,  # noqa: ARG002 - always
        filename: str | None = None,  # noqa: ARG002
    ) -> None:
        self._graph = get_default_graph()
        self._asked = var_list
        self._reshape = reshape
        self._pad = pad_step_number
        self._max = max_to_keep or 0
        self._every_s = keep_checkpoint_every_n_hours * 3600
        self._kept: list[tuple[str, float]] = []
        self._next_for_good = time.time() + self._every_s
        self._chosen: dict[str, list[Variable]] | None = None
        if not defer_build:
            self.build()
            if not self._chosen and not allow_empty:
                raise ValueError("No variables to save")
            if not self._graph.finalized:
                self._graph.add_to_collection(GraphKeys.SAVERS, self)

    def build(self) -> None:
        """From now on it saves the variables that there are now, and none that are made later."""
        self._chosen = self._choose()

    def variables(self) -> dict[str, list[Variable]]:
        """What is saved: by the name in the file a variable, or the parts of one."""
        return self._choose() if self._chosen is None else self._chosen

    def _choose(self) -> dict[str, list[Variable]]:
        asked = self._asked
        if asked is None:
            asked = [
                *self._graph.get_collection(GraphKeys.GLOBAL_VARIABLES),
                *self._graph.get_collection("saveable_objects"),
            ]
        found: dict[str, list[Variable]] = {}
        pairs = asked.items() if isinstance(asked, Mapping) else [(None, one) for one in asked]
        for name, one in pairs:
            for part in one.parts if isinstance(one, PartitionedVariable) else [one]:
                whole = name or (part.save_slice[0] if part.save_slice else part.op_name)
                if part not in found.setdefault(str(whole), []):
                    found[str(whole)].append(part)
        return found

    def save(
        self,
        sess: Any,
        save_path: Any,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",  # noqa: ARG002 - there is no form of a graph that could be saved
        write_meta_graph: bool = True,  # noqa: ARG002
        write_state: bool = True,
        strip_default_attrs: bool = False,  # noqa: ARG002
        save_debug_info: bool = False,  # noqa: ARG002
    ) -> str:
        """Writes a checkpoint, and gives its name: `save_path`, or `save_path-STEP`.

        Raises:
          ValueError: the directory is not there.
          FailedPreconditionError: a variable has no value.
        """
        prefix = str(save_path)
        if global_step is not None:
            step = int(global_step if isinstance(global_step, int | np.integer) else sess.run(global_step))
            prefix = f"{prefix}-{step:08d}" if self._pad else f"{prefix}-{step:d}"
        directory = Path(prefix).parent
        if not directory.is_dir():
            raise ValueError(f"Parent directory of {prefix} doesn't exist, can't save.")
        wanted = self.variables()
        values = sess.store.values([part for parts in wanted.values() for part in parts])
        arrays = {}
        for name, parts in wanted.items():
            there = [np.ascontiguousarray(values[part.op_name]) for part in parts if part.op_name in values]
            if there:
                axis = _axis_of(parts)
                # A scalar made contiguous is a vector of one: its shape is put back.
                whole = there[0].reshape(values[parts[0].op_name].shape) if len(there) == 1 else None
                arrays[name] = np.concatenate(there, axis) if whole is None else whole
        partial = Path(f"{prefix}{SUFFIX}.partial")
        save_file(arrays, partial)
        partial.replace(prefix + SUFFIX)
        self._note(prefix)
        if write_state:
            update_checkpoint_state(directory, prefix, [path for path, _ in self._kept], latest_filename)
        return prefix

    def restore(self, sess: Any, save_path: Any) -> None:
        """Gives the variables the values that a checkpoint has.

        Raises:
          ValueError: there is no checkpoint of this name.
          NotFoundError: it lacks a variable.
          InvalidArgumentError: a variable has another shape in it.
        """
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        held = read_checkpoint(str(save_path))
        values: dict[str, Any] = {}
        for name, parts in self.variables().items():
            key = name if name in held else optimizer_tensor(parts[0]) or name
            if key not in held:
                raise NotFoundError(None, parts[0].op, f"Key {name} not found in checkpoint {save_path}")
            array = held[key]
            start, axis = 0, _axis_of(parts)
            for part in parts:
                sizes = part.shape.as_list()
                piece = array
                if len(parts) > 1:
                    length = sizes[axis] or 0
                    piece = np.take(array, np.arange(start, start + length), axis)
                    start += length
                if list(piece.shape) != sizes and self._reshape:
                    piece = piece.reshape(tuple(size or 0 for size in sizes))
                if not part.shape.is_compatible_with(piece.shape):
                    raise InvalidArgumentError(
                        None,
                        part.op,
                        f"Assign requires shapes of both tensors to match. {part.op_name}: lhs shape= {part.shape} rhs "
                        f"shape= {list(piece.shape)} (in {save_path})",
                    )
                values[part.op_name] = piece.astype(part.dtype.numpy)
        sess.store.assign(values)

    @property
    def last_checkpoints(self) -> list[str]:
        """The names of those that are kept, the oldest first."""
        return [path for path, _ in self._kept]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Says which are kept."""
        self._kept = [(path, time.time()) for path in last_checkpoints]

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Says which are kept, of a run before this one."""
        self.set_last_checkpoints([path for path in checkpoint_paths if checkpoint_exists(path)])

    def _note(self, prefix: str) -> None:
        self._kept = [entry for entry in self._kept if entry[0] != prefix]
        self._kept.append((prefix, time.time()))
        while self._max and len(self._kept) > self._max:
            oldest, written = self._kept.pop(0)
            if written >= self._next_for_good:
                self._next_for_good += self._every_s
                continue
            Path(oldest + SUFFIX).unlink(missing_ok=True)


def _axis_of(parts: Sequence[Variable]) -> int:
    """Along which axis the parts of one variable were cut."""
    first, last = parts[0].shape.as_list(), parts[-1].shape.as_list()
    whole = next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)
    info = parts[0].op.attributes.get("axis", 0)
    return int(info) if whole is None else whole


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
    partial = path.with_name(path.name + ".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
