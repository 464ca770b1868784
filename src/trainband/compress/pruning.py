"""Pruning: weights held at exactly 0 during training, chosen by their magnitude.

Source: Zhu and Gupta 2017, To prune, or not to prune: exploring the efficacy of pruning for model compression.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainband.compress.selection import Selection
from trainband.errors import ModelError
from trainband.model.optimizer import NewParams, Optimizer, apply_updates
from trainband.model.variables import LONE_LEAF, PyTree, path_name

STRUCTURES = ("unstructured", "rows", "filters")
"""Units of pruning; and `n:m`."""


class PruningState(NamedTuple):
    """State of a pruning optimizer.

    Attributes:
      step: updates made.
      masks: a tree like the params': `True` for a weight that is kept, `None` for a variable that is not pruned.
      inner: the state of the wrapped optimizer.
    """

    step: jax.Array
    masks: PyTree
    inner: PyTree


class Wrapped(NamedTuple):
    """The equivalent of optax's GradientTransformation."""

    init: Any
    update: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """Sets a growing share of the weights, those of the smallest magnitude, to 0, and keeps them there.

    The share of zero weights rises from `initial_sparsity` at `begin_step` to `sparsity` at `end_step` as
    `sparsity + (initial_sparsity - sparsity) * (1 - t)**3`, with t from 0 to 1, once in `every` updates. Between these
    updates, and after the last, pruned weights get no gradient and stay exactly 0. Each variable is pruned to the same
    share of its weights.

    The masks are part of the optimizer's state, and the pruning part of its update: so every strategy and checkpoint
    keeps them, and the parameter servers compute them, which do not slice a pruned variable. Steps are counted by the
    optimizer's own updates.

    If a training run begins from a checkpoint without its optimizer (`trainer.restore(path, optimizer=False)`), weights
    that are exactly 0 there stay so, unless the whole variable is.

    Args:
      sparsity: the final share of zero weights, at least 0 and less than 1. `n:m` implies it.
      begin_step, end_step: the updates between which weights are pruned; `end_step` is `begin_step` by default.
      every: updates between two prunings.
      initial_sparsity: the share at `begin_step`.
      structure: `unstructured`; `n:m`, such as `2:4`: of every m consecutive weights along the axes of the inputs (all
        but the last), n may differ from 0, as sparse tensor cores need; `rows`: whole rows of the first axis, or
        `filters`: whole output channels, the last axis, by their Euclidean norm.
      select: the variables to prune.

    Raises:
      ModelError: an argument is invalid.
    """

    sparsity: float | None = None
    begin_step: int = 0
    end_step: int | None = None
    every: int = 100
    initial_sparsity: float = 0.0
    structure: str = "unstructured"
    select: Selection = field(default_factory=Selection)

    def __post_init__(self) -> None:
        group = _group(self.structure)
        if self.structure not in STRUCTURES and group is None:
            raise ModelError(
                f"structure must be one of {', '.join(STRUCTURES)}, or n:m such as 2:4, got {self.structure!r}."
            )
        if group is not None:
            kept, of = group
            if not 0 < kept < of:
                raise ModelError(f"structure {self.structure!r}: of every m weights, 1 to m - 1 can be kept.")
            implied = 1 - kept / of
            if self.sparsity is not None and not math.isclose(self.sparsity, implied):
                raise ModelError(
                    f"structure {self.structure!r} implies a sparsity of {implied:g}, not {self.sparsity!r}; leave "
                    "sparsity out."
                )
            object.__setattr__(self, "sparsity", implied)
        for name in ("sparsity", "initial_sparsity"):
            share = getattr(self, name)
            if not isinstance(share, int | float) or not 0 <= share < 1:
                raise ModelError(f"{name} must be a share of the weights, at least 0 and less than 1, got {share!r}.")
        if self.end_step is None:
            object.__setattr__(self, "end_step", self.begin_step)
        for name, least in (("begin_step", 0), ("end_step", self.begin_step), ("every", 1)):
            count = getattr(self, name)
            if not isinstance(count, int) or count < least:
                raise ModelError(f"{name} must be a whole number of updates, {least} or more, got {count!r}.")

    def sparsity_at(self, step: Any) -> Any:
        """Returns the share of zero weights after an update at this step; traceable."""
        assert self.sparsity is not None
        assert self.end_step is not None
        span = max(1, self.end_step - self.begin_step)
        at = jnp.clip((step - self.begin_step) / span, 0.0, 1.0) if self.end_step > self.begin_step else 1.0
        return self.sparsity + (self.initial_sparsity - self.sparsity) * (1.0 - at) ** 3

    def wrap(self, optimizer: Optimizer) -> Wrapped:
        """Returns an optimizer that makes another one's updates, and prunes."""

        def init(params: PyTree) -> PruningState:
            masks = jax.tree_util.tree_map_with_path(self._first_mask, params)
            return PruningState(jnp.zeros((), jnp.int32), masks, optimizer.init(params))

        def update(gradient: PyTree, state: PruningState, params: PyTree = None) -> tuple[PyTree, PruningState]:
            if params is None:
                raise ModelError("pruning needs the params: optimizer.update(gradient, state, params).")
            updates, inner = optimizer.update(_masked(gradient, state.masks), state.inner, params)
            new = apply_updates(params, updates)
            masks = self._masks(state, new)
            if isinstance(updates, NewParams):
                updates = NewParams(_masked(new, masks))
            else:
                updates = jax.tree.map(_to_zero, masks, updates, params, is_leaf=_is_none)
            return updates, PruningState(state.step + 1, masks, inner)

        return Wrapped(init, update)

    def check(self, params: PyTree) -> None:
        """Checks that there is something to prune. `params`: anything with a shape and a dtype as leaves.

        Raises:
          ModelError: there is nothing.
        """
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        self.select.require({path_name(path) or LONE_LEAF: leaf for path, leaf in leaves}, "prune")

    def mask(self, values: Any, sparsity: Any) -> jax.Array:
        """Returns the mask of one variable, `True` for each weight that is kept; traceable."""
        size = jnp.abs(values.astype(jnp.float32))
        group = _group(self.structure)
        if group is not None:
            return _mask_of_groups(size, group[1], sparsity)
        if self.structure == "unstructured":
            return _kept(size.reshape(1, -1), sparsity).reshape(values.shape)
        axis = 0 if self.structure == "rows" else values.ndim - 1
        norms = jnp.sqrt((size**2).sum([i for i in range(values.ndim) if i != axis]))
        shape = [values.shape[axis] if i == axis else 1 for i in range(values.ndim)]
        return jnp.broadcast_to(_kept(norms[None], sparsity).reshape(shape), values.shape)

    def _first_mask(self, path: tuple[Any, ...], values: Any) -> Any:
        if not self.select.includes(path_name(path) or LONE_LEAF, values):
            return None
        there = values != 0
        return there | ~there.any()

    def _masks(self, state: PruningState, new: PyTree) -> PyTree:
        """Returns the masks after an update, given the new params before any is set to 0."""
        step, end = state.step, self.end_step
        assert end is not None
        every = (step - self.begin_step) % self.every == 0
        due = (step >= self.begin_step) & (step <= end) & (every | (step == end))
        sparsity = self.sparsity_at(step)

        def renewed(mask: Any, values: Any) -> Any:
            if mask is None:
                return None
            # A pruned weight counts as 0 whatever this update did to it, and stays pruned.
            return jax.lax.cond(due, lambda: mask & self.mask(jnp.where(mask, values, 0), sparsity), lambda: mask)

        return jax.tree.map(renewed, state.masks, new, is_leaf=_is_none)


