"""Summaries for TensorBoard: those that a script writes itself, and those of Keras's callback."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

random = np.random.RandomState(1)
X = random.normal(size=(200, 8)).astype(np.float32)
Y = (X @ random.normal(size=(8, 1))).astype(np.float32)
weights = [random.normal(scale=0.3, size=size) for size in [(8, 12), (12,), (12, 1), (1,)]]
dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(40)

model = tf.keras.Sequential([tf.keras.layers.Dense(12, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)])
model.set_weights(weights)
optimizer = tf.keras.optimizers.SGD(0.05)
mean = tf.keras.metrics.Mean("loss", dtype=tf.float32)
directory = tempfile.mkdtemp()
writer = tf.summary.create_file_writer(os.path.join(directory, "own"))


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.mean_squared_error(y, model(x, training=True)))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mean(loss)


for epoch in range(3):
    for x, y in dataset:
        train_step(x, y)
    with writer.as_default():
        tf.summary.scalar("loss", mean.result(), step=epoch)
        tf.summary.histogram("kernel", model.layers[0].kernel, step=epoch)
    loss = float(mean.result())
    mean.reset_states()

with writer.as_default(step=3):
    tf.summary.text("about", "a line")
    tf.summary.image("pictures", np.zeros((1, 4, 4, 1), np.float32))
writer.flush()

model.compile(optimizer=optimizer, loss="mse")
logs = os.path.join(directory, "logs")
callback = tf.keras.callbacks.TensorBoard(log_dir=logs, histogram_freq=1)
history = model.fit(dataset, epochs=2, validation_data=dataset, callbacks=[callback], verbose=2)
result = {
    "loop": loss,
    "fit": history.history["loss"][-1],
    "logs": sorted(os.listdir(logs)),
    "events": len([name for name in os.listdir(os.path.join(directory, "own")) if "tfevents" in name]),
}
print("RESULT " + json.dumps(result))
