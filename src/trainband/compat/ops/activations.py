"""Activations, and layers that are one formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.ops.arrays import axis_of
from trainband.compat.ops.table import op


def _activation(names: str, type_: str, function: Callable[[Any], Any], *, v1_names: str = "") -> Callable[[Any], Any]:
    def compute(features: Any) -> Any:
        return function(features)

    compute.__name__ = names.split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element."
    return op(names, v1_names=v1_names, type=type_, tensors="features")(compute)


relu = _activation("tf.nn.relu", "Relu", jax.nn.relu)
relu6 = _activation("tf.nn.relu6", "Relu6", jax.nn.relu6)
elu = _activation("tf.nn.elu", "Elu", jax.nn.elu)
selu = _activation("tf.nn.selu", "Selu", jax.nn.selu)
softplus = _activation("tf.math.softplus tf.nn.softplus", "Softplus", jax.nn.softplus)
softsign = _activation("tf.nn.softsign", "Softsign", jax.nn.soft_sign)
log_sigmoid = _activation("tf.nn.log_sigmoid", "LogSigmoid", jax.nn.log_sigmoid)
swish = _activation("tf.nn.swish", "Swish", jax.nn.swish)


@op("tf.nn.leaky_relu", type="LeakyRelu", tensors="features")
def leaky_relu(features: Any, alpha: Any = 0.2) -> Any:
    """`features` where they are positive, else `alpha` times them."""
    return jnp.where(features > 0, features, alpha * features)


@op("tf.nn.crelu", type="CRelu", tensors="features", v1="features name axis")
def crelu(features: Any, axis: Any = -1) -> Any:
    """The positive and the negative part, one after the other."""
    return jax.nn.relu(jnp.concatenate([features, -features], axis_of(axis, -1)))


@op("tf.math.softmax tf.nn.softmax", type="Softmax", tensors="logits", v1="logits axis name dim=axis")
def softmax(logits: Any, axis: Any = None) -> Any:
    """Probabilities from logits, along the last axis by default."""
    return jax.nn.softmax(logits, axis_of(axis, -1))


@op("tf.math.log_softmax tf.nn.log_softmax", type="LogSoftmax", tensors="logits", v1="logits axis name dim=axis")
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
    return value + (bias.reshape((-1,) + (1,) * (value.ndim - 2)) if data_format == "NCHW" else bias)
