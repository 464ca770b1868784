"""Switches and merges, from which TensorFlow 1 itself makes branches. All of the paths between them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_computed
from trainband.compat.ops.dtypes import bool_, int32
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.guess import in_common
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record


class Merged(NamedTuple):
    """What `merge` gives: the value of the path that is alive, and which path it is."""

    output: Any
    value_index: Tensor


def switch(data: Any, pred: Any, dtype: Any = None, name: str | None = None) -> tuple[Any, Any]:
    """The data on two paths: the first one is alive if the condition is false, the second one if it is true."""
    del dtype
    chosen, flat = convert(pred, bool_), [convert(one) for one in flatten(data)]
    paths = [
        pack_like(
            data,
            [
                record("Switch", lambda x, _: x, [one, chosen], name=name, attributes={"alive": alive}).outputs[0]
                for one in flat
            ],
        )
        for alive in (False, True)
    ]
    return paths[0], paths[1]


def merge(inputs: Sequence[Any], name: str | None = None) -> Merged:
    """The one of several values whose path is alive.

    Raises:
      ValueError: one is missing.
    """
    if any(one is None for one in inputs):
        raise ValueError(f"At least one of the merge inputs is None: {list(inputs)}")
    paths = [[convert(one) for one in flatten(path)] for path in inputs]
    if len({len(path) for path in paths}) != 1:
        raise ValueError("The inputs of merge() must have the same structure.")
    merged = [_merged(parts, name) for parts in zip(*paths, strict=True)]
    return Merged(pack_like(inputs[0], [value for value, _ in merged]), merged[0][1])


def _merged(parts: Sequence[Tensor], name: str | None) -> tuple[Tensor, Tensor]:
    if len({part.dtype for part in parts}) != 1:
        raise TypeError(f"The inputs of merge() must be of one dtype, got {[part.dtype.name for part in parts]}.")
    conditions = [_conditions(part) for part in parts]
    inputs = list(dict.fromkeys([*parts, *(pred for some in conditions for pred, _ in some)]))

    def compute(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        alive = [_all([known[pred] == wanted for pred, wanted in some]) for some in conditions]
        arrays = [known[part] for part in parts]
        if not any(map(is_computed, alive)):
            place = next((i for i, one in enumerate(alive) if one), None)
            if place is None:
                raise ArgumentError("no input of a merge is alive")
            return arrays[place], np.int32(place)
        value, index = jnp.asarray(arrays[-1]), jnp.int32(len(parts) - 1)
        for i in reversed(range(len(parts) - 1)):
            value = jnp.where(alive[i], arrays[i], value)
            index = jnp.where(alive[i], i, index)
        return value, index

    op = record(
        "Merge", compute, inputs, name=name, count=2, dtypes=[parts[0].dtype, int32],
        shapes=[in_common([part.shape for part in parts]), []],
    )  # fmt: skip
    return op.outputs[0], op.outputs[1]


def _all(conditions: Sequence[Any]) -> Any:
    found: Any = np.bool_(True)
    for one in conditions:
        found = found & one
    return found


def _conditions(tensor: Tensor) -> list[tuple[Tensor, bool]]:
    """The conditions of the switches that a value comes from, up to other merges, and what each must be."""
    found: dict[tuple[Tensor, bool], None] = {}
    seen: set[Operation] = set()
    waiting = [tensor.op]
    while waiting:
        op = waiting.pop()
        if op in seen or op.type == "Merge":
            continue
        seen.add(op)
        if op.type == "Switch":
            found[op.inputs[1], op.attributes["alive"]] = None
        waiting += [one.op for one in op.inputs]
        waiting += op.control_inputs
    return list(found)
