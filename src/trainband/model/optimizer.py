"""Optimizers: optax's pair of pure functions, and what their updates make of the params."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from trainband.model.variables import PyTree


class Optimizer(Protocol):
    """What optax calls a GradientTransformation: two pure functions."""

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
    """An optimizer that is made for one job: it knows the variables by name, and on which ps they lie."""

    def update_state(self, name: str, value: Any, pushed: Any) -> Any:
        """What a push makes of a variable of the model state, where others replace it by what is pushed."""
        ...


class NewParams(NamedTuple):
    """Updates of an optimizer that says what the params become, where optax's say what is added to them."""

    params: PyTree


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """`params + updates`, or what `NewParams` says, in the dtypes of the params."""
    if isinstance(updates, NewParams):
        return jax.tree.map(lambda p, new: new.astype(p.dtype), params, updates.params)
    return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
