"""`tf.signal`: windows, frames and short-time transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known, operation

fftshift = operation("x")(lambda x, axes=None: jnp.fft.fftshift(x, axes))
ifftshift = operation("x")(lambda x, axes=None: jnp.fft.ifftshift(x, axes))


def _cosines(window_length: Any, periodic: Any, dtype: Any, first: float) -> Tensor:
    length = int(convert(window_length))
    even = 1 - length % 2
    whole = length + (int(bool(periodic)) * even) - 1
    if length == 1:
        return Tensor(np.ones(1, as_dtype(dtype).numpy))
    values = first - (1 - first) * np.cos(2 * np.pi * np.arange(length) / whole)
    return Tensor(values.astype(as_dtype(dtype).numpy))


def hann_window(window_length: Any, periodic: bool = True, dtype: Any = "float32", name: str | None = None) -> Tensor:
    """A window that falls to 0."""
    del name
    return _cosines(window_length, periodic, dtype, 0.5)


def hamming_window(window_length: Any, periodic: bool = True, dtype: Any = "float32", name: Any = None) -> Tensor:
    """A window that falls to 0.08."""
    del name
    return _cosines(window_length, periodic, dtype, 0.54)


def vorbis_window(window_length: Any, dtype: Any = "float32", name: str | None = None) -> Tensor:
    """The window of Vorbis."""
    del name
    length = int(convert(window_length))
    sine = np.sin(np.pi / length * (np.arange(length) + 0.5))
    return Tensor(np.sin(np.pi / 2 * sine**2).astype(as_dtype(dtype).numpy))


def kaiser_window(window_length: Any, beta: float = 12.0, dtype: Any = "float32", name: str | None = None) -> Tensor:
    """The window of Kaiser."""
    del name
    return Tensor(np.kaiser(int(convert(window_length)), float(beta)).astype(as_dtype(dtype).numpy))


def frame(
    signal: Any,
    frame_length: Any,
    frame_step: Any,
    pad_end: bool = False,
    pad_value: Any = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Parts of a signal, each so many steps after the one before."""
    del name
    found: Tensor = _frames(
        signal, int(convert(frame_length)), int(convert(frame_step)), bool(pad_end), pad_value, axis
    )
    return found


