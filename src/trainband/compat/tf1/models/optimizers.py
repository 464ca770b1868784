"""`tf.keras.optimizers`: the optimizers of `tf.train` with Keras's arguments and formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainband.compat.ops import clipping, keras_rules, math, update_rules
from trainband.compat.ops.dtypes import int64
from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.graph import Operation, get_default_graph
from trainband.compat.tf1.graphs.record import constant, convert
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.models import phase
from trainband.compat.tf1.models.named import snake_case
from trainband.compat.tf1.operations.gradients import gradients
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.compat.tf1.training.rule_optimizer import RuleOptimizer
from trainband.runtime.overrides import override


class Optimizer(RuleOptimizer):
    """What all of Keras's optimizers take.

    Args:
      settings: the numbers of the formula.
      more: `lr` or `learning_rate`, `decay`, `clipnorm`, `clipvalue` and `name`.
    """

    def __init__(self, learning_rate: Any, settings: Mapping[str, Any], more: dict[str, Any]) -> None:
        rate = more.pop("lr", learning_rate)
        super().__init__(rate, False, more.pop("name", None) or type(self).__name__)
        self._decay = float(more.pop("decay", 0.0) or 0.0)
        self._clips = more.pop("clipnorm", None), more.pop("clipvalue", None)
        if more:
            raise TypeError(f"Unexpected keyword argument passed to optimizer: {next(iter(more))}")
        self._settings = dict(settings)
        self._rate_variable: Variable | None = None
        self._steps: Any = None
        self._counts = False

    @override
    def hyper(self) -> dict[str, Any]:
        return {"learning_rate": self._rate(), **self._settings}

    def _rate(self) -> Any:
        if callable(self.learning_rate) and hasattr(self.learning_rate, "of_step"):
            return self.learning_rate.of_step(recorded(math.cast)(self.iterations, "float32"))
        rate = self.learning_rate if self._rate_variable is None else self._rate_variable.as_tensor()
        if not self._decay:
            return rate
        return rate / (1.0 + self._decay * recorded(math.cast)(self.iterations, "float32"))

    @property
    def iterations(self) -> Any:
        """The number of steps: the global step, if the graph has one."""
        if self._steps is None or self._steps.graph is not get_default_graph():
            self._steps = get_global_step()
        if self._steps is None:
            self._steps = Variable(
                lambda: constant(np.zeros([], np.int64), dtype=int64), trainable=False, name="iterations"
            )
        return self._steps

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self._steps, self._counts = variable, True

    @property
    def lr(self) -> Any:
        """The learning rate: a variable, once a model has been compiled with it."""
        return self.learning_rate if self._rate_variable is None else self._rate_variable

    @lr.setter
    def lr(self, value: Any) -> None:
        if self._rate_variable is not None and not hasattr(value, "as_tensor"):
            self._rate_variable.load(value, phase.get_session())
        else:
            self.learning_rate = value

    def adjustable(self) -> None:
        """Makes the learning rate a variable, which callbacks set."""
        if isinstance(self.learning_rate, int | float | np.number) and self._rate_variable is None:
            rate = np.asarray(self.learning_rate, np.float32)
            self._rate_variable = Variable(lambda: constant(rate), trainable=False, name=f"{self.name}/lr")

    @override
    def minimize(self, loss: Any, var_list: Any = None, grad_loss: Any = None, name: Any = None, **more: Any) -> Any:  # type: ignore[override]
        """An operation that makes one step."""
        if hasattr(var_list, "assign_add") and more.get("global_step") is None:  # called as an optimizer of tf.train
            more, var_list = {**more, "global_step": var_list}, None
        found = self.compute_gradients(loss, var_list() if callable(var_list) else var_list, grad_loss=grad_loss)
        return self.apply_gradients(found, more.get("global_step"), name)

    @override
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Operation:
        if isinstance(global_step, str):
            global_step, name = None, global_step
        pairs = [(self._clipped(gradient), variable) for gradient, variable in grads_and_vars]
        needed = self._decay or hasattr(self.learning_rate, "of_step")
        if global_step is None and (self._counts or (needed and self.iterations is not get_global_step())):
            global_step = self.iterations
        return super().apply_gradients(pairs, global_step, name)

    def _clipped(self, gradient: Any) -> Any:
        norm, value = self._clips
        if gradient is None or (norm is None and value is None):
            return gradient
        if isinstance(gradient, IndexedSlices):
            gradient = convert(gradient)
        if norm is not None:
            gradient = recorded(clipping.clip_by_norm)(gradient, norm)
        return gradient if value is None else recorded(clipping.clip_by_value)(gradient, -value, value)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The gradients of a loss by variables."""
        return [self._clipped(one) for one in gradients(loss, list(params))]

    def get_updates(self, loss: Any, params: Any) -> list[Any]:
        """The operations of one step."""
        return [self.minimize(loss, list(params))]

    def get_config(self) -> dict[str, Any]:
        """What it can be made from again."""
        return {"name": self.name, "learning_rate": self.learning_rate, "decay": self._decay, **self._settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Makes one from what `get_config` gave."""
        names = {"beta1": "beta_1", "beta2": "beta_2"}
        return cls(**{names.get(key, key): value for key, value in config.items()})

    def again(self) -> Any:
        """One like this, for another graph."""
        made = type(self).from_config(self.get_config())
        made._clips = self._clips  # noqa: SLF001 - its own
        return made


class SGD(Optimizer):
    """Gradient descent, with momentum if asked for."""

    def __init__(
        self, learning_rate: Any = 0.01, momentum: float = 0.0, decay: float = 0.0, nesterov: bool = False, **more: Any
    ) -> None:
        super().__init__(learning_rate, {"momentum": momentum} if momentum else {}, {**more, "decay": decay})
        self._nesterov = nesterov

    @override
    def rule(self) -> Rule:
        if not self._settings:
            return update_rules.GradientDescent(type="ApplyGradientDescent")
        settings = {"nesterov": self._nesterov}
        return keras_rules.KerasMomentum(
            type="ApplyKerasMomentum", slots=[("momentum", 0.0)], by_row=True, settings=settings
        )  # fmt: skip

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "nesterov": self._nesterov}


class RMSprop(Optimizer):
    """Hinton's."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float | None = 1e-7,
        centered: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(learning_rate, {"rho": rho, "momentum": momentum, "epsilon": epsilon or 1e-7}, more)
        self._centered = centered

    @override
    def rule(self) -> Rule:
        names = ["rms", *(["mg"] if self._centered else []), *(["momentum"] if self._settings["momentum"] else [])]
        settings = {"centered": self._centered, "momentum": bool(self._settings["momentum"])}
        return keras_rules.KerasRMSprop(
            type="ApplyKerasRMSprop", slots=[(name, 0.0) for name in names], settings=settings
        )  # fmt: skip

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "centered": self._centered}


