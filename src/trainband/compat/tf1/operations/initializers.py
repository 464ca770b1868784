"""Initializers: TensorFlow's own formulas for where variables begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.dtypes import as_dtype, float32
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.shapes import dims_of
from trainband.compat.tf1.operations.array import constant, zeros
from trainband.compat.tf1.operations.array import ones as all_ones
from trainband.compat.tf1.operations.random import (
    draw,
    orthogonal_matrix,
    random_normal,
    random_uniform,
    truncated_normal,
)

_TRUNCATED_STDDEV = 0.87962566103423978
"""Of a normal distribution with standard deviation 1 cut off at 2: TensorFlow divides by it."""


class Initializer:
    """Makes the first value of a variable: `initializer(shape, dtype)`."""

    def __init__(self, dtype: Any = float32) -> None:
        self.dtype = as_dtype(dtype)
        """Of what it makes, where nothing else is asked for."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """The first value of a variable of this shape."""
        raise NotImplementedError


class Zeros(Initializer):
    """All zero."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        return zeros(shape, dtype or self.dtype)


class Ones(Initializer):
    """All one."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        return all_ones(shape, dtype or self.dtype)


class Constant(Initializer):
    """One number everywhere, or given ones."""

    def __init__(self, value: Any = 0, dtype: Any = float32, verify_shape: bool = False) -> None:
        super().__init__(dtype)
        self.value = value
        """The number, or the numbers."""
        self._verify = verify_shape

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        value = np.asarray(self.value).astype(as_dtype(dtype or self.dtype).numpy)
        return constant(value, dtype or self.dtype, shape, verify_shape=self._verify)


class RandomNormal(Initializer):
    """Normally distributed."""

    def __init__(self, mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._mean, self._stddev, self._seed = mean, stddev, seed

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        return random_normal(shape, self._mean, self._stddev, dtype or self.dtype, self._seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed, cut off at two standard deviations."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        return truncated_normal(shape, self._mean, self._stddev, dtype or self.dtype, self._seed)


class RandomUniform(Initializer):
    """Evenly distributed."""

    def __init__(self, minval: Any = -0.05, maxval: Any = 0.05, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._minval, self._maxval, self._seed = minval, maxval, seed

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        return random_uniform(shape, self._minval, self._maxval, dtype or self.dtype, self._seed)


class VarianceScaling(Initializer):
    """Random numbers whose variance is `scale` divided by how many inputs, outputs, or their mean, there are.

    Raises:
      ValueError: a mode or distribution that is not there.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: Any = float32,
    ) -> None:
        super().__init__(dtype)
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {mode}")
        if distribution not in ("normal", "uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {distribution}")
        self._scale, self._mode, self._distribution, self._seed = scale, mode, distribution, seed

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """See `Initializer`."""
        sizes = [size or 0 for size in dims_of(shape) or ()]
        whole = sizes if partition_info is None else list(partition_info.full_shape)
        fan_in, fan_out = fans(whole)
        count = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self._mode]
        variance = self._scale / max(1.0, count)
        if self._distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return random_uniform(sizes, -limit, limit, dtype or self.dtype, self._seed)
        if self._distribution == "untruncated_normal":
            return random_normal(sizes, 0.0, math.sqrt(variance), dtype or self.dtype, self._seed)
        stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
        return truncated_normal(sizes, 0.0, stddev, dtype or self.dtype, self._seed)


class GlorotUniform(VarianceScaling):
    """Glorot and Bengio's, evenly distributed."""

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Glorot and Bengio's, normally distributed."""

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


class UniformUnitScaling(Initializer):
    """Evenly distributed so that the scale of what comes in is kept."""

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._factor, self._seed = factor, seed

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """See `Initializer`."""
        sizes = [size or 0 for size in dims_of(shape) or ()]
        whole = sizes if partition_info is None else list(partition_info.full_shape)
        limit = math.sqrt(3 / max(1.0, float(np.prod(whole[:-1], dtype=np.float64)))) * self._factor
        return random_uniform(sizes, -limit, limit, dtype or self.dtype, self._seed)


class Orthogonal(Initializer):
    """A random matrix with orthonormal rows or columns."""

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._gain, self._seed = gain, seed

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        kind = as_dtype(dtype or self.dtype)
        sizes = [size or 0 for size in dims_of(shape) or ()]
        rows = int(np.prod(sizes[:-1]))

        def sample(key: Any, given: tuple[int, ...]) -> Any:
            return self._gain * orthogonal_matrix(key, rows, sizes[-1], kind.numpy).reshape(given)

        return draw("orthogonal", sizes, kind, self._seed, None, sample)


class Identity(Initializer):
    """The identity matrix, times a gain."""

    def __init__(self, gain: float = 1.0, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._gain = gain

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:  # noqa: ARG002
        """See `Initializer`."""
        rows, columns = (size or 0 for size in dims_of(shape) or ())
        return constant(self._gain * np.eye(rows, columns), dtype or self.dtype)


def fans(sizes: Sequence[int]) -> tuple[float, float]:
    """How many inputs and outputs a variable of this shape joins."""
    if len(sizes) < 1:
        return 1.0, 1.0
    if len(sizes) == 1:
        return float(sizes[0]), float(sizes[0])
    field = float(np.prod(sizes[:-2], dtype=np.float64)) if len(sizes) > 2 else 1.0
    return sizes[-2] * field, sizes[-1] * field


def he_normal(seed: int | None = None) -> Initializer:
    """He's, normally distributed."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> Initializer:
    """He's, evenly distributed."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def lecun_normal(seed: int | None = None) -> Initializer:
    """LeCun's, normally distributed."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> Initializer:
    """LeCun's, evenly distributed."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)
