"""StepBatch: one training run of a graph as what trainband trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from trainband.compat.tf1.graphs.lowering import Computation


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, slots=True)
class StepBatch:
    """One training run as a batch of trainband: what is fed, and statically which computation it is.

    Its first array is a scalar, so that every worker's gradient counts the same, as in TensorFlow, and not by its
    number of examples.
    """

    step: Any
    feeds: tuple[Any, ...]
    own: Mapping[str, Any]
    computation: Computation

    def tree_flatten(self) -> tuple[tuple[Any, ...], Computation]:
        """For JAX."""
        return (self.step, self.feeds, self.own), self.computation

    @classmethod
    def tree_unflatten(cls, computation: Computation, children: Sequence[Any]) -> StepBatch:
        """For JAX."""
        step, feeds, own = children
        return cls(step, feeds, own, computation)


@jax.custom_vjp
def attached(params: Any, loss: Any, gradient: Any) -> Any:  # noqa: ARG001 - see `_backward`
    """The loss, as something whose gradient by the params is the one that the graph has computed."""
    return loss


def _forward(params: Any, loss: Any, gradient: Any) -> tuple[Any, Any]:  # noqa: ARG001
    return loss, gradient


def _backward(gradient: Any, _: Any) -> tuple[Any, None, None]:
    return gradient, None, None


attached.defvjp(_forward, _backward)
