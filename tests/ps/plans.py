"""Small models and plans for the tests of ps/."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.model.placement import GreedyBytes, PlacementPolicy
from trainband.model.variables import PyTree, Variables
from trainband.ps.rules import Async, UpdateRule
from trainband.ps.worker.plan import JobSettings, Plan


def small_params() -> PyTree:
    """A matrix, vectors and a scalar, of two dtypes; all values differ."""
    generator = np.random.default_rng(3)

    def values(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
        return generator.normal(size=shape).astype(dtype)

    return {
        "hidden": {"kernel": values(8, 4), "bias": values(4)},
        "out": {"bias": values(2, dtype=jnp.bfloat16)},
        "scale": values(),
    }


def gradient_like(params: PyTree, number: int) -> PyTree:
    """A gradient for each number."""
    generator = np.random.default_rng(100 + number)
    return jax.tree.map(lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype), params)


def plan_of(
    params: PyTree,
    optimizer: Any,
    *,
    ps: int = 1,
    policy: PlacementPolicy | None = None,
    rule: UpdateRule | None = None,
    standbys: int = 0,
) -> Plan:
    """The plan of a job with these params."""
    settings = JobSettings(standbys=standbys)
    return Plan.of(Variables.of(params), optimizer, policy or GreedyBytes(), rule or Async(), ps, settings)


def blocks_of(plan: Plan, tree: PyTree) -> tuple[tuple[NDArray[Any], ...], ...]:
    """A tree like the params as every shard's blocks."""
    return plan.layout.scatter([np.asarray(leaf) for leaf in jax.tree.leaves(tree)], np)


def tree_of(plan: Plan, shards: Any) -> PyTree:
    """Every shard's blocks as the params tree."""
    return plan.variables.unflatten(plan.layout.gather([[np.asarray(b) for b in blocks] for blocks in shards], np))


def assert_close(got: PyTree, wanted: PyTree, *, rtol: float = 2e-5) -> None:
    """Equal trees, dtypes and shapes, and values to float tolerance (of bfloat16 where they are that)."""
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(wanted))
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        tolerance = 2e-2 if ours.dtype == jnp.bfloat16 else rtol
        np.testing.assert_allclose(np.float64(ours), np.float64(theirs), rtol=tolerance, atol=tolerance)
