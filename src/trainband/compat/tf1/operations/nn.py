"""`tf.nn`: activations, convolutions, pooling, normalisation, embeddings and cross-entropies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.dtypes import float32
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert, convert_pair, known_value, record, record_tensor
from trainband.compat.tf1.graphs.shapes import dims_of
from trainband.compat.tf1.operations import arithmetic
from trainband.compat.tf1.operations.arithmetic import axes_of
from trainband.compat.tf1.operations.random import draw

sigmoid = arithmetic.sigmoid
tanh = arithmetic.tanh


def _activation(type_: str, compute: Callable[[Any], Any]) -> Callable[..., Tensor]:
    def operation(features: Any, name: str | None = None) -> Tensor:
        return record_tensor(type_, compute, [convert(features)], name=name)

    operation.__doc__ = f"TensorFlow's {type_}, element by element."
    return operation


relu = _activation("Relu", jax.nn.relu)
relu6 = _activation("Relu6", jax.nn.relu6)
elu = _activation("Elu", jax.nn.elu)
selu = _activation("Selu", jax.nn.selu)
softplus = _activation("Softplus", jax.nn.softplus)
softsign = _activation("Softsign", jax.nn.soft_sign)
log_sigmoid = _activation("LogSigmoid", jax.nn.log_sigmoid)
swish = _activation("Swish", jax.nn.swish)


def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """`features` where positive, else `alpha` times that."""
    return record_tensor("LeakyRelu", lambda x: jnp.where(x > 0, x, alpha * x), [convert(features)], name=name)


def crelu(features: Any, name: str | None = None, axis: int = -1) -> Tensor:
    """The positive and the negative part, one after the other."""
    return record_tensor("CRelu", lambda x: jax.nn.relu(jnp.concatenate([x, -x], axis)), [convert(features)], name=name)


def softmax(logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """Probabilities from logits."""
    where = next((one for one in (axis, dim) if one is not None), -1)
    return record_tensor("Softmax", lambda x: jax.nn.softmax(x, where), [convert(logits)], name=name)


def log_softmax(logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """Log probabilities from logits."""
    where = next((one for one in (axis, dim) if one is not None), -1)
    return record_tensor("LogSoftmax", lambda x: jax.nn.log_softmax(x, where), [convert(logits)], name=name)


def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """X weights + biases."""
    return record_tensor(
        "xw_plus_b", lambda a, w, b: jnp.matmul(a, w) + b, [convert(x), convert(weights), convert(biases)], name=name
    )


def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """The positive part of x weights + biases."""
    return relu(xw_plus_b(x, weights, biases), name)


def bias_add(value: Any, bias: Any, data_format: str | None = None, name: str | None = None) -> Tensor:
    """Adds a bias to each channel."""

    def compute(x: Any, b: Any) -> Any:
        return x + (b.reshape((-1,) + (1,) * (x.ndim - 2)) if data_format == "NCHW" else b)

    return record_tensor("BiasAdd", compute, [convert(value), convert(bias)], name=name)


def l2_loss(t: Any, name: str | None = None) -> Tensor:
    """Half the sum of squares."""
    return record_tensor("L2Loss", lambda x: jnp.sum(x * x) / 2, [convert(t)], name=name)


def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None) -> Tensor:
    """Scaled to a norm of 1 along some axes."""
    axes = axes_of(axis if axis is not None else dim)

    def compute(v: Any) -> Any:
        return v * jax.lax.rsqrt(jnp.maximum(jnp.sum(v * v, axis=axes, keepdims=True), epsilon))

    return record_tensor("l2_normalize", compute, [convert(x)], name=name)


def _spread(value: Any, data_format: str, count: int = 2) -> tuple[int, ...]:
    """Strides or window sizes of the image's axes, given for all axes or for these."""
    sizes = [int(one) for one in np.ravel(value)]
    if len(sizes) == 1:
        return (sizes[0],) * count
    if len(sizes) == count:
        return tuple(sizes)
    return tuple(sizes[2:]) if data_format.startswith("NC") else tuple(sizes[1 : 1 + count])


