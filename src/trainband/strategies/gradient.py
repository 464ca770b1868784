"""The gradient of a step, as every strategy computes it: with the Trainer's switches, in one traceable function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trainband.ps.variables import PyTree
from trainband.strategies.model import Model, examples_in

Carry = tuple[Any, Any]
"""What a worker keeps from step to step: its random key's data and the state of its transform."""


class GradientFunction:
    """Loss and gradient of a step's batch, with what the worker keeps from step to step.

    Args:
      model: what is trained.
      rank: this worker's place in the cluster: each has a stream of random keys of its own, the same in every run.
    """

    def __init__(self, model: Model, rank: int) -> None:
        self._model = model
        self._rank = rank

    def first_carry(self, params: PyTree) -> Carry:
        """What to pass to the first call."""
        key = jax.random.fold_in(jax.random.key(self._model.seed), self._rank)
        transform = self._model.worker_transform
        return (
            jax.random.key_data(key) if self._model.loss_takes_key else (),
            transform.init(params) if transform is not None else (),
        )

    def __call__(self, params: PyTree, carry: Carry, batch: PyTree) -> tuple[jax.Array, PyTree, Carry]:
        """(loss, gradient, carry for the next call); traceable. With accumulation, `batch` is a tuple of batches."""
        key_data, transform_state = carry
        key = None
        if self._model.loss_takes_key:
            key, next_key = jax.random.split(jax.random.wrap_key_data(key_data))
            key_data = jax.random.key_data(next_key)
        if self._model.accumulate == 1:
            loss, gradient = self._of_one(params, batch, key)
        else:
            loss, gradient = self._of_several(params, batch, key)
        transform = self._model.worker_transform
        if transform is not None:
            gradient, transform_state = transform.update(gradient, transform_state, params)
        return loss, gradient, (key_data, transform_state)

    def _of_one(self, params: PyTree, batch: PyTree, key: jax.Array | None) -> tuple[jax.Array, PyTree]:
        """The gradient has the params' dtypes, whatever the loss is computed in."""
        return jax.value_and_grad(self._loss)(params, batch, key)

    def _of_several(self, params: PyTree, batches: PyTree, key: jax.Array | None) -> tuple[jax.Array, PyTree]:
        """The mean over micro-batches, weighted by their examples: the gradient of all of them as one batch."""
        counts = [examples_in(batch) for batch in batches]
        total = sum(counts)
        keys = (None,) * len(batches) if key is None else jax.random.split(key, len(batches))
        if len(set(counts)) > 1:
            parts = [self._of_one(params, batch, k) for batch, k in zip(batches, keys, strict=True)]
            return jax.tree.map(  # type: ignore[no-any-return]
                lambda *leaves: sum(leaf * (n / total) for leaf, n in zip(leaves, counts, strict=True)), *parts
            )
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)

        def add(so_far: Any, one: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, so_far, self._of_one(params, *one)), None

        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(self._of_one, params, batches[0], key))
        summed, _ = jax.lax.scan(add, zero, (stacked, None if key is None else keys))
        return jax.tree.map(lambda leaf: leaf / len(counts), summed)  # type: ignore[no-any-return]

    def _loss(self, params: PyTree, batch: PyTree, key: jax.Array | None) -> jax.Array:
        dtype = self._model.compute_dtype
        if dtype is not None:
            params, batch = _cast(params, dtype), _cast(batch, dtype)
        loss, _ = self._model.value(params, batch, key)
        return loss.astype(jnp.float32)


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
