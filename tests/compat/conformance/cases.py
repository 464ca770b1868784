"""Cases from the tables beside this file: lines of an expression and its inputs, under the name of an operation.

::

    [pow]
    tf.pow(x, y) ; x=f([2, 0, -1]) ; y=f([3, 0, 2])
    ~ tf.pow(x, 2) ; x=i([3])  # differs: why

An input is fed, or a constant if its name is in capitals. Of a list of
arrays, one is fed in each of three runs, or the last again. A line
that begins with `~` is one in which trainband differs from TensorFlow on purpose; it is not compared.

It needs NumPy only, and is run with TensorFlow or `compat.tf1` as `tf`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TABLES = tuple(sorted(path.stem for path in (HERE / "tables").glob("*.txt")))


def _array(kind: Any) -> Any:
    return lambda value: np.array(value, kind)


def _normal(*shape: int, seed: int = 0) -> Any:
    """Random numbers that are round in binary, and so the same in every notation."""
    return (np.round(np.random.RandomState(seed).normal(size=shape) * 64) / 64).astype(np.float32)


_VALUES: dict[str, Any] = {
    "h": _array(np.float16), "f": _array(np.float32), "d": _array(np.float64), "c": _array(np.complex64),
    "i": _array(np.int32), "l": _array(np.int64), "i8": _array(np.int8), "u": _array(np.uint8),
    "u16": _array(np.uint16), "u32": _array(np.uint32), "b": _array(np.bool_), "n": _normal,
    "p": lambda *shape, seed=0: np.abs(_normal(*shape, seed=seed)) + np.float32(0.5),
    "nan": np.nan, "inf": np.inf, "np": np,
}  # fmt: skip
"""What the inputs are written with: dtypes by their first letters, and normal and positive random numbers."""


RUNS = 3
"""How often a case with a state is run."""


@dataclass(frozen=True, slots=True)
class Case:
    """A line of a table."""

    operation: str
    expression: str
    inputs: tuple[tuple[str, str], ...]
    differs: bool

    @property
    def key(self) -> str:
        """The line."""
        return " ; ".join([self.expression, *(f"{name}={text}" for name, text in self.inputs)])

    def values(self) -> dict[str, Any]:
        """The inputs by name."""
        return {name: eval(text, dict(_VALUES)) for name, text in self.inputs}


def read(table: str) -> list[Case]:
    """The cases of a table."""
    found, operation = [], ""
    for line in (HERE / "tables" / f"{table}.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("[") and text.endswith("]"):
            operation = text[1:-1]
        elif text:
            expression, *inputs = (part.strip() for part in text.removeprefix("~").split(" ; "))
            pairs = [tuple(map(str.strip, one.split("=", 1))) for one in inputs]
            found.append(Case(operation, expression, tuple(pairs), text.startswith("~")))  # type: ignore[arg-type]
    return found


@dataclass(slots=True)
class Steps:
    """Something with a state: what is fetched in each run, and what after the last one."""

    each: Any
    last: Any


class _Recorded:
    """A case as operations of a graph."""

    def __init__(self, tf: Any, case: Case) -> None:
        given = case.values()
        self.feeds: dict[Any, Any] = {}
        self.scope = tf.get_variable_scope().name
        names: dict[str, Any] = {}
        for name, value in given.items():
            if name.isupper():
                names[name] = tf.constant(value)
                continue
            first = value[0] if isinstance(value, list) else value
            shapes = {one.shape for one in value} if isinstance(value, list) else {first.shape}
            shape = first.shape if len(shapes) == 1 else [None, *first.shape[1:]]
            names[name] = tf.placeholder(tf.as_dtype(first.dtype), shape)
            self.feeds[names[name]] = value
        helpers = {"metric": lambda pair: Steps(pair[1], pair[0]), "train": lambda *a: _train(tf, *a)}
        self.result = eval(case.expression, {"tf": tf, "np": np, **helpers}, names)
        self.gradients: dict[str, Any] = {}
        if isinstance(self.result, Steps):
            self.outputs = _flat(self.result.last)
        else:
            self.outputs = [tf.convert_to_tensor(one) for one in _flat(self.result)]
            self._differentiate(tf, {name: one for name, one in names.items() if one.dtype.is_floating})

    def _differentiate(self, tf: Any, inputs: dict[str, Any]) -> None:
        floats = [one for one in self.outputs if one.dtype.is_floating]
        if not floats or not inputs:
            return
        try:
            found = tf.gradients(floats, list(inputs.values()), [_weights(tf, one) for one in floats])
        except LookupError:  # TensorFlow has none for this operation
            return
        self.gradients = {
            name: None if one is None else tf.convert_to_tensor(one) for name, one in zip(inputs, found, strict=True)
        }

    @property
    def fetches(self) -> list[Any]:
        """What one run gives."""
        return [*self.outputs, *(one for one in self.gradients.values() if one is not None)]

    def fed(self, run: int) -> dict[Any, Any]:
        """What a run is fed."""
        return {
            tensor: value[min(run, len(value) - 1)] if isinstance(value, list) else value
            for tensor, value in self.feeds.items()
        }

    def described(self, values: list[Any]) -> dict[str, Any]:
        """What is compared."""
        rest = iter(values)
        return {
            "outputs": [
                {"value": next(rest), "dtype": one.dtype.base_dtype.name, "static": _static(one)}
                | ({"name": one.name.replace(self.scope, "scope")} if isinstance(self.result, Steps) else {})
                for one in self.outputs
            ],
            "gradients": {
                name: None if one is None else {"value": next(rest)} for name, one in self.gradients.items()
            },
        }  # fmt: skip


def _weights(tf: Any, output: Any) -> Any:
    """What a gradient is weighted with: numbers that differ, and none of which is zero."""
    numbers = tf.reshape(tf.range(tf.size(output)), tf.shape(output))
    return 1 + tf.cast(tf.floormod(numbers, 5), output.dtype) / 4


def _train(tf: Any, optimizer: Any, gradient: Any, rows: Any = None) -> Steps:
    """An optimizer's steps by given gradients: of a whole variable, or of some of its rows."""
    scope = tf.get_variable_scope().name + "/"
    with tf.variable_scope("model"):
        variable = tf.get_variable("w", initializer=tf.constant(_normal(4, 2, seed=7)))
    slices = gradient if rows is None else tf.IndexedSlices(gradient, rows, [4, 2])
    step = optimizer.apply_gradients([(slices, variable)])
    kept = [one for one in tf.global_variables() if one.name.startswith(scope)]
    return Steps(step, sorted(kept, key=lambda one: str(one.name)))


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _flat(one)]
    return [value]