def conv2d(
    input: Any = None,  # noqa: A002 - TensorFlow's name
    filter: Any = None,  # noqa: A002
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,  # noqa: ARG001
    data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Tensor:
    """A convolution over height and width; the filter is [height, width, in, out]."""
    images, kernel = convert_pair(input, filter if filter is not None else filters, "Conv2D")
    steps, holes = _spread(strides, data_format), _spread(dilations, data_format)
    numbers = (data_format, "HWIO", data_format)

    def compute(x: Any, w: Any) -> Any:
        edges = padding if isinstance(padding, str) else [tuple(one) for one in padding][1:3]
        return jax.lax.conv_general_dilated(x, w, steps, edges, rhs_dilation=holes, dimension_numbers=numbers)

    return record_tensor("Conv2D", compute, [images, kernel], name=name)


def conv1d(value: Any, filters: Any, stride: int, padding: str, name: str | None = None) -> Tensor:
    """A convolution along one axis; the filter is [width, in, out]."""
    rows, kernel = convert_pair(value, filters, "Conv1D")

    def compute(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (int(stride),), padding, dimension_numbers=("NWC", "WIO", "NWC"))

    return record_tensor("Conv1D", compute, [rows, kernel], name=name)


def conv2d_transpose(
    value: Any,
    filter: Any,  # noqa: A002
    output_shape: Any,
    strides: Any,
    padding: str = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """What a convolution's gradient does; the filter is [height, width, out, in]."""
    images, kernel = convert_pair(value, filter, "Conv2DBackpropInput")
    steps = _spread(strides, data_format)
    numbers = (data_format, "HWIO", data_format)

    def compute(x: Any, w: Any, sizes: Any) -> Any:
        wanted = tuple(int(one) for one in np.ravel(sizes))

        def forward(y: Any) -> Any:
            return jax.lax.conv_general_dilated(y, w, steps, padding, dimension_numbers=numbers)

        _, pull_back = jax.vjp(forward, jnp.zeros(wanted, x.dtype))
        return pull_back(x)[0]

    return record_tensor("Conv2DBackpropInput", compute, [images, kernel, convert(output_shape)], name=name)


def depthwise_conv2d(
    input: Any,  # noqa: A002
    filter: Any,  # noqa: A002
    strides: Any,
    padding: str,
    name: str | None = None,
) -> Tensor:
    """A convolution of each channel by itself; the filter is [height, width, in, multiplier]."""
    images, kernel = convert_pair(input, filter, "DepthwiseConv2dNative")
    steps = _spread(strides, "NHWC")

    def compute(x: Any, w: Any) -> Any:
        height, width, channels, times = w.shape
        flat = w.reshape(height, width, 1, channels * times)
        return jax.lax.conv_general_dilated(
            x, flat, steps, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=channels
        )

    return record_tensor("DepthwiseConv2dNative", compute, [images, kernel], name=name)


def _pool(type_: str, value: Any, ksize: Any, strides: Any, padding: str, data_format: str, name: str | None) -> Tensor:
    window, steps = _spread(ksize, data_format), _spread(strides, data_format)

    def whole(pair: tuple[int, ...]) -> tuple[int, ...]:
        return (1, 1, *pair) if data_format.startswith("NC") else (1, *pair, 1)

    def compute(x: Any) -> Any:
        if type_ == "MaxPool":
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, whole(window), whole(steps), padding)
        total = jax.lax.reduce_window(x, 0.0, jax.lax.add, whole(window), whole(steps), padding)
        # At the edges, only what is there counts.
        ones = np.ones(
            [size if spread > 1 else 1 for size, spread in zip(x.shape, whole(window), strict=True)], x.dtype
        )
        return total / jax.lax.reduce_window(ones, 0.0, jax.lax.add, whole(window), whole(steps), padding)

    return record_tensor(type_, compute, [convert(value)], name=name)


def max_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,  # noqa: A002
) -> Tensor:
    """The largest of each window."""
    return _pool("MaxPool", value if value is not None else input, ksize, strides, padding, data_format, name)


