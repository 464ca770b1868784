"""A model trained under a strategy, saved and loaded in every supported way."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

random = np.random.RandomState(1)
X = random.normal(size=(256, 8)).astype(np.float32)
Y = (X @ random.normal(size=(8, 3))).astype(np.float32)
weights = [random.normal(scale=0.3, size=shape) for shape in [(8, 16), (16,), (16, 3), (3,)]]

mirrored = tf.distribute.MirroredStrategy()
single = tf.distribute.OneDeviceStrategy("/cpu:0")
directory = tempfile.mkdtemp()


def path(name):
    return os.path.join(directory, name)


def get_model(strategy):
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(16, activation="tanh", input_shape=(8,)), tf.keras.layers.Dense(3)]
        )
        model.compile(loss="mse", optimizer=tf.keras.optimizers.Adam(0.01), metrics=["mae"])
    model.set_weights(weights)
    return model


dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
model = get_model(mirrored)
model.fit(dataset, epochs=2, verbose=0)
before = model.predict(X, verbose=0)
result = {"mae": float(np.abs(before - Y).mean())}


def differs(loaded):
    """How far this model's predictions are from those of the one that was saved."""
    return float(np.abs(np.asarray(loaded) - before).max())


# A whole model in a file, in a directory, and in the older file format; trained on after it was loaded elsewhere.
for name in ("model.keras", "model", "model.h5"):
    model.save(path(name))
    with single.scope():
        loaded = tf.keras.models.load_model(path(name))
    result[name] = differs(loaded.predict(X, verbose=0))
    loaded.fit(dataset, epochs=1, verbose=0)
    result[name + " trained on"] = float(np.abs(loaded.predict(X, verbose=0) - Y).mean())

# Weights alone.
for name in ("model.weights.h5", "weights/ckpt"):
    model.save_weights(path(name))
    fresh = get_model(single)
    fresh.load_weights(path(name))
    result[name] = differs(fresh.predict(X, verbose=0))

# An object-based checkpoint, with the optimizer's state.
saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path("checkpoint/ckpt"))
fresh = get_model(single)
fresh.fit(dataset, epochs=1, verbose=0)
status = tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(
    tf.train.latest_checkpoint(path("checkpoint"))
)
status.expect_partial()
result["checkpoint"] = differs(fresh(X))
result["iterations"] = int(fresh.optimizer.iterations.numpy())


# A module of functions and variables, as a SavedModel.
class Scorer(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(weights[0].astype(np.float32), name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
    def __call__(self, inputs):
        return tf.reduce_sum(tf.nn.relu(inputs @ self.kernel), axis=1)


scorer = Scorer()
tf.saved_model.save(scorer, path("module"))
restored = tf.saved_model.load(path("module"))
result["module"] = float(tf.reduce_max(tf.abs(restored(tf.constant(X)) - scorer(tf.constant(X)))))
print("RESULT " + json.dumps(result))
