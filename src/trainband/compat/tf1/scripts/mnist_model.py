"""`tensorflow.examples.tutorials.mnist.mnist`: the network of two hidden layers that the tutorial's scripts import."""

from __future__ import annotations

import math
from typing import Any

from trainband.compat.ops import activations, cross_entropy, indexing, matrices, reductions
from trainband.compat.ops import math as arithmetic
from trainband.compat.ops.dtypes import float32, int32, int64
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import name_scope
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations import summary
from trainband.compat.tf1.operations.initializers import TruncatedNormal
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.optimizers import GradientDescentOptimizer

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Any:
    """The logits of images, which are [n, 784]."""
    hidden = _layer("hidden1", images, IMAGE_PIXELS, hidden1_units)
    hidden = _layer("hidden2", recorded(activations.relu)(hidden), hidden1_units, hidden2_units)
    return _layer("softmax_linear", recorded(activations.relu)(hidden), hidden2_units, NUM_CLASSES)


def _layer(name: str, inputs: Any, size: int, units: int) -> Any:
    with name_scope(name):
        first = TruncatedNormal(stddev=1.0 / math.sqrt(size))
        weights: Any = Variable(first([size, units], float32), name="weights")
        biases = Variable([0.0] * units, name="biases")
        return recorded(matrices.matmul)(inputs, weights) + biases


def loss(logits: Any, labels: Any) -> Any:
    """The mean cross entropy; labels are the numbers of the classes."""
    numbers = recorded(arithmetic.cast)(labels, int64)
    losses = recorded(cross_entropy.sparse_softmax_cross_entropy)(labels=numbers, logits=logits, name="xentropy")
    return recorded(reductions.reduce_mean)(losses, name="xentropy_mean")


def training(loss: Any, learning_rate: Any) -> Any:
    """The operation that makes a step of gradient descent; the loss is a summary."""
    summary.scalar("loss", loss)
    optimizer = GradientDescentOptimizer(learning_rate)
    return optimizer.minimize(loss, global_step=Variable(0, name="global_step", trainable=False))


def evaluation(logits: Any, labels: Any) -> Any:
    """How many examples have the right class."""
    right = recorded(indexing.in_top_k)(logits, convert(labels), 1)
    return recorded(reductions.reduce_sum)(recorded(arithmetic.cast)(right, int32))
