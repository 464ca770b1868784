# ruff: noqa: ARG005 - every entry is called with tf, whether or not it needs it
"""Layers and recurrent networks on whose variables, values and derivatives TensorFlow and trainband must agree.

It needs NumPy only, and is run with TensorFlow or `compat.tf1` as `tf`. Each entry builds a network and returns its
outputs; all variables then get values that follow from their names.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

_random = np.random.RandomState(3)


def _normal(*shape: int) -> Any:
    return _random.normal(size=shape).astype(np.float32)


ROWS, SERIES, IMAGES, VOLUMES = _normal(3, 4), _normal(2, 5, 3), _normal(2, 6, 5, 2), _normal(1, 4, 4, 3, 2)
LENGTHS = np.array([2, 4], np.int32)
STEPS = 5


def value_of(name: str, shape: Any) -> Any:
    """The value of a variable."""
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    values = random.uniform(-1, 1, size=[int(size) for size in shape]).astype(np.float32)
    return np.abs(values) + 0.5 if "moving_variance" in name else values


def _dynamic(make: Callable[[Any, Any], Any], **more: Any) -> Callable[[Any], Any]:
    def build(tf: Any) -> Any:
        x = tf.placeholder_with_default(SERIES, [None, STEPS, 3])
        outputs, state = tf.nn.dynamic_rnn(make(tf, tf.nn.rnn_cell), x, dtype=tf.float32, **more)
        return [outputs, state]

    return build


def _layer(inputs: Any, make: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def build(tf: Any) -> Any:
        return [make(tf, tf.placeholder_with_default(inputs, [None, *inputs.shape[1:]]))]

    return build


def _bidirectional(tf: Any) -> Any:
    cell = tf.nn.rnn_cell
    return tf.nn.bidirectional_dynamic_rnn(
        cell.GRUCell(2), cell.BasicLSTMCell(3), tf.constant(SERIES), LENGTHS, dtype=tf.float32
    )


def _static(tf: Any) -> Any:
    cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.BasicRNNCell(n) for n in (3, 2)])
    return tf.nn.static_rnn(cell, tf.unstack(tf.constant(SERIES), STEPS, 1), dtype=tf.float32, sequence_length=LENGTHS)


def _static_bidirectional(tf: Any) -> Any:
    cells = tf.nn.rnn_cell.GRUCell(2), tf.nn.rnn_cell.GRUCell(2)
    steps = tf.unstack(tf.constant(SERIES), STEPS, 1)
    return tf.nn.static_bidirectional_rnn(*cells, steps, dtype=tf.float32, sequence_length=LENGTHS)


def _own_cell(tf: Any) -> Any:
    class Cell(tf.nn.rnn_cell.RNNCell):  # type: ignore[misc]
        @property
        def state_size(self) -> Any:
            return 2

        @property
        def output_size(self) -> Any:
            return 2

        def call(self, inputs: Any, state: Any) -> Any:
            w = tf.get_variable("w", [3, 2])
            inner = tf.layers.dense(state, 2, name="inner")
            return tf.matmul(inputs, w), tf.tanh(inner + tf.matmul(inputs, w))

    return tf.nn.dynamic_rnn(Cell(), tf.constant(SERIES), initial_state=tf.ones([2, 2]))


def _loop(tf: Any) -> Any:
    w = tf.get_variable("w", [6, 3])
    series = tf.transpose(tf.placeholder_with_default(SERIES, [None, None, 3]), [1, 0, 2])
    count = tf.shape(series)[0]
    steps = tf.TensorArray(tf.float32, size=count).unstack(series)
    made = tf.TensorArray(dtype=tf.float32, size=count, clear_after_read=False)

    def body(t: Any, state: Any, made: Any) -> Any:
        state = tf.tanh(tf.matmul(tf.concat([steps.read(t), state], 1), w))
        return t + 1, state, made.write(t, state)

    _, last, made = tf.while_loop(lambda t, *_: t < count, body, (0, tf.zeros([tf.shape(series)[1], 3]), made))
    return [last, made.stack(), made.gather([3, 1]), made.concat(), made.size()]


def _growing(tf: Any) -> Any:
    w = tf.get_variable("w", [3])
    made = tf.TensorArray(tf.float32, size=0, dynamic_size=True, clear_after_read=False).write(0, w)

    def body(t: Any, made: Any) -> Any:
        return t + 1, made.write(t, w * tf.cast(t, tf.float32) * made.read(t - 1))

    _, made = tf.while_loop(lambda t, _: t < 4, body, [tf.constant(1), made])
    parts = tf.TensorArray(tf.float32, 2).split(tf.reshape(made.stack(), [-1]), [6, 6])
    scattered = tf.TensorArray(tf.float32, 3, element_shape=[3]).scatter([2, 0], tf.stack([w, w * w]))
    return [made.stack(), parts.read(1), scattered.stack(), made.size()]


def _slim_convnet(tf: Any) -> Any:
    slim = tf.contrib.slim
    x = tf.placeholder_with_default(IMAGES, [None, *IMAGES.shape[1:]])
    normal = {"decay": 0.9, "scale": True, "is_training": True}
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        weights_regularizer=slim.l2_regularizer(0.1),
        normalizer_fn=slim.batch_norm,
        normalizer_params=normal,
    ):
        net = slim.conv2d(x, 3, [3, 3], stride=2)
        net = slim.repeat(net, 2, slim.conv2d, 2, 3, rate=2, scope="block")
        pooled = slim.max_pool2d(net, [2, 2], stride=1)
        with slim.arg_scope([slim.conv2d], activation_fn=None, normalizer_fn=None):
            net = slim.conv2d(pooled, 2, 1, scope="logits")
        rows = slim.stack(slim.flatten(net), slim.fully_connected, [4, 3], scope="fc")
    return [slim.softmax(slim.linear(slim.dropout(rows, 1.0), 2)), pooled]


def _slim_separable(tf: Any) -> Any:
    slim = tf.contrib.slim
    net = slim.separable_conv2d(tf.constant(IMAGES), 3, 3, depth_multiplier=2, scope="a")
    net = slim.separable_conv2d(net, None, [3, 3], depth_multiplier=1, normalizer_fn=None, scope="b")
    net = slim.conv2d_transpose(net, 2, 3, stride=2)
    return [slim.avg_pool2d(net, 3), slim.bias_add(net)]


def _slim_norms(tf: Any) -> Any:
    layers = tf.contrib.layers
    x = tf.constant(IMAGES)
    wide = layers.fully_connected(x, 6, activation_fn=None, biases_regularizer=layers.l1_l2_regularizer(0.1, 0.2))
    tested = layers.batch_norm(wide, is_training=tf.constant(False), activation_fn=tf.tanh, center=False)
    return [
        layers.layer_norm(wide),
        layers.instance_norm(x, epsilon=1e-3),
        layers.group_norm(wide, 3),
        layers.unit_norm(wide, 3),
        tested,
    ]


TABLE: dict[str, Callable[[Any], Any]] = {
    "basic_rnn": _dynamic(lambda tf, cell: cell.BasicRNNCell(4, activation=tf.nn.relu)),
    "basic_lstm_lengths": _dynamic(lambda tf, cell: cell.BasicLSTMCell(3, forget_bias=0.5), sequence_length=LENGTHS),
    "basic_lstm_joined_state": _dynamic(lambda tf, cell: cell.BasicLSTMCell(2, state_is_tuple=False)),
    "lstm_all": _dynamic(
        lambda tf, cell: cell.LSTMCell(4, use_peepholes=True, cell_clip=0.4, num_proj=3, proj_clip=0.5),
        sequence_length=LENGTHS,
    ),
    "gru": _dynamic(lambda tf, cell: cell.GRUCell(3), scope="encoder"),
    "multi": _dynamic(
        lambda tf, cell: cell.MultiRNNCell(
            [cell.ResidualWrapper(cell.GRUCell(3)), cell.DropoutWrapper(cell.BasicLSTMCell(2))]
        ),
        sequence_length=LENGTHS,
    ),
    "bidirectional": _bidirectional,
    "static": _static,
    "static_bidirectional": _static_bidirectional,
    "own_cell": _own_cell,
    "tensor_array_loop": _loop,
    "tensor_array_growing": _growing,
    "dense": _layer(SERIES, lambda tf, x: tf.layers.Dense(2, tf.nn.relu)(x)),
    "conv1d": _layer(SERIES, lambda tf, x: tf.layers.conv1d(x, 4, 2, padding="same", dilation_rate=2)),
    "conv2d": _layer(IMAGES, lambda tf, x: tf.layers.conv2d(x, 3, [3, 2], strides=(2, 1), use_bias=False)),
    "conv3d": _layer(VOLUMES, lambda tf, x: tf.layers.conv3d(x, 2, 2, padding="same", name="volume")),
    "conv2d_transpose": _layer(IMAGES, lambda tf, x: tf.layers.conv2d_transpose(x, 3, 3, 2, "same")),
    "separable_conv2d": _layer(IMAGES, lambda tf, x: tf.layers.separable_conv2d(x, 3, 3, depth_multiplier=2)),
    "separable_conv1d": _layer(SERIES, lambda tf, x: tf.layers.separable_conv1d(x, 2, 2)),
    "pooling": lambda tf: [
        tf.layers.max_pooling1d(SERIES, 2, 2),
        tf.layers.average_pooling1d(SERIES, 3, 2, "same"),
        tf.layers.max_pooling3d(VOLUMES, 2, 2, "same"),
        tf.layers.AveragePooling3D(2, 1)(tf.constant(VOLUMES)),
        tf.layers.average_pooling2d(IMAGES, [2, 3], 2, "same"),
    ],
    "batch_normalization": _layer(IMAGES, lambda tf, x: tf.layers.batch_normalization(x, training=True)),
    "slim_convnet": _slim_convnet,
    "slim_separable": _slim_separable,
    "slim_norms": _slim_norms,
    "batch_normalization_axis": _layer(IMAGES, lambda tf, x: tf.layers.batch_normalization(x, 1, fused=False)),
}


def _flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, list | tuple):
        return [one for part in outputs for one in _flat(part)]
    return [outputs]


def values_of(tf: Any, name: str) -> dict[str, Any]:
    """The outputs, the derivatives by each variable, and afterwards the values of those that are not trained."""
    with tf.Graph().as_default() as graph:
        outputs = _flat(TABLE[name](tf))
        floats = [one for one in outputs if one.dtype.is_floating]
        trained, variables = tf.trainable_variables(), tf.global_variables()
        total = tf.add_n([tf.reduce_sum(tf.square(one)) for one in floats])
        slopes = tf.gradients(total, trained) if trained else []
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
        firsts = [tf.assign(one, value_of(one.op.name, one.get_shape())) for one in variables]
        with tf.Session(graph=graph) as session:
            session.run(firsts)
            found, slopes, losses = session.run([outputs, slopes, losses])
            rest = [one for one in variables if one not in trained]
            if updates:
                session.run(updates)
            others = session.run(rest) if rest else []
    names = [one.op.name for one in trained]
    kept = [one.op.name for one in variables if one not in trained]
    return {
        **{f"{name} output {number}": value for number, value in enumerate(found)},
        **{f"{name} loss {number}": value for number, value in enumerate(losses)},
        **{f"{name} by {one}": value for one, value in zip(names, slopes, strict=True)},
        **{f"{name} then {one}": value for one, value in zip(kept, others, strict=True)},
    }
