"""Small programs of `tf.keras`, as Keras 2 has them: each takes TensorFlow, and gives numbers that must agree.

Golden values, with TensorFlow 2.21 and tf_keras:
`TF_USE_LEGACY_KERAS=1 python keras_programs.py > data/keras_programs.json`
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Numbers = dict[str, Any]


def _data() -> tuple[Any, Any]:
    x = np.random.RandomState(0).normal(size=(32, 6)).astype(np.float32)
    return x, np.random.RandomState(1).randint(3, size=32).astype(np.int32)


def _given(model: Any, seed: int = 2) -> Any:
    """A model with weights that do not depend on the initialisers."""
    draw = np.random.RandomState(seed)
    model.set_weights([(draw.normal(size=one.shape) * 0.3).astype(np.float32) for one in model.get_weights()])
    return model


def own_train_step(tf: Any) -> Numbers:
    """`train_step` with the compiled loss and metrics, a regularizer, validation, class weights."""
    keras = tf.keras

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y, *rest = data
            weights = rest[0] if rest else None
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compiled_loss(y, y_pred, weights, regularization_losses=self.losses)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.compiled_metrics.update_state(y, y_pred, weights)
            return {m.name: m.result() for m in self.metrics}

    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.l2(0.01))(inputs)
    model = _given(Own(inputs, keras.layers.Dense(3)(hidden)))
    model.compile(
        optimizer=keras.optimizers.Adam(0.02),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=keras.losses.Reduction.AUTO),
        metrics=["accuracy"],
    )
    x, y = _data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset).history
    weighed = model.fit(x, y, batch_size=16, shuffle=False, verbose=0, class_weight={0: 1.0, 1: 2.0, 2: 0.5}).history
    return {**history, "weighed": weighed["loss"], "batch": model.train_on_batch(x, y)[0], "kernel": _sum(model)}


def adversaries(tf: Any) -> Numbers:
    """Two models and two optimizers in one `train_step`, with metrics of its own."""
    keras = tf.keras

    class Adversaries(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, judge: Any, maker: Any) -> None:
            super().__init__()
            self.judge, self.maker = judge, maker
            self.of_judge, self.of_maker = keras.metrics.Mean(name="judge"), keras.metrics.Mean(name="maker")

        def compile(self, judge: Any, maker: Any, loss_fn: Any) -> None:
            super().compile()
            self.judge_optimizer, self.maker_optimizer, self.loss_fn = judge, maker, loss_fn

        @property
        def metrics(self) -> Any:
            return [self.of_judge, self.of_maker]

        def train_step(self, data: Any) -> Any:
            real, noise = data
            size = tf.shape(real)[0]
            together = tf.concat([self.maker(noise), real], axis=0)
            labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
            with tf.GradientTape() as tape:
                loss = self.loss_fn(labels, self.judge(together))
            gradients = tape.gradient(loss, self.judge.trainable_weights)
            self.judge_optimizer.apply_gradients(zip(gradients, self.judge.trainable_weights, strict=True))
            with tf.GradientTape() as tape:
                other = self.loss_fn(tf.zeros((size, 1)), self.judge(self.maker(noise)))
            gradients = tape.gradient(other, self.maker.trainable_weights)
            self.maker_optimizer.apply_gradients(zip(gradients, self.maker.trainable_weights, strict=True))
            self.of_judge.update_state(loss)
            self.of_maker.update_state(other)
            return {"judge": self.of_judge.result(), "maker": self.of_maker.result()}

    layers = keras.layers
    judge = _given(keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.LeakyReLU(0.2), layers.Dense(1)]))
    maker = _given(keras.Sequential([keras.Input((2,)), layers.Dense(6, activation="relu"), layers.Dense(6)]), 3)
    model = Adversaries(judge, maker)
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9), loss_fn)
    noise = np.random.RandomState(4).normal(size=(32, 2)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((_data()[0], noise)).batch(8)
    return {**model.fit(dataset, epochs=3, verbose=0).history, "kernel": _sum(judge) + _sum(maker)}


def autoencoder(tf: Any) -> Numbers:
    """A model of layers of its own that add losses, in a loop with a schedule."""
    keras = tf.keras

    class Code(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(name="kernel", shape=(int(input_shape[-1]), 3), initializer="zeros")
            self.scale = tf.Variable(1.5, trainable=True, name="scale")

        def call(self, inputs: Any) -> Any:
            code = self.scale * tf.tanh(tf.matmul(inputs, self.kernel))
            self.add_loss(0.1 * tf.reduce_mean(tf.square(code)))
            return code

    code, decoder = Code(), keras.layers.Dense(6)
    model = keras.Sequential([keras.Input((6,)), code, decoder])
    draw = np.random.RandomState(5)
    for one in (code.kernel, *decoder.trainable_variables):
        one.assign((draw.normal(size=one.shape) * 0.3).astype(np.float32))
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    optimizer = keras.optimizers.RMSprop(learning_rate=rate)
    x = tf.constant(_data()[0])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(x, model(x, training=True))) + sum(model.losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    traced = tf.function(step)
    return {
        "losses": [float(traced()) for _ in range(5)],
        "scale": float(code.scale.numpy()),
        "count": len(model.trainable_variables),
    }


def operations_in_a_model(tf: Any) -> Numbers:
    """TensorFlow's operations on symbolic tensors, a Lambda layer, functions as loss and metric."""
    keras = tf.keras
    inputs = keras.Input((4, 3))
    x = tf.concat([tf.reduce_mean(inputs, axis=1), inputs[:, 0]], axis=-1)
    x = keras.layers.Lambda(lambda one: tf.nn.relu(one) + 1.0)(1.0 - x)
    x = tf.reshape(x, (-1, 6)) / tf.reduce_sum(x, axis=-1, keepdims=True)
    model = _given(keras.Model(inputs, keras.layers.Dense(2, activation=tf.nn.sigmoid)(x)))

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)

    def worst(y_true: Any, y_pred: Any) -> Any:
        return keras.backend.max(tf.abs(y_true - y_pred), axis=-1)

    model.compile(keras.optimizers.legacy.SGD(lr=0.5), loss, metrics=[worst])
    draw = np.random.RandomState(6)
    a, b = draw.normal(size=(8, 4, 3)).astype(np.float32), draw.uniform(size=(8, 2)).astype(np.float32)
    return {**model.fit(a, b, batch_size=4, epochs=2, shuffle=False, verbose=0).history, "kernel": _sum(model)}


