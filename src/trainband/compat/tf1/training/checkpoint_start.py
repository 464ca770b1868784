"""Variables that begin with the values of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainband.compat.checkpoints.reader import CheckpointReader, load_checkpoint
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.operations.printing import py_func
from trainband.compat.tf1.training.partitions import pieces


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
