"""CompiledFunctions: a trainer's computations on batches without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.job.engine import Engine
from trainband.model.batch import examples_in
from trainband.model.batch_check import check_batch
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.train.result import Evaluation, mean_over_examples


class CompiledFunctions:
    """Evaluates and predicts with functions that are compiled once for each batch shape.

    Args:
      model: the trained model.
      evaluation_loss: see `Trainer`.
    """

    def __init__(self, model: Model, evaluation_loss: Callable[..., Any] | None) -> None:
        self._axes = model.axes
        self._tables = model.tables
        self._has_state = model.init_state is not None
        evaluated = model if evaluation_loss is None else replace(model, loss=evaluation_loss)
        self._evaluate = self._compiled(lambda params, state, batch: evaluated.value(params, batch, None, state)[:2])
        self._predictors: dict[Callable[..., Any], Callable[..., Any]] = {}

    def evaluate(self, engine: Engine, batches: Iterable[PyTree]) -> Evaluation:
        """Returns loss and metrics with the current values of a job, each the mean over all examples.

        Raises:
          DataError: there is no batch.
        """
        what = "evaluates"
        with engine.peers.busy(what):
            found = engine.values.computed(self._evaluate, _not_empty(self._checked(batches, "evaluate")), what)
            return mean_over_examples(found, engine.steps.global_step)

    def evaluate_params(
        self, params: PyTree, model_state: PyTree, batches: Iterable[PyTree], global_step: int
    ) -> Evaluation:
        """Like `evaluate`, with these values."""
        checked = _not_empty(self._checked(batches, "evaluate"))
        found = ((batch, self._evaluate(params, model_state, batch)) for batch in checked)
        return mean_over_examples(found, global_step)

    def predict(
        self,
        engine: Engine,
        function: Callable[..., PyTree],
        batches: Iterable[PyTree],
        applied: Callable[[Callable[..., PyTree]], Callable[..., PyTree]] | None = None,
    ) -> PyTree:
        """Applies a function to batches with the current values of a job; returns NumPy arrays.

        Args:
          engine: this task's part in the job.
          function: the user's, as for `Trainer.predict`.
          batches: any finite iterable.
          applied: converts the function to one of params, model state and batch, if it takes other arguments.

        Raises:
          DataError: there is no batch.
        """
        compiled = self._predictors.get(function)
        if compiled is None:
            if applied is not None:
                computed = applied(function)
            elif self._tables is not None:
                computed = self._tables.taking_rows(function, has_state=True, takes_key=False)
                if not self._has_state:
                    computed = lambda both, _, batch: function(both.params, both.rows, batch)  # noqa: E731
            elif self._has_state:
                computed = function
            else:
                computed = lambda params, _, batch: function(params, batch)  # noqa: E731
            compiled = self._predictors[function] = self._compiled(computed)
        what = f"predicts by {getattr(function, '__qualname__', type(function).__name__)}"
        with engine.peers.busy(what):
            results = engine.values.computed(compiled, self._checked(batches, "predict"), what)
            found = [jax.tree.map(np.asarray, outputs) for _, outputs in results]
        if not found:
            raise DataError("predict: there are no batches.")
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found)

    def _checked(self, batches: Iterable[PyTree], what: str) -> Iterator[PyTree]:
        for number, batch in enumerate(batches):
            given = batch if self._tables is None else self._tables.split(batch)
            check_batch(given, f"{what}: batch {number}")
            yield given

    def _compiled(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Returns the compiled function of params, model state and batch."""
        return jax.jit(on_mesh(function, axes=self._axes))


def _not_empty(batches: Iterable[PyTree]) -> Iterator[PyTree]:
    """Drops batches without examples, which have no mean."""
    return (batch for batch in batches if examples_in(batch))