def losses_and_metrics(tf: Any) -> Numbers:
    """Functions and objects, of lists and tensors, with weights."""
    keras = tf.keras
    y, p = tf.constant([[0.0, 1.0], [1.0, 0.0]]), tf.constant([[0.3, 0.6], [0.9, 0.2]])
    mean = keras.metrics.Mean()
    mean.update_state([1.0, 3.0], sample_weight=[1.0, 3.0])
    hits = keras.metrics.SparseCategoricalAccuracy()
    hits(tf.constant([1, 1]), p)
    area = keras.metrics.AUC(num_thresholds=20)
    area.update_state([0, 1, 1, 0], [0.1, 0.4, 0.8, 0.6])
    found = {
        "mean": float(mean.result()),
        "hits": float(hits.result()),
        "area": float(area.result().numpy()),
        "each": keras.losses.BinaryCrossentropy(reduction=keras.losses.Reduction.NONE)(y, p).numpy().tolist(),
        "sum": float(keras.losses.MeanSquaredError(reduction="sum")(y, p, sample_weight=[1.0, 2.0])),
        "huber": float(keras.losses.Huber(0.2)(y, p)),
        "sparse": keras.losses.sparse_categorical_crossentropy([1, 0], p).numpy().tolist(),
        "kld": keras.losses.kld(y, p).numpy().tolist(),
        "backend": float(keras.backend.mean(keras.backend.square(p) - keras.backend.epsilon())),
        "relu": keras.activations.relu(tf.constant([-1.0, 2.0])).numpy().tolist(),
    }
    mean.reset_states()
    found["again"] = float(mean.result())
    return found


def classic_adversaries(tf: Any) -> Numbers:
    """What was trainable when a model was compiled is trained, whatever it is now."""
    keras = tf.keras
    judge = _given(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")]))
    judge.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    maker = _given(keras.Sequential([keras.Input((2,)), keras.layers.Dense(6)]), 3)
    judge.trainable = False
    noise = keras.Input((2,))
    both = keras.Model(noise, judge(maker(noise)))
    both.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    x, z = _data()[0], np.random.RandomState(4).normal(size=(32, 2)).astype(np.float32)
    losses = []
    for _ in range(3):
        losses.append([judge.train_on_batch(x, np.ones((32, 1))), both.train_on_batch(z, np.zeros((32, 1)))])
    return {"losses": losses, "judge": _sum(judge), "maker": _sum(maker)}


def lookups(tf: Any) -> Numbers:
    """Vocabularies, given and made, and a model of text."""
    layers = tf.keras.layers
    made = layers.StringLookup()
    made.adapt(np.array(["b", "a", "c", "a", "c", "c"]))
    given = layers.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None)
    masked = layers.StringLookup(vocabulary=["x", "y"], mask_token="", output_mode="multi_hot")
    numbers = layers.IntegerLookup(vocabulary=[5, 9], output_mode="count")
    back = layers.StringLookup(vocabulary=made.get_vocabulary(), invert=True)
    text = tf.keras.Input((2,), dtype=tf.string, name="words")
    model = tf.keras.Model({"words": text}, made(text))
    return {
        "vocabulary": made.get_vocabulary(),
        "made": made(tf.constant([["a", "z"]])).numpy().tolist(),
        "given": given(tf.constant(["no", "yes"])).numpy().tolist(),
        "masked": masked(tf.constant([["y", "q"]])).numpy().tolist(),
        "numbers": numbers(tf.constant([[9, 9, 1]])).numpy().tolist(),
        "back": [one.decode() for one in back(tf.constant([1, 3])).numpy()],
        "model": model({"words": tf.constant([["c", "b"]])}).numpy().tolist(),
    }


def scaled_losses(tf: Any) -> Numbers:
    """A loss scale that the program applies itself."""
    keras = tf.keras
    model = _given(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    x, y = _data()
    losses = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
            scaled = optimizer.get_scaled_loss(loss)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return {"losses": losses, "ratio": float(scaled / loss)}


def _sum(model: Any) -> float:
    return float(sum(np.abs(one).sum() for one in model.get_weights()))


PROGRAMS: list[Callable[[Any], Numbers]] = [
    own_train_step, adversaries, autoencoder, operations_in_a_model, losses_and_metrics, classic_adversaries, lookups,
    scaled_losses,
]  # fmt: skip

if __name__ == "__main__":
    import tensorflow

    print(json.dumps({one.__name__: one(tensorflow) for one in PROGRAMS}, indent=1, default=float))
