"""Arguments of layers with windows: sizes for each axis, paddings, layouts, and the lengths that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def normalize_tuple(value: Any, n: int, name: str) -> tuple[int, ...]:
    """One number for each of `n` axes.

    Raises:
      ValueError: it is neither a number nor as many.
    """
    try:
        found = (int(value),) * n if isinstance(value, int) or not hasattr(value, "__len__") else tuple(map(int, value))
    except (TypeError, ValueError):
        found = ()
    if len(found) != n:
        raise ValueError(f"The `{name}` argument must be an integer or {n} integers. Received: {value}")
    return found


def normalize_data_format(value: str) -> str:
    """`channels_first` or `channels_last`.

    Raises:
      ValueError: it is neither.
    """
    found = value.lower()
    if found not in ("channels_first", "channels_last"):
        raise ValueError(f"The `data_format` argument must be 'channels_first' or 'channels_last'. Received: {value}")
    return found


def normalize_padding(value: str) -> str:
    """`valid`, `same`, or for one axis `causal`.

    Raises:
      ValueError: it is none of them.
    """
    found = value.lower()
    if found not in ("valid", "same", "causal"):
        raise ValueError(f"The `padding` argument must be 'valid' or 'same'. Received: {value}")
    return found


def normalized(values: Mapping[str, Any], axes: int) -> dict[str, Any]:
    """The arguments of a layer over so many axes, in one form.

    Raises:
      ValueError: one is wrong.
    """
    found = dict(values)
    for name in ("kernel_size", "pool_size", "strides", "dilation_rate"):
        if name in found:
            found[name] = normalize_tuple(found[name], axes, name)
    for name, change in (("padding", normalize_padding), ("data_format", normalize_data_format)):
        if name in found:
            found[name] = change(found[name])
    return found


def convert_data_format(data_format: str, ndim: int) -> str:
    """A layout as the operations name it, such as `NHWC`.

    Raises:
      ValueError: it is unknown.
    """
    axes = {3: "W", 4: "HW", 5: "DHW"}.get(ndim)
    if axes is None or data_format not in ("channels_first", "channels_last"):
        raise ValueError(f"There is no data_format {data_format} for inputs of rank {ndim}.")
    return f"NC{axes}" if data_format == "channels_first" else f"N{axes}C"


def conv_output_length(
    input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """How long a convolution's output is."""
    if input_length is None:
        return None
    reach = filter_size + (filter_size - 1) * (dilation - 1)
    more = {"same": 0, "valid": 1 - reach, "full": reach - 1}[padding]
    return (input_length + more + stride - 1) // stride


def conv_input_length(output_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:
    """How long the input of a convolution is, from its output."""
    if output_length is None:
        return None
    margin = {"same": filter_size // 2, "valid": 0, "full": filter_size - 1}[padding]
    return (output_length - 1) * stride - 2 * margin + filter_size


def deconv_output_length(input_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:
    """How long a transposed convolution's output is."""
    if input_length is None:
        return None
    more = {"same": 0, "valid": max(filter_size - stride, 0), "full": -(stride + filter_size - 2)}[padding]
    return input_length * stride + more
