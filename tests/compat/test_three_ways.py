"""An operation gives the same numbers by NumPy, compiled with its inputs as arguments, and with them as constants.

These are the ways in which the front ends compute: what is small or known by NumPy, all else in a compiled program, of
which what the script has written are constants, which XLA's compiler computes by itself. Where they differed, a
`tf.function` gave other numbers from its second call on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from trainband.compat.ops import catalogue  # noqa: F401 - fills the table
from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.binding import converted
from trainband.compat.ops.eager import ARRAYS
from trainband.compat.ops.signature import Signature
from trainband.compat.ops.table import TABLE, Op

OPS = {op.key: op for op in TABLE.values() if not op.random}
_AT_ONCE = 20
_LONG = ("math.zeta", "math.igamma", "math.igammac", "math.polygamma", "math.betainc")
"""Series, of which each takes half a minute to compile."""


def _parts() -> dict[str, list[Op]]:
    """The operations, some of one file at a time: what is compiled together takes more than its parts."""
    found: dict[str, list[Op]] = {}
    for file in sorted({key.partition(".")[0] for key in OPS}):
        ops = [op for key, op in OPS.items() if key.partition(".")[0] == file and key not in _LONG]
        found |= {f"{file}{at or ''}": ops[at : at + _AT_ONCE] for at in range(0, len(ops), _AT_ONCE)}
    return found | {key: [OPS[key]] for key in _LONG}


PARTS = _parts()
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.0, np.inf, -np.inf, np.nan, 300.7, -3e9, 1e20]
_GIVEN: dict[str, Any] = {
    "axis": 0, "axes": [0], "dtype": "int32", "k": 2, "depth": 3, "nbins": 4, "num_segments": 4, "minlength": 3, "n": 1,
    "multiples": [2], "perm": None, "shape": [-1], "size": [2], "begin": [1], "paddings": [[1, 1]], "clip_norm": 1.5,
    "ord": 2, "num": 5, "max_val": 1.0, "num_lower": 1, "num_upper": 0, "name": None, "num_or_size_splits": 2,
}  # fmt: skip
"""Values of parameters that are no arrays; an operation that needs another one is not tried."""
_TOLERANCE = {
    "float16": 2e-3,
    "bfloat16": 2e-2,
    "float32": 2e-5,
    "float64": 1e-9,
    "complex64": 2e-5,
    "complex128": 1e-9,
}


def _edges(dtype: Any) -> np.ndarray[Any, Any]:
    if np.dtype(dtype) == np.bool_:
        return np.array([True, False, True])
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        least = [-1, -2, -7, limits.min, limits.min + 1] if limits.min else []
        return np.array([0, 1, 2, 3, 7, 100, limits.max, limits.max - 1, *least], dtype)
    with np.errstate(over="ignore"):
        return np.array(FLOATS).astype(dtype)


def _inputs(op: Op, dtype: Any) -> Iterator[dict[str, Any]]:
    """Arguments by name: edges, of two arrays all pairs by broadcasting; none of them; and a matrix."""
    edges = _edges(dtype)
    arrays = [one for one in op.tensors if one not in op.optional]
    shaped = [{name: (edges[:, None] if at == 0 and len(arrays) > 1 else edges) for at, name in enumerate(arrays)}]
    shaped.append(dict.fromkeys(arrays, edges[:0]))
    shaped.append(dict.fromkeys(arrays, np.resize(edges, (2, 3))))
    plain = {
        name: _GIVEN[name]
        for name, one in op.parameters.items()
        if name not in (*op.tensors, *op.lists) and one.default is one.empty and name in _GIVEN
    }
    for given in shaped:
        lists = {name: [edges, edges[::-1]] for name in op.lists}
        yield {**given, **lists, **plain}


class _Case:
    """An operation with arguments; its arrays are computed with, or are parts of the program."""

    def __init__(self, op: Op, arguments: dict[str, Any]) -> None:
        values, _ = Signature.parse(op, "").bind((), arguments)
        self.op = op
        self.values = converted(op, values, ARRAYS)
        names = [one for one in (*op.tensors, *op.lists) if one not in op.shapes and self.values.get(one) is not None]
        self.arrays = {name: self.values[name] for name in names}

    def call(self, arrays: dict[str, Any]) -> list[Any]:
        found = self.op.call({**self.values, **arrays})
        return [found] if self.op.outputs == 1 else list(found)

    def is_accepted(self) -> bool:
        try:
            jax.eval_shape(self.call, self.arrays)
        except Exception:  # whatever it refuses: dtypes, shapes, sizes that must be known
            return False
        return True


def _cases(dtype: Any, ops: Iterable[Op]) -> list[_Case]:
    """Those of the operations that accept the dtype."""
    found = []
    for op in ops:
        for arguments in _inputs(op, dtype):
            try:
                case = _Case(op, arguments)
            except (TypeError, ValueError, KeyError, IndexError):
                continue
            if case.is_accepted():
                found.append(case)
    return found


def _differences(what: str, case: _Case, one: Any, other: Any) -> list[str]:
    found = []
    for x, y in zip(map(np.asarray, one), map(np.asarray, other), strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            found.append(f"{case.op.key} {what}: {x.dtype}{x.shape}, {y.dtype}{y.shape}")
            continue
        if x.dtype.kind in "iubO":
            same = x == y
        else:
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            a, b = x.astype(wide), y.astype(wide)
            tolerance = _TOLERANCE[x.dtype.name]
            same = np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)  # of either sign where it is zero
        if not np.all(same):
            places = np.argwhere(~np.asarray(same))[:3]
            values = [(x[tuple(at)], y[tuple(at)]) for at in places]
            found.append(
                f"{case.op.key} {what} {[v.shape for v in case.values.values() if hasattr(v, 'shape')]}: {values}"
            )
    return found


def _check(dtype: Any, part: str) -> None:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        cases = _cases(dtype, PARTS[part])
        compiled = jax.jit(lambda every: [case.call(arrays) for case, arrays in zip(cases, every, strict=True)])
        constant = jax.jit(lambda: [case.call({n: _constant(a) for n, a in case.arrays.items()}) for case in cases])
        by_arguments, by_constants = compiled([case.arrays for case in cases]), constant()
        wrong = []
        for case, one, other in zip(cases, by_arguments, by_constants, strict=True):
            wrong += _differences("as constants", case, one, other)
            if case.op.folds:
                try:
                    wrong += _differences("by NumPy", case, one, case.call(case.arrays))
                except ArgumentError:  # what is refused of values that are known
                    continue
                except Exception as exc:
                    wrong.append(f"{case.op.key} by NumPy: {exc!r}")
    assert not wrong, "\n".join(wrong)


def _constant(value: Any) -> Any:
    """As a part of the program: not known while it is traced."""
    return [_constant(one) for one in value] if isinstance(value, list) else jax.numpy.asarray(value)


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part in _LONG else []) for part in PARTS]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32], ids=["float32", "int32"])
def test_operations_agree_at_their_edges(dtype: Any, part: str) -> None:
    _check(dtype, part)


def test_most_operations_are_tried() -> None:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        tried = {case.op.key for dtype in (np.float32, np.int32) for case in _cases(dtype, OPS.values())}
    assert len(tried) > 200


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int64, np.uint32, np.uint64, np.float16, ml_dtypes.bfloat16,
     np.float64, np.complex64],
)  # fmt: skip
def test_operations_agree_in_every_dtype(dtype: Any, part: str) -> None:
    _check(dtype, part)
