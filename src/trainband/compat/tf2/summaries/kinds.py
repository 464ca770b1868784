"""What can be summarised: numbers, distributions, pictures, texts and sounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.summary import histogram as histogram_proto
from tensorboardX.summary import image as image_proto
from tensorboardX.summary import scalar as scalar_proto

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.summaries.writer import record
from trainband.compat.wave_files import wave_proto
from trainband.train.tensorboard_file import BINS


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """A point of a curve. Returns whether it is written.

    Raises:
      ValueError: it is not one number, or no step is known.
    """
    del description
    number = convert(data)
    if number.ndim:
        raise ValueError(f"Expected scalar shape for tf.summary.scalar {name!r}, got shape {number.shape}.")
    return record(lambda: scalar_proto(name, np.asarray(number.numpy(), np.float32)), step)


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: str | None = None
) -> bool:
    """A distribution. Returns whether it is written."""
    del description, buckets
    tensor = convert(data)

    def make() -> Any:
        numbers = np.asarray(tensor.numpy(), np.float64).ravel()
        finite = numbers[np.isfinite(numbers)]
        return histogram_proto(name, finite if finite.size else np.zeros(1), BINS)

    return record(make, step)


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None) -> bool:
    """Pictures, [n, height, width, channels]: floats from 0 to 1, or bytes. Returns whether they are written.

    Raises:
      ValueError: the shape is another.
    """
    del description
    tensor = convert(data)
    if tensor.ndim != 4:
        raise ValueError(f"Shape must be rank 4 but is rank {tensor.ndim} for tf.summary.image {name!r}.")

    def make() -> Any:
        whole = Summary()
        pictures = tensor.numpy()[: int(max_outputs)]
        for number, one in enumerate(pictures):
            pixels = one if one.dtype == np.uint8 else np.clip(one * 255.0 + 0.5, 0, 255).astype(np.uint8)
            tag = f"{name}/image/{number}" if len(pictures) > 1 else f"{name}/image"
            whole.value.extend(image_proto(tag, pixels, dataformats="HWC").value)
        return whole

    return record(make, step)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> bool:
    """A text, or an array of them. Returns whether it is written."""
    del description
    value = np.asarray(data.numpy() if hasattr(data, "numpy") else data, object)
    return record(lambda: _with_plugin(name, value, "text"), step)


def audio(
    name: str,
    data: Any,
    sample_rate: Any,
    step: Any = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> bool:
    """Sounds, [n, frames, channels] of numbers from -1 to 1. Returns whether they are written."""
    del description, encoding
    tensor, rate = convert(data), float(sample_rate)

    def make() -> Any:
        whole = Summary()
        sounds = tensor.numpy()[: int(max_outputs)]
        for number, one in enumerate(sounds):
            tag = f"{name}/audio/{number}" if len(sounds) > 1 else f"{name}/audio"
            whole.value.add(tag=tag).audio.CopyFrom(wave_proto(one.reshape(len(one), -1), rate))
        return whole

    return record(make, step)


def write(tag: str, tensor: Any, step: Any = None, metadata: Any = None, name: str | None = None) -> bool:
    """An array as it is. Returns whether it is written."""
    del name
    value = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return record(lambda: _with_plugin(tag, value, "", metadata), step)


def _with_plugin(tag: str, value: Any, plugin: str, metadata: Any = None) -> Any:
    """An array as a summary that a plugin of TensorBoard's shows."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in value.shape])
    kind = as_dtype(value.dtype if value.dtype.kind not in "OSU" else "string")
    tensor = TensorProto(dtype=kind.as_datatype_enum, tensor_shape=shape)
    if kind.name == "string":
        tensor.string_val.extend(one if isinstance(one, bytes) else str(one).encode() for one in np.ravel(value))
    else:
        tensor.tensor_content = np.ascontiguousarray(value).tobytes()
    about = (
        SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if metadata is None else metadata
    )
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=tensor)])
