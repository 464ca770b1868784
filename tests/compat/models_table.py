"""Layers and models of `tf.keras` on whose variables, values and training TensorFlow and trainband must agree.

It needs NumPy only, and is run with TensorFlow or `compat.tf1` as `tf`. All variables get values that follow from their
names before anything is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from tests.compat.networks_table import value_of
except ImportError:  # where the recipe runs it
    from networks_table import value_of  # type: ignore[import-not-found, no-redef]

_random = np.random.RandomState(5)


def _normal(*shape: int) -> Any:
    return _random.normal(size=shape).astype(np.float32)


ROWS, SERIES, IMAGES = _normal(4, 6), _normal(2, 5, 3), _normal(2, 8, 7, 3)
WORDS = np.array([[1, 2, 0, 0], [3, 4, 5, 0]], np.int32)
VOLUMES = _normal(1, 4, 4, 3, 2)


def name_of(variable: Any) -> str:
    """A variable's name in TensorFlow 1, where a recurrent layer's variables were its own and not its cell's."""
    return re.sub(r"/(lstm|gru|simple_rnn)_cell(_[0-9]+)?", "", variable.op.name)


# --- layers, called on tensors


def _on(inputs: Any, make: Callable[[Any], Any], **more: Any) -> Callable[[Any], Any]:
    def build(tf: Any) -> Any:
        layer = make(tf.keras.layers)
        x = tf.placeholder_with_default(inputs, [None, *inputs.shape[1:]])
        return layer(x, **more), [layer]

    return build


