"""Saver: saves variables into checkpoints, and restores them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError

from trainband.checkpoint.disk import replace_durably
from trainband.compat.checkpoints.files import (
    SUFFIX,
    checkpoint_exists,
    get_checkpoint_mtimes,
    read_checkpoint,
    remove_checkpoint,
    update_checkpoint_state,
)
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.protos.graph import SaverDef
from trainband.compat.tf1.sessions.slots import optimizer_tensor
from trainband.compat.tf1.training.meta_graph import as_meta_graph, export_meta_graph, import_scoped_meta_graph
from trainband.compat.tf1.training.partitions import axis_of, pieces
from trainband.model.weights_file import write_weights

_log = logging.getLogger("tensorflow")


def _own_key(part: Variable) -> str:
    """The name under which a job saves an optimizer's slot or a part of a partitioned variable; empty for others."""
    return optimizer_tensor(part) or (part.op_name if part.save_slice is not None else "")


class Saver:
    """Saves variables and restores them.

    Args:
      var_list: the variables, or a mapping of names in the file to variables; by default, all that can be saved.
      max_to_keep: how many of the newest checkpoints to keep; 0 or `None`: all.
      keep_checkpoint_every_n_hours: besides those, keep one every so many hours.

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

    def build(self) -> None:
        """Fixes which variables are saved: those that exist now."""
        self._chosen = self._choose()

    def variables(self) -> dict[str, list[Variable]]:
        """Return what is saved: by name in the file, a variable or its parts."""
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
                whole = name or (part.save_slice.full_name if part.save_slice else part.op_name)
                held = found.setdefault(str(whole), [])
                if self._asked is not None and any(part is one or part.save_slice is None for one in held):
                    raise ValueError(f"At least two variables have the same name: {whole}")
                if part not in held:
                    held.append(part)
        return found

    def save(
        self,
        sess: Any,
        save_path: Any,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,  # noqa: ARG002
    ) -> str | None:
        """Write a checkpoint, and return its name: `save_path` or `save_path-STEP`; `None` if there is nothing to save.

        Raises:
          ValueError: the directory does not exist, or `latest_filename` is in another one.
          FailedPreconditionError: a variable has no value.
        """
        if latest_filename is not None and Path(latest_filename).name != latest_filename:
            raise ValueError("'latest_filename' must not contain path components")
        prefix = str(save_path)
        if global_step is not None:
            step = int(global_step if isinstance(global_step, int | np.integer) else sess.run(global_step))
            prefix = f"{prefix}-{step:08d}" if self._pad else f"{prefix}-{step:d}"
        directory = Path(prefix).parent
        if not directory.is_dir():
            raise ValueError(f"Parent directory of {prefix} doesn't exist, can't save.")
        wanted = self.variables()
        if not wanted:
            return None
        values = sess.store.values([part for parts in wanted.values() for part in parts])
        arrays = {}
        for name, parts in wanted.items():
            there = [np.ascontiguousarray(values[part.op_name]) for part in parts if part.op_name in values]
            if there:
                axis = axis_of(parts)
                # NumPy makes a contiguous scalar a vector of one element: restore its shape.
                whole = there[0].reshape(values[parts[0].op_name].shape) if len(there) == 1 else None
                arrays[name] = np.concatenate(there, axis) if whole is None else whole
        partial = Path(f"{prefix}{SUFFIX}.partial")
        write_weights(partial, arrays)
        replace_durably(partial, Path(prefix + SUFFIX))
        if write_meta_graph:
            try:
                self.export_meta_graph(f"{prefix}.{meta_graph_suffix}", strip_default_attrs=strip_default_attrs)
            except (EncodeError, ValueError) as exc:
                _log.warning("The graph is not stored beside %s: %s", prefix, exc)
        self._note(prefix)
        if write_state:
            update_checkpoint_state(directory, prefix, [path for path, _ in self._kept], latest_filename)
        return prefix

    def restore(self, sess: Any, save_path: Any) -> None:
        """Restore the variables from a checkpoint.

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
            found = pieces(parts, held[name]) if name in held else [(part, held.get(_own_key(part))) for part in parts]
            for part, piece in found:
                if piece is None:
                    raise NotFoundError(None, part.op, f"Key {name} not found in checkpoint {save_path}")
                sizes = part.shape.as_list()
                if list(piece.shape) != sizes and self._reshape:
                    values[part.op_name] = piece.reshape(tuple(size or 0 for size in sizes)).astype(part.dtype.numpy)
                    continue
                if not part.shape.is_compatible_with(piece.shape):
                    raise InvalidArgumentError(
                        None,
                        part.op,
                        f"Assign requires shapes of both tensors to match. {part.op_name}: lhs shape= {part.shape} rhs "
                        f"shape= {list(piece.shape)} (in {save_path})",
                    )
                values[part.op_name] = piece.astype(part.dtype.numpy)
        sess.store.assign(values)

    def export_meta_graph(
        self,
        filename: Any = None,
        collection_list: Any = None,
        as_text: bool = False,
        export_scope: str | None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> Any:
        """Describe the graph and what this saves; see `tf.train.export_meta_graph`."""
        del save_debug_info
        return export_meta_graph(
            filename, saver_def=self.as_saver_def(), collection_list=collection_list, as_text=as_text,
            graph=self._graph, export_scope=export_scope, clear_devices=clear_devices,
            clear_extraneous_savers=clear_extraneous_savers, strip_default_attrs=strip_default_attrs,
        )  # fmt: skip

    def as_saver_def(self) -> Any:
        """Describe it in a `SaverDef`. The field `save_tensor_name` says which variables it saves under which names."""
        named = {name: [part.op_name for part in parts] for name, parts in self.variables().items()}
        return SaverDef(
            filename_tensor_name="save/Const:0",
            save_tensor_name=json.dumps(named),
            restore_op_name="save/restore_all",
            max_to_keep=self._max,
            keep_checkpoint_every_n_hours=self._every_s / 3600,
            version=SaverDef.V2,
        )

    to_proto = as_saver_def

    @classmethod
    def from_proto(cls, saver_def: Any, import_scope: str | None = None) -> Saver:
        """Make the saver that `as_saver_def` has described, for the default graph.

        Raises:
          ValueError: the graph lacks a variable, or another program has written it.
        """
        prefix = f"{import_scope}/" if import_scope else ""
        made = cls(
            defer_build=True,
            max_to_keep=saver_def.max_to_keep,
            keep_checkpoint_every_n_hours=saver_def.keep_checkpoint_every_n_hours,
        )
        there = get_default_graph().variables
        if not saver_def.save_tensor_name.startswith("{"):
            raise ValueError("This SaverDef does not say which variables it saves: trainband did not write it.")
        named = json.loads(saver_def.save_tensor_name)
        made._chosen = {name: [there[f"{prefix}{part}"] for part in parts] for name, parts in named.items()}
        return made

    @property
    def last_checkpoints(self) -> list[str]:
        """The names of those that are kept, the oldest first."""
        return [path for path, _ in self._kept]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Says which are kept."""
        self._kept = [(path, time.time()) for path in last_checkpoints]

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        """Says which are kept, and when each was written."""
        self._kept = list(last_checkpoints_with_time)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Says which are kept, of a run before this one."""
        there = [path for path in checkpoint_paths if checkpoint_exists(path)]
        self._kept = list(zip(there, get_checkpoint_mtimes(there), strict=True))

    def _note(self, prefix: str) -> None:
        if not self._max:
            return
        self._kept = [entry for entry in self._kept if entry[0] != prefix]
        self._kept.append((prefix, time.time()))
        while len(self._kept) > self._max:
            oldest, written = self._kept.pop(0)
            if written >= self._next_for_good:
                self._next_for_good += self._every_s
                continue
            remove_checkpoint(oldest)


def import_meta_graph(
    meta_graph_or_file: Any, clear_devices: bool = False, import_scope: str | None = None, **more: Any
) -> Saver | None:
    """Record the graph of a file that `Saver.save` or `export_meta_graph` has written; see `import_graph_def`.

    Returns:
      A saver for its variables; `None` if it has none.

    Raises:
      OSError: there is no such file, or it is none.
      ValueError: an argument does not fit the graph.
    """
    stored = as_meta_graph(meta_graph_or_file)
    prefix = get_default_graph().unique_name(import_scope or "", mark_as_used=False).rstrip("/")
    imported = import_scoped_meta_graph(stored, clear_devices, import_scope=import_scope, **more)
    if stored.HasField("saver_def") and stored.saver_def.save_tensor_name.startswith("{"):
        return Saver.from_proto(stored.saver_def, prefix)
    return Saver() if imported else None


def default_saver(graph: Graph) -> Saver:
    """The saver of a graph: the only one in its collection, which is made and put there if there is none.

    Raises:
      RuntimeError: there are several.
    """
    found: list[Saver] = graph.get_collection(GraphKeys.SAVERS)
    if len(found) > 1:
        raise RuntimeError(
            f"More than one item in collection {GraphKeys.SAVERS}. Please indicate which one to use by passing it to "
            "the constructor."
        )
    if not found:
        with graph.as_default():
            found = [Saver(allow_empty=True)]
        if not graph.finalized:
            graph.add_to_collection(GraphKeys.SAVERS, found[0])
    return found[0]
