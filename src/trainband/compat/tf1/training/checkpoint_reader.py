"""Checkpoints without a graph: what is in one, and variables that begin with its values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf1.graphs.errors import NotFoundError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.operations.printing import py_func
from trainband.compat.tf1.training.checkpoint_files import checkpoint_exists, latest_checkpoint, read_checkpoint
from trainband.compat.tf1.training.partitions import pieces


class CheckpointReader:
    """The contents of a checkpoint.

    Raises:
      NotFoundError: there is none of this name.
    """

    def __init__(self, filepattern: Any) -> None:
        if not checkpoint_exists(filepattern):
            raise NotFoundError(
                None,
                None,
                f"Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {filepattern}",
            )
        self._path = str(filepattern)
        self._values = read_checkpoint(self._path)

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes, by name."""
        return {name: list(value.shape) for name, value in self._values.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The dtypes, by name."""
        return {name: as_dtype(value.dtype) for name, value in self._values.items()}

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether a name is in it."""
        return tensor_str in self._values

    def get_tensor(self, tensor_str: str) -> Any:
        """A value.

        Raises:
          NotFoundError: it is not there.
        """
        if tensor_str not in self._values:
            raise NotFoundError(None, None, f"Key {tensor_str} not found in checkpoint {self._path}")
        return self._values[tensor_str]

    def debug_string(self) -> bytes:
        """A line for each value: its name, dtype and shape."""
        shapes, dtypes = self.get_variable_to_shape_map(), self.get_variable_to_dtype_map()
        lines = (
            f"{name} (DT_{dtypes[name].name.upper().replace('FLOAT32', 'FLOAT')}) {str(shape).replace(' ', '')}"
            for name, shape in sorted(shapes.items())
        )
        return "\n".join(lines).encode()


def load_checkpoint(ckpt_dir_or_file: Any) -> CheckpointReader:
    """What is in a checkpoint, or in the newest of a directory.

    Raises:
      ValueError: the directory has none.
      NotFoundError: there is none of this name.
    """
    path = str(ckpt_dir_or_file)
    if Path(path).is_dir() and not checkpoint_exists(path):
        newest = latest_checkpoint(path)
        if newest is None:
            raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
        path = newest
    return CheckpointReader(path)


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """The names and shapes in a checkpoint, or in the newest of a directory."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: Any, name: str) -> Any:
    """One value of a checkpoint, or of the newest of a directory."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


def init_from_checkpoint(ckpt_dir_or_file: Any, assignment_map: Mapping[str, Any]) -> None:
    """Makes variables begin with values of a checkpoint in place of what their initialisers give.

    Args:
      assignment_map: by name in the checkpoint, a variable, its name, or its parts; by scope in the checkpoint,
        `old/`, a scope of the graph, `new/`.

    Raises:
      ValueError: something is in the graph or in the checkpoint only, or has another shape.
    """
    reader = load_checkpoint(ckpt_dir_or_file)
    known = get_default_graph().shared
    for key, target in assignment_map.items():
        if isinstance(target, str) and target.endswith("/"):
            scope = "" if target == "/" else target
            prefix = "" if key == "/" else key
            if key and not key.endswith("/"):
                raise ValueError(f"Assignment map with scope only name {target} should map to scope only {key}.")
            found = {name: one for name, one in known.items() if name.startswith(scope)}
            if not found:
                raise ValueError(f"Assignment map with scope {target} matches no variable.")
            for name, variable in found.items():
                _begin_with(reader, prefix + name[len(scope) :], variable)
        elif isinstance(target, str):
            if target not in known:
                raise ValueError(f"Variable {target} is not found in the graph")
            _begin_with(reader, key, known[target])
        else:
            _begin_with(reader, key, target)


def _begin_with(reader: CheckpointReader, name: str, variable: Any) -> None:
    parts: list[Variable] = list(variable.parts) if isinstance(variable, PartitionedVariable) else [variable]
    parts = list(variable) if isinstance(variable, list) else parts
    if not reader.has_tensor(name):
        raise ValueError(f"Tensor {name} is not found in {reader.get_variable_to_shape_map()}")
    for part, value in pieces(parts, reader.get_tensor(name)):
        if not part.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"Shape of variable {part.op_name} ({part.shape}) doesn't match with shape of tensor {name} "
                f"({list(value.shape)}) from checkpoint reader."
            )
        # A constant would be compiled into the run.
        given = py_func(lambda value=value: value, [], part.dtype)
        given.set_shape(value.shape)
        part.begin_with(given)
