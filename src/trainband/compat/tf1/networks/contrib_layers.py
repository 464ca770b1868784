"""The layers of `tf.contrib.layers` and `tf.contrib.slim`, which are functions with argument scopes."""

from __future__ import annotations

import functools
from typing import Any

from trainband.compat.ops import activations, array, indexing, math, reductions
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.networks.arg_scope import add_arg_scope
from trainband.compat.tf1.networks.contrib_parts import collect_named_outputs, of_model
from trainband.compat.tf1.networks.convolution import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    SeparableConv2D,
)
from trainband.compat.tf1.networks.core import Dense, Dropout, flat
from trainband.compat.tf1.networks.model_variables import model_variable
from trainband.compat.tf1.networks.pooling import (
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling2D,
    MaxPooling3D,
)
from trainband.compat.tf1.operations.embedding import embedding_lookup
from trainband.compat.tf1.operations.initializers import VarianceScaling, Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

_relu = recorded(activations.relu)
_xavier = VarianceScaling(1.0, "fan_avg", "uniform")
_zeros = Zeros()
_NAMES = {
    "kernel": "weights",
    "bias": "biases",
    "depthwise_kernel": "depthwise_weights",
    "pointwise_kernel": "pointwise_weights",
}


def _layout(data_format: str | None) -> str:
    return "channels_first" if data_format and data_format.startswith("NC") else "channels_last"


def finished(
    outputs: Any,
    scope: Any,
    activation_fn: Any,
    outputs_collections: Any,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
) -> Any:
    """The outputs of a layer, normalised, activated and collected."""
    if normalizer_fn is not None:
        outputs = normalizer_fn(outputs, **(normalizer_params or {}))
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    name = getattr(scope, "original_name_scope", scope).rstrip("/")
    return collect_named_outputs(outputs_collections, name, outputs)


def _convolution(title: str, rank: int | None, layers: dict[int, Any], options: tuple[str, ...]) -> Any:
    """Return a function for convolutions of one rank, or of whichever the inputs have."""

    def convolve(
        inputs: Any,
        num_outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: str = "SAME",
        data_format: str | None = None,
        rate: Any = 1,
        activation_fn: Any = _relu,
        normalizer_fn: Any = None,
        normalizer_params: Any = None,
        weights_initializer: Any = _xavier,
        weights_regularizer: Any = None,
        biases_initializer: Any = _zeros,
        biases_regularizer: Any = None,
        reuse: Any = None,
        variables_collections: Any = None,
        outputs_collections: Any = None,
        trainable: bool = True,
        scope: Any = None,
    ) -> Any:
        with variable_scope(scope, title, reuse=reuse) as opened:
            x = convert(inputs)
            layer = layers[rank or (x.shape.ndims or 0) - 2](
                int(num_outputs),
                kernel_size,
                stride,
                padding,
                _layout(data_format),
                **({"dilation_rate": rate} if "rate" in options else {}),
                use_bias=normalizer_fn is None and biases_initializer is not None,
                kernel_initializer=weights_initializer,
                bias_initializer=biases_initializer,
                kernel_regularizer=weights_regularizer,
                bias_regularizer=biases_regularizer,
                trainable=trainable,
                _scope=opened,
                _reuse=reuse,
                _names=_NAMES,
                _collections=of_model(variables_collections),
            )
            return finished(
                layer(x), opened, activation_fn, outputs_collections, normalizer_fn, normalizer_params
            )  # fmt: skip

    return convolve