@operation("signal")
def _frames(signal: Any, length: int, step: int, pad_end: bool, pad_value: Any, axis: int) -> Any:
    moved = jnp.moveaxis(signal, axis, -1)
    size = moved.shape[-1]
    count = -(-size // step) if pad_end else max(0, 1 + (size - length) // step)
    if pad_end:
        more = max(0, (count - 1) * step + length - size)
        moved = jnp.pad(moved, [*[(0, 0)] * (moved.ndim - 1), (0, more)], constant_values=pad_value)
    places = np.arange(count)[:, None] * step + np.arange(length)
    found = moved[..., places]
    where = axis % signal.ndim
    return jnp.moveaxis(found, (-2, -1), (where, where + 1))


@operation("signal")
def overlap_and_add(signal: Any, frame_step: Any) -> Any:
    """The sum of frames, [..., frames, length], each so many steps after the one before."""
    step = int(np.asarray(frame_step))
    count, length = signal.shape[-2:]
    places = (np.arange(count)[:, None] * step + np.arange(length)).reshape(-1)
    whole = jnp.zeros((*signal.shape[:-2], (count - 1) * step + length), signal.dtype)
    return whole.at[..., places].add(signal.reshape(*signal.shape[:-2], -1))


def _power_of_two(size: int) -> int:
    return int(2 ** np.ceil(np.log2(size)))


def stft(
    signals: Any,
    frame_length: Any,
    frame_step: Any,
    fft_length: Any = None,
    window_fn: Callable[..., Any] | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """The spectrum of each frame of a signal."""
    del name
    tensor, length = convert(signals), int(convert(frame_length))
    whole = _power_of_two(length) if fft_length is None else int(convert(fft_length))
    parts = frame(tensor, length, frame_step, pad_end)
    if window_fn is not None:
        parts = parts * window_fn(length, dtype=tensor.dtype)
    found: Tensor = known("tf.signal.rfft")(parts, [whole])
    return found


def inverse_stft(
    stfts: Any,
    frame_length: Any,
    frame_step: Any,
    fft_length: Any = None,
    window_fn: Callable[..., Any] | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """The signal of which these are the spectra."""
    del name
    length = int(convert(frame_length))
    whole = _power_of_two(length) if fft_length is None else int(convert(fft_length))
    parts = known("tf.signal.irfft")(stfts, [whole])
    parts = _fitted(parts, length)
    if window_fn is not None:
        parts = parts * window_fn(length, dtype=parts.dtype)
    found: Tensor = overlap_and_add(parts, frame_step)
    return found


@operation("frames")
def _fitted(frames: Any, length: int) -> Any:
    more = max(0, length - frames.shape[-1])
    return jnp.pad(frames[..., :length], [*[(0, 0)] * (frames.ndim - 1), (0, more)])


def inverse_stft_window_fn(
    frame_step: Any, forward_window_fn: Callable[..., Any] = hann_window, name: str | None = None
) -> Callable[..., Tensor]:
    """The window for `inverse_stft` after `stft` with another."""
    del name
    step = int(convert(frame_step))

    def window(frame_length: Any, dtype: Any = "float32") -> Tensor:
        length = int(convert(frame_length))
        forward = np.asarray(forward_window_fn(length, dtype=dtype).numpy())
        rows = -(-length // step)
        squares = np.zeros(rows * step, forward.dtype)
        squares[:length] = forward**2
        total = np.tile(squares.reshape(rows, step).sum(0), rows)[:length]
        return Tensor((forward / total).astype(forward.dtype))

    return window


@operation("input")
def dct(input: Any, type: int = 2, n: Any = None, axis: int = -1, norm: Any = None) -> Any:  # noqa: A002
    """The discrete cosine transform of type 2."""
    if type != 2 or axis != -1:
        raise NotImplementedError("tf.signal.dct takes type=2 and the last axis")
    return jax.scipy.fft.dct(input, type=2, n=None if n is None else int(n), norm=norm)


@operation("input")
def idct(input: Any, type: int = 2, n: Any = None, axis: int = -1, norm: Any = None) -> Any:  # noqa: A002
    """The inverse of `dct`, up to a factor where `norm` is left out."""
    if type != 2 or axis != -1:
        raise NotImplementedError("tf.signal.idct takes type=2 and the last axis")
    found = jax.scipy.fft.idct(input, type=2, n=None if n is None else int(n), norm=norm)
    return found if norm == "ortho" else found * 2 * input.shape[-1]


def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: Any, name: str | None = None) -> Tensor:
    """The coefficients of a spectrum on the mel scale."""
    del name
    tensor = convert(log_mel_spectrograms)
    found: Tensor = dct(tensor) * float(1 / np.sqrt(2 * tensor.aval[0][-1]))
    return found


def linear_to_mel_weight_matrix(
    num_mel_bins: Any = 20,
    num_spectrogram_bins: Any = 129,
    sample_rate: Any = 8000,
    lower_edge_hertz: Any = 125.0,
    upper_edge_hertz: Any = 3800.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """How much each bin of a spectrum counts for each on the mel scale."""
    del name
    bins, count, rate = int(num_mel_bins), int(convert(num_spectrogram_bins)), float(convert(sample_rate))

    def mel(hertz: Any) -> Any:
        return 1127.0 * np.log1p(hertz / 700.0)

    own = mel(np.linspace(0.0, rate / 2, count)[1:])[:, None]
    edges = np.linspace(mel(float(lower_edge_hertz)), mel(float(upper_edge_hertz)), bins + 2)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    weights = np.maximum(0.0, np.minimum((own - low) / (middle - low), (high - own) / (high - middle)))
    return Tensor(np.pad(weights, [[1, 0], [0, 0]]).astype(as_dtype(dtype).numpy))
