"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.arrays import sizes_of
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.table import op


def _names(name: str, *, is_old: bool = True) -> dict[str, Any]:
    return {"names": f"tf.signal.{name}", "v1_names": f"tf.spectral.{name}" + (f" tf.{name}" if is_old else "")}


def _transform(name: str, axes: int, *, inverse: bool) -> Callable[[Any], Any]:
    def compute(input: Any) -> Any:  # noqa: A002 - TensorFlow's name
        function = jnp.fft.ifftn if inverse else jnp.fft.fftn
        return input if 0 in input.shape[-axes:] else function(input, axes=tuple(range(-axes, 0))).astype(input.dtype)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {name} over the last {axes} axes."
    return op(**_names(name), type=name.upper(), tensors="input", kinds={"input": "complex"})(compute)


def _real_transform(name: str, axes: int) -> Callable[..., Any]:
    def compute(input_tensor: Any, fft_length: Any = None) -> Any:
        lengths = None if fft_length is None else sizes_of(fft_length, "the length of a transform")
        wide = as_dtype("complex128" if input_tensor.dtype.itemsize > 4 else "complex64").numpy
        if lengths is None and 0 in input_tensor.shape[-axes:]:
            return input_tensor.astype(wide)
        return jnp.fft.rfftn(input_tensor, lengths, axes=tuple(range(-axes, 0))).astype(wide)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {name} over the last {axes} axes, of real numbers."
    kinds = {"input_tensor": "float"}
    return op(**_names(name, is_old=False), type=name.upper(), tensors="input_tensor", kinds=kinds)(compute)


def _inverse_real_transform(name: str, axes: int) -> Callable[..., Any]:
    def compute(input_tensor: Any, fft_length: Any = None) -> Any:
        lengths = None if fft_length is None else sizes_of(fft_length, "the length of a transform")
        narrow = as_dtype("float64" if input_tensor.dtype.itemsize > 8 else "float32").numpy
        if lengths is None and 0 in input_tensor.shape[-axes:]:
            return input_tensor.real.astype(narrow)
        return jnp.fft.irfftn(input_tensor, lengths, axes=tuple(range(-axes, 0))).astype(narrow)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {name} over the last {axes} axes, to real numbers."
    kinds = {"input_tensor": "complex"}
    return op(**_names(name, is_old=False), type=name.upper(), tensors="input_tensor", kinds=kinds)(compute)


for _suffix, _axes in (("", 1), ("2d", 2), ("3d", 3)):
    _transform(f"fft{_suffix}", _axes, inverse=False)
    _transform(f"ifft{_suffix}", _axes, inverse=True)
    _real_transform(f"rfft{_suffix}", _axes)
    _inverse_real_transform(f"irfft{_suffix}", _axes)
