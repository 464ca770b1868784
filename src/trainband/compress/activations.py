"""Activations: their ranges on a calibration set, and products of 8-bit integers scaled by them.

Per-tensor and symmetric: an activation `x` becomes `round(x / scale)` from -127 to 127, where `scale` is its largest
magnitude on the calibration set divided by 127. The product with a weight's integers is summed in 32 bits and then
multiplied by both scales, as in Jacob et al. 2018, Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference, with zero points of 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from trainband.compress.encoding import LEVELS
from trainband.compress.encodings import Scaled
from trainband.compress.products import AsItIs, Site, walked
from trainband.errors import DataError
from trainband.model.inference import InferenceProgram
from trainband.model.signature import Signature
from trainband.runtime.overrides import override

LABELS = "labels"
"""Name of the labels among arrays of data."""
_BATCH = 64
"""Examples per batch."""

Arrays = Mapping[str, NDArray[Any]]


class Recording(AsItIs):
    """Computes each product unchanged, and records the magnitude of its other operand.

    Args:
      names: of the tensors whose products are recorded.
      percentile: of the magnitudes of one batch, instead of the largest.
    """

    def __init__(self, names: frozenset[str], percentile: float | None) -> None:
        self._names = names
        self._percentile = percentile
        self.found: dict[str, Any] = {}

    @override
    def product(self, site: Site) -> Any:
        if site.weight.name in self._names and jnp.issubdtype(site.other.dtype, jnp.floating) and site.free:
            size = jnp.abs(site.other.astype(jnp.float32))
            self.found[site.name] = size.max() if self._percentile is None else jnp.percentile(size, self._percentile)
        return super().product(site)


class Integers(AsItIs):
    """Computes products of 8-bit weights by activations of known range as products of 8-bit integers.

    Args:
      ranges: the largest magnitude, by site.
    """

    def __init__(self, ranges: Mapping[str, float]) -> None:
        self._ranges = ranges

    @override
    def product(self, site: Site) -> Any:
        largest, values, free = self._ranges.get(site.name), site.weight.values, site.free
        if largest is None or not isinstance(values, Scaled) or values.axis not in free:
            return super().product(site)
        step = largest / LEVELS if largest > 0 else 1.0
        rounded = lax.round(site.other.astype(jnp.float32) / step, lax.RoundingMethod.TO_NEAREST_EVEN)
        other = jnp.minimum(jnp.maximum(rounded, -LEVELS), LEVELS).astype(jnp.int8)
        total = site.computed(values.values, other, jnp.int32)
        shape = [-1 if i == free[values.axis] else 1 for i in range(total.ndim)]
        result = total.astype(jnp.float32) * (values.scale * np.float32(step)).reshape(shape)
        return result.astype(site.equation.outvars[0].aval.dtype)


def calibrated(
    program: InferenceProgram, names: frozenset[str], data: Arrays, percentile: float | None = None
) -> dict[str, float]:
    """Returns the largest magnitude of the other factor of each of these tensors, by site.

    Args:
      program: with float weights.
      names: of tensors.
      data: the calibration set: the program's inputs by name, of any number of examples.
      percentile: of the magnitudes in a batch of up to 64 examples, instead of the largest: larger ones are clipped to
        127. The largest value of all batches is used.

    Raises:
      DataError: the set is empty, its inputs are not the program's, or an activation is not finite.
    """
    if percentile is not None and not 0 < percentile <= 100:
        raise DataError(f"a percentile must be more than 0 and at most 100, got {percentile!r}.")

    @jax.jit
    def largest(weights: Any, inputs: Any) -> dict[str, Any]:
        hands = Recording(names, percentile)
        walked(program.function, weights, hands, inputs)
        return hands.found

    weights = jax.device_put(dict(program.weights))
    ranges: dict[str, float] = {}
    for batch in batches(program.signature, data, "the calibration set"):
        for site, found in largest(weights, batch).items():
            value = float(found)
            if not np.isfinite(value):
                raise DataError(f"the other factor of {site} is not finite on the calibration set.")
            ranges[site] = max(ranges.get(site, 0.0), value)
    return ranges


def batches(signature: Signature, data: Arrays, what: str) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields data in batches for a program.

    Args:
      signature: of the program.
      data: its inputs by name, each with as many examples.
      what: names the data in errors.

    Raises:
      DataError: it is empty, or its inputs are not the program's.
    """
    wanted = {spec.name for spec in signature.inputs}
    arrays = {name: np.asarray(array) for name, array in data.items() if name in wanted or name != LABELS}
    counts = {len(array) for array in arrays.values() if array.ndim}
    if not arrays or counts in (set(), {0}):
        raise DataError(f"{what} is empty; give at least one example of {signature.expected()}.")
    try:
        if len(counts) > 1:
            raise DataError(f"its arrays have {sorted(counts)} examples.")
        if signature.batched:
            signature.check(arrays)
            step = _BATCH
        else:
            step = next((spec.shape[0] for spec in signature.inputs if spec.shape), 1)  # type: ignore[assignment]
            signature.check({name: array[:step] for name, array in arrays.items()})
    except DataError as exc:
        raise DataError(f"{what} does not fit the program: {exc}") from exc
    (count,) = counts
    for start in range(0, count, step):
        if signature.batched or start + step <= count:
            yield {name: array[start : start + step] if array.ndim else array for name, array in arrays.items()}
