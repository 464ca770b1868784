"""`tf.keras.backend`: what layers are made of: convolutions, pooling, padding, CTC, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from trainband.compat.ops.table import TABLE
from trainband.compat.tf2.eager.control import map_fn as map_fn
from trainband.compat.tf2.eager.execute import convert, function_of
from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.lifting import lifted_function


def _ops(name: str) -> Callable[..., Any]:
    return lifted_function(getattr(keras.ops, name), f"keras.ops.{name}")


def conv2d(x: Any, kernel: Any, strides: Any = (1, 1), padding: str = "valid", data_format: Any = None,
           dilation_rate: Any = (1, 1)) -> Any:  # fmt: skip
    """A convolution of images."""
    return _ops("conv")(x, kernel, strides, padding, data_format, dilation_rate)


def conv1d(x: Any, kernel: Any, strides: Any = 1, padding: str = "valid", data_format: Any = None,
           dilation_rate: Any = 1) -> Any:  # fmt: skip
    """A convolution of sequences."""
    return _ops("conv")(x, kernel, strides, padding, data_format, dilation_rate)


conv3d = conv2d


def pool2d(x: Any, pool_size: Any, strides: Any = (1, 1), padding: str = "valid", data_format: Any = None,
           pool_mode: str = "max") -> Any:  # fmt: skip
    """The largest or mean number of each part of an image."""
    return _ops("max_pool" if pool_mode == "max" else "average_pool")(x, pool_size, strides, padding, data_format)


pool3d = pool2d


def bias_add(x: Any, bias: Any, data_format: Any = None) -> Any:
    """A number added to each channel."""
    return x + bias if data_format != "channels_first" else x + _ops("reshape")(bias, (-1,) + (1,) * (len(x.shape) - 2))


def spatial_2d_padding(x: Any, padding: Any = ((1, 1), (1, 1)), data_format: Any = None) -> Any:
    """Zeros around images."""
    sides = [tuple(one) for one in padding]
    return _ops("pad")(x, [(0, 0), (0, 0), *sides] if data_format == "channels_first" else [(0, 0), *sides, (0, 0)])


def temporal_padding(x: Any, padding: Any = (1, 1)) -> Any:
    """Zeros before and after sequences."""
    return _ops("pad")(x, [(0, 0), tuple(padding), (0, 0)])


def resize_images(x: Any, height_factor: int, width_factor: int, data_format: str = "channels_last",
                  interpolation: str = "nearest") -> Any:  # fmt: skip
    """Images that are so many times as large."""
    return keras.layers.UpSampling2D((height_factor, width_factor), data_format, interpolation)(x)


def in_top_k(predictions: Any, targets: Any, k: int) -> Any:
    """Whether a class is among those with the largest predictions."""
    return _ops("in_top_k")(targets, predictions, k)


def ctc_batch_cost(y_true: Any, y_pred: Any, input_length: Any, label_length: Any) -> Any:
    """The CTC loss of each example, of probabilities whose last class is the blank."""
    classes = int(y_pred.shape[-1])
    logits = _ops("log")(convert(y_pred) + keras.config.epsilon() if not _is_symbol(y_pred) else y_pred + 1e-7)
    lengths = (_ops("squeeze")(_ops("cast")(one, "int32"), -1) for one in (label_length, input_length))
    found = _ops("ctc_loss")(_ops("cast")(y_true, "int32"), logits, *lengths, mask_index=classes - 1)
    return _ops("expand_dims")(found, 1)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


def truncated_normal(shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    """Random numbers of a normal distribution without its tails."""
    draw = function_of(TABLE["tf.random.truncated_normal"])
    return draw(shape, mean, stddev, dtype or keras.config.floatx(), seed=seed)


def random_bernoulli(shape: Any, p: float = 0.0, dtype: Any = None, seed: Any = None) -> Any:
    """Ones with a probability, and else zeros."""
    drawn = function_of(TABLE["tf.random.uniform"])(shape, seed=seed)
    return function_of(TABLE["tf.cast"])(drawn < p, dtype or keras.config.floatx())


def in_test_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """The second in training, and else the first."""
    chosen = alt if training else x
    return chosen() if callable(chosen) else chosen


def learning_phase_scope(value: Any) -> Any:
    """A scope that changes nothing: training is said by the argument `training` of each call."""
    return nullcontext(value)


def print_tensor(x: Any, message: str = "", summarize: int = 3) -> Any:
    """Prints a tensor. Returns it."""
    del summarize
    print(message, x)
    return x


def to_dense(tensor: Any) -> Any:
    """The tensor itself: none is sparse here."""
    return tensor
