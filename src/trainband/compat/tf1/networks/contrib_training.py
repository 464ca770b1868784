"""What else `tf.contrib.layers` has: regularizers of several weights, `optimize_loss`, and summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.ops import math, random, reductions
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.operations import summary
from trainband.compat.tf1.operations.array import constant
from trainband.compat.tf1.operations.clip import clip_by_global_norm
from trainband.compat.tf1.operations.control_flow import with_dependencies
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope
from trainband.compat.tf1.scripts.contrib import l1_regularizer, l2_regularizer
from trainband.compat.tf1.training import optimizers
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.compat.tf1.training.optimizer import Optimizer

Regularizer = Callable[[Any], Any]

# --- regularizers


def sum_regularizer(regularizer_list: Sequence[Regularizer | None], scope: str | None = None) -> Regularizer | None:
    """The sum of several regularizers; `None` if there are none."""
    del scope
    known = [one for one in regularizer_list if one is not None]

    def total(weights: Any) -> Any:
        losses = [loss for one in known if (loss := one(weights)) is not None]
        return recorded(math.add_n)(losses) if losses else None

    return total if known else None


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None) -> Any:
    """The sum of an L1 and an L2 regularizer."""
    return sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope)


def apply_regularization(regularizer: Regularizer, weights_list: Any = None) -> Any:
    """The sum of a regularizer over weights, which is collected as a regularization loss."""
    graph = get_default_graph()
    weights = graph.get_collection(GraphKeys.WEIGHTS) if weights_list is None else list(weights_list)
    if not weights:
        raise ValueError("No weights to regularize.")
    losses = [loss for one in weights if (loss := regularizer(one)) is not None]
    total = recorded(math.add_n)(losses) if losses else constant(0.0)
    graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total


# --- optimize_loss

OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Any]] = {
    "Adagrad": optimizers.AdagradOptimizer,
    "Adam": optimizers.AdamOptimizer,
    "Ftrl": optimizers.FtrlOptimizer,
    "Momentum": lambda learning_rate: optimizers.MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": optimizers.RMSPropOptimizer,
    "SGD": optimizers.GradientDescentOptimizer,
}
OPTIMIZER_SUMMARIES = ["learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"]


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Any = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Any = None,
    update_ops: Any = None,
    variables: Any = None,
    name: str | None = None,
    summaries: Any = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """Return the loss, which makes one step of an optimizer when it is computed.

    Raises:
      ValueError: an unknown optimizer, or a summary that there is not.
    """
    del colocate_gradients_with_ops
    graph = get_default_graph()
    target = convert(loss)
    step = get_global_step() if global_step is None else global_step
    updates = list(graph.get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else update_ops)
    shown = ["loss", "learning_rate", "global_gradient_norm"] if summaries is None else list(summaries)
    for one in shown:
        if one not in OPTIMIZER_SUMMARIES:
            raise ValueError(f"Summaries should be one of [{', '.join(OPTIMIZER_SUMMARIES)}], you provided {one}.")
    with variable_scope(name, "OptimizeLoss"):
        if updates:
            target = with_dependencies(updates, target)
        rate = learning_rate
        if learning_rate_decay_fn is not None:
            rate = learning_rate_decay_fn(convert(learning_rate), step)
        if rate is not None and "learning_rate" in shown:
            summary.scalar("learning_rate", rate)
        made = _optimizer(optimizer, rate)
        pairs = made.compute_gradients(target, variables or graph.get_collection(GraphKeys.TRAINABLE_VARIABLES))
        if gradient_noise_scale is not None:
            pairs = [(_with_noise(gradient, gradient_noise_scale), one) for gradient, one in pairs]
        if gradient_multipliers is not None:
            pairs = multiply_gradients(pairs, gradient_multipliers)
        if "gradient_norm" in shown or "global_gradient_norm" in shown:
            _, norm = clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
            summary.scalar("global_norm/gradient_norm", norm)
        if isinstance(clip_gradients, int | float):
            clipped, _ = clip_by_global_norm([gradient for gradient, _ in pairs], float(clip_gradients))
            pairs = list(zip(clipped, [one for _, one in pairs], strict=True))
        elif callable(clip_gradients):
            pairs = clip_gradients(pairs)
        if "loss" in shown:
            summary.scalar("loss", target)
        train = made.apply_gradients(pairs, step if increment_global_step else None, name="train")
        return with_dependencies([train], target)


def _optimizer(given: Any, rate: Any) -> Any:
    if isinstance(given, str):
        if given not in OPTIMIZER_CLS_NAMES:
            raise ValueError(
                f"Optimizer name should be one of [{', '.join(OPTIMIZER_CLS_NAMES)}], you provided {given}."
            )
        return OPTIMIZER_CLS_NAMES[given](learning_rate=rate)
    if isinstance(given, Optimizer) or hasattr(given, "apply_gradients"):
        return (
            given() if isinstance(given, type) and rate is None else given(rate) if isinstance(given, type) else given
        )
    if not callable(given):
        raise ValueError(f"Unrecognized optimizer: {given}")
    return given() if rate is None else given(rate)


def _with_noise(gradient: Any, scale: float) -> Any:
    if gradient is None:
        return None
    values: Any = gradient.values if isinstance(gradient, IndexedSlices) else gradient
    noisy = values + recorded(random.truncated_normal)(values.shape.as_list()) * scale
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(noisy, gradient.indices, gradient.dense_shape)
    return noisy


def multiply_gradients(grads_and_vars: Any, gradient_multipliers: Mapping[Any, float]) -> list[tuple[Any, Any]]:
    """The gradients of some variables, by variable or name, times a number each."""

    def times(gradient: Any, factor: Any) -> Any:
        if isinstance(gradient, IndexedSlices):
            values: Any = gradient.values
            return IndexedSlices(values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    found = []
    for gradient, one in grads_and_vars:
        key = one if one in gradient_multipliers else one.op.name
        is_there = gradient is not None and key in gradient_multipliers
        found.append((times(gradient, gradient_multipliers[key]) if is_there else gradient, one))
    return found


# --- summaries


def summarize_tensor(tensor: Any, tag: str | None = None) -> Tensor:
    """A summary of a tensor: its number, or the distribution of its numbers."""
    kind = summary.scalar if convert(tensor).shape.ndims == 0 else summary.histogram
    return kind(tag or f"{tensor.op.name}_summary", tensor)


def summarize_activation(op: Any) -> Tensor:
    """A summary of what a layer gives, and of how much of it is 0."""
    if op.op.type in ("Relu", "Softplus", "Relu6"):
        zeros = recorded(math.cast)(recorded(math.equal)(op, 0.0), "float32")
        summary.scalar(f"{op.op.name}/zeros", recorded(reductions.reduce_mean)(zeros))
    return summary.histogram(f"{op.op.name}/activation", op)


def summarize_tensors(tensors: Any, summarizer: Any = summarize_tensor) -> list[Tensor]:
    """Summaries of tensors."""
    return [summarizer(one) for one in tensors]


def summarize_collection(
    collection: str, name_filter: str | None = None, summarizer: Any = summarize_tensor
) -> list[Tensor]:  # fmt: skip
    """Summaries of what was collected."""
    return summarize_tensors(get_default_graph().get_collection(collection, name_filter), summarizer)


def _summaries_of(collection: str, summarizer: Any) -> Callable[..., list[Tensor]]:
    def summarize(name_filter: str | None = None, summarizer: Any = summarizer) -> list[Tensor]:
        return summarize_collection(collection, name_filter, summarizer)

    summarize.__doc__ = f"Summaries of the collection `{collection}`."
    return summarize


summarize_variables = _summaries_of(GraphKeys.GLOBAL_VARIABLES, summarize_tensor)
summarize_weights = _summaries_of(GraphKeys.WEIGHTS, summarize_tensor)
summarize_biases = _summaries_of(GraphKeys.BIASES, summarize_tensor)
summarize_activations = _summaries_of(GraphKeys.ACTIVATIONS, summarize_activation)
