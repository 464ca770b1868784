"""Model: the user's pure functions, with their promises checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainband.errors import ModelError
from trainband.model.first_values import DividedFunction
from trainband.model.mesh_context import DATA, on_mesh
from trainband.model.optimizer import Optimizer
from trainband.model.tables import Tables
from trainband.model.variables import PyTree, Variables

Metrics = Mapping[str, Any]


class Outputs(dict[str, Any]):
    """Outputs that a front end's loss returns in place of metrics: of any shape, read only by that front end."""


@dataclass(frozen=True, slots=True)
class Given:
    """Existing initial values, in place of a function that makes them from a key. Only their shapes are traced.

    Of several processes, the chief's count: the others may pass anything of the same shapes.

    Attributes:
      values: returns them when the job begins.
    """

    values: Callable[..., PyTree]

    def __call__(self, key: jax.Array) -> PyTree:
        """Returns the values; `key` is ignored."""
        del key
        return self.values()


class Shapes(NamedTuple):
    """The shapes and dtypes of a model's values: `jax.ShapeDtypeStruct`s in place of arrays.

    Attributes:
      variables: of the params and the model state.
      params, state, optimizer: the initial ones.
    """

    variables: Variables
    params: PyTree
    state: PyTree
    optimizer: PyTree


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A user's model: its functions, optimizer and training options.

    Attributes:
      init: `init(key) -> params`, any pytree of floating-point arrays.
      loss: `loss(params, batch) -> scalar`, or `(scalar, {name: metric})`; a third parameter, if any, receives a random
        key, a different one for each worker and step.
      optimizer: any optax GradientTransformation.
      init_state: `init_state(key) -> state`, any pytree of arrays that gradients do not train, such as the running
        averages of batch normalisation. The loss is then `loss(params, state, batch, key) -> (loss, (state, metrics))`.
      state_merge: how an update merges the states of several workers: their `mean` (weighted by examples; of
        integers, the first worker's), or the `chief`'s alone.
      seed: the source of the keys of `init` and `loss`.
      accumulate: micro-batches whose mean gradient makes one step.
      compute_dtype: the dtype that the loss is computed in, such as `jnp.bfloat16`; params, gradients and the
        optimizer keep the params' own dtypes.
      remat: recompute the intermediate values that the loss's gradient needs instead of keeping them: less memory
        for more time. `True`, or one of `jax.checkpoint_policies`, which decides what is kept nevertheless.
      donate: let a step overwrite the old params with the new ones. Otherwise both exist for a moment.
      worker_transform: an optax transformation that each worker applies to its whole gradient before sending it,
        such as `optax.clip_by_global_norm(1.0)`, which no ps could apply to its part. With `Sync`, each worker's
        gradient is clipped before the mean is taken.
      steps_per_execution: steps that are computed in one call, where possible, see `Replica`.
      axes: the mesh axes that a `PartitionSpec` in these functions may name.
      tables: whose rows the loss takes; it is then a function of `WithRows` in place of params.
    """

    init: Callable[[jax.Array], PyTree]
    loss: Callable[..., Any]
    optimizer: Optimizer
    seed: int = 0
    accumulate: int = 1
    compute_dtype: Any = None
    remat: bool | Callable[..., bool] = False
    donate: bool = True
    worker_transform: Optimizer | None = None
    init_state: Callable[[jax.Array], PyTree] | None = None
    state_merge: str = "mean"
    steps_per_execution: int = 1
    axes: tuple[str, ...] = (DATA,)
    tables: Tables | None = None

    def __post_init__(self) -> None:
        for name in ("init", "loss"):
            if not callable(getattr(self, name)):
                raise ModelError(f"{name} must be a function, got {getattr(self, name)!r}.")
        for name in ("init", "update"):
            if not callable(getattr(self.optimizer, name, None)):
                raise ModelError(
                    f"the optimizer must have the functions init and update, as optax's have, got {self.optimizer!r}."
                )

        if self.state_merge not in ("mean", "chief"):
            raise ModelError(f"state_merge must be 'mean' or 'chief', got {self.state_merge!r}.")
        if not _is_count(self.accumulate):
            raise ModelError(f"accumulate must be a whole number of micro-batches, 1 or more, got {self.accumulate!r}.")
        if not _is_count(self.steps_per_execution):
            raise ModelError(
                f"steps_per_execution must be a whole number of steps, 1 or more, got {self.steps_per_execution!r}."
            )
        if self.compute_dtype is not None and not _is_floating(self.compute_dtype):
            raise ModelError(
                f"compute_dtype must be a floating-point dtype, such as 'bfloat16' or jnp.float16, got "
                f"{self.compute_dtype!r}."
            )
        if not isinstance(self.remat, bool) and not callable(self.remat):
            raise ModelError(
                "remat must be True, False or one of jax.checkpoint_policies, such as "
                f"jax.checkpoint_policies.dots_saveable, got {self.remat!r}."
            )

    @property
    def worker_transform_has_state(self) -> bool:
        """Whether the worker's transform keeps anything between its steps."""
        transform = self.worker_transform
        return transform is not None and bool(jax.tree.leaves(self.shaped(transform.init, self.shapes().params)))

    @property
    def loss_takes_key(self) -> bool:
        """Whether the loss takes a random key: as its third parameter, or, with a model state, as its fourth."""
        return self.init_state is not None or accepts_key(self.loss)

    def first_params(self) -> PyTree:
        """Returns the initial params as JAX arrays: the same on every machine for the same seed."""
        return jax.tree.map(jnp.asarray, self.init(jax.random.key(self.seed)))

    def first_leaves(self) -> Iterator[tuple[int, Any]]:
        """Computes the initial params and model state: yields each variable's number and its value, in any order."""
        if isinstance(self.init, Given):
            yield from enumerate(jax.tree.leaves((self.first_params(), self.first_state())))
        else:
            yield from DividedFunction(lambda: (self.first_params(), self.first_state())).leaves()

    def shaped(self, function: Callable[..., Any], *args: Any) -> PyTree:
        """Returns the shapes of the result of a function of the model, without computing it."""
        return jax.eval_shape(on_mesh(function, axes=self.axes), *args)

    def shapes(self) -> Shapes:
        """Returns the shapes of the initial values.

        Raises:
          ModelError: a leaf of the params is not a floating-point array, or its name cannot be used.
        """
        try:
            params = self.shaped(self.first_params)
        except TypeError as exc:
            # A leaf that is not an array (a string, a function): name it, in our own message.
            Variables.of(self.init(jax.random.key(self.seed)))
            raise ModelError(f"init() cannot be traced: {exc}") from exc
        state = self.shaped(self.first_state)
        variables = Variables.of(params, state)
        return Shapes(variables, params, state, self.shaped(self.optimizer.init, params))

    def variables(self) -> Variables:
        """The leaves of its params and state."""
        return self.shapes().variables

    def first_state(self) -> PyTree:
        """Returns the initial model state; `None` for a model without one."""
        if self.init_state is None:
            return None
        return jax.tree.map(jnp.asarray, self.init_state(jax.random.key(self.seed)))

    def value(
        self, params: PyTree, batch: PyTree, key: jax.Array | None = None, state: PyTree = None
    ) -> tuple[jax.Array, Metrics, PyTree]:
        """Returns (loss, metrics, new state) of a batch; traceable. `key` is for a loss that takes one.

        Raises:
          ModelError: `loss` returned something other than a scalar, or a scalar and a dict of scalars.
        """
        if self.loss_takes_key and key is None:
            key = jax.random.key(self.seed)
        metrics: Metrics = {}
        if self.init_state is not None:
            returned, state, metrics = _with_state(self.loss(params, state, batch, key), state)
        else:
            returned = self.loss(params, batch, key) if self.loss_takes_key else self.loss(params, batch)
        if isinstance(returned, tuple):
            if len(returned) != 2 or not isinstance(returned[1], Mapping):
                raise ModelError(
                    "loss() must return a scalar or (scalar, {name: metric}); "
                    f"it returned a tuple of {', '.join(type(part).__name__ for part in returned)}."
                )
            returned, metrics = returned
        try:
            loss = jnp.asarray(returned)
        except (TypeError, ValueError):
            raise ModelError(f"loss() must return a floating-point scalar, got {returned!r}.") from None
        if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise ModelError(
                f"loss() must return a floating-point scalar, got {loss.dtype}{list(loss.shape)}; "
                "take the mean over the batch, such as losses.mean()."
            )
        if isinstance(metrics, Outputs):
            return loss, dict(metrics), state  # which JAX knows
        for name, value in metrics.items():
            _require_scalar(name, value)
        return loss, metrics, state


def _require_scalar(name: str, value: Any) -> None:
    """Raises `ModelError` for a metric that has no mean over the examples."""
    try:
        metric = jnp.asarray(value)
    except (TypeError, ValueError) as exc:
        raise ModelError(
            f"loss() returned the metric {name!r} as {type(value).__name__}; a metric must be a scalar."
        ) from exc
    if metric.shape != ():
        raise ModelError(
            f"loss() returned the metric {name!r} as {metric.dtype}{list(metric.shape)}; a metric must be a scalar: "
            "take its mean over the batch, or return each element under its own name. For the model's output for each "
            "example, use trainer.predict(function, batches)."
        )


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


def _is_floating(dtype: Any) -> bool:
    try:
        return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.floating))
    except TypeError:
        return False


def accepts_key(loss: Callable[..., Any]) -> bool:
    """Whether a loss has a third parameter, for a random key."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 3


def _with_state(returned: Any, state: PyTree) -> tuple[Any, PyTree, Metrics]:
    """Returns (loss, new state, metrics) from the result of a loss with a state."""
    match returned:
        case (loss, (new_state, Mapping() as metrics)):
            pass
        case _:
            raise ModelError("with init_state, loss() must return (scalar, (state, {name: metric})).")
    before, after = (jax.tree_util.tree_flatten_with_path(tree) for tree in (state, new_state))
    if str(before[1]) != str(after[1]):
        raise ModelError("loss() returned a state whose structure differs from that of init_state().")
    leaves = []
    for (path, old), (_, new) in zip(before[0], after[0], strict=True):
        new = jnp.asarray(new)
        if new.shape != old.shape:
            raise ModelError(
                f"loss() changed the shape of the state at {jax.tree_util.keystr(path)} from {list(old.shape)} to "
                f"{list(new.shape)}."
            )
        leaves.append(jax.lax.stop_gradient(new.astype(old.dtype)))
    return loss, jax.tree.unflatten(jax.tree.structure(state), leaves), metrics
