"""The gradient of a step, as every strategy computes it: with the Trainer's switches, in one traceable function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainband.model.batch import ShardedBatch, examples_in
from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.spmd.gradient_all_reduce import AllReduced, Compute

Carry = tuple[Any, Any]
"""A worker's state between steps: its random key's data and the state of its transform."""

_MANY, _SMALL = 64, 1 << 16
"""More leaves of one shape than this are many, and one of at most this many elements is small."""


class Step(NamedTuple):
    """The result of a step.

    Attributes:
      loss: float32 scalar.
      gradient: like the params, in their dtypes; as `AllReduced` if it was computed so and the worker has no
        transform.
      state: the model's, after this batch.
      carry: for the next call.
      metrics: of the batch, scalars by name.
    """

    loss: jax.Array
    gradient: PyTree
    state: PyTree
    carry: Carry
    metrics: PyTree


class GradientFunction:
    """Loss and gradient of a step's batch, with the worker's state between steps.

    Args:
      model: what is trained.
      rank: this worker's place in the cluster: each has its own stream of random keys, the same in every run.
      split: how the computation is split over devices, see `gradient_all_reduce`; before the worker's transform.
    """

    def __init__(self, model: Model, rank: int, split: Callable[[Compute], Compute] | None = None) -> None:
        self._model = model
        self._rank = rank
        self._split = split

    def first_carry(self, params: PyTree) -> Carry:
        """Returns the carry of the first call."""
        key = jax.random.fold_in(jax.random.key(self._model.seed), self._rank)
        transform = self._model.worker_transform
        return (
            jax.random.key_data(key) if self._model.loss_takes_key else (),
            transform.init(params) if transform is not None else (),
        )

    def __call__(self, params: PyTree, state: PyTree, carry: Carry, batch: PyTree) -> Step:
        """One step; traceable. With accumulation, `batch` is a tuple of batches."""
        key_data, transform_state = carry
        key = None
        if self._model.loss_takes_key:
            key, next_key = jax.random.split(jax.random.wrap_key_data(key_data))
            key_data = jax.random.key_data(next_key)
        compute: Compute = self._of_one if self._model.accumulate == 1 else self._of_several
        if self._split is not None:
            compute = self._split(compute)
        loss, gradient, state, metrics = compute(params, state, batch, key)
        return self._transformed(params, Step(loss, gradient, state, (key_data, transform_state), metrics))

    def part(
        self, params: PyTree, state: PyTree, carry: Carry, batch: PyTree, number: jax.Array, weight: jax.Array
    ) -> tuple[tuple[jax.Array, PyTree, PyTree], PyTree]:
        """Computes one of several batches of a step; `whole` takes their sum; traceable.

        Args:
          params, state: the state as the previous batch left it.
          carry: the carry of the step.
          batch: one batch.
          number: the number of the batch in the step, from 0.
          weight: its share of the step's examples.

        Returns:
          (loss, gradient, metrics), each times the weight and at least float32; and the state after it.
        """
        key = None
        if self._model.loss_takes_key:
            key = jax.random.fold_in(jax.random.split(jax.random.wrap_key_data(carry[0]))[0], number)
        part, state = self._part(params, state, batch, key)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) * weight, part), state

    def whole(self, params: PyTree, state: PyTree, carry: Carry, total: tuple[jax.Array, PyTree, PyTree]) -> Step:
        """Returns the step whose parts sum to `total`; traceable."""
        key_data, transform_state = carry
        if self._model.loss_takes_key:
            key_data = jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key_data))[1])
        loss, gradient, metrics = total
        gradient = jax.tree.map(lambda leaf, param: leaf.astype(param.dtype), gradient, params)
        return self._transformed(params, Step(loss, gradient, state, (key_data, transform_state), metrics))

    def _transformed(self, params: PyTree, step: Step) -> Step:
        """Applies the worker's transform to the whole gradient."""
        loss, gradient, state, (key_data, transform_state), metrics = step
        transform = self._model.worker_transform
        if transform is not None:
            # A gradient that is not finite is refused, and must not stay in the transform's state either.
            finite = all_finite(gradient)
            gradient = mean_of(gradient)
            gradient, new_state = transform.update(gradient, transform_state, params)
            transform_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new_state, transform_state)
        return Step(loss, gradient, state, (key_data, transform_state), metrics)

    def _of_one(
        self, params: PyTree, state: PyTree, batch: PyTree, key: jax.Array | None
    ) -> tuple[jax.Array, PyTree, PyTree, PyTree]:
        (loss, (new_state, metrics)), gradient = jax.value_and_grad(self._loss, has_aux=True)(params, state, batch, key)
        return loss, gradient, new_state, metrics

    def _of_several(
        self, params: PyTree, state: PyTree, batches: PyTree, key: jax.Array | None
    ) -> tuple[jax.Array, PyTree, PyTree, PyTree]:
        """The mean over micro-batches, weighted by their examples: the gradient of all of them as one batch.

        The model state goes through them one after the other.
        """
        counts = [examples_in(batch) for batch in batches]
        weights = [count / sum(counts) for count in counts]
        keys = None if key is None else jax.random.split(key, len(batches))
        if len(set(counts)) > 1:
            total: Any = None
            for i, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
                part, state = self._part(params, state, batch, None if keys is None else keys[i])
                part = jax.tree.map(lambda leaf, w=weight: leaf * w, part)
                total = part if total is None else jax.tree.map(jnp.add, total, part)
        else:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)

            def add(so_far: Any, one: Any) -> tuple[Any, None]:
                total, state = so_far
                part, state = self._part(params, state, *one)
                return (jax.tree.map(jnp.add, total, part), state), None

            first = (batches[0], None if keys is None else keys[0])
            kinds = jax.eval_shape(lambda one: self._part(params, state, *one)[0], first)
            zero = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
            (total, state), _ = jax.lax.scan(add, (zero, state), (stacked, keys))
            total = jax.tree.map(lambda leaf: leaf / len(counts), total)
        loss, gradient, metrics = total
        return loss, gradient, state, metrics

    def _part(
        self, params: PyTree, state: PyTree, batch: PyTree, key: jax.Array | None
    ) -> tuple[tuple[jax.Array, PyTree, PyTree], PyTree]:
        """((loss, gradient, metrics), state) of one micro-batch; in dtypes that can be summed."""
        loss, gradient, state, metrics = self._of_one(params, state, batch, key)
        return (loss, gradient, jax.tree.map(lambda m: jnp.asarray(m, jnp.float32), metrics)), state

    def _loss(
        self, params: PyTree, state: PyTree, batch: PyTree, key: jax.Array | None
    ) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
        if isinstance(batch, ShardedBatch):
            batch = batch.unpadded()
        dtype = self._model.compute_dtype
        if dtype is not None:
            params, batch = _cast(params, dtype), _cast(batch, dtype)
        value = self._model.value
        if self._model.remat:
            policy = self._model.remat if callable(self._model.remat) else None
            value = jax.checkpoint(value, policy=policy)
        loss, metrics, new_state = value(params, batch, key, state)
        return loss.astype(jnp.float32), (new_state, dict(metrics))


