"""Job: trains a Keras model with a trainer, and moves values between the two."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from xxhash import xxh64

from trainband.errors import DataError, ModelError, ModelMismatch
from trainband.job.engine import Engine
from trainband.keras.function import FROZEN, Batch, Parts, TrainingLoss, digest_of, metrics_of_step
from trainband.keras.keras_internals import JAXTrainer, compiled_with, iterations, keras
from trainband.keras.metrics import MetricLayout, RunningMetrics
from trainband.keras.optimizer import LEARNING_RATE, KerasOptimizer, listed
from trainband.model.model import Given
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.strategies.base import Strategy
from trainband.train.trainer import Trainer


class Job:
    """A model in training by a strategy: its trainer, and the mapping of its values.

    Args:
      model: built and compiled, with its optimizer built.
      strategy: trains it.
      batch: an example of the batches to train on.
      say: prints lines for people.

    Raises:
      ModelError: the model, or its optimizer, cannot be trained in a job.
    """

    def __init__(self, model: Any, strategy: Strategy, batch: Batch, say: Say) -> None:
        _check(model, strategy)
        self.model = model
        self._strategy = strategy
        self._say = say
        self._compiled = _what_is_trained(model)
        layout = MetricLayout(model, metrics_of_step(model, batch))
        self.running = RunningMetrics(layout)
        if layout.not_added_up and strategy.is_chief:
            say(
                f"the metric {' and '.join(layout.not_added_up)} of {model.name} does not add up over batches, which "
                "may be on several workers: training shows its mean over the batches"
            )
        self._parts = parts = Parts.of(model, batch)
        self._digest = digest_of(model, parts.frozen)
        self._on_ps = _is_on_ps(strategy)
        rank = strategy.cluster.training_index if strategy.cluster is not None and self._on_ps else 0
        self._optimizer = KerasOptimizer(model.optimizer, dict(parts.trained))
        self._slots = self._optimizer.slots_of(parts.trained)
        loss = TrainingLoss(model, parts, layout, rank)
        keeps_state = bool(parts.changed) or self._digest is not None
        self.trainer = Trainer(
            init=Given(lambda: _values(parts.trained)),
            init_state=Given(self._state) if keeps_state else None,
            loss=loss.with_state if keeps_state else loss.without_state,
            optimizer=self._optimizer,
            strategy=strategy,
            fixed_shapes=False,
            console=False,
            say=say,
        )
        self._structure: Any = None
        self._known: dict[int, tuple[Any, int]] = {}
        # Of each Keras variable: the array that the job last read from it or wrote to it, and its digest.

    def check_structure(self, batch: Batch) -> None:
        """Compares a batch with the first one.

        Raises:
          DataError: its structure, a rank or a dtype differs. (Another size is recompiled, as in Keras.)
        """
        leaves, structure = jax.tree.flatten(batch)
        shapes = [(len(leaf.shape), leaf.dtype) for leaf in leaves]
        if self._structure is None:
            self._structure = structure, shapes
        elif self._structure != (structure, shapes):
            raise DataError(
                f"fit: a batch is {_described(structure, shapes)}, but those before were "
                f"{_described(*self._structure)}; all batches of a model have one structure."
            )

    @property
    def is_of_today(self) -> bool:
        """Whether the model is still compiled as before, with the same variables to train and frozen values."""
        if _what_is_trained(self.model) != self._compiled:
            return False
        return bool(np.array_equal(digest_of(self.model, self._parts.frozen), self._digest))

    def begun(self) -> None:
        """Takes over changes to the model since the job last read it; call when a training run has begun.

        Raises:
          ModelError: it has changed, but its values belong to a job on parameter servers.
          ModelMismatch: its frozen values differ from the job's.
        """
        engine = self.trainer.join()
        self._check_frozen(engine)
        fresh, changed = not self._known, self._changed()
        if self._on_ps:
            if changed and not fresh:
                raise ModelError(
                    f"fit: {changed[0]} (and {len(changed) - 1} more) has changed since the last training run, but the "
                    "model's values are on the parameter servers, where only training changes them. Continue from here "
                    "in another job: save the model, and load it in a new program."
                )
            if fresh and self._optimizer_has_begun() and engine.peers.is_chief and engine.checkpoints.restored is None:
                self._say(
                    f"the optimizer {self.model.optimizer.name} has already made {self._iterations()} updates; on "
                    "parameter servers its averages start from scratch"
                )
            return
        together = self._strategy.gradients_per_update > 1
        if engine.checkpoints.restored is not None and fresh:
            return
        if together or changed or (fresh and self._optimizer_has_begun()):
            engine.values.assign(*self._values_of_model())

    def adopt_changes(self) -> None:
        """Takes over a callback's changes to the model during a training run.

        Raises:
          ModelError: there are several tasks, but callbacks run on the chief only.
        """
        changed = self._changed()
        if self._strategy.cluster is None:
            if changed:
                self.trainer.join().values.assign(*self._values_of_model())
            return
        # All tasks receive the learning rate with a step.
        unheard = [name for name in changed if name != f"optimizer/{LEARNING_RATE}/"]
        if unheard:
            raise ModelError(
                f"fit: a callback has changed {unheard[0]} (and {len(unheard) - 1} more) during the training, "
                "but other tasks of the job do not see the change. Change values between two "
                "calls of fit, or in one process without a cluster."
            )

    def _changed(self) -> list[str]:
        """Returns the model's variables whose values have changed since the job last read or wrote them."""
        changed = []
        for name, variable in self._entries():
            known = self._known.get(id(variable))
            if known is not None and known[0] is variable.value:
                continue
            digest = _digest(np.asarray(variable.value))
            if known is None or known[1] != digest:  # an evaluation replaces all values by copies
                changed.append(name)
            self._known[id(variable)] = variable.value, digest
        return changed

    def _check_frozen(self, engine: Engine) -> None:
        """Checks that all tasks have frozen the same values, which are not part of the job."""
        if self._digest is None:
            return
        engine.values.params()
        if not np.array_equal(engine.values.model_state()[FROZEN], self._digest):
            names = ", ".join(sorted({variable.path for variable in self._parts.frozen})[:4])
            raise ModelMismatch(
                f"{engine.peers.task}: the variables that are not trained ({names}, ...) have other values here than "
                "on the task that began the job. Every task makes its own: call keras.utils.set_random_seed before "
                "creating the model, or load the same file on all tasks."
            )

    def _state(self) -> PyTree:
        frozen = {} if self._digest is None else {FROZEN: self._digest}
        return _values(self._parts.changed) | frozen or None

    def _optimizer_has_begun(self) -> bool:
        return self._iterations() > 0

    def _iterations(self) -> int:
        return int(iterations(self.model.optimizer).value)

    def _entries(self) -> list[tuple[str, Any]]:
        entries = [*self._parts.trained.items(), *self._parts.changed.items()]
        if not self._on_ps:  # the optimizer's state is on the ps
            pairs = zip(self._slots, self.model.optimizer.variables, strict=True)
            entries += [(f"optimizer/{kind}/{owner}", variable) for (kind, owner), variable in pairs]
        return entries

    def _values_of_model(self) -> tuple[PyTree, PyTree, PyTree]:
        params = _values(self._parts.trained)
        values = [np.asarray(variable.value) for variable in self.model.optimizer.variables]
        named = self._optimizer.named(params, self._slots, values)
        return params, self._state(), named

    def fill(self) -> None:
        """Gives the Keras model the current values of the job."""
        engine = self.trainer.join()
        params = engine.values.params()
        state = engine.values.model_state()
        for name, variable in self._parts.trained.items():
            self._write(variable, params[name])
        for name, variable in self._parts.changed.items():
            self._write(variable, state[name])
        self._fill_optimizer(engine)
        self.running.write()

    def _fill_optimizer(self, engine: Engine) -> None:
        state = engine.values.optimizer_state()
        if state is None:
            self._write(iterations(self.model.optimizer), np.int32(engine.steps.global_step))
            return
        for variable, value in zip(self.model.optimizer.variables, listed(state, self._slots), strict=True):
            self._write(variable, value)

    def _write(self, variable: Any, value: Any) -> None:
        variable.assign(value)
        self._known[id(variable)] = variable.value, _digest(np.asarray(variable.value))


