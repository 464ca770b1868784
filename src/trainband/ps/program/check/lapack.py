"""The custom calls that a program may make on a CPU: LAPACK's, as `jax.numpy.linalg` lowers to them.

jaxlib's kernels size their output by the first operand and do not compare the other buffers with it. So each call is
compared here with the one form that JAX makes: shapes, element types, layouts, aliases and settings. Calls that are
not in this table are refused, among them `eig`, `schur`, `hessenberg`, `tridiagonal` and pivoted QR, which no
optimizer needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Tensor = tuple[tuple[int, ...], str]
"""Shape and element type."""

LARGEST = 16_384
"""The longest side of a matrix: LAPACK counts its work space, up to five matrices of that size, in 32 bits."""

_REAL = {"s": "f32", "d": "f64", "c": "f32", "z": "f64"}
_FULL = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
_UPLO = {"uplo": (ord("L"), ord("U"))}


class Call(NamedTuple):
    """The required form of a call, as determined by its first operand."""

    operands: Sequence[Tensor]
    results: Sequence[Sequence[Tensor]]
    """The forms that the results may have."""
    aliased: int
    """The operand whose memory the first result may use."""
    work: int


class Given(NamedTuple):
    """The properties of a given call."""

    full: str
    """Its element type."""
    real: str
    """The element type of its real numbers."""
    batch: tuple[int, ...]
    rows: int
    columns: int
    operands: Sequence[Tensor]
    settings: Mapping[str, int]


Form = Callable[[Given], Call | None]
"""Returns the required form of a call; `None` if there is none."""


def _potrf(given: Given) -> Call | None:
    full, _, b, m, n, *_ = given
    a: Tensor = ((*b, m, n), full)
    return Call([a], [[a, (b, "i32")]], 0, m * n * n) if m == n else None


def _geqrf(given: Given) -> Call | None:
    full, _, b, m, n, *_ = given
    a: Tensor = ((*b, m, n), full)
    return Call([a], [[a, ((*b, min(m, n)), full)]], 0, 2 * m * n * min(m, n))


def _orgqr(given: Given) -> Call | None:
    full, _, b, m, n, operands, *_ = given
    a: Tensor = ((*b, m, n), full)
    if len(operands) != 2 or not operands[1][0] or m < n:
        return None
    k = operands[1][0][-1]
    return Call([a, ((*b, k), full)], [[a]], 0, 4 * m * n * k) if 1 <= k <= n else None


def _syevd(given: Given) -> Call | None:
    full, real, b, m, n, *_ = given
    a: Tensor = ((*b, m, n), full)
    return Call([a], [[a, ((*b, n), real), (b, "i32")]], 0, 25 * n * n * n) if m == n else None


def _gesdd(given: Given) -> Call | None:
    full, real, b, m, n, _, settings = given
    a: Tensor = ((*b, m, n), full)
    small = min(m, n)
    values: Sequence[Tensor] = [a, ((*b, small), real)]
    whole = [*values, ((*b, m, m), full), ((*b, n, n), full), (b, "i32")]
    part = [*values, ((*b, m, small), full), ((*b, small, n), full), (b, "i32")]
    forms = {ord("A"): [whole], ord("S"): [part], ord("N"): [whole, part]}[settings["mode"]]
    return Call([a], forms, 0, 25 * m * n * max(m, n))


def _trsm(given: Given) -> Call | None:
    full, _, b, m, n, operands, settings = given
    if m != n or len(operands) != 2 or len(operands[1][0]) != len(b) + 2:
        return None
    rows, columns = operands[1][0][-2:]
    if (rows if settings["side"] == ord("L") else columns) != n:
        return None
    right: Tensor = ((*b, rows, columns), full)
    return Call([((*b, m, n), full), right], [[right]], 1, rows * columns * n)


def _getrf(given: Given) -> Call | None:
    full, _, b, m, n, *_ = given
    a: Tensor = ((*b, m, n), full)
    return Call([a], [[a, ((*b, min(m, n)), "i32"), (b, "i32")]], 0, 2 * m * n * min(m, n))


_SIDES = {
    "side": (ord("L"), ord("R")),
    "trans_x": (ord("N"), ord("T"), ord("C")),
    "diag": (ord("U"), ord("N")),
    **_UPLO,
}
_MODES = {"mode": (ord("V"), ord("N")), **_UPLO}
_TABLE: Mapping[str, tuple[str, Form, Mapping[str, tuple[int, ...]]]] = {
    "potrf": ("sdcz", _potrf, _UPLO),
    "geqrf": ("sdcz", _geqrf, {}),
    "orgqr": ("sd", _orgqr, {}),
    "ungqr": ("cz", _orgqr, {}),
    "syevd": ("sd", _syevd, _MODES),
    "heevd": ("cz", _syevd, _MODES),
    "gesdd": ("sdcz", _gesdd, {"mode": (ord("A"), ord("S"), ord("N"))}),
    "getrf": ("sdcz", _getrf, {}),
    "trsm": ("sdcz", _trsm, _SIDES),
}
TARGETS = frozenset(f"lapack_{letter}{name}_ffi" for name, (letters, _, _) in _TABLE.items() for letter in letters)
"""The names that may be called."""

LARGE_SAVES = 4
"""A multiplication costs this many times less in a matrix with no side below `LARGE_SIDE`."""
LARGE_SIDE = 128


def work_of(
    target: str,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    settings: Mapping[str, int],
    layouts: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    aliases: Sequence[str],
) -> int | None:
    """The work of a call of `TARGETS` (see `ProgramLimits`); `None` if JAX does not make such a call."""
    found = re.fullmatch(r"lapack_([sdcz])(\w+)_ffi", target)
    if found is None or target not in TARGETS:
        return None
    letter, name = found.groups()
    _, form, allowed = _TABLE[name]
    if settings.keys() != allowed.keys() or any(settings[key] not in allowed[key] for key in allowed):
        return None
    if not operands or len(operands[0][0]) < 2:
        return None
    *batch, m, n = operands[0][0]
    if any(size < 1 or size > LARGEST for shape, _ in (*operands, *results) for size in shape[-2:]):
        return None
    call = form(Given(_FULL[letter], _REAL[letter], tuple(batch), m, n, operands, settings))
    if call is None or list(call.operands) != list(operands) or list(results) not in [list(r) for r in call.results]:
        return None
    rank = len(batch) + 2
    for tensors, given in ((operands, layouts[0]), (results, layouts[1])):
        if [list(layout) for layout in given] != [_layout(len(shape), rank) for shape, _ in tensors]:
            return None
    where = "0" if len(results) > 1 else ""
    expected = (
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{where}], operand_index = {call.aliased}, "
        "operand_tuple_indices = []>"
    )
    if list(aliases) not in ([], [expected]):
        return None
    return math.prod(batch) * call.work // (LARGE_SAVES if min(m, n) >= LARGE_SIDE else 1)


def _layout(rank: int, matrix_rank: int) -> list[int]:
    """From the fastest dimension to the slowest: matrices are column-major, everything else row-major."""
    down = list(range(rank - 1, -1, -1))
    return [rank - 2, rank - 1, *down[2:]] if rank == matrix_rank else down
