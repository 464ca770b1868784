"""What is known of an operation's outputs if its inputs' ranks are unknown, or only some sizes work.

Where `infer` finds nothing, an operation is evaluated under further assumptions: numbers of axes, unknown sizes equal
to known ones, and numbers in place of computed shapes. The dtypes of its outputs follow from any assumption that works;
a shape is known only where it does not depend on the number of axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.infer import UNKNOWN, Probe, Probes, dtype_of, infer, shape_of

RANKS = (2, 4, 3, 1, 0)
"""The numbers of axes that are tried, the likeliest first."""
MOST_TRIED = 60
"""Assumptions after which guessing is given up."""

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """What is known of an input."""

    shape: TensorShape
    dtype: DType
    probes: Probes


Guess = tuple[DType, TensorShape]
"""The dtype of an output, and what is known of its shape."""


def guess(compute: Callable[..., Sequence[Any]], inputs: Sequence[Input]) -> list[Guess] | None:
    """The dtypes and shapes of an operation's outputs; `None` if no assumption works.

    Raises:
      ArgumentError: the operation refuses its arguments under every assumption.
    """
    attempts = _Attempts(compute, inputs)
    unranked = sum(one.shape.sizes is None for one in inputs)
    ranked = [_with_ranks(inputs, ranks) for ranks in _ranks(unranked)]
    alike = ranked[: len(RANKS)] if unranked else ranked
    found: list[list[Guess]] = []
    for sizes in alike:
        if (outputs := attempts.outputs(sizes)) is not None:
            found.append(outputs)
        if len(found) > 1 and all(shape.sizes is None for _, shape in _agreed(found)):
            break
    if found and (not unranked or len(found) > len(RANKS) // 2):
        return _agreed(found)
    for choices in () if found else _filled(inputs, ranked):
        allowed = itertools.takewhile(lambda _: attempts.count < MOST_TRIED, choices)
        found = [outputs for sizes in allowed if (outputs := attempts.outputs(sizes)) is not None]
        if found or attempts.count >= MOST_TRIED:
            break
    if not found and attempts.refusal is not None:
        raise attempts.refusal
    if not found:
        return None
    open_ = (
        unranked
        or attempts.count >= MOST_TRIED
        or all(size is None for one in inputs for size in one.shape.sizes or ())
    )
    return [(dtype, TensorShape(None) if open_ else shape) for dtype, shape in _agreed(found)]


def _agreed(found: Sequence[Sequence[Guess]]) -> list[Guess]:
    return [(each[0][0], in_common([shape for _, shape in each])) for each in zip(*found, strict=True)]


class _Attempts:
    """Evaluates an operation under assumptions; `refusal` is its exception if each attempt was refused."""

    def __init__(self, compute: Callable[..., Sequence[Any]], inputs: Sequence[Input]) -> None:
        self._compute = compute
        self._inputs = inputs
        self.count = 0
        self.refusal: ArgumentError | None = None

    def outputs(self, sizes: Sequence[Sizes]) -> list[Guess] | None:
        """What comes out for inputs of such sizes; `None` if the operation does not work on them."""
        self.count += 1
        before: list[tuple[Probe, Probe]] = []
        for values in (False, True):
            probes = [_probes(one, some, values) for one, some in zip(self._inputs, sizes, strict=True)]
            if before and all(now[0].value is then[0].value for now, then in zip(probes, before, strict=True)):
                break
            before = probes
            try:
                found = infer(self._compute, probes, folds=False)
            except ArgumentError as exc:
                if self.count == 1:
                    self.refusal = exc
            except Exception:
                self.refusal = None  # anything may fail under a wrong assumption
            else:
                return [(dtype_of(pair[0]), shape_of(pair) if not values else TensorShape(None)) for pair in found]
        return None


def _ranks(count: int) -> list[tuple[int, ...]]:
    """The combinations of as many ranks, those first in which all are equal."""
    return sorted(itertools.product(RANKS, repeat=min(count, 3)), key=lambda ranks: len(set(ranks)))


def _with_ranks(inputs: Sequence[Input], ranks: Sequence[int]) -> list[Sizes]:
    rest = iter(ranks)
    last = ranks[-1] if ranks else 0
    return [(None,) * next(rest, last) if one.shape.sizes is None else one.shape.sizes for one in inputs]


def _filled(inputs: Sequence[Input], ranked: Sequence[Sequence[Sizes]]) -> Iterator[Iterator[list[Sizes]]]:
    """The same sizes with known ones in as many of the unknown places; those first that leave the most open."""
    known = sorted({size for one in inputs for size in one.shape.sizes or () if size is not None} | {1})
    return (_filled_in(sizes, known, count) for count in range(1, 8) for sizes in ranked)


def _filled_in(sizes: Sequence[Sizes], known: Sequence[int], count: int) -> Iterator[list[Sizes]]:
    flat = [size for each in sizes for size in each]
    places = [place for place, size in enumerate(flat) if size is None]
    for chosen in itertools.combinations(places, count):
        for numbers in itertools.product(known, repeat=count):
            given = dict(zip(chosen, numbers, strict=True))
            whole = iter([given.get(place, size) for place, size in enumerate(flat)])
            yield [tuple(next(whole) for _ in each) for each in sizes]


def _probes(one: Input, sizes: Sizes, values: bool) -> tuple[Probe, Probe]:
    """An input under an assumption; with `values`, a vector of integers that is computed is one of ones."""
    if one.probes is not None and (one.probes[0].value is not None or None not in (one.shape.sizes or ())):
        first, second = one.probes
    else:
        first, second = (
            Probe(tuple(unknown if size is None else size for size in sizes), one.dtype.numpy) for unknown in UNKNOWN
        )
    if values and first.value is None and one.dtype.is_integer and len(first.shape) < 2 and first.shape == second.shape:
        first = second = Probe(first.shape, first.dtype, np.ones(first.shape, first.dtype))
    return first, second


def in_common(shapes: Sequence[TensorShape]) -> TensorShape:
    """What is true of all of some shapes."""
    ranks = {shape.ndims for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return TensorShape(None)
    columns = zip(*(shape.as_list() for shape in shapes), strict=True)
    return TensorShape([column[0] if len(set(column)) == 1 else None for column in columns])