def _static(tensor: Any) -> list[int | None] | None:
    shape = tensor.get_shape()
    return None if shape.ndims is None else [None if one is None else int(one) for one in shape.as_list()]


def compute(tf: Any, cases: Iterable[Case], alone: bool = False) -> dict[str, Any]:
    """What each case gives, by its line: outputs and gradients, or `{"error": its class}`.

    Many cases are one run, except if `alone` or if that run fails.
    """
    of_state: list[Case] = []
    others: list[Case] = []
    for case in cases:
        (of_state if "metric(" in case.key or "train(" in case.key else others).append(case)
    return _in_one_graph(tf, others, alone) | _in_one_graph(tf, of_state, alone)


def _in_one_graph(tf: Any, cases: list[Case], alone: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    recorded: dict[str, _Recorded] = {}
    with tf.Graph().as_default(), tf.Session() as session:
        for number, case in enumerate(cases):
            try:
                with tf.variable_scope(f"case{number}"):
                    recorded[case.key] = _Recorded(tf, case)
            except Exception as exc:
                results[case.key] = {"error": type(exc).__name__, "text": str(exc)}
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        groups = [{key: one} for key, one in recorded.items()] if alone else [recorded]
        for group in groups:
            try:
                results |= _run(session, group)
            except Exception as exc:
                if not alone:
                    return _in_one_graph(tf, cases, alone=True)
                results |= {key: {"error": type(exc).__name__, "text": str(exc)} for key in group}
    return results


def _run(session: Any, group: dict[str, _Recorded]) -> dict[str, Any]:
    """The results of some cases: those with a state are run in turn, and then all are looked at."""
    steps = [one.result.each for one in group.values() if isinstance(one.result, Steps)]
    for run in range(RUNS if steps else 0):
        session.run(steps, {tensor: value for one in group.values() for tensor, value in one.fed(run).items()})
    feeds = {} if steps else {tensor: value for one in group.values() for tensor, value in one.fed(0).items()}
    values = session.run([one.fetches for one in group.values()], feeds)
    return {key: one.described(mine) for (key, one), mine in zip(group.items(), values, strict=True)}
