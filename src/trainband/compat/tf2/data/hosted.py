"""Operations on text, files and images: those that the first face records are recorded once, and run at once.

`getattr` of this module with `operations.strings.join`, a function's place in the first face, gives the function for
tensors that have values.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.datasets.elements import Carrier, Spec
from trainband.compat.tf1.datasets.function import Function
from trainband.compat.tf1.datasets.run import Run
from trainband.compat.tf1.graphs.graph import Graph, Operation
from trainband.compat.tf1.graphs.sparse import SparseTensor as RecordedSparse
from trainband.compat.tf2.data.sparse_tensor import SparseTensor
from trainband.compat.tf2.eager.execute import TENSORS, convert
from trainband.compat.tf2.eager.host_stage import computed
from trainband.compat.tf2.eager.shapes import TensorShape

MOST = 1000
"""The most calls that are kept recorded."""


def __getattr__(name: str) -> Any:
    file, _, own = name.rpartition(".")
    if not file:
        raise AttributeError(name)
    return hosted(getattr(importlib.import_module(f"trainband.compat.tf1.{file}"), own))


def hosted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for tensors that have values, of one that records an operation of a graph."""
    calls: dict[Any, _Call] = {}

    @functools.wraps(function)
    def of_parts(*args: Any, **kwargs: Any) -> Any:
        return _structured(function(*map(_whole, args), **{name: _whole(one) for name, one in kwargs.items()}))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(map(_parts, args)), {name: _parts(one) for name, one in kwargs.items()}
        inputs: list[Any] = []
        key = (_key(args, inputs), _key(kwargs, inputs))
        if key not in calls:
            if len(calls) >= MOST:
                calls.clear()
            calls[key] = _Call(of_parts, args, kwargs)
        return calls[key](inputs)

    return call


_PARTS = ("sparse 0", "sparse 1", "sparse 2")
"""Names of the three tensors of a sparse tensor among arguments."""


def _parts(value: Any) -> Any:
    """The tensors of a sparse tensor; anything else as it is."""
    if isinstance(value, SparseTensor):
        return dict(zip(_PARTS, value.__trainband_parts__(), strict=True))
    return value


def _whole(value: Any) -> Any:
    """The sparse tensor of a graph, of its three tensors."""
    return RecordedSparse(*value.values()) if isinstance(value, dict) and tuple(value) == _PARTS else value


def _structured(result: Any) -> Any:
    """A result with tuples in place of lists of sparse tensors: a list stands for one tensor in a pipeline."""
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return tuple(map(_structured, result))
    is_list = isinstance(result, list) and any(isinstance(one, RecordedSparse) for one in result)
    return tuple(result) if is_list else result


def _key(value: Any, inputs: list[Any]) -> Any:
    """What tells arguments from others, apart from the values of tensors, which are added to `inputs`."""
    if isinstance(value, str | bytes | int | float | None):
        return type(value), value
    if _is_tensor(value):
        inputs.append(value)
        return "tensor", value.dtype, value.ndim if isinstance(value, np.ndarray) else len(value.shape)
    if type(value) is dict:
        return tuple([(name, _key(one, inputs)) for name, one in value.items()])
    if type(value) in (list, tuple):
        return type(value), tuple([_key(one, inputs) for one in value])
    return id(value)  # the call that is kept keeps it


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) or TENSORS.is_tensor(value)


class _Call:
    """A call with arguments of a kind, which is recorded.

    Args:
      args, kwargs: the first arguments of the kind.
    """

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._kept = (args, kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_leaf)
        places = [place for place, leaf in enumerate(leaves) if _is_tensor(leaf)]
        self._recorded, self._structure = _record(function, structure, places, leaves)
        self._source = self._only_source()

    def _only_source(self) -> Any:
        """What computes the results, if one operation does, and in their order."""
        program = self._recorded.program
        ops = [op for op in program.needed if op.type != "Const"]
        if len(ops) != 1 or "source" not in ops[0].attributes:
            return None
        is_plain = tuple(ops[0].inputs) == program.arguments and tuple(ops[0].outputs) == program.outputs
        return ops[0].attributes["source"] if is_plain else None

    def __call__(self, inputs: list[Any]) -> Any:
        return _packed(self._structure, iter(computed(self, self._results, inputs)))

    def _results(self, *arrays: Any) -> Any:
        if self._source is not None:
            return self._source({}, *arrays)
        run = Run({}, {})
        try:
            return self._recorded.results(run, arrays)
        finally:
            run.close()


def _is_leaf(value: Any) -> bool:
    return TENSORS.is_tensor(value) or not isinstance(value, dict | list | tuple) or hasattr(value, "_fields")


def _record(function: Callable[..., Any], structure: Any, places: list[int], fixed: list[Any]) -> tuple[Function, Any]:
    """(the recorded call, the structure of its results)."""

    def call(*tensors: Any) -> Any:
        leaves = list(fixed)
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = jax.tree.unflatten(structure, leaves)
        result = function(*args, **kwargs)
        return _Nothing() if isinstance(result, Operation) else result

    inputs = [convert(fixed[place]) for place in places]
    with Graph().as_default():
        specs = tuple(Spec(as_dtype(one.aval[1]), TensorShape([None] * one.ndim)) for one in inputs)
        recorded = Function(call, specs, lambda tensor, _: tensor)  # type: ignore[arg-type,return-value]
    return recorded, recorded.structure


class _Nothing:
    """The result of an operation that only has an effect."""

    def _nest_flatten(self) -> list[Any]:
        return []

    def _nest_pack(self, parts: Any) -> Any:
        del parts
        return self


def _packed(structure: Any, leaves: Any) -> Any:
    if isinstance(structure, _Nothing):
        return None
    if isinstance(structure, Carrier):
        return SparseTensor(next(leaves), next(leaves), next(leaves)) if structure.is_sparse else None
    if isinstance(structure, dict):
        found = {key: _packed(structure[key], leaves) for key in sorted(structure)}
        return {key: found[key] for key in structure}
    if isinstance(structure, tuple):
        return tuple(_packed(part, leaves) for part in structure)
    return next(leaves)
