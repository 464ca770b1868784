"""What a compiled model records: its losses, metrics and steps, for targets of known shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainband.compat.ops import math, reductions
from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.models import losses, metrics, phase
from trainband.compat.tf1.models.batches import Batch
from trainband.compat.tf1.models.layer import because_of
from trainband.compat.tf1.operations.array import placeholder
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `compile` was given."""

    optimizer: Any
    loss: Any = None
    metrics: Any = None
    loss_weights: Any = None
    weighted_metrics: Any = None


@dataclass
class Program:
    """The tensors of a compiled model."""

    inputs: list[Tensor]
    targets: list[Tensor]
    weights: list[Tensor]
    total: Tensor
    parts: list[Tensor]
    """The loss of each output."""
    measured: list[tuple[Any, Any]] = field(default_factory=list)
    """Of each metric the value in a batch, and the metric itself, if it keeps one over batches."""
    train: Any = None

    def feeds(self, batch: Batch, training: bool) -> dict[Any, Any]:
        """What is fed for a batch."""
        size = batch.size
        given = dict(zip(self.inputs, batch.inputs, strict=False))
        given |= dict(zip(self.targets, map(at_least_two_axes, batch.targets or []), strict=False))
        for i, one in enumerate(self.weights):
            own = batch.weights[i] if batch.weights and i < len(batch.weights) else None
            given[one] = np.ones([size], np.float32) if own is None else np.asarray(own, np.float32)
        return with_phase(given, training)


def with_phase(feeds: dict[Any, Any], training: bool) -> dict[Any, Any]:
    """Feeds, and the learning phase, if it can be fed."""
    now = phase.learning_phase()
    return {**feeds, now: training} if isinstance(now, Tensor) else feeds


def at_least_two_axes(target: Any) -> Any:
    """A target of one number for each example as a column."""
    return target[:, None] if np.ndim(target) == 1 else target


def by_output(given: Any, names: Sequence[str]) -> list[Any]:
    """What is given for each output: one for all, a list, or a dictionary by name."""
    if isinstance(given, Mapping):
        if unknown := set(given) - set(names):
            raise ValueError(f"Unknown entries {sorted(unknown)}: the model's outputs are {list(names)}.")
        return [given.get(name) for name in names]
    if isinstance(given, list | tuple):
        if len(given) != len(names):
            raise ValueError(f"When passing a list, it should have one entry per model output: {list(names)}.")
        return list(given)
    return [given] * len(names)


def metrics_by_output(given: Any, names: Sequence[str]) -> list[list[Any]]:
    """The metrics of each output."""
    if not given:
        return [[] for _ in names]
    if isinstance(given, Mapping) or (len(names) > 1 and any(isinstance(one, list | tuple) for one in given)):
        found = by_output(given, names)
    else:
        found = [given] * len(names)
    return [[] if one is None else list(one) if isinstance(one, list | tuple) else [one] for one in found]


def title(metric: Any) -> str:
    """What a metric is called in logs: `acc` for the accuracy, as in TensorFlow 1."""
    if metric in ("accuracy", "acc"):
        return "acc"
    if metric in ("crossentropy", "ce"):
        return "ce"
    return metrics.name_of(metrics.get(metric))


def names_of_metrics(settings: Settings, outputs: Sequence[str]) -> list[str]:
    """`loss`, the losses of several outputs, and the metrics."""
    several = len(outputs) > 1
    wanted = by_output(settings.loss, outputs)
    found = ["loss", *(f"{name}_loss" for name, one in zip(outputs, wanted, strict=True) if several and one)]
    for name, own in zip(outputs, metrics_by_output(settings.metrics, outputs), strict=True):
        found += [f"{name}_{title(one)}" if several else title(one) for one in own]
    return found


def program(model: Any, settings: Settings, batch: Batch, trained: Sequence[Any]) -> Program:
    """Record the losses and metrics of a model, and a step that trains variables.

    Raises:
      ValueError: targets are missing.
    """
    outputs, names = model.outputs, model.output_names
    wanted = by_output(settings.loss, names)
    factors = by_output(settings.loss_weights, names)
    fed = [one for one in model.inputs if one.op.type == "Placeholder"]
    made = Program(fed, [], [], convert(0.0), [])
    compiled = metrics_by_output(settings.metrics, names)
    given = list(batch.targets or [])
    terms = []
    used = [i for i, one in enumerate(wanted) if one is not None]
    if len(given) < len(used):
        raise ValueError(f"The model has {len(used)} outputs with a loss, but there are {len(given)} targets.")
    with get_default_graph().name_scope("loss"):
        for place, i in enumerate(used):
            function, output = losses.get(wanted[i]), outputs[i]
            target, weight = _placeholders(at_least_two_axes(given[place]), names[i])
            made.targets.append(target)
            made.weights.append(weight)
            if isinstance(function, losses.Loss):
                loss = function(target, output, weight)
            else:
                loss = losses.weighted(convert(function(target, output)), weight)
            made.parts.append(loss)
            terms.append(loss if factors[i] is None else loss * float(factors[i]))
        others = [convert(one) for one in [*because_of(model.losses, None), *because_of(model.losses, model.inputs)]]
        terms += list(dict.fromkeys(others))
        if not terms:
            raise ValueError("The model has no loss: pass one to `compile`, or use `add_loss`.")
        made.total = sum(terms[1:], terms[0])
    with get_default_graph().name_scope("metrics"):
        for place, i in enumerate(used):
            for one in compiled[i]:
                made.measured.append(_measured(one, made.targets[place], outputs[i], wanted[i]))
    if trained and settings.optimizer is not None:
        _add_step(model, settings.optimizer, made, trained)
    return made


def _placeholders(target: Any, name: str) -> tuple[Tensor, Tensor]:
    kind = as_dtype(target.dtype)
    return (
        placeholder(kind, [None, *target.shape[1:]], name=f"{name}_target"),
        placeholder(float32, [None], name=f"{name}_sample_weights"),
    )


def _add_step(model: Any, optimizer: Any, made: Program, trained: Sequence[Any]) -> None:
    if hasattr(optimizer, "adjustable"):
        optimizer.adjustable()
    updates = dict.fromkeys([*because_of(model.updates, None), *because_of(model.updates, model.inputs)])
    with get_default_graph().name_scope("training"):
        made.train = group(optimizer.minimize(made.total, var_list=list(trained)), *updates)


def _measured(metric: Any, target: Any, output: Any, loss: Any) -> tuple[Any, Any]:
    if metric in ("accuracy", "acc", "crossentropy", "ce"):
        metric = _by_shape(metric, output, loss)
    function = metrics.get(metric)
    if isinstance(function, metrics.Metric):
        update = function.update_state(target, output)
        tensor = update[-1] if isinstance(update, list | tuple) else update
        return (tensor if isinstance(tensor, Tensor) else function.result()), function
    value = convert(function(target, output))
    value = recorded(math.cast)(value, float32) if not value.dtype.is_floating else value
    return recorded(reductions.reduce_mean)(value), None


def _by_shape(metric: str, output: Any, loss: Any) -> str:
    name = str(loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", "")))
    sizes = output.shape.as_list()
    is_binary = sizes[-1] == 1 or name.startswith("binary")
    kind = "binary" if is_binary else "sparse_categorical" if name.startswith("sparse") else "categorical"
    return f"{kind}_{'accuracy' if metric in ('accuracy', 'acc') else 'crossentropy'}"
