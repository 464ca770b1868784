"""Initializers, with TensorFlow's formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainband.compat.ops import array, random
from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.ops.shapes import dims_of
from trainband.compat.tf1.operations.array import constant
from trainband.compat.tf1.operations.recorder import recorded
from trainband.runtime.overrides import override

_normal = recorded(random.random_normal)
_truncated_normal = recorded(random.truncated_normal)
_uniform = recorded(random.random_uniform)


class Initializer:
    """Makes the initial value of a variable: `initializer(shape, dtype)`."""

    def __init__(self, dtype: Any = float32) -> None:
        self.dtype = as_dtype(dtype)
        """The dtype of what it makes, by default."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        """Return the initial value of a variable of this shape."""
        raise NotImplementedError


class Zeros(Initializer):
    """All zero."""

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        return recorded(array.zeros)(shape, dtype or self.dtype)


class Ones(Initializer):
    """All one."""

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        return recorded(array.ones)(shape, dtype or self.dtype)


class Constant(Initializer):
    """One number everywhere, or given ones."""

    def __init__(self, value: Any = 0, dtype: Any = float32, verify_shape: bool = False) -> None:
        super().__init__(dtype)
        self.value = value
        """The number, or the numbers."""
        self._verify = verify_shape

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        value = np.asarray(self.value).astype(as_dtype(dtype or self.dtype).numpy)
        return constant(value, dtype or self.dtype, shape, verify_shape=self._verify)


class RandomNormal(Initializer):
    """Normally distributed."""

    def __init__(self, mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._mean, self._stddev, self._seed = mean, stddev, seed

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        return _normal(shape, self._mean, self._stddev, dtype or self.dtype, self._seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed, cut off at two standard deviations."""

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        return _truncated_normal(shape, self._mean, self._stddev, dtype or self.dtype, self._seed)


class RandomUniform(Initializer):
    """Uniformly distributed."""

    def __init__(self, minval: Any = -0.05, maxval: Any = 0.05, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._minval, self._maxval, self._seed = minval, maxval, seed

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        return _uniform(shape, self._minval, self._maxval, dtype or self.dtype, self._seed)


class VarianceScaling(Initializer):
    """Random numbers whose variance is `scale` divided by the number of inputs, of outputs, or their mean.

    Raises:
      ValueError: an unknown mode or distribution.
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

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        sizes = [size or 0 for size in dims_of(shape) or ()]
        whole = sizes if partition_info is None else list(partition_info.full_shape)
        variance = random.scaled_variance(whole, self._scale, self._mode)
        if self._distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return _uniform(sizes, -limit, limit, dtype or self.dtype, self._seed)
        if self._distribution == "untruncated_normal":
            return _normal(sizes, 0.0, math.sqrt(variance), dtype or self.dtype, self._seed)
        return _truncated_normal(sizes, 0.0, random.truncated_stddev(variance), dtype or self.dtype, self._seed)


class GlorotUniform(VarianceScaling):
    """Glorot and Bengio's, uniformly distributed."""

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Glorot and Bengio's, normally distributed."""

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


class UniformUnitScaling(Initializer):
    """Uniformly distributed, so that the scale of the inputs is kept."""

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._factor, self._seed = factor, seed

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        sizes = [size or 0 for size in dims_of(shape) or ()]
        whole = sizes if partition_info is None else list(partition_info.full_shape)
        limit = random.unit_scaling_limit(whole, self._factor)
        return _uniform(sizes, -limit, limit, dtype or self.dtype, self._seed)


class Orthogonal(Initializer):
    """A random matrix with orthonormal rows or columns."""

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._gain, self._seed = gain, seed

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG002
        sizes = [size or 0 for size in dims_of(shape) or ()]
        return recorded(random.random_orthogonal)(sizes, self._gain, dtype or self.dtype, seed=self._seed)


class Identity(Initializer):
    """The identity matrix, times a gain."""

    def __init__(self, gain: float = 1.0, dtype: Any = float32) -> None:
        super().__init__(dtype)
        self._gain = gain

    @override
    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        sizes = [size or 0 for size in dims_of(shape) or ()]
        whole = sizes if partition_info is None else partition_info.full_shape
        if len(whole) != 2:
            raise ValueError(f"Identity matrix initializer can only be used for 2D matrices, not for {list(whole)}.")
        offset = (0, 0) if partition_info is None else partition_info.var_offset
        part = np.eye(*whole)[tuple(slice(at, at + size) for at, size in zip(offset, sizes, strict=True))]
        return constant(self._gain * part, dtype or self.dtype)


def he_normal(seed: int | None = None) -> Initializer:
    """He's, normally distributed."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> Initializer:
    """He's, uniformly distributed."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def lecun_normal(seed: int | None = None) -> Initializer:
    """LeCun's, normally distributed."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> Initializer:
    """LeCun's, uniformly distributed."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)