def _values(variables: Any) -> dict[str, Any]:
    return {name: np.asarray(variable.value) for name, variable in variables.items()}


def _digest(value: Any) -> int:
    return xxh64(np.ascontiguousarray(value).tobytes()).intdigest()


def _what_is_trained(model: Any) -> tuple[Any, ...]:
    """Returns the parts of a job's functions; compile() replaces all but the variables."""
    return (
        tuple(id(variable) for variable in model.trainable_variables),
        tuple(id(variable) for variable in model.non_trainable_variables),
        id(model.optimizer),
        *map(id, compiled_with(model)),
    )


def _described(structure: Any, shapes: list[tuple[int, Any]]) -> str:
    return f"{structure} of {', '.join(f'{dtype} with {rank} axes' for rank, dtype in shapes)}"


def _is_on_ps(strategy: Strategy) -> bool:
    return strategy.cluster is not None and bool(strategy.cluster.spec.ps)


def _check(model: Any, strategy: Strategy) -> None:
    kind = type(model)
    if kind.train_step is not JAXTrainer.train_step:
        raise ModelError(
            f"{kind.__name__} has its own train_step, which makes gradients and updates in one process, so a "
            "strategy cannot separate them. Override call(), compute_loss() or compute_metrics() instead; "
            "or write the loop with trainband.Trainer, whose loss may call model.stateless_call()."
        )
    if not model.trainable_variables:
        raise ModelError(f"{model.name} has no trainable variables; make some trainable.")
    if model.run_eagerly:
        raise ModelError(
            "compile(run_eagerly=True) runs layers one by one, but trainband compiles the step; remove it."
        )
    if _is_on_ps(strategy) and getattr(model.optimizer, "use_ema", False):
        raise ModelError(
            f"the optimizer {model.optimizer.name} has use_ema=True: its averages would stay on the parameter servers, "
            "and fit could not copy them to the model at its end. Use keras.callbacks.SwapEMAWeights with another "
            "strategy, or a smaller learning rate at the end."
        )
    if keras.distribution.distribution() is not None:
        raise ModelError(
            "keras.distribution.set_distribution is in effect, which places variables itself; use it or a trainband "
            "strategy, not both."
        )
