"""Optimizers: optax's pair of pure functions, and how their updates change the params."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from trainband.errors import ModelError
from trainband.model.variables import PyTree


class Optimizer(Protocol):
    """An optax GradientTransformation: two pure functions."""

    @property
    def init(self) -> Any:
        """`init(params) -> state`."""
        ...

    @property
    def update(self) -> Any:
        """`update(gradient, state, params) -> (updates, state)`."""
        ...


@runtime_checkable
class JobSpecific(Optimizer, Protocol):
    """An optimizer made for one job: it knows the variables by name, and which ps holds them."""

    def update_state(self, name: str, value: Any, pushed: Any) -> Any:
        """Returns the new value of a variable of the model state after a push; others replace it by `pushed`."""
        ...


class NewParams(NamedTuple):
    """Updates of an optimizer that returns the new params, not what to add to them."""

    params: PyTree


def updates_of(optimizer: Optimizer, gradient: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    """`optimizer.update(gradient, state, params)`.

    Raises:
      ModelError: it cannot be called with these alone.
    """
    try:
        found: tuple[PyTree, PyTree] = optimizer.update(gradient, state, params)
    except TypeError as exc:
        raise ModelError(
            f"the optimizer's update(gradient, state, params) failed: {exc}. It is given these three alone, so an "
            "optimizer that asks for the loss, such as optax.contrib.reduce_on_plateau or optax.lbfgs, cannot be used; "
            "a learning rate that falls can be a schedule."
        ) from exc
    return found


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Returns `params + updates`, or the params in `NewParams`, in the dtypes of the params."""
    if isinstance(updates, NewParams):
        return jax.tree.map(lambda p, new: new.astype(p.dtype), params, updates.params)
    return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
