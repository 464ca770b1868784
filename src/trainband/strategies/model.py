"""Model: the pure functions that a user gives, with their promises checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from trainband.errors import ModelError
from trainband.ps.program import Optimizer
from trainband.ps.variables import PyTree, Variables

Metrics = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What is trained, and how.

    Attributes:
      init: `init(key) -> params`, any pytree of floating-point arrays.
      loss: `loss(params, batch) -> scalar`, or `(scalar, {name: metric})`.
      optimizer: any optax GradientTransformation.
      seed: from which `init`'s key is made.
    """

    init: Callable[[jax.Array], PyTree]
    loss: Callable[[PyTree, PyTree], Any]
    optimizer: Optimizer
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("init", "loss"):
            if not callable(getattr(self, name)):
                raise ModelError(f"{name} must be a function, got {getattr(self, name)!r}.")
        for name in ("init", "update"):
            if not callable(getattr(self.optimizer, name, None)):
                raise ModelError(
                    f"the optimizer must have the functions init and update, as optax's have, got {self.optimizer!r}."
                )

    def first_params(self) -> PyTree:
        """The params to start from, as JAX's arrays: the same on every machine for the same seed."""
        return jax.tree.map(jnp.asarray, self.init(jax.random.key(self.seed)))

    def variables(self) -> Variables:
        """The variables that `init` makes, found without making them.

        Raises:
          ModelError: a leaf is no floating-point array, or its name cannot be used.
        """
        try:
            shapes = jax.eval_shape(self.first_params)
        except TypeError as exc:
            # A leaf that is no array (a string, a function): say which, in our words.
            Variables.of(self.init(jax.random.key(self.seed)))
            raise ModelError(f"init() cannot be traced: {exc}") from exc
        return Variables.of(shapes)

    def value(self, params: PyTree, batch: PyTree) -> tuple[jax.Array, Metrics]:
        """(loss, metrics) of a batch; traceable.

        Raises:
          ModelError: `loss` returned something else than a scalar, or a scalar and a dict.
        """
        returned = self.loss(params, batch)
        metrics: Metrics = {}
        if isinstance(returned, tuple):
            if len(returned) != 2 or not isinstance(returned[1], Mapping):
                raise ModelError(
                    "loss() must return a scalar or (scalar, {name: metric}); "
                    f"it returned a tuple of {', '.join(type(part).__name__ for part in returned)}."
                )
            returned, metrics = returned
        try:
            loss = jnp.asarray(returned)
        except (TypeError, ValueError) as exc:
            raise ModelError(f"loss() must return a floating-point scalar, got {returned!r}.") from exc
        if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise ModelError(
                f"loss() must return a floating-point scalar, got {loss.dtype}{list(loss.shape)}; "
                "take the mean over the batch, such as losses.mean()."
            )
        return loss, metrics

    def loss_only(self, params: PyTree, batch: PyTree) -> jax.Array:
        """The loss of a batch, for training: metrics are only computed where somebody reads them."""
        return self.value(params, batch)[0]


def examples_in(batch: PyTree) -> int:
    """How many examples a batch has: the length of its first array's first axis, 1 where there is none."""
    for leaf in jax.tree.leaves(batch):
        shape = getattr(leaf, "shape", ())
        return int(shape[0]) if shape else 1
    return 1
