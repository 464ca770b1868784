"""StepBatch: a training run of a graph, in the form of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from trainband.compat.tf1.graphs.lowering import Computation


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, slots=True)
class StepBatch:
    """A training run in the form of a batch: what is fed, and as static data which computation it is.

    Its first array is a scalar, so that every worker's gradient has the same weight, as in TensorFlow, whatever its
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
    """Return the loss, with the gradient that the graph has computed as its gradient by the params."""
    return loss


def _forward(params: Any, loss: Any, gradient: Any) -> tuple[Any, Any]:  # noqa: ARG001
    return loss, gradient


def _backward(gradient: Any, _: Any) -> tuple[Any, None, None]:
    return gradient, None, None


attached.defvjp(_forward, _backward)