class Adagrad(Optimizer):
    """Adagrad."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float | None = 1e-7,
        **more: Any,
    ) -> None:
        super().__init__(learning_rate, {"epsilon": epsilon or 1e-7}, more)
        self._first = initial_accumulator_value

    @override
    def rule(self) -> Rule:
        return keras_rules.KerasAdagrad(type="ApplyAdagradV2", slots=[("accumulator", self._first)], by_row=True)

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial_accumulator_value": self._first}


class Adadelta(Optimizer):
    """Adadelta."""

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float | None = 1e-7, **more: Any
    ) -> None:
        super().__init__(learning_rate, {"rho": rho, "epsilon": epsilon or 1e-7}, more)

    @override
    def rule(self) -> Rule:
        return update_rules.Adadelta(type="ApplyAdadelta", slots=[("accum", 0.0), ("accum_update", 0.0)], by_row=True)


class Adam(Optimizer):
    """Adam.

    Raises:
      NotImplementedError: `amsgrad`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = 1e-7,
        decay: float = 0.0,
        amsgrad: bool = False,
        **more: Any,
    ) -> None:
        if amsgrad:
            raise NotImplementedError("tf.keras.optimizers.Adam(amsgrad=True) is not supported.")
        settings = {"beta1": beta_1, "beta2": beta_2, "epsilon": epsilon or 1e-7}
        super().__init__(learning_rate, settings, {**more, "decay": decay})

    formula: Callable[..., Rule] = update_rules.Adam
    _powers = (("beta1_power", "beta1"), ("beta2_power", "beta2"))

    @override
    def rule(self) -> Rule:
        kind = f"Apply{type(self).__name__}"
        return type(self).formula(type=kind, slots=[("m", 0.0), ("v", 0.0)], shared=list(self._powers))


