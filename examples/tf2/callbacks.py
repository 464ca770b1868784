"""Keras's callbacks: a training run that is interrupted resumes, writes checkpoints, and stops early."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

directory = tempfile.mkdtemp()
random = np.random.RandomState(1)
X = random.normal(size=(200, 8)).astype(np.float32)
Y = (X @ random.normal(size=(8, 1)) + 0.1 * random.normal(size=(200, 1))).astype(np.float32)
weights = [random.normal(scale=0.3, size=size) for size in [(8, 12), (12,), (12, 1), (1,)]]
train = tf.data.Dataset.from_tensor_slices((X[:160], Y[:160])).batch(32)
valid = tf.data.Dataset.from_tensor_slices((X[160:], Y[160:])).batch(32)


def path(name):
    return os.path.join(directory, name)


def make_model():
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(12, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)]
        )
        model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse")
    model.set_weights(weights)
    return model


class Interrupt(tf.keras.callbacks.Callback):
    """Fails at the beginning of an epoch, as a machine would that is taken away."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise RuntimeError("interrupted")


begun = []
interrupted = make_model()
try:
    backup = tf.keras.callbacks.BackupAndRestore(backup_dir=path("backup"))
    interrupted.fit(train, epochs=6, callbacks=[backup, Interrupt()], verbose=0)
except RuntimeError as error:
    print("The training was", error)

model = make_model()
callbacks = [
    tf.keras.callbacks.BackupAndRestore(backup_dir=path("backup")),
    tf.keras.callbacks.ModelCheckpoint(filepath=path("ckpt_{epoch}"), save_weights_only=True),
    tf.keras.callbacks.ModelCheckpoint(filepath=path("best.h5"), monitor="val_loss", save_best_only=True),
    tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 4 else 0.02),
    tf.keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch)),
    tf.keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=100.0, patience=3, restore_best_weights=False),
]
history = model.fit(train, validation_data=valid, epochs=12, callbacks=callbacks, verbose=2)
fresh = make_model()
fresh.load_weights(path("ckpt_%d" % (begun[-1] + 1)))

result = {
    "epochs": begun,
    "loss": history.history["loss"][-1],
    "val_loss": history.history["val_loss"][-1],
    "loaded": float(fresh.evaluate(valid, verbose=0)),
    "best_is_there": os.path.exists(path("best.h5")),
}
print("RESULT " + json.dumps(result))