def mean_of(gradient: PyTree | AllReduced) -> PyTree:
    """A gradient as a tree like the params; traceable."""
    return gradient.mean() if isinstance(gradient, AllReduced) else gradient


def all_finite(tree: PyTree | AllReduced) -> jax.Array:
    """Whether no element of any leaf is NaN or infinite; traceable."""

    def elements(*, alone: bool) -> list[jax.Array]:
        return tree.elements(alone=alone) if isinstance(tree, AllReduced) else jax.tree.leaves(tree)

    def checked() -> jax.Array:
        return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in elements(alone=True)]))

    def summed_up() -> jax.Array:
        # A finite sum has finite terms, and costs a CPU a fifth of checking each. Other sums almost never occur: then
        # all are multiplied by 0 first, which leaves a sum of 0 unless one of them is not finite.
        exact = _stacked(elements(alone=True))
        checks = [_are_finite([stack * 0 for stack in exact.stacks])] if exact.stacks else []
        if exact.others:
            others = _stacked(elements(alone=False)).others
            checks.append(
                jax.lax.cond(
                    _are_finite(others),
                    lambda: jnp.bool(True),
                    lambda: _are_finite([leaf * 0 for leaf in exact.others]),
                )
            )
        return reduce(jnp.logical_and, checks)

    finite: jax.Array = jax.lax.platform_dependent(cpu=summed_up, default=checked)
    return finite


class _Stacked(NamedTuple):
    """Leaves, of which `stacks` hold the many small ones of a shape."""

    stacks: list[jax.Array]
    others: list[jax.Array]


def _stacked(leaves: Sequence[jax.Array]) -> _Stacked:
    """Stacks many small leaves of one shape: XLA takes 2 ms to compile each sum over elements."""
    several: dict[Any, list[jax.Array]] = {}
    for leaf in leaves:
        several.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    found = _Stacked([], [])
    for (shape, _), those in several.items():
        if len(those) > _MANY and math.prod(shape) <= _SMALL:
            found.stacks.append(jnp.stack(those))
        else:
            found.others.extend(those)
    return found


def _are_finite(leaves: Sequence[jax.Array]) -> jax.Array:
    """Whether the sum of each is."""
    return jnp.isfinite(jnp.stack([jnp.sum(leaf, dtype=jnp.float32) for leaf in leaves])).all()


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)
