"""What is known of a tensor while recording: its shape, its dtype, and sometimes its value.

If a size is unknown, an operation is evaluated twice, with two different numbers for the unknown sizes. What comes out
the same both times is known; the rest depends on an unknown size. Small integer tensors are tracked with
their values, so that the shape of `tf.reshape(x, [tf.shape(x)[0], -1])` is known as far as it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.compat.ops.dtypes import DType, as_dtype, string
from trainband.compat.ops.shapes import TensorShape

UNKNOWN = (55_440, 110_880)
"""The numbers that stand for unknown sizes; they have many divisors, so that most reshapes work."""
MOST_TEXTS = 1 << 20
"""The most texts for which an operation on texts is tried: JAX cannot trace it."""
ASSUMED = (0, 37)
"""The whole numbers that stand for unknown ones among the inputs of an operation on texts."""
MOST_CARRIED = 64
"""The most elements that a value may have to be tracked while recording."""


@dataclass(frozen=True, eq=False, slots=True)
class Probe:
    """A tensor under one assumption about the unknown sizes; `value` where that is known too."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: NDArray[Any] | None = None

    def argument(self) -> Any:
        """What stands for it in a trace."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype) if self.value is None else self.value


Probes = tuple[Probe, Probe] | None


def probes_of_shape(shape: TensorShape, dtype: DType) -> Probes:
    """Return the probes of a tensor of which only shape and dtype are known; `None` without a rank."""
    sizes = shape.sizes
    if sizes is None:
        return None
    if None not in sizes:
        probe = Probe(tuple(size or 0 for size in sizes), dtype.numpy)
        return probe, probe
    return tuple(  # type: ignore[return-value]
        Probe(tuple(unknown if size is None else size for size in sizes), dtype.numpy) for unknown in UNKNOWN
    )


def probes_of_value(value: NDArray[Any]) -> Probes:
    """The probes of a constant."""
    probe = Probe(value.shape, value.dtype, value if value.dtype != object else None)
    return probe, probe


def shape_of(probes: Probes) -> TensorShape:
    """What two probes have in common."""
    if probes is None or len(probes[0].shape) != len(probes[1].shape):
        return TensorShape(None)
    if probes[0] is probes[1]:
        return TensorShape(probes[0].shape)
    return TensorShape([a if a == b else None for a, b in zip(probes[0].shape, probes[1].shape, strict=True)])


def infer(
    compute: Callable[..., Sequence[Any]],
    inputs: Sequence[tuple[Probe, Probe]],
    folds: bool,
) -> list[tuple[Probe, Probe]]:
    """The probes of an operation's outputs.

    Raises:
      Exception: whatever `compute` raises for inputs of such shapes.
    """
    first = _once(compute, [pair[0] for pair in inputs], folds)
    by_text = folds and any(pair[0].dtype == object for pair in inputs)
    is_certain = not (by_text and any(pair[0].value is None and pair[0].dtype.kind in "iu" for pair in inputs))
    if is_certain and all(pair[0] is pair[1] for pair in inputs):
        return [(probe, probe) for probe in first]
    try:
        second = _once(compute, [pair[1] for pair in inputs], folds, ASSUMED[1])
    except Exception:
        if is_certain:
            raise
        # The number is not within the text: nothing but the rank is known.
        second = [Probe(tuple(size + 1 for size in one.shape), one.dtype) for one in first]
    return list(zip(first, second, strict=True))


def infer_by_values(
    compute: Callable[..., Sequence[Any]], inputs: Sequence[tuple[Probe, Probe]]
) -> list[tuple[Probe, Probe]]:
    """The probes of an operation's outputs whose shapes follow from whole numbers that are computed.

    Raises:
      Exception: whatever `compute` raises if these are 1, or 2.
    """
    assumed = [(_filled(pair[0], 1), _filled(pair[1], 2)) if _may_be_sizes(pair) else pair for pair in inputs]
    return infer(compute, assumed, folds=False)


def _may_be_sizes(pair: tuple[Probe, Probe]) -> bool:
    return pair[0].value is None and len(pair[0].shape) < 2 and pair[0].dtype.kind in "iu" and pair[0] is pair[1]


def _filled(probe: Probe, number: int) -> Probe:
    return Probe(probe.shape, probe.dtype, np.full(probe.shape, number, probe.dtype))


def _once(
    compute: Callable[..., Sequence[Any]], inputs: Sequence[Probe], folds: bool, assumed: int = ASSUMED[0]
) -> list[Probe]:
    if folds and all(probe.value is not None for probe in inputs):
        with np.errstate(all="ignore"):
            outputs = compute(*(probe.value for probe in inputs))
        if all(isinstance(output, np.ndarray | np.generic) for output in outputs):
            arrays = [np.asarray(output) for output in outputs]
            return [Probe(a.shape, a.dtype, a if a.size <= MOST_CARRIED else None) for a in arrays]
    if folds and any(probe.dtype == object for probe in inputs) and sum(map(_size, inputs)) <= MOST_TEXTS:
        arrays = [
            np.full(p.shape, b"", object)
            if p.dtype == object
            else np.full(p.shape, assumed if p.dtype.kind in "iu" else 0, p.dtype)
            for p in inputs
        ]
        found = compute(*(a if p.value is None else p.value for a, p in zip(arrays, inputs, strict=True)))
        return [Probe(np.shape(one), np.asarray(one).dtype) for one in found]
    known = {i: probe.value for i, probe in enumerate(inputs) if probe.value is not None}
    abstract = [probe.argument() for i, probe in enumerate(inputs) if i not in known]

    def call(*arguments: Any) -> Any:
        rest = iter(arguments)
        outputs = compute(*(known[i] if i in known else next(rest) for i in range(len(inputs))))
        return [None if _is_text(output) else output for output in outputs]

    with jax.enable_x64(True):
        outputs = jax.eval_shape(call, *abstract)
    return [
        Probe((), string.numpy) if output is None else Probe(tuple(output.shape), np.dtype(output.dtype))
        for output in outputs
    ]


def _size(probe: Probe) -> int:
    return math.prod(probe.shape)


def _is_text(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


def dtype_of(probe: Probe) -> DType:
    """A probe's dtype by TensorFlow's name."""
    return as_dtype(probe.dtype)
