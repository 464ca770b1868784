"""A step of a model with a `train_step` of its own: a function of a batch, as `tf.function` runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.function import Function
from trainband.compat.tf2.eager.tape import GradientTape
from trainband.compat.tf2.keras.inside import JAXTrainer, keras, loss_tracker, unpack
from trainband.compat.tf2.keras.lifting import is_array, is_leaf, lifted, token
from trainband.compat.tf2.keras.variables import inside, put
from trainband.keras.distributed import MARK

Step = Callable[[Any], Any]
"""A function of a batch, in tensors."""


def takes_only_data(step: Any) -> bool:
    """Whether a method of a class is a step as TensorFlow has it: of a batch, and not of values and a batch."""
    parameters = [
        one
        for one in inspect.signature(step).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    return len(parameters) == 2


def has_own(model: Any, kind: str) -> bool:
    """Whether a model's `train_step`, `test_step` or `predict_step` is a script's own, or must run as it stands."""
    own = getattr(type(model), f"{kind}_step")
    if own is not getattr(JAXTrainer, f"{kind}_step"):
        return takes_only_data(own)
    return (bool(model.run_eagerly) and not hasattr(model, MARK)) or any(
        "_runs_as_it_stands" in vars(layer)
        for layer in model._flatten_layers()  # noqa: SLF001 - as Keras walks over them
    )


class Steps:
    """What Keras's loop calls for each batch.

    Args:
      model: whose.
      kind: `train`, `test` or `predict`.
    """

    def __init__(self, model: Any, kind: str) -> None:
        step = getattr(model, f"{kind}_step")
        if isinstance(step, Function):
            step = step.python_function
        self._model = model
        self._step: Step = step if model.run_eagerly else Function(step)
        self.run: Callable[[Step, Any], Any] | None = None
        """How a step of a batch is run, if not here as a function."""
        self._parts = {"train": 4, "test": 3, "predict": 2}[kind]

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        del state
        found = self._once(next(iterator))
        for _ in range(self._model.steps_per_execution - 1):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            found = self._once(batch)
        return found, (None,) * self._parts

    def _once(self, batch: Any) -> Any:
        if self.run is not None:
            return flat_logs(self.run(self._step, batch))
        data = jax.tree.map(lambda one: convert(one) if is_array(one) else one, batch, is_leaf=is_leaf)
        if isinstance(data, tuple):  # a call of one batch says that there are no targets
            while data and data[-1] is None:
                data = data[:-1]
            data = data[0] if len(data) == 1 else data
        return flat_logs(self._step(data))


def flat_logs(logs: Any) -> Any:
    """The logs of a step, with those of metrics that are several in their place."""
    if not isinstance(logs, dict) or not any(isinstance(one, dict) for one in logs.values()):
        return logs
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= value if isinstance(value, dict) else {name: value}
    return found


def _has_training(model: Any) -> bool:
    return bool(getattr(model, "_call_has_training_arg", False))


def _called(model: Any, x: Any, training: bool) -> Any:
    return model(x, training=training) if _has_training(model) else model(x)


def train_step(model: Any, data: Any) -> Any:
    """Keras's training step, of a batch in tensors."""
    x, y, sample_weight = unpack(data)
    with GradientTape() as tape:
        y_pred = _called(model, x, True)
        loss = _loss(model, x, y, y_pred, sample_weight, True)
        scaled = model.optimizer.scale_loss(loss)
    loss_tracker(model).update_state(loss, sample_weight=_rows(x))
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def test_step(model: Any, data: Any) -> Any:
    """Keras's step of an evaluation."""
    x, y, sample_weight = unpack(data)
    y_pred = _called(model, x, False)
    loss = _loss(model, x, y, y_pred, sample_weight, False)
    loss_tracker(model).update_state(loss, sample_weight=_rows(x))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def predict_step(model: Any, data: Any) -> Any:
    """Keras's step of a prediction."""
    x, _, _ = unpack(data)
    return _called(model, x, False)


def _loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool) -> Any:
    return model._compute_loss(x, y, y_pred, sample_weight, training=training)  # noqa: SLF001 - asks what it takes


def _rows(x: Any) -> int:
    first = next(one for one in jax.tree.leaves(x, is_leaf=is_leaf) if one is not None)
    return int(first.shape[0])


def _stepping(original: Callable[..., Any], own: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        return own(self, given[0]) if len(given) == 1 else original(self, *given)

    return step


def _compute_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_loss(
        self: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        if inside():
            return original(self, x, y, y_pred, sample_weight, training)
        total = None
        loss = self._compile_loss
        if loss is not None:
            total = _of_compiled(loss, y, y_pred, sample_weight)
        for one in self.losses:
            part = _sum(one)
            total = part if total is None else total + part
        return convert(0.0) if total is None else total

    return compute_loss


def _of_compiled(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """What a model was compiled with gives, which keeps the losses of its outputs besides."""
    if not loss.built:
        loss.build(y, y_pred)
    kept = [variable for metric in loss.metrics for variable in metric.variables]

    def run(values: list[Any], given: Any) -> Any:
        mapping = list(zip(kept, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            total = loss(*given)
        return total, [scope.get_current_value(variable) for variable in kept]

    total, changed = lifted(("compiled loss", token(loss), len(kept)), run, kept, (y, y_pred, sample_weight))
    put(kept, changed)
    return total


def _sum(value: Any) -> Any:
    tensor = convert(value)
    if not tensor.aval[0]:
        return tensor
    from trainband.compat.ops.table import TABLE
    from trainband.compat.tf2.eager.execute import function_of

    return function_of(TABLE["tf.reduce_sum"])(tensor)


class _CompiledMetrics:
    """`model.compiled_metrics`, as Keras 2 has it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def _of_model(self) -> Any:
        return self._model._compile_metrics  # noqa: SLF001 - what compile() has made

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch."""
        if self._of_model is not None:
            self._of_model.update_state(y_true, y_pred, sample_weight)

    def reset_state(self) -> None:
        """Begins anew."""
        if self._of_model is not None:
            self._of_model.reset_state()

    reset_states = reset_state

    @property
    def metrics(self) -> list[Any]:
        """Those that were given to compile()."""
        return [] if self._of_model is None else list(self._of_model.metrics)


class _CompiledLoss:
    """`model.compiled_loss`, as Keras 2 has it: called, it also keeps the loss in the metric of that name."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None) -> Any:
        loss = self._model._compile_loss  # noqa: SLF001 - what compile() has made
        if loss is None:
            raise ValueError("The model cannot be compiled because it has no loss to optimize.")
        total = _of_compiled(loss, y_true, y_pred, sample_weight)
        for one in regularization_losses or ():
            total = total + _sum(one)
        loss_tracker(self._model).update_state(total, sample_weight=_rows(y_pred))
        return total

    @property
    def metrics(self) -> list[Any]:
        """That of the loss."""
        return [loss_tracker(self._model)]


def install() -> None:
    """Gives models steps as TensorFlow has them."""
    JAXTrainer.train_step = _stepping(JAXTrainer.train_step, train_step)
    JAXTrainer.test_step = _stepping(JAXTrainer.test_step, test_step)
    JAXTrainer.predict_step = _stepping(JAXTrainer.predict_step, predict_step)
    JAXTrainer.compute_loss = _compute_loss(JAXTrainer.compute_loss)
    JAXTrainer.compiled_loss = property(_CompiledLoss)
    JAXTrainer.compiled_metrics = property(_CompiledMetrics)
