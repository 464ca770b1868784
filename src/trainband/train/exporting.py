"""The program that a trainer exports: a function with the current values of its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from trainband.job.engine import Engine
from trainband.model.contents import tensor_of
from trainband.model.inference import InferenceProgram
from trainband.model.model import Model
from trainband.model.predictor import Predictor
from trainband.model.variables import PyTree


def program_of(
    engine: Engine, model: Model, module: Any, function: Callable[..., PyTree], example: PyTree, batch: int | None
) -> InferenceProgram | None:
    """Returns a function with the current values of a job, as a program; `None` on tasks that are not the chief.

    Args:
      engine: this task's part in the job.
      model: the trained model.
      module: its Flax NNX module; `None` if there is none.
      function, example, batch: see `Trainer.export`.
    """
    params, state = engine.values.params(), engine.values.model_state()
    if not engine.peers.is_chief:
        return None
    leaves = [*jax.tree.leaves(params), *jax.tree.leaves(state)]
    weights = {tensor_of(entry): leaf for entry, leaf in zip(model.variables().entries, leaves, strict=True)}
    if module is None:
        predictor = Predictor(function, init=model.init, init_state=model.init_state, axes=model.axes)
    else:
        predictor = Predictor(function, module=module, axes=model.axes)
    return predictor.program(
        weights, example=example, batch=batch, source="the training", global_step=engine.steps.global_step
    )
