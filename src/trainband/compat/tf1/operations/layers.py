"""`tf.layers`: layers as functions, with their variables in a scope of the layer's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import activations, array, convolution, math, matrices, normalization, random
from trainband.compat.ops.dtypes import bool_
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.control_flow import cond
from trainband.compat.tf1.operations.initializers import Ones, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import get_variable, variable_scope

Activation = Callable[[Any], Any] | None
_ZEROS = Zeros()
_ONES = Ones()
_bias_add = recorded(activations.bias_add)
_cast, _identity = recorded(math.cast), recorded(array.identity)
_shape, _stack = recorded(array.shape), recorded(array.stack)
_moments = recorded(normalization.moments)


def _finished(outputs: Any, activation: Activation, regularizer: Any) -> Any:
    result = outputs if activation is None else activation(outputs)
    if regularizer is not None:
        get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, regularizer(result))
    return result


def _last(inputs: Tensor, what: str, axis: int = -1) -> int:
    sizes = inputs.shape.sizes
    if sizes is None or sizes[axis] is None:
        raise ValueError(f"The last dimension of the inputs to `{what}` should be defined. Found `None`.")
    return int(sizes[axis] or 0)


def dense(
    inputs: Any,
    units: int,
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """activation(inputs kernel + bias)."""
    x = convert(inputs)
    with variable_scope(name, "dense", reuse=reuse):
        kernel = get_variable(
            "kernel", [_last(x, "Dense"), units], x.dtype, kernel_initializer, kernel_regularizer, trainable,
            constraint=kernel_constraint,
        )  # fmt: skip
        rank = x.shape.ndims or 2
        if rank == 2:
            outputs = recorded(matrices.matmul)(x, kernel)
        else:
            outputs = recorded(matrices.tensordot)(x, kernel, [[rank - 1], [0]])
        if use_bias:
            bias = get_variable(
                "bias", [units], x.dtype, bias_initializer, bias_regularizer, trainable, constraint=bias_constraint
            )
            outputs = _bias_add(outputs, bias)
        return _finished(outputs, activation, activity_regularizer)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _nchw(data_format: str) -> bool:
    return data_format == "channels_first"


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """activation(the convolution of images with a kernel + bias)."""
    x = convert(inputs)
    layout = "NCHW" if _nchw(data_format) else "NHWC"
    with variable_scope(name, "conv2d", reuse=reuse):
        channels = _last(x, "Conv2D", 1 if _nchw(data_format) else -1)
        kernel = get_variable(
            "kernel", [*_pair(kernel_size), channels, filters], x.dtype, kernel_initializer, kernel_regularizer,
            trainable, constraint=kernel_constraint,
        )  # fmt: skip
        outputs = recorded(convolution.conv2d)(
            x, kernel, _pair(strides), padding.upper(), data_format=layout, dilations=_pair(dilation_rate)
        )
        if use_bias:
            bias = get_variable(
                "bias", [filters], x.dtype, bias_initializer, bias_regularizer, trainable, constraint=bias_constraint
            )
            outputs = _bias_add(outputs, bias, layout)
        return _finished(outputs, activation, activity_regularizer)


def conv2d_transpose(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    activation: Activation = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = _ZEROS,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """activation(what a convolution's gradient does to images + bias)."""
    x = convert(inputs)
    (height, width), (down, right) = _pair(kernel_size), _pair(strides)
    with variable_scope(name, "conv2d_transpose", reuse=reuse):
        kernel = get_variable(
            "kernel",
            [height, width, filters, _last(x, "Conv2DTranspose")],
            x.dtype,
            kernel_initializer,
            None,
            trainable,
        )
        sizes = x.shape.as_list()

        def grown(size: int | None, step: int, window: int) -> int:
            if size is None:
                raise ValueError("the height and width of the inputs to `Conv2DTranspose` should be defined.")
            return size * step + (max(window - step, 0) if padding.lower() == "valid" else 0)

        shape = _stack([_shape(x)[0], grown(sizes[1], down, height), grown(sizes[2], right, width), filters])
        outputs = recorded(convolution.conv2d_transpose)(x, kernel, shape, (down, right), padding.upper())
        if use_bias:
            outputs = _bias_add(outputs, get_variable("bias", [filters], x.dtype, bias_initializer, None, trainable))
        return _finished(outputs, activation, None)


def max_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The largest of each window."""
    layout = "NCHW" if _nchw(data_format) else "NHWC"
    return recorded(convolution.max_pool)(inputs, _pair(pool_size), _pair(strides), padding.upper(), layout, name)


def average_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The mean of each window."""
    layout = "NCHW" if _nchw(data_format) else "NHWC"
    return recorded(convolution.avg_pool)(inputs, _pair(pool_size), _pair(strides), padding.upper(), layout, name)


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Tensor:  # noqa: ARG001
    """One row for each example."""
    x = convert(inputs)
    sizes = x.shape.as_list()
    if None not in sizes[1:]:
        count = 1
        for size in sizes[1:]:
            count *= size or 0
        return reshape(x, [-1, count], name=name or "flatten/Reshape")
    return reshape(x, _stack([_shape(x)[0], -1]), name=name or "flatten/Reshape")


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Any:
    """Zeroes each element with the probability `rate`, while training."""
    x = convert(inputs)

    def dropped() -> Any:
        return recorded(random.dropout)(x, keep_prob=1.0 - rate, noise_shape=noise_shape, seed=seed, name=name)

    return _while_training(training, dropped, lambda: _identity(x))


def _while_training(training: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    known = known_value(convert(training, bool_)) if not isinstance(training, bool) else training
    if known is not None:
        return yes() if bool(known) else no()
    return cond(training, yes, no)


def batch_normalization(
    inputs: Any,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = _ZEROS,
    gamma_initializer: Any = _ONES,
    moving_mean_initializer: Any = _ZEROS,
    moving_variance_initializer: Any = _ONES,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: bool = False,
    fused: Any = None,
) -> Any:
    """Normalise by the batch while training, else by moving averages, which operations in `UPDATE_OPS` update.

    Raises:
      ValueError: an axis other than the last, or renorm.
    """
    x = convert(inputs)
    rank = x.shape.ndims or 2
    if axis not in (-1, rank - 1) or renorm:
        raise ValueError("batch_normalization supports only the last axis, and no renorm.")
    graph = get_default_graph()
    with variable_scope(name, "batch_normalization", reuse=reuse):
        sizes = [_last(x, "BatchNormalization")]
        gamma = get_variable(
            "gamma", sizes, x.dtype, gamma_initializer, gamma_regularizer, trainable, constraint=gamma_constraint
        ) if scale else None  # fmt: skip
        beta = get_variable(
            "beta", sizes, x.dtype, beta_initializer, beta_regularizer, trainable, constraint=beta_constraint
        ) if center else None  # fmt: skip
        moving_mean = get_variable("moving_mean", sizes, x.dtype, moving_mean_initializer, None, False)
        moving_variance = get_variable("moving_variance", sizes, x.dtype, moving_variance_initializer, None, False)
        axes = list(range(rank - 1))
        mean, variance = _moments(x, axes)
        # For images, TensorFlow's fused kernel averages the unbiased variance.
        is_image = rank == 4 and fused is not False
        unbiased = recorded(normalization.unbiased)(variance, x) if is_image else variance
        known = training if isinstance(training, bool) else known_value(convert(training, bool_))
        use_mean = _while_training(training, lambda: _identity(mean), lambda: _identity(moving_mean))
        use_variance = _while_training(training, lambda: _identity(variance), lambda: _identity(moving_variance))
        if known is None or bool(known):
            part = 1.0 - momentum if known is not None else _cast(training, x.dtype) * (1.0 - momentum)
            for moving, now in ((moving_mean, mean), (moving_variance, unbiased)):
                update = moving.assign_sub((moving - now) * part)
                graph.add_to_collection(GraphKeys.UPDATE_OPS, update.op)
        return recorded(normalization.batch_normalization)(x, use_mean, use_variance, beta, gamma, epsilon)
