"""Exporting what a trainer has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from trainband.export import ExportReport, export_program
from trainband.model.contents import tensor_of
from trainband.model.model import Model
from trainband.model.predictor import Predictor
from trainband.model.variables import PyTree
from trainband.strategies.engine import Engine


def export_of(
    engine: Engine,
    model: Model,
    module: Any,
    function: Callable[..., PyTree],
    example: PyTree,
    out: str | Path,
    *,
    to: str,
    batch: int | None,
    force: bool,
) -> ExportReport | None:
    """Exports a function with the values that a job has now; `None` on tasks that are not the chief.

    Args:
      engine: this task's part in the job.
      model: what is trained.
      module: the Flax NNX module that it was made of; `None` if of none.
      function, example, out, to, batch, force: see `Trainer.export`.
    """
    params, state = engine.params(), engine.model_state()
    if not engine.is_chief:
        return None
    leaves = [*jax.tree.leaves(params), *jax.tree.leaves(state)]
    weights = {tensor_of(entry): leaf for entry, leaf in zip(model.variables().entries, leaves, strict=True)}
    if module is None:
        predictor = Predictor(function, init=model.init, init_state=model.init_state, axes=model.axes)
    else:
        predictor = Predictor(function, module=module, axes=model.axes)
    program = predictor.program(
        weights, example=example, batch=batch, source="the training", global_step=engine.global_step
    )
    return export_program(program, out, to, force=force)
