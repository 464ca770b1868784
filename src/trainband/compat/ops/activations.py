"""Activations, and layers that are one formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axis_of, is_floating
from trainband.compat.ops.table import op


def _activation(
    names: str, type_: str, function: Callable[[Any], Any], *, v1_names: str = "", kinds: str = "float"
) -> Callable[[Any], Any]:
    def compute(features: Any) -> Any:
        return function(features)

    compute.__name__ = names.split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element."
    return op(names, v1_names=v1_names, type=type_, tensors="features", kinds={"features": kinds})(compute)


_SCALE, _SCALE_ALPHA = 1.0507009873554804934193349852946, 1.7580993408473768599402175208123


def _selu(x: Any) -> Any:
    """At zero, the derivative is that of positive numbers, as in TensorFlow."""
    return jnp.where(x < 0, _SCALE_ALPHA * jnp.expm1(jnp.minimum(x, 0)), _SCALE * x)


def _relu6(x: Any) -> Any:
    return jax.nn.relu6(x) if is_floating(x) else jnp.clip(x, 0, 6)


relu = _activation("tf.nn.relu", "Relu", jax.nn.relu, kinds="float int")
relu6 = _activation("tf.nn.relu6", "Relu6", _relu6, kinds="float int")
elu = _activation("tf.nn.elu", "Elu", jax.nn.elu)
selu = _activation("tf.nn.selu", "Selu", _selu)
softplus = _activation("tf.math.softplus tf.nn.softplus", "Softplus", jax.nn.softplus)
softsign = _activation("tf.math.softsign tf.nn.softsign", "Softsign", jax.nn.soft_sign)
log_sigmoid = _activation(
    "tf.math.log_sigmoid tf.nn.log_sigmoid", "LogSigmoid", jax.nn.log_sigmoid, v1_names="tf.log_sigmoid"
)
swish = _activation("tf.nn.silu tf.nn.swish", "Swish", jax.nn.swish)


@op("tf.nn.leaky_relu", type="LeakyRelu", tensors="features")
def leaky_relu(features: Any, alpha: Any = 0.2) -> Any:
    """`features` where they are positive, else `alpha` times them; whole numbers become float32."""
    features = features if is_floating(features) else features.astype(np.float32)
    return jnp.where(features > 0, features, alpha * features)


@op("tf.nn.crelu", type="CRelu", tensors="features", v1="features name axis")
def crelu(features: Any, axis: Any = -1) -> Any:
    """The positive and the negative part, one after the other."""
    return jax.nn.relu(jnp.concatenate([features, -features], axis_of(axis, -1)))


_ALONG = "logits axis name dim=axis"


@op("tf.math.softmax tf.nn.softmax", type="Softmax", tensors="logits", v1=_ALONG, kinds={"logits": "float"})
def softmax(logits: Any, axis: Any = None) -> Any:
    """Probabilities from logits, along the last axis by default."""
    return jax.nn.softmax(logits, axis_of(axis, -1))


@op("tf.math.log_softmax tf.nn.log_softmax", type="LogSoftmax", tensors="logits", v1=_ALONG, kinds={"logits": "float"})
def log_softmax(logits: Any, axis: Any = None) -> Any:
    """Log probabilities from logits, along the last axis by default."""
    return jax.nn.log_softmax(logits, axis_of(axis, -1))


@op(v1_names="tf.nn.xw_plus_b", type="xw_plus_b", tensors="x weights biases")
def xw_plus_b(x: Any, weights: Any, biases: Any) -> Any:
    """The product of rows and weights, plus biases."""
    return jnp.matmul(x, weights) + biases


@op(v1_names="tf.nn.relu_layer", type="Relu", tensors="x weights biases")
def relu_layer(x: Any, weights: Any, biases: Any) -> Any:
    """The positive part of `xw_plus_b`."""
    return jax.nn.relu(xw_plus_b(x, weights, biases))


@op("tf.nn.bias_add", type="BiasAdd", tensors="value bias")
def bias_add(value: Any, bias: Any, data_format: str | None = None) -> Any:
    """Adds a bias to each channel."""
    channels = value.shape[1 if data_format == "NCHW" else -1]
    if bias.shape != (channels,):
        raise ArgumentError(f"Dimensions must be equal, but are {channels} and {bias.shape} for 'BiasAdd'")
    return value + (bias.reshape((-1,) + (1,) * (value.ndim - 2)) if data_format == "NCHW" else bias)