class Adamax(Adam):
    """Adam by the largest gradient that fades."""

    formula = keras_rules.Adamax
    _powers = (("beta1_power", "beta1"),)  # type: ignore[assignment]


class Ftrl(Optimizer):
    """McMahan and others'."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        **more: Any,
    ) -> None:
        settings = {
            "learning_rate_power": learning_rate_power,
            "l1": l1_regularization_strength,
            "l2": l2_regularization_strength,
            "l2_shrinkage": l2_shrinkage_regularization_strength,
        }
        super().__init__(learning_rate, settings, more)
        self._first = initial_accumulator_value

    @override
    def rule(self) -> Rule:
        return update_rules.Ftrl(type="ApplyFtrl", slots=[("accum", self._first), ("linear", 0.0)], by_row=True)

    @override
    def again(self) -> Any:
        made = Ftrl(self.learning_rate, initial_accumulator_value=self._first)
        made._settings, made._decay, made._clips = dict(self._settings), self._decay, self._clips
        return made


# --- schedules


class LearningRateSchedule:
    """A learning rate as a function of the step."""

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step."""
        raise NotImplementedError("Learning rate schedule must override __call__")

    def of_step(self, step: Any) -> Any:
        """The learning rate of a step, which is a tensor."""
        return self(step)


class ExponentialDecay(LearningRateSchedule):
    """Falls by a factor in a number of steps."""

    def __init__(
        self, initial_learning_rate: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False, name: Any = None
    ) -> None:
        del name
        self._first, self._steps, self._factor, self._stairs = initial_learning_rate, decay_steps, decay_rate, staircase

    @override
    def __call__(self, step: Any) -> Any:
        part = recorded(math.cast)(step, "float32") / float(self._steps)
        return recorded(math.pow_)(float(self._factor), recorded(math.floor)(part) if self._stairs else part) * float(
            self._first
        )


class PiecewiseConstantDecay(LearningRateSchedule):
    """One number up to each boundary."""

    def __init__(self, boundaries: Any, values: Any, name: Any = None) -> None:
        del name
        self._boundaries, self._values = list(boundaries), list(values)

    @override
    def __call__(self, step: Any) -> Any:
        at = recorded(math.cast)(step, "float32")
        found = convert(float(self._values[0]))
        for boundary, before, after in zip(self._boundaries, self._values, self._values[1:], strict=False):
            found = found + recorded(math.cast)(at > float(boundary), "float32") * float(after - before)
        return found


# --- by name

_ALL: dict[str, Any] = {
    "sgd": SGD, "rmsprop": RMSprop, "adagrad": Adagrad, "adadelta": Adadelta, "adam": Adam, "adamax": Adamax,
    "ftrl": Ftrl,
}  # fmt: skip


def get(identifier: Any) -> Any:
    """An optimizer by its name, or as it is; one of `tf.train` is fine.

    Raises:
      ValueError: there is none of this name.
    """
    if isinstance(identifier, Mapping):
        return get(identifier["class_name"]).from_config(identifier.get("config", {}))
    if isinstance(identifier, str):
        found = _ALL.get(identifier.lower()) or _ALL.get(snake_case(identifier))
        if found is None:
            raise ValueError(f"Unknown optimizer: {identifier}. Expected one of: {', '.join(_ALL)}.")
        return found()
    if not hasattr(identifier, "apply_gradients"):
        raise ValueError(f"Could not interpret optimizer identifier: {identifier}")
    return identifier
