"""NNXModule: a Flax NNX module, which holds its own values, as pure functions that a trainer trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainband.cluster import Cluster
from trainband.errors import ModelError
from trainband.model.model import Given, accepts_key
from trainband.model.nnx_parts import Parts, Path, keys_of
from trainband.model.variables import PyTree

MASKS = 0x6B7
"""Folded into a worker's key of a step, so that its masks are independent of the loss's draws from that key."""


class NNXModule:
    """A Flax NNX module that `Trainer.from_nnx` trains.

    - **Trained variables**: the module's `nnx.Param`s, which are `params`, as `nnx.to_pure_dict` names them. All other
      arrays are `model_state`: batch statistics, the keys (as their data) and counts of random streams. Values that a
      step leaves in `nnx.Intermediate`s (`self.sow`) are for the loss to use, and dropped after it.
    - **Modes**: steps use the module as it is when the trainer is made: call `model.train()` or `model.eval()`, or set
      attributes, before. `evaluate`, validation, `predict` and an evaluator task use it after `model.eval()`: without
      dropout, with the running averages of batch normalisation. They change no state.
    - **Values**: a job begins with those that the chief's module has when the job begins. After `fit`, the given module
      has the job's: it is updated in place, on every worker, as by `nnx.update`. `nnx_model()` does so at
      any other time. Values that you set in it afterwards do not reach the job; make a new trainer for them.
    - **Random numbers**: alone, and under strategies whose workers compute in lockstep, they are those that NNX itself
      would draw for the whole batch. The workers of a `ParameterServer` draw their own numbers, the first one NNX's.

    Args:
      model: the module.

    Raises:
      ModelError: `model` is not a module, or it has no `nnx.Param`.
    """

    def __init__(self, model: Any) -> None:
        self.model = _checked(model)
        """The given module."""
        self._parts = Parts.of(model)

    def functions(self, loss: Callable[..., Any], cluster: Cluster | None, switches: dict[str, Any]) -> dict[str, Any]:
        """Returns the functions of params that a `Trainer` takes, by name; `evaluation_loss` comes from `switches`.

        Args:
          loss: of the module and a batch.
          cluster: the cluster whose workers train it.
          switches: the trainer's other arguments.

        Raises:
          ModelError: a loss is not a function, or a switch sets what the module determines.
        """
        for name in ("init", "init_state"):
            if name in switches:
                raise ModelError(f"Trainer.from_nnx takes no {name}=: the module already has its initial values.")
        evaluation_loss = switches.pop("evaluation_loss", None) or loss
        for name, function in (("loss", loss), ("evaluation_loss", evaluation_loss)):
            if not callable(function):
                raise ModelError(f"{name} must be a function, got {function!r}.")
        parts = self._parts
        apart = cluster is not None and bool(cluster.spec.ps) and cluster.training_index > 0
        has_state = bool(parts.state.paths)
        return {
            "init": Given(lambda: parts.values(self.model)[0]),
            "init_state": Given(lambda: parts.values(self.model)[1]) if has_state else None,
            "loss": _Loss(parts, loss, apart=apart).as_trained(has_state),
            "evaluation_loss": _Loss(parts, evaluation_loss, evaluates=True).as_trained(has_state),
        }

    def check(self, *, mode: bool = True) -> None:
        """Compares the module with its state when the trainer was made. `mode`: including its attributes.

        Raises:
          ModelError: it has changed.
        """
        self._parts.check(self.model, mode=mode)

    def applied(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Converts `function(model, batch)`, called after `model.eval()`, to one of params, state and batch."""
        return lambda params, state, batch: function(self._parts.merged(params, state or {}, evaluates=True), batch)

    def update(self, params: PyTree, state: PyTree) -> Any:
        """Returns the module, updated in place with these values."""
        nnx.update(self.model, *jax.tree.map(jnp.asarray, self._parts.states(params, state or {})))
        return self.model


class _Loss:
    """A user's loss of a module, in the form that `Trainer` calls.

    Args:
      parts: of the module.
      loss: the user's.
      apart: whether this worker draws its own random numbers.
      evaluates: whether the module is in evaluation mode.
    """

    def __init__(self, parts: Parts, loss: Callable[..., Any], *, apart: bool = False, evaluates: bool = False) -> None:
        self._parts = parts
        self._loss = loss
        self._takes_key = accepts_key(loss)
        self._apart = apart
        self._evaluates = evaluates

    def as_trained(self, has_state: bool) -> Callable[..., Any]:
        """Returns the form for models with or without a state, and with or without a key, as needed."""
        if has_state:
            return self._with_state
        return self._with_key if self._takes_key else self._alone

    def _alone(self, params: PyTree, batch: PyTree) -> Any:
        return self._value(params, {}, batch, None)[0]

    def _with_key(self, params: PyTree, batch: PyTree, key: jax.Array) -> Any:
        return self._value(params, {}, batch, key)[0]

    def _with_state(self, params: PyTree, state: PyTree, batch: PyTree, key: jax.Array) -> Any:
        masks = self._masks(key) if self._apart else {}
        returned, after = self._value(params, _masked(state, masks), batch, key)
        metrics: Any = {}
        if isinstance(returned, tuple):
            if len(returned) != 2 or not isinstance(returned[1], Mapping):
                kinds = ", ".join(type(part).__name__ for part in returned)
                raise ModelError(
                    f"loss() must return a scalar or (scalar, {{name: metric}}); it returned a tuple of {kinds}."
                )
            returned, metrics = returned
        return returned, (_masked(after, masks), metrics)

    def _value(self, params: PyTree, state: PyTree, batch: PyTree, key: jax.Array | None) -> tuple[Any, PyTree]:
        """Returns (the result of the loss, the state after it)."""
        model = self._parts.merged(params, state, evaluates=self._evaluates)
        returned = self._loss(model, batch, key) if self._takes_key else self._loss(model, batch)
        return returned, self._parts.state_of(model)

    def _masks(self, key: jax.Array) -> dict[Path, jax.Array]:
        """Returns, for each random key of the state, the mask that changes it for this worker and step.

        A mask must not be reused: if pushes overtake each other, a stream's count may return to an earlier value.
        """
        tree = self._parts.state
        paths = [path for path, kind in zip(tree.paths, tree.kinds, strict=True) if kind is not None]
        if not paths:
            return {}
        return dict(zip(paths, jax.random.split(jax.random.fold_in(key, MASKS), len(paths)), strict=True))


def _masked(state: PyTree, masks: Mapping[Path, jax.Array]) -> PyTree:
    """Masks the random keys of the state; masking twice restores them."""
    if not masks:
        return state

    def masked(path: Path, leaf: jax.Array) -> jax.Array:
        key = masks.get(keys_of(path))
        return leaf if key is None else leaf ^ jax.random.bits(key, leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(masked, state)


def _checked(model: Any) -> Any:
    if isinstance(model, type) and issubclass(model, nnx.Module):
        raise ModelError(f"Trainer.from_nnx needs a module, not a class; pass {model.__name__}(..., rngs=nnx.Rngs(0)).")
    if not isinstance(model, nnx.Module):
        raise ModelError(
            f"Trainer.from_nnx needs a flax.nnx.Module, got a {type(model).__name__}; train models of Linen, Equinox "
            "and others with Trainer(init=..., loss=...)."
        )
    return model
