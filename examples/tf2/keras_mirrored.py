"""Keras's `fit` under MirroredStrategy, with a learning rate schedule as a callback."""

import json

import numpy as np
import tensorflow as tf

EPOCHS, BATCH_PER_REPLICA = 3, 32


def digits(count, seed):
    """Images of 12x12, each a noisy copy of its class's pattern."""
    patterns = np.random.RandomState(0).uniform(size=(10, 12, 12, 1))
    random = np.random.RandomState(seed)
    labels = random.randint(10, size=count)
    images = patterns[labels] + random.normal(scale=0.3, size=(count, 12, 12, 1))
    return (255 * images).astype(np.float32), labels.astype(np.int64)


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))
batch_size = BATCH_PER_REPLICA * strategy.num_replicas_in_sync

train = tf.data.Dataset.from_tensor_slices(digits(320, 1)).map(scale).cache().batch(batch_size)
test = tf.data.Dataset.from_tensor_slices(digits(100, 2)).map(scale).batch(batch_size)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(12, 12, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )

random = np.random.RandomState(3)
model.set_weights([random.normal(scale=0.1, size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])


def decay(epoch):
    return 1e-2 if epoch < 2 else 3e-3


class PrintLearningRate(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("\nLearning rate for epoch {} is {:.4f}".format(epoch + 1, float(self.model.optimizer.lr.numpy())))


callbacks = [tf.keras.callbacks.LearningRateScheduler(decay), PrintLearningRate()]
history = model.fit(train, epochs=EPOCHS, callbacks=callbacks, verbose=2)
loss, accuracy = model.evaluate(test, verbose=0)
result = {"train_loss": history.history["loss"][-1], "loss": loss, "accuracy": accuracy}
print("RESULT " + json.dumps({name: float(value) for name, value in result.items()}))
