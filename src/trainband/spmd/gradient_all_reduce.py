"""The all-reduce of the gradients that several devices compute from the parts of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from trainband.model.variables import PyTree

ALONE = 2**18
"""Elements from which a gradient is reduced by itself: copying it into one flat array would cost more than it saves."""


@jax.tree_util.register_pytree_node_class
class AllReduced:
    """A tree that was summed over devices, in the arrays in which it was exchanged.

    Splitting them costs a copy of everything (0.1 ms for 0.3 MB), unless the computation that uses them does it: on a
    CPU, inside the branch that makes the update.

    Attributes:
      arrays: sums of what was exchanged together; other sums may follow after those of this tree.
      plan: how to split them.
    """

    __slots__ = ("arrays", "plan")

    def __init__(self, arrays: Sequence[Any], plan: _Plan) -> None:
        self.arrays = tuple(arrays)
        self.plan = plan

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Plan]:
        """Implements JAX's pytree protocol."""
        return self.arrays, self.plan

    @classmethod
    def tree_unflatten(cls, plan: _Plan, arrays: Sequence[Any]) -> AllReduced:
        """Implements JAX's pytree protocol."""
        return cls(arrays, plan)

    def sum(self) -> PyTree:
        """Returns the tree of sums."""
        leaves = [
            self.arrays[array].ravel()[at : at + math.prod(shape)].reshape(shape)
            for array, at, shape, _ in self.plan.places
        ]
        return jax.tree.unflatten(self.plan.structure, leaves)

    def mean(self) -> PyTree:
        """Returns the tree of means: floats of the dtypes that were summed, or float32."""
        means = [leaf / self.plan.devices for leaf in jax.tree.leaves(self.sum())]
        halves = [place.dtype == jnp.float16 for place in self.plan.places]
        means = [mean.astype(jnp.float16) if half else mean for mean, half in zip(means, halves, strict=True)]
        return jax.tree.unflatten(self.plan.structure, means)

    def elements(self, *, alone: bool) -> list[Any]:
        """Returns all elements in as few arrays as possible: `alone`, or with all else in these arrays."""
        ends: dict[int, int] = {}
        for array, at, shape, _ in self.plan.places:
            ends[array] = max(ends.get(array, 0), at + math.prod(shape))
        return [self.arrays[array].ravel()[: end if alone else None] for array, end in ends.items()]


class _Place(NamedTuple):
    """Where the elements of a leaf begin in one of several arrays, and what the leaf is."""

    array: int
    at: int
    shape: tuple[int, ...]
    dtype: Any


class _Plan(NamedTuple):
    """How `AllReduced` becomes a tree."""

    structure: Any
    places: tuple[_Place, ...]
    devices: int


Compute = Callable[[PyTree, PyTree, PyTree, Any], tuple[jax.Array, PyTree, PyTree, PyTree]]
"""(params, state, batch, key) -> (loss, gradient, state, metrics)."""


def by_compiler(compute: Compute) -> Compute:
    """Lets the compiler split the computation as the arrays are: right for every loss.

    The batch is paired with the control flags of the processes, see `ControlFlags`; so are the metrics.
    """

    def whole(params: PyTree, state: PyTree, batch: PyTree, key: Any) -> Any:
        batch, control = batch
        loss, gradient, state, metrics = compute(params, state, batch, key)
        return loss, gradient, state, (metrics, control.sum(axis=0))

    return whole


def each_by_itself(compute: Compute, mesh: Mesh, axes: Sequence[str], *, flat: bool) -> Compute:
    """Lets each device compute its part of the batch by itself, and takes the means over all.

    That is right for a loss that is the mean over the examples (see `mean_over_examples`), and needs only one
    exchange. The gradient is an `AllReduced`.

    Args:
      axes: the mesh axes that the batch is split over.
      flat: whether small gradients are exchanged as one array: on CPUs, where an exchange costs 0.3 ms whatever its
        size; for GPUs and TPUs, XLA's compiler combines them by itself.
    """
    axes = tuple(axes)
    parts = math.prod(mesh.shape[axis] for axis in axes)

    def local(params: PyTree, state: PyTree, batch: PyTree, key: Any, control: jax.Array) -> Any:
        if key is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axes))
        loss, gradient, state, metrics = compute(params, state, batch, key)
        trees = gradient, (loss, metrics), control.sum(axis=0)
        gradients, means, told = _summed(trees, axes, parts, flat=flat)
        loss, metrics = means.mean()
        return loss, gradients, state, (metrics, told.sum())

    def whole(params: PyTree, state: PyTree, batch: PyTree, key: Any) -> Any:
        batch, control = batch
        split = jax.tree.map(lambda leaf: PartitionSpec(axes) if leaf.ndim else PartitionSpec(), batch)
        everywhere = PartitionSpec()
        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(everywhere, everywhere, split, everywhere, PartitionSpec(axes)),
            out_specs=everywhere,
            check_vma=False,
        )
        return mapped(params, state, batch, key, control)

    return whole


def _summed(trees: Sequence[PyTree], axes: Sequence[str], devices: int, *, flat: bool) -> list[AllReduced]:
    """Sums trees over the devices; with `flat`, the small leaves of all trees as one array per dtype."""
    groups: list[list[Any]] = []
    sizes: list[int] = []
    of_dtype: dict[Any, int] = {}
    plans = []
    for tree in trees:
        leaves, structure = jax.tree.flatten(tree)
        places = []
        for value in map(jnp.asarray, leaves):
            # The sum of many devices' float16 may overflow float16, though their mean does not.
            leaf = value.astype(jnp.float32) if value.dtype == jnp.float16 else value
            array = len(groups)
            if flat and leaf.size < ALONE:
                array = of_dtype.setdefault(leaf.dtype, array)
            if array == len(groups):
                groups.append([])
                sizes.append(0)
            places.append(_Place(array, sizes[array], leaf.shape, value.dtype))
            groups[array].append(leaf)
            sizes[array] += leaf.size
        plans.append(_Plan(structure, tuple(places), devices))
    arrays = [
        members[0] if len(members) == 1 else jnp.concatenate([leaf.ravel() for leaf in members]) for members in groups
    ]
    sums = jax.lax.psum(arrays, axes)
    return [AllReduced(sums, plan) for plan in plans]