def _scoped(name: str, function: Any, says: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = says
    return add_arg_scope(function)


_CONVOLUTIONS = {1: Conv1D, 2: Conv2D, 3: Conv3D}
convolution = _scoped(
    "convolution", _convolution("Conv", None, _CONVOLUTIONS, ("rate",)), "A convolution, normalised and activated."
)
conv1d, conv2d, conv3d = (
    _scoped(
        f"convolution{axes}d",
        _convolution("Conv", axes, _CONVOLUTIONS, ("rate",)),
        f"A convolution over {axes} axes, normalised and activated.",
    )
    for axes in _CONVOLUTIONS
)


def _transposed(axes: int, layer: Any) -> Any:
    inner = _convolution(f"Conv{axes}d_transpose", axes, {axes: layer}, ())

    def transpose(
        inputs: Any,
        num_outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: str = "SAME",
        data_format: str = "NHWC",
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return inner(inputs, num_outputs, kernel_size, stride, padding, data_format, 1, *args, **kwargs)

    return _scoped(f"convolution{axes}d_transpose", transpose, "The gradient of a convolution, activated.")


conv2d_transpose, conv3d_transpose = _transposed(2, Conv2DTranspose), _transposed(3, Conv3DTranspose)


@add_arg_scope
def separable_conv2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Any = 1,
    activation_fn: Any = _relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = _xavier,
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _zeros,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A convolution of each channel by itself, and then, if there is a number of outputs, one of size 1."""
    with variable_scope(scope, "SeparableConv2d", reuse=reuse) as opened:
        layer = (SeparableConv2D if num_outputs is not None else DepthwiseConv2D)(
            num_outputs,
            kernel_size,
            stride,
            padding,
            _layout(data_format),
            rate,
            depth_multiplier,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            depthwise_initializer=weights_initializer,
            pointwise_initializer=pointwise_initializer or weights_initializer,
            bias_initializer=biases_initializer,
            depthwise_regularizer=weights_regularizer,
            pointwise_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            _scope=opened,
            _reuse=reuse,
            _names=_NAMES,
            _collections=of_model(variables_collections),
        )
        outputs = layer(inputs)
        return finished(outputs, opened, activation_fn, outputs_collections, normalizer_fn, normalizer_params)


class DepthwiseConv2D(SeparableConv2D):
    """A convolution of each channel by itself."""

    mixes = False


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Any = _relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = _xavier,
    weights_regularizer: Any = None,
    biases_initializer: Any = _zeros,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """activation(inputs weights + biases), normalised before that if asked for.

    Raises:
      ValueError: the number of outputs is no whole number.
    """
    if not hasattr(num_outputs, "__index__") and not hasattr(num_outputs, "value"):
        raise ValueError(f"num_outputs type should be one of int or Dimension, got {num_outputs}.")
    with variable_scope(scope, "fully_connected", reuse=reuse) as opened:
        layer = Dense(
            int(num_outputs),
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            _scope=opened,
            _reuse=reuse,
            _names=_NAMES,
            _collections=of_model(variables_collections),
        )
        outputs = layer(inputs)
        return finished(outputs, opened, activation_fn, outputs_collections, normalizer_fn, normalizer_params)


linear = functools.partial(fully_connected, activation_fn=None)
relu = functools.partial(fully_connected, activation_fn=_relu)
relu6 = functools.partial(fully_connected, activation_fn=recorded(activations.relu6))


def _pooling(name: str, layer: Any, layout: str) -> Any:
    def pool(
        inputs: Any,
        kernel_size: Any,
        stride: Any = 2,
        padding: str = "VALID",
        data_format: str = layout,
        outputs_collections: Any = None,
        scope: Any = None,
    ) -> Any:
        with get_default_graph().name_scope(scope or name) as opened:
            outputs = layer(kernel_size, stride, padding, _layout(data_format), _scope=None).call(convert(inputs))
            return collect_named_outputs(outputs_collections, opened.rstrip("/"), outputs)

    return _scoped(name.replace("Pool", "_pool").lower(), pool, layer.__doc__)


max_pool2d, max_pool3d = (
    _pooling("MaxPool2D", MaxPooling2D, "NHWC"),
    _pooling("MaxPool3D", MaxPooling3D, "NDHWC"),
)
avg_pool2d, avg_pool3d = (
    _pooling("AvgPool2D", AveragePooling2D, "NHWC"),
    _pooling("AvgPool3D", AveragePooling3D, "NDHWC"),
)


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Zeroes each element with the probability `1 - keep_prob`, while training."""
    with variable_scope(scope, "Dropout") as opened:
        layer = Dropout(1 - keep_prob, noise_shape, seed, _scope=opened)
        return finished(layer(inputs, training=is_training), opened, None, outputs_collections)


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """One row for each example."""
    with get_default_graph().name_scope(scope or "Flatten") as opened:
        return collect_named_outputs(outputs_collections, opened.rstrip("/"), flat(inputs))


@add_arg_scope
def bias_add(
    inputs: Any,
    activation_fn: Any = None,
    initializer: Any = _zeros,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """activation(inputs + biases)."""
    x = convert(inputs)
    with variable_scope(scope, "BiasAdd", reuse=reuse) as opened:
        size = x.shape.as_list()[1 if data_format == "NCHW" else -1]
        biases = model_variable(
            "biases",
            [size],
            x.dtype,
            initializer,
            regularizer,
            trainable,
            of_model(variables_collections)("biases"),
        )
        outputs = recorded(activations.bias_add)(x, biases, data_format)
        return finished(outputs, opened, activation_fn, outputs_collections)


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: Any = 1.0,
    off_value: Any = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """For each label, a vector with one number at its place and another elsewhere."""
    with get_default_graph().name_scope(scope or "OneHotEncoding") as opened:
        outputs = recorded(indexing.one_hot)(labels, num_classes, on_value, off_value)
        return collect_named_outputs(outputs_collections, opened.rstrip("/"), outputs)


@add_arg_scope
def softmax(logits: Any, scope: Any = None) -> Any:
    """The softmax over the last axis."""
    with variable_scope(scope, "softmax"):
        return recorded(activations.softmax)(logits)


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """The vectors of whole numbers.

    Raises:
      ValueError: the sizes of the vectors are not given.
    """
    del unique
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            f"Must specify vocab size and embedding dimension when not reusing. Got {vocab_size=}, {embed_dim=}"
        )
    with variable_scope(scope, "EmbedSequence", reuse=reuse):
        shape = [vocab_size, embed_dim] if vocab_size and embed_dim else None
        vectors = model_variable(
            "embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return embedding_lookup(vectors, ids)


def repeat(inputs: Any, repetitions: int, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """The same layer several times, one after the other."""
    scope = kwargs.pop("scope", None)
    return _stacked("Repeat", inputs, layer, [args] * repetitions, scope, kwargs)


def stack(inputs: Any, layer: Any, stack_args: Any, **kwargs: Any) -> Any:
    """A layer with one set of arguments after the other."""
    scope = kwargs.pop("scope", None)
    each = [one if isinstance(one, list | tuple) else [one] for one in stack_args]
    return _stacked("Stack", inputs, layer, each, scope, kwargs)


def _stacked(title: str, inputs: Any, layer: Any, arguments: Any, scope: Any, kwargs: Any) -> Any:
    with variable_scope(scope, title):
        name = scope or getattr(layer, "__name__", None) or layer.func.__name__
        for number, args in enumerate(arguments, 1):
            inputs = layer(inputs, *args, **kwargs, scope=f"{name}_{number}")
        return inputs


@add_arg_scope
def unit_norm(inputs: Any, dim: int, epsilon: float = 1e-7, scope: Any = None) -> Any:
    """Scale to a norm of 1 along an axis."""
    with variable_scope(scope, "UnitNorm"):
        x: Any = convert(inputs)
        return x / recorded(math.sqrt)(epsilon + recorded(reductions.reduce_sum)(x * x, dim, True))


@add_arg_scope
def maxout(inputs: Any, num_units: int, axis: int = -1, scope: Any = None) -> Any:
    """The largest of each group of channels."""
    with variable_scope(scope, "MaxOut"):
        x = convert(inputs)
        place = axis % (x.shape.ndims or 1)
        sizes = [-1 if size is None else size for size in x.shape.as_list()]
        parts = [*sizes[:place], num_units, (sizes[place] or 0) // num_units, *sizes[place + 1 :]]
        return recorded(reductions.reduce_max)(recorded(array.reshape)(x, parts), place + 1)