def avg_pool(
    value: Any = None,
    ksize: Any = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,  # noqa: A002
) -> Tensor:
    """The mean of each window."""
    return _pool("AvgPool", value if value is not None else input, ksize, strides, padding, data_format, name)


def lrn(
    input: Any,  # noqa: A002
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Local response normalisation."""

    def compute(x: Any) -> Any:
        window = (1,) * (x.ndim - 1) + (2 * depth_radius + 1,)
        total = jax.lax.reduce_window(x * x, 0.0, jax.lax.add, window, (1,) * x.ndim, "SAME")
        return x / (bias + alpha * total) ** beta

    return record_tensor("LRN", compute, [convert(input)], name=name)


local_response_normalization = lrn


def dropout(
    x: Any,
    keep_prob: Any = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: Any = None,
) -> Tensor:
    """Zeroes each element with a probability, and scales the others up so that the mean stays.

    Raises:
      ValueError: not one of `keep_prob` and `rate`, or no probability.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError("Only one of keep_prob and rate can be given, and one must be.")
    whole = convert(x)
    keep = convert(keep_prob if keep_prob is not None else 1.0 - rate, whole.dtype)
    known = known_value(keep)
    if known is not None and not 0 < float(known) <= 1:
        raise ValueError(f"keep_prob must be a scalar tensor or a float in the range (0, 1], got {float(known):g}")
    if known is not None and float(known) == 1:
        return whole
    sizes = None if noise_shape is None else tuple(dims_of(noise_shape) or ())

    def sample(key: Any, _: tuple[int, ...], value: Any, share: Any) -> Any:
        shape = value.shape
        if sizes is not None:
            shape = tuple(n if one is None else one for n, one in zip(value.shape, sizes, strict=True))
        kept = jax.random.uniform(key, shape, value.dtype) < share
        return jnp.where(kept, value / share, 0)

    result = draw("dropout", [], whole.dtype, seed, name or "dropout", sample, whole, keep)
    result._shape, result.probes = whole.shape, whole.probes  # noqa: SLF001
    return result


def moments(
    x: Any,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance over some axes."""
    del shift
    where, keep = axes_of(axes), bool(keep_dims or keepdims)

    def compute(v: Any) -> Any:
        mean = jnp.mean(v, axis=where, keepdims=True)
        variance = jnp.mean(jnp.square(v - jax.lax.stop_gradient(mean)), axis=where, keepdims=keep)
        return (mean if keep else jnp.squeeze(mean, where)), variance

    first, second = record("moments", compute, [convert(x)], name=name, count=2).outputs
    return first, second


def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: float, name: str | None = None
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), scaled and moved."""
    graph = get_default_graph()
    with graph.name_scope(name or "batchnorm"):
        inverse = arithmetic.rsqrt(arithmetic.add(variance, variance_epsilon))
        if scale is not None:
            inverse = arithmetic.multiply(inverse, scale)
        moved = arithmetic.negative(arithmetic.multiply(mean, inverse))
        if offset is not None:
            moved = arithmetic.add(offset, moved)
        return arithmetic.add(arithmetic.multiply(x, inverse), moved)  # type: ignore[no-any-return]


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """(normalised images, their mean, their variance, unbiased)."""
    if data_format != "NHWC":
        raise ValueError(f"fused_batch_norm: data_format must be NHWC, got {data_format}.")
    if not is_training:
        return batch_normalization(x, mean, variance, offset, scale, epsilon, name), convert(mean), convert(variance)
    average, spread = moments(x, [0, 1, 2])
    sizes = convert(x)
    count = record_tensor("Size", lambda v: np.asarray(v.shape[0] * v.shape[1] * v.shape[2], np.float32), [sizes])
    normalised = batch_normalization(x, average, spread, offset, scale, epsilon, name)
    return normalised, average, spread * count / arithmetic.maximum(count - 1.0, 1.0)  # type: ignore[operator]


def zero_fraction(value: Any, name: str | None = None) -> Tensor:
    """The share of elements that are zero."""
    return record_tensor(
        "zero_fraction", lambda x: jnp.mean((x == 0).astype(float32.numpy)), [convert(value)], name=name
    )
