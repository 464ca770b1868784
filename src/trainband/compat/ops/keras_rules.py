"""The update formulas of `tf.keras.optimizers`, where they differ from those of `tf.train`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.update_rules import Rule, Values
from trainband.runtime.overrides import override


class KerasMomentum(Rule):
    """A step that fades: the learning rate is in what is kept."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rate, momentum = hyper["learning_rate"], hyper["momentum"]
        step = slots["momentum"] * momentum - rate * gradient
        moved = step * momentum - rate * gradient if self.settings["nesterov"] else step
        return value + moved, {"momentum": step}


class KerasRMSprop(Rule):
    """Hinton's, where epsilon is outside the root, unless there is momentum."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        rho, rate, epsilon = hyper["rho"], hyper["learning_rate"], hyper["epsilon"]
        new = {"rms": rho * slots["rms"] + (1 - rho) * gradient * gradient}
        spread = new["rms"]
        if self.settings["centered"]:
            new["mg"] = rho * slots["mg"] + (1 - rho) * gradient
            spread = spread - new["mg"] * new["mg"]
        if not self.settings["momentum"]:
            return value - rate * gradient / (jnp.sqrt(spread) + epsilon), new
        new["momentum"] = slots["momentum"] * hyper["momentum"] + rate * gradient / jnp.sqrt(spread + epsilon)
        return value - new["momentum"], new


class KerasAdagrad(Rule):
    """Divided by the root of the sum of squares, and epsilon."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        total = slots["accumulator"] + gradient * gradient
        return value - hyper["learning_rate"] * gradient / (jnp.sqrt(total) + hyper["epsilon"]), {"accumulator": total}


class Adamax(Rule):
    """Adam by the largest gradient that fades."""

    @override
    def update(self, value: Any, gradient: Any, slots: Values, hyper: Values) -> tuple[Any, Values]:
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        first = slots["m"] + (gradient - slots["m"]) * (1 - beta1)
        largest = jnp.maximum(beta2 * slots["v"], jnp.abs(gradient))
        rate = hyper["learning_rate"] / (1 - hyper["beta1_power"])
        return value - rate * first / (largest + hyper["epsilon"]), {"m": first, "v": largest}
