"""Warm starts: variables that begin with the values of another model's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainband.compat.checkpoints.files import latest_checkpoint
from trainband.compat.checkpoints.reader import list_variables
from trainband.compat.tf1.graphs.errors import NotFoundError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.saver import Saver
from trainband.compat.tf1.training.scaffold import Scaffold


@dataclass
class WarmStartSettings:
    """Which variables begin with values of a checkpoint.

    Attributes:
      ckpt_to_initialize_from: the checkpoint, or its directory.
      vars_to_warm_start: a regular expression of their names, or a list of names; `None`: none.
      var_name_to_vocab_info: not supported: rows are not rearranged for another vocabulary.
      var_name_to_prev_var_name: the names in the checkpoint that differ.
    """

    ckpt_to_initialize_from: Any
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: dict[str, Any] | None = None
    var_name_to_prev_var_name: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ckpt_to_initialize_from:
            raise ValueError("`ckpt_to_initialize_from` MUST be set in WarmStartSettings")
        if self.var_name_to_vocab_info:
            raise NotImplementedError("WarmStartSettings with var_name_to_vocab_info is not supported.")
        self.var_name_to_prev_var_name = dict(self.var_name_to_prev_var_name or {})

    @classmethod
    def of(cls, given: Any) -> WarmStartSettings | None:
        """The settings that `warm_start_from` means."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            return cls(str(given))
        raise ValueError("warm_start_from must be a string or a WarmStartSettings")


def warm_start(scaffold: Scaffold, settings: WarmStartSettings) -> Scaffold:
    """Return a scaffold with which variables begin with a checkpoint's values, once all are initialised."""
    path = latest_checkpoint(settings.ckpt_to_initialize_from) or str(settings.ckpt_to_initialize_from)
    wanted = settings.vars_to_warm_start
    renamed = settings.var_name_to_prev_var_name
    graph = get_default_graph()
    # A string means variables that are trained, a list any: as in TensorFlow.
    kind = GraphKeys.TRAINABLE_VARIABLES if isinstance(wanted, str) else GraphKeys.GLOBAL_VARIABLES
    patterns = [wanted] if isinstance(wanted, str) else list(wanted or ())
    chosen: dict[str, Any] = {}
    for variable in graph.get_collection(kind):
        whole = variable.save_slice[0] if variable.save_slice else variable.op_name
        if any(re.match(str(pattern), whole) for pattern in patterns):
            chosen[renamed.get(whole, whole)] = graph.shared.get(whole, variable)
    held = {name for name, _ in list_variables(path)}
    if missing := sorted(chosen.keys() - held):
        raise NotFoundError(None, None, f"Key {missing[0]} not found in checkpoint {path}")
    logging.info("Warm-starting from: %s: %s", path, ", ".join(sorted(chosen)))
    saver = Saver(chosen, defer_build=True)
    before: Callable[..., Any] | None = scaffold.init_fn  # of a session, as in TensorFlow

    def init_fn(_: Scaffold, session: Any) -> None:
        saver.restore(session, path)
        if before is not None:
            before(session)

    return Scaffold(
        init_op=scaffold.init_op,
        init_feed_dict=scaffold.init_feed_dict,
        init_fn=init_fn,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        local_init_op=scaffold.local_init_op,
        summary_op=scaffold.summary_op,
        saver=scaffold.saver,
        local_init_feed_dict=scaffold.local_init_feed_dict,
    )
