"""`tf.keras.mixed_precision`: policies, and optimizers that scale losses."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf2.eager.execute import cast_to, convert
from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.variables import inside


def set_policy(policy: Any) -> None:
    """The dtypes of the layers that are made from now on: `mixed_float16`, `mixed_bfloat16`, `float32`."""
    keras.mixed_precision.set_dtype_policy(getattr(policy, "name", policy))


set_global_policy = set_policy


def global_policy() -> Any:
    """The policy of layers that are made now."""
    return keras.mixed_precision.dtype_policy()


class Policy(keras.mixed_precision.DTypePolicy):  # type: ignore[misc, name-defined]
    """A policy. A `loss_scale` belongs to the optimizer."""

    def __init__(self, name: Any, loss_scale: Any = None) -> None:
        del loss_scale
        super().__init__(getattr(name, "name", name))


class LossScaleOptimizer(keras.mixed_precision.LossScaleOptimizer):  # type: ignore[misc, name-defined]
    """An optimizer whose losses are scaled so that the gradients are not too small for float16.

    A program may scale the loss and the gradients itself, by `get_scaled_loss` and `get_unscaled_gradients`, or leave
    both to `minimize`, `fit` and `apply_gradients`.

    Args:
      inner_optimizer: makes the updates.
      dynamic: whether the scale follows the gradients.
      initial_scale, dynamic_growth_steps: of the scale; see Keras.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        dynamic: Any = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        **settings: Any,
    ) -> None:
        loss_scale = settings.pop("loss_scale", None)
        if isinstance(loss_scale, int | float):
            dynamic, initial_scale = False, loss_scale
        elif isinstance(dynamic, str | int | float) and not isinstance(dynamic, bool):
            dynamic, initial_scale = dynamic == "dynamic", None if dynamic == "dynamic" else float(dynamic)
        steps = dynamic_growth_steps or 2000
        super().__init__(
            inner_optimizer, initial_scale or 2.0**15, steps if dynamic else 2**31 - 2, name=settings.get("name")
        )
        self._is_unscaled = False

    @property
    def loss_scale(self) -> Any:
        """By what losses are multiplied."""
        return convert(self.dynamic_scale) if self.built else convert(float(self.initial_scale))

    def get_scaled_loss(self, loss: Any) -> Any:
        """The loss, multiplied by the scale."""
        if callable(loss) and not hasattr(loss, "dtype"):
            return lambda: self.get_scaled_loss(loss())
        tensor = convert(loss)
        return tensor * cast_to(self.loss_scale, tensor.dtype)

    def get_unscaled_gradients(self, grads: Any) -> list[Any]:
        """The gradients, divided by the scale."""
        self._is_unscaled = True
        return [None if one is None else convert(one) / cast_to(self.loss_scale, convert(one).dtype) for one in grads]

    def scale_loss(self, loss: Any) -> Any:
        """The loss, multiplied by the scale."""
        return super().scale_loss(loss) if inside() else self.get_scaled_loss(loss)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Applies gradients, if they are finite, and fits the scale to them."""
        if self._is_unscaled and not inside():  # Keras divides by the scale
            grads = [
                None if one is None else convert(one) * cast_to(self.loss_scale, convert(one).dtype) for one in grads
            ]
        return super().apply(grads, trainable_variables)


class LossScaleOptimizerV1(LossScaleOptimizer):
    """The older one: its second argument is the scale, or `dynamic`."""

    def __init__(self, optimizer: Any, loss_scale: Any = "dynamic") -> None:
        super().__init__(optimizer, dynamic=loss_scale)