def _group(structure: str) -> tuple[int, int] | None:
    """Returns (n, m) of `n:m`; `None` for another structure."""
    found = re.fullmatch(r"(\d+):(\d+)", structure)
    return None if found is None else (int(found[1]), int(found[2]))


def _kept(sizes: jax.Array, sparsity: Any) -> jax.Array:
    """Keeps all but the smallest of each row: exactly `round(sparsity * n)` fewer; of equal ones, the first go."""
    count = jnp.round(sparsity * sizes.shape[-1]).astype(jnp.int32)
    ranks = jnp.argsort(jnp.argsort(sizes, axis=-1), axis=-1)
    return ranks >= count


def _mask_of_groups(sizes: jax.Array, length: int, sparsity: Any) -> jax.Array:
    """Keeps all but the smallest of every `length` consecutive weights of an output, and all of an incomplete group."""
    outputs = sizes.shape[-1]
    rows = math.prod(sizes.shape[:-1])
    flat = sizes.reshape(rows, outputs).T
    whole = rows - rows % length
    groups = _kept(flat[:, :whole].reshape(-1, length), sparsity).reshape(outputs, whole)
    rest = jnp.ones((outputs, rows - whole), bool)
    return jnp.concatenate([groups, rest], axis=1).T.reshape(sizes.shape)


def _masked(tree: PyTree, masks: PyTree) -> PyTree:
    return jax.tree.map(
        lambda mask, leaf: leaf if mask is None else jnp.where(mask, leaf, jnp.zeros_like(leaf)),
        masks,
        tree,
        is_leaf=_is_none,
    )


def _to_zero(mask: Any, update: Any, values: Any) -> Any:
    """Returns the update of a variable that sets pruned weights to exactly 0."""
    return update if mask is None else jnp.where(mask, update, -values)


def _is_none(leaf: Any) -> bool:
    return leaf is None
