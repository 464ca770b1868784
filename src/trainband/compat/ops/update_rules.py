"""TensorFlow 1's update formulas, as pure functions that one process and a ps both use.

They differ from those of other libraries in ways that change results: Adam's epsilon is added after the bias correction
went into the learning rate, RMSProp's stands under the root and its average begins at one, Adagrad's sum at 0.1.

Source: tensorflow/core/kernels/training_ops.cc, tensorflow/python/training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from trainband.runtime.overrides import override

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An update formula.

    Attributes:
      type: the operation's name: `ApplyAdam`.
      slots: what it keeps for each variable, and what that begins with; in the order of their variables' names.
      shared: what it keeps once: the name and the first value of numbers that are multiplied by another after each
        update, and the name of that.
      by_row: whether rows that are not looked up stay as they are, their slots too, where a gradient is of some rows.
    """

    type: str
    slots: Sequence[tuple[str, float]] = ()
    shared: Sequence[tuple[str, str]] = ()
    by_row: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        """The new value of a variable, and its new slots.

        Args:
          value: of the variable.
          gradient: likewise.
          slots: by name, in the variable's shape.
          hyper: the learning rate and the like, and what is shared, as scalars.
        """
        raise NotImplementedError


class GradientDescent(Rule):
    """value - learning_rate gradient."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        return value - hyper["learning_rate"] * gradient, slots


class Momentum(Rule):
    """A sum of gradients that fades, times the learning rate."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rate, momentum = hyper["learning_rate"], hyper["momentum"]
        total = slots["momentum"] * momentum + gradient
        step = gradient * rate + total * momentum * rate if self.settings["nesterov"] else rate * total
        return value - step, {"momentum": total}


class Adam(Rule):
    """Kingma and Ba's, in the form before their section 2.1: with epsilon hat."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        rate = hyper["learning_rate"] * jnp.sqrt(1 - hyper["beta2_power"]) / (1 - hyper["beta1_power"])
        first = slots["m"] + (gradient - slots["m"]) * (1 - beta1)
        second = slots["v"] + (gradient * gradient - slots["v"]) * (1 - beta2)
        return value - rate * first / (jnp.sqrt(second) + hyper["epsilon"]), {"m": first, "v": second}


class Adagrad(Rule):
    """Divided by the root of the sum of squares."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        total = slots["accumulator"] + gradient * gradient
        return value - hyper["learning_rate"] * gradient / jnp.sqrt(total), {"accumulator": total}


class Adadelta(Rule):
    """Zeiler's."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rho, epsilon = hyper["rho"], hyper["epsilon"]
        total = slots["accum"] * rho + gradient * gradient * (1 - rho)
        step = jnp.sqrt(slots["accum_update"] + epsilon) / jnp.sqrt(total + epsilon) * gradient
        steps = slots["accum_update"] * rho + step * step * (1 - rho)
        return value - step * hyper["learning_rate"], {"accum": total, "accum_update": steps}


class RMSProp(Rule):
    """Hinton's, with momentum, and centred if asked for."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        fade = 1 - hyper["decay"]
        squares = slots["rms"] + (gradient * gradient - slots["rms"]) * fade
        new = {"rms": squares}
        spread = squares + hyper["epsilon"]
        if self.settings["centered"]:
            new["mg"] = slots["mg"] + (gradient - slots["mg"]) * fade
            spread = spread - new["mg"] * new["mg"]
        new["momentum"] = slots["momentum"] * hyper["momentum"] + hyper["learning_rate"] * gradient / jnp.sqrt(spread)
        return value - new["momentum"], new


class Ftrl(Rule):
    """McMahan and others', with both kinds of shrinkage."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rate, power, l1, l2 = (hyper[name] for name in ("learning_rate", "learning_rate_power", "l1", "l2"))
        shrunk = gradient + 2 * hyper["l2_shrinkage"] * value
        total = slots["accum"] + gradient * gradient
        linear = slots["linear"] + shrunk - (total**-power - slots["accum"] ** -power) / rate * value
        quadratic = total**-power / rate + 2 * l2
        new = jnp.where(jnp.abs(linear) > l1, (jnp.sign(linear) * l1 - linear) / quadratic, 0.0)
        return new.astype(value.dtype), {"accum": total, "linear": linear}


def _shrunk(value: Any, rate: Any, hyper: Values) -> Any:
    """A value moved towards zero, by the strengths of two regularizers and a rate."""
    nearer = jnp.sign(value) * jnp.maximum(jnp.abs(value) - rate * hyper["l1"], 0)
    return nearer / (1 + hyper["l2"] * rate)


class ProximalGradientDescent(Rule):
    """Gradient descent, and then a step towards zero."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rate = hyper["learning_rate"]
        return _shrunk(value - rate * gradient, rate, hyper), slots


class ProximalAdagrad(Rule):
    """Adagrad, and then a step towards zero."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        total = slots["accumulator"] + gradient * gradient
        rate = hyper["learning_rate"] / jnp.sqrt(total)
        return _shrunk(value - rate * gradient, rate, hyper), {"accumulator": total}


class AdagradDA(Rule):
    """Adagrad by dual averaging: the value follows from the sums of all gradients alone."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        del value
        rate, steps = hyper["learning_rate"], hyper["global_step"]
        total = slots["gradient_accumulator"] + gradient
        squares = slots["gradient_squared_accumulator"] + gradient * gradient
        nearer = jnp.sign(total) * jnp.maximum(jnp.abs(total) - hyper["l1"] * steps, 0)
        new = -rate * nearer / (hyper["l2"] * steps * rate + jnp.sqrt(squares))
        return new, {"gradient_accumulator": total, "gradient_squared_accumulator": squares}


def update_rows(rule: Rule, value: Any, rows: Any, numbers: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
    """Update only the rows that have a gradient; the gradients of a row that is listed twice add up.

    Args:
      rows: [n, ...], the gradient's rows.
      numbers: int[n], their row numbers in the variable; numbers out of range are ignored.
    """
    value = jnp.asarray(value)
    if not rule.by_row:
        dense = jnp.zeros_like(value).at[numbers].add(rows)
        return rule.update(value, dense, slots, hyper)
    outside = value.shape[0]
    distinct, places = jnp.unique(numbers, size=numbers.shape[0], fill_value=outside, return_inverse=True)
    summed = jnp.zeros_like(rows).at[places.reshape(-1)].add(rows)
    there = {name: jnp.asarray(slot).at[distinct].get(mode="clip") for name, slot in slots.items()}
    new, after = rule.update(value.at[distinct].get(mode="clip"), summed, there, hyper)
    return value.at[distinct].set(new, mode="drop"), {
        name: jnp.asarray(slots[name]).at[distinct].set(slot, mode="drop") for name, slot in after.items()
    }