def _merge(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def build(tf: Any) -> Any:
        layer = make(tf.keras.layers)
        return layer([tf.constant(ROWS), tf.constant(ROWS[::-1].copy() * 2)]), [layer]

    return build


def _sequential_on_tensor(tf: Any) -> Any:
    k = tf.keras.layers
    model = tf.keras.Sequential([k.Dense(5, activation="relu"), k.BatchNormalization(), k.Dense(2)])
    return model(tf.constant(ROWS), training=True), [model]


def _built_sequential_twice(tf: Any) -> Any:
    k = tf.keras.layers
    model = tf.keras.Sequential([k.Dense(5, input_shape=(6,), kernel_regularizer="l2"), k.LeakyReLU(), k.Dense(2)])
    return [model(tf.constant(ROWS)), model(tf.constant(ROWS * 2))], [model]


def _functional(tf: Any) -> Any:
    k = tf.keras.layers
    x = k.Input((8, 7, 3))
    a = k.Conv2D(4, 3, padding="same", activation="relu")(x)
    b = k.Conv2D(4, 1)(x)
    y = k.add([a, b])
    y = k.concatenate([k.GlobalAveragePooling2D()(y), k.GlobalMaxPooling2D()(a)])
    model = tf.keras.Model(inputs=x, outputs=k.Dense(3, activation="softmax")(y))
    return model(tf.constant(IMAGES)), [model]


def _functional_with_operations(tf: Any) -> Any:
    k = tf.keras.layers
    x = k.Input((6,))
    y = tf.nn.relu(k.Dense(4)(x)) * 2.0
    model = tf.keras.models.Model(x, k.Lambda(lambda z: z + 1.0)(y))
    return model(tf.constant(ROWS)), [model]


def _subclass(tf: Any) -> Any:
    class Net(tf.keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = tf.keras.layers.Dense(5, activation="tanh")
            self.normal = tf.keras.layers.BatchNormalization()
            self.last = tf.keras.layers.Dense(2)

        def call(self, x: Any, training: Any = None) -> Any:
            return self.last(self.normal(self.inner(x), training=training))

    model = Net()
    return model(tf.constant(ROWS), training=False), [model]


def _own_layer(tf: Any) -> Any:
    class Scaled(tf.keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, units: int, **more: Any) -> None:
            self.units = units
            super().__init__(**more)

        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(
                name="kernel", shape=(int(input_shape[-1]), self.units), initializer="uniform", trainable=True
            )
            super().build(input_shape)

        def call(self, x: Any) -> Any:
            return tf.keras.backend.dot(x, self.kernel)

    layers = [Scaled(3), Scaled(2)]
    return layers[1](layers[0](tf.constant(ROWS))), layers


def _masked(tf: Any) -> Any:
    k = tf.keras.layers
    model = tf.keras.Sequential(
        [k.Embedding(8, 3, mask_zero=True, input_length=4), k.LSTM(4, return_sequences=True), k.GRU(3)]
    )
    return model(tf.constant(WORDS)), [model]


def _scopes(tf: Any) -> Any:
    with tf.variable_scope("net"):
        first = tf.keras.layers.Dense(3)
        y = first(tf.constant(ROWS))
        second = tf.keras.layers.Dense(2, name="head")
        return second(y), [first, second]


LAYERS: dict[str, Callable[[Any], Any]] = {
    "dense": _on(ROWS, lambda k: k.Dense(3, activation="relu", kernel_regularizer="l2")),
    "dense_sequences": _on(SERIES, lambda k: k.Dense(2, activation="tanh", use_bias=False)),
    "activity": _on(ROWS, lambda k: k.Dense(3, activity_regularizer="l1")),
    "conv1d_causal": _on(SERIES, lambda k: k.Conv1D(2, 3, padding="causal", dilation_rate=2)),
    "conv2d": _on(IMAGES, lambda k: k.Conv2D(4, (3, 2), strides=2, padding="same", activation="elu")),
    "conv3d": _on(VOLUMES, lambda k: k.Conv3D(2, 2)),
    "conv2d_transpose": _on(IMAGES, lambda k: k.Conv2DTranspose(2, 3, strides=2, padding="same")),
    "separable": _on(IMAGES, lambda k: k.SeparableConv2D(4, 3, activation="relu")),
    "depthwise": _on(IMAGES, lambda k: k.DepthwiseConv2D(3, depth_multiplier=2, padding="same")),
    "pool": _on(IMAGES, lambda k: k.MaxPool2D()),
    "pool_average": _on(IMAGES, lambda k: k.AveragePooling2D((2, 3), strides=1, padding="same")),
    "pool_series": _on(SERIES, lambda k: k.MaxPooling1D(2)),
    "pad": _on(IMAGES, lambda k: k.ZeroPadding2D(((1, 2), (0, 1)))),
    "crop": _on(IMAGES, lambda k: k.Cropping2D((1, 2))),
    "enlarge": _on(IMAGES, lambda k: k.UpSampling2D((2, 3))),
    "flatten": _on(IMAGES, lambda k: k.Flatten()),
    "reshape": _on(IMAGES, lambda k: k.Reshape((7, -1))),
    "permute": _on(IMAGES, lambda k: k.Permute((3, 1, 2))),
    "repeat": _on(ROWS, lambda k: k.RepeatVector(3)),
    "prelu": _on(IMAGES, lambda k: k.PReLU(shared_axes=[1, 2])),
    "relu_limited": _on(ROWS, lambda k: k.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2)),
    "batch_norm_trained": _on(ROWS, lambda k: k.BatchNormalization(momentum=0.9), training=True),
    "batch_norm_images": _on(IMAGES, lambda k: k.BatchNormalization(), training=True),
    "batch_norm_phase": _on(ROWS, lambda k: k.BatchNormalization()),
    "embedding": _on(WORDS, lambda k: k.Embedding(8, 3)),
    "time_distributed": _on(SERIES, lambda k: k.TimeDistributed(k.Dense(2))),
    "simple_rnn": _on(SERIES, lambda k: k.SimpleRNN(3, return_sequences=True)),
    "lstm": _on(SERIES, lambda k: k.LSTM(3)),
    "lstm_states": _on(SERIES, lambda k: k.LSTM(3, return_sequences=True, return_state=True, go_backwards=True)),
    "gru": _on(SERIES, lambda k: k.GRU(3, return_sequences=True, recurrent_activation="sigmoid")),
    "bidirectional": _on(SERIES, lambda k: k.Bidirectional(k.LSTM(3, return_sequences=True))),
    "bidirectional_sum": _on(SERIES, lambda k: k.Bidirectional(k.GRU(3), merge_mode="sum")),
    "concatenate": _merge(lambda k: k.Concatenate()),
    "average": _merge(lambda k: k.Average()),
    "subtract": _merge(lambda k: k.Subtract()),
    "maximum": _merge(lambda k: k.Maximum()),
    "dot": _merge(lambda k: k.Dot(1, normalize=True)),
    "sequential_on_tensor": _sequential_on_tensor,
    "built_sequential_twice": _built_sequential_twice,
    "functional": _functional,
    "functional_with_operations": _functional_with_operations,
    "subclass": _subclass,
    "own_layer": _own_layer,
    "masked": _masked,
    "scopes": _scopes,
}


def values_of_layer(tf: Any, name: str) -> dict[str, Any]:
    """The outputs, the losses, the derivatives by each variable, and the variables after the updates."""
    with tf.Graph().as_default() as graph:
        outputs, layers = LAYERS[name](tf)
        outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        trained, variables = tf.trainable_variables(), tf.global_variables()
        losses = [loss for layer in layers for loss in layer.losses]
        updates = [update for layer in layers for update in layer.updates]
        total = tf.add_n([tf.reduce_sum(tf.square(one)) for one in outputs])
        slopes = tf.gradients(total, trained) if trained else []
        firsts = [tf.assign(one, value_of(name_of(one), one.get_shape())) for one in variables]
        with tf.Session(graph=graph) as session:
            session.run(firsts)
            found, slopes, losses = session.run([outputs, slopes, losses])
            rest = [one for one in variables if all(one is not other for other in trained)]
            if updates:
                session.run(updates)
            others = session.run(rest) if rest else []
    return {
        **{f"{name} output {number}": value for number, value in enumerate(found)},
        **{f"{name} loss {number}": value for number, value in enumerate(losses)},
        **{f"{name} by {name_of(one)}": _dense(value) for one, value in zip(trained, slopes, strict=True)},
        **{f"{name} then {name_of(one)}": value for one, value in zip(rest, others, strict=True)},
    }


def _dense(slope: Any) -> Any:
    """A derivative of rows as one of everything; TensorFlow's and trainband's rows may come in another order."""
    if not hasattr(slope, "indices"):
        return slope
    whole = np.zeros([8, *np.shape(slope.values)[1:]], np.float32)
    np.add.at(whole, np.asarray(slope.indices), np.asarray(slope.values))
    return whole


# --- models that are trained

X = _normal(24, 6)
CLASSES = np.argmax(X[:, :3], -1)
BINARY = (X[:, :1] > 0).astype(np.float32)
NUMBERS = X[:, :2] * 2 + 1


def _dense_model(tf: Any, units: int, last: Any) -> Any:
    k = tf.keras.layers
    return tf.keras.Sequential([k.Dense(5, activation="tanh", input_shape=(6,)), k.Dense(units, activation=last)])


def _with(
    optimizer: Callable[[Any], Any], loss: str, y: Any, units: int, last: Any, metrics: Any
) -> Callable[[Any], Any]:
    def train(tf: Any) -> Any:
        model = _dense_model(tf, units, last)
        model.compile(optimizer(tf), loss, metrics=list(metrics))
        return model, {"x": X, "y": y, "epochs": 2, "batch_size": 10, "validation_data": (X[:5], y[:5])}

    return train


def _several_outputs(tf: Any) -> Any:
    k = tf.keras.layers
    a, b = k.Input((4,), name="a"), k.Input((2,), name="b")
    both = k.concatenate([k.Dense(4, activation="relu")(a), b])
    first = k.Dense(3, activation="softmax", name="kind")(both)
    second = k.Dense(2, name="size", kernel_regularizer=tf.keras.regularizers.l2(0.01))(both)
    model = tf.keras.Model([a, b], [first, second])
    model.compile(
        "adam",
        {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        metrics={"kind": "acc", "size": ["mae"]},
        loss_weights={"kind": 1.0, "size": 0.3},
    )
    x = {"a": X[:, :4], "b": X[:, 4:]}
    return model, {"x": x, "y": {"kind": CLASSES, "size": NUMBERS}, "epochs": 2, "batch_size": 8}


def _normalised(tf: Any) -> Any:
    k = tf.keras.layers
    model = tf.keras.Sequential([k.Dense(5, input_shape=(6,)), k.BatchNormalization(momentum=0.8), k.Dense(1)])
    model.compile("sgd", "mse")
    weights = np.linspace(0.5, 2, 24).astype(np.float32)
    return model, {"x": X, "y": NUMBERS[:, 0], "epochs": 2, "batch_size": 8, "sample_weight": weights}


def _scheduled(tf: Any) -> Any:
    model = _dense_model(tf, 2, None)
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, decay=0.1), "mse", metrics=["mape"])
    change = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    return model, {"x": X, "y": NUMBERS, "epochs": 3, "batch_size": 12, "callbacks": [change]}


