"""Quantisation-aware training: a loss computed with weights and activations rounded as 8-bit integers.

Source: Jacob et al. 2018, Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference; gradients pass the rounding as if it were not there (the straight-through estimator, Bengio et al. 2013).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compress.encoding import LEVELS
from trainband.compress.products import AsItIs, Site, channel_axes, walked
from trainband.compress.selection import Selection, channel_axis
from trainband.model.variables import LONE_LEAF, PyTree, path_name
from trainband.runtime.overrides import override


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationAware:
    """Trains a model for 8-bit integers: `Trainer(..., quantization=QuantizationAware())`.

    The loss, in training and in evaluations, is computed with the selected weights rounded as by `compress(int8=True)`,
    and with their other factors rounded to 8 bits of the largest magnitude in the batch. The trained params keep their
    names and dtypes, so checkpoints are those of the same model, under every strategy; gradients pass the rounding
    unchanged. Any JAX function works: Flax NNX and Linen, Equinox, or plain functions; inside loops and conditions
    (`jax.lax.scan`), only weights are rounded.

    Args:
      activations: also round the other factors of the weights.
      select: the variables to round.
    """

    activations: bool = True
    select: Selection = field(default_factory=Selection)

    def loss(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a loss of the params (and any other arguments) with rounded weights and activations."""

        @functools.wraps(loss)
        def quantised(params: PyTree, *rest: Any) -> Any:
            paths, treedef = jax.tree_util.tree_flatten_with_path(params)
            tensors = {path_name(path) or LONE_LEAF: leaf for path, leaf in paths}

            def of_tensors(held: dict[str, Any], *others: Any) -> Any:
                return loss(jax.tree.unflatten(treedef, [held[name] for name in tensors]), *others)

            chosen = self.select.require(tensors, "quantise")
            axes = channel_axes(of_tensors, tensors, *rest)
            rounded = {
                name: _rounded(leaf, axes.get(name, channel_axis(name, leaf.shape))) if name in chosen else leaf
                for name, leaf in tensors.items()
            }
            if not self.activations:
                return of_tensors(rounded, *rest)
            hands = _Rounding(frozenset(chosen))
            return walked(of_tensors, rounded, hands, *rest, derivatives=True)

        return quantised

    def check(self, params: PyTree) -> None:
        """Checks that there is something to quantise. `params`: anything with a shape and a dtype as leaves.

        Raises:
          ModelError: there is nothing.
        """
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        self.select.require({path_name(path) or LONE_LEAF: leaf for path, leaf in leaves}, "quantise")


class _Rounding(AsItIs):
    """Rounds the other factors of the chosen weights."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    @override
    def product(self, site: Site) -> Any:
        other = site.other
        if site.weight.name in self._names and jnp.issubdtype(other.dtype, jnp.floating) and site.free:
            other = _rounded(other, None)
        return site.computed(site.weight.floats(), other)


def _rounded(values: Any, axis: int | None) -> Any:
    """Rounds values as 8-bit integers, with one scale for each index along `axis`, or for all."""
    exact = jax.lax.stop_gradient(values).astype(jnp.float32)
    largest = jnp.abs(exact).max([i for i in range(values.ndim) if i != axis], keepdims=True)
    scale = jnp.where(largest > 0, largest / LEVELS, 1.0)
    rounded = jnp.clip(jnp.round(exact / scale), -LEVELS, LEVELS) * scale
    # Adding the difference lets the gradient pass.
    return values + jax.lax.stop_gradient(rounded.astype(values.dtype) - values)
