"""Warm starts: variables that begin with the values of another model's checkpoint, or of another vocabulary's rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainband.compat.checkpoints.reader import CheckpointReader, load_checkpoint
from trainband.compat.ops import indexing
from trainband.compat.tf1.graphs.errors import NotFoundError
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.operations.printing import py_func
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.scripts.files import GFile
from trainband.compat.tf1.training.checkpoint_start import init_from_checkpoint


class VocabInfo(NamedTuple):
    """Two vocabularies, files of a token a line, and how a variable's rows follow from one to the other.

    Attributes:
      new_vocab_size, old_vocab_size: how many tokens of each file count; -1: all.
      num_oov_buckets: how many rows the variable has for other tokens.
      backup_initializer: makes the rows of tokens that are new; zeros, if it is left out.
      axis: 0 for rows, 1 for columns.
    """

    new_vocab: Any
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: Any
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0


def warm_start(
    ckpt_to_initialize_from: Any,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Makes variables begin with values of a checkpoint in place of what their initializers give.

    Args:
      vars_to_warm_start: a regular expression of the names of trained variables; a list of such for all variables, or
        of variables; `None`: only those of `var_name_to_vocab_info`.
      var_name_to_prev_var_name: the names in the checkpoint that differ.

    Raises:
      NotFoundError: the checkpoint lacks a variable.
      ValueError: a shape is another, or a name belongs to no variable.
    """
    reader = load_checkpoint(ckpt_to_initialize_from)
    vocabularies, renamed = dict(var_name_to_vocab_info or {}), dict(var_name_to_prev_var_name or {})
    used: set[str] = set()
    for name, variable in _chosen(vars_to_warm_start).items():
        vocabulary = vocabularies.get(name)
        if vocabulary is None and vars_to_warm_start is None:
            continue
        used.add(name)
        held = renamed.get(name, name)
        if not reader.has_tensor(held):
            raise NotFoundError(None, None, f"Key {held} not found in checkpoint {ckpt_to_initialize_from}")
        logging.info("Warm-starting variable: %s; prev_var_name: %s", name, held)
        if vocabulary is None:
            init_from_checkpoint(ckpt_to_initialize_from, {held: variable})
        else:
            _begin_with(variable, _remapped(reader, held, variable, vocabulary))
    for title, names in (("var_name_to_prev_var_name", renamed), ("var_name_to_vocab_info", vocabularies)):
        if unused := sorted(names.keys() - used):
            raise ValueError(f"You provided the following variables in {title} that were not used: {unused}")


def _chosen(wanted: Any) -> dict[str, Any]:
    """The variables, whole, by name."""
    graph = get_default_graph()
    if wanted is None or isinstance(wanted, str):
        kind, patterns = GraphKeys.TRAINABLE_VARIABLES, [wanted or ".*"]
    else:
        kind, patterns = GraphKeys.GLOBAL_VARIABLES, list(wanted)
    found = [one for one in patterns if not isinstance(one, str)]
    found += [
        variable
        for variable in graph.get_collection(kind)
        if any(isinstance(one, str) and re.match(one, _whole_name(variable)) for one in patterns)
    ]
    return {_whole_name(one): graph.shared.get(_whole_name(one), one) for one in found}


def _whole_name(variable: Any) -> str:
    info = getattr(variable, "save_slice", None)
    return str(variable.op_name if info is None else info.full_name)


def _remapped(reader: CheckpointReader, name: str, variable: Any, vocabulary: VocabInfo) -> Tensor:
    """The rows of the new vocabulary's tokens: those of the old variable where that has them."""
    old = reader.get_tensor(name)
    places = {token: row for row, token in enumerate(_tokens(vocabulary.old_vocab, vocabulary.old_vocab_size))}
    tokens = _tokens(vocabulary.new_vocab, vocabulary.new_vocab_size)
    rows = np.array([places.get(token, -1) for token in tokens] + [-1] * vocabulary.num_oov_buckets)
    is_known = rows >= 0
    whole = np.take(old, np.where(is_known, rows, 0), vocabulary.axis)
    if list(whole.shape) != variable.shape.as_list():
        raise ValueError(
            f"Shape of variable {_whole_name(variable)} ({variable.shape}) doesn't match with the shape "
            f"{list(whole.shape)} that the vocabulary {vocabulary.new_vocab} gives."
        )
    kept = np.broadcast_to(np.expand_dims(is_known, tuple(range(1, whole.ndim - vocabulary.axis))), whole.shape)
    given: Tensor = py_func(lambda: np.where(kept, whole, 0).astype(whole.dtype), [], variable.dtype)
    given.set_shape(whole.shape)
    if vocabulary.backup_initializer is None or is_known.all():
        return given
    others = convert(vocabulary.backup_initializer(list(whole.shape), variable.dtype))
    found: Tensor = recorded(indexing.where)(convert(kept), given, others)
    return found


def _tokens(path: Any, size: int) -> list[str]:
    with GFile(str(path)) as file:
        lines = str(file.read()).splitlines()
    return lines if size < 0 else lines[:size]


def _begin_with(variable: Any, whole: Tensor) -> None:
    parts: Sequence[Variable] = variable.parts if isinstance(variable, PartitionedVariable) else [variable]
    for part in parts:
        info = part.save_slice
        part.begin_with(whole if info is None else recorded(indexing.slice_)(whole, info.var_offset, info.var_shape))