def _dataset(tf: Any) -> Any:
    model = _dense_model(tf, 3, None)
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["acc"])
    data = tf.data.Dataset.from_tensor_slices((X, CLASSES.astype(np.int32))).batch(8).repeat()
    return model, {"x": data, "epochs": 2, "steps_per_epoch": 3}


def _stateful(tf: Any) -> Any:
    model = _dense_model(tf, 1, "sigmoid")
    kinds = tf.keras.metrics
    model.compile("sgd", "binary_crossentropy", metrics=[kinds.Precision(), kinds.Recall(), kinds.AUC(name="area")])
    return model, {"x": X, "y": BINARY, "epochs": 2, "batch_size": 10, "validation_data": (X[:7], BINARY[:7])}


def _of(name: str, *args: Any, **more: Any) -> Callable[[Any], Any]:
    return lambda tf: getattr(tf.keras.optimizers, name)(*args, **more)


ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
TRAINED: dict[str, Callable[[Any], Any]] = {
    "momentum": _with(_of("SGD", 0.1, momentum=0.9), "mse", NUMBERS, 2, None, ["mae", "mean_squared_error"]),
    "adam": _with(
        _of("Adam", 0.05, clipnorm=0.5), "sparse_categorical_crossentropy", CLASSES, 3, "softmax", ["accuracy"]
    ),
    "adamax": _with(_of("Adamax", 0.05), "categorical_crossentropy", ONE_HOT, 3, "softmax", ["acc"]),
    "rmsprop": _with(_of("RMSprop", 0.01), "binary_crossentropy", BINARY, 1, "sigmoid", ["accuracy"]),
    "rmsprop_centered": _with(_of("RMSprop", 0.01, momentum=0.5, centered=True), "mse", NUMBERS, 2, None, []),
    "adagrad": _with(_of("Adagrad", 0.1), "logcosh", NUMBERS, 2, None, []),
    "adadelta": _with(_of("Adadelta", 1.0), "hinge", BINARY * 2 - 1, 1, None, ["squared_hinge"]),
    "of_train": _with(lambda tf: tf.train.AdamOptimizer(0.05), "mse", NUMBERS, 2, None, []),
    "several_outputs": _several_outputs,
    "normalised": _normalised,
    "scheduled": _scheduled,
    "dataset": _dataset,
    "stateful": _stateful,
}


def values_of_training(tf: Any, name: str) -> dict[str, Any]:
    """What `fit` says about each epoch, and the predictions and the evaluation afterwards."""
    tf.keras.backend.clear_session()
    model, arguments = TRAINED[name](tf)
    weights = [value_of(one.name.split(":")[0], one.shape.as_list()) for one in model.weights]
    model.set_weights(weights)
    history = model.fit(verbose=0, shuffle=False, **arguments).history
    found = {f"{name} {key}": np.asarray(values) for key, values in history.items()}
    if "steps_per_epoch" not in arguments:
        outputs = model.predict(arguments["x"])
        scores = model.evaluate(arguments["x"], arguments["y"], verbose=0)
        listed = outputs if isinstance(outputs, list) else [outputs]
        found |= {f"{name} output {number}": value for number, value in enumerate(listed)}
        found[f"{name} evaluated"] = np.asarray(scores)
    return found
