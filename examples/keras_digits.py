"""Trains a small convnet of Keras 3 on handwritten digits: alone, or on a cluster.

python examples/keras_digits.py                                           in one process
trainband run --ps 1 --workers 2 examples/keras_digits.py                 a ps and two workers
trainband run --ps 0 --workers 2 examples/keras_digits.py                 two workers in lockstep, without a ps
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import argparse
import sys

import keras
import trainband
from keras import layers


def main() -> None:
    parser = argparse.ArgumentParser(description="Handwritten digits with Keras.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=32, help="examples in a worker's batch")
    parser.add_argument("--save", help="write the trained model into this .keras file")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()  # None in a single process
    strategy: trainband.ParameterServer | trainband.MultiWorkerMirrored
    if cluster is None or cluster.spec.ps:
        strategy = trainband.ParameterServer(cluster, update=trainband.Sync())
    else:
        strategy = trainband.MultiWorkerMirrored(cluster)

    data = trainband.data.load()
    x, y = data.train.images[..., None], data.train.labels
    held_out = data.test.images[..., None], data.test.labels
    updates = flag.epochs * len(y) // (flag.batch_size * strategy.gradients_per_update)

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Input((28, 28, 1)),
                layers.Rescaling(1 / 255),
                layers.Conv2D(16, 5, strides=2, activation="relu"),
                layers.Conv2D(32, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, updates)),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    # A ps serves here until the job ends, and then leaves.
    model.fit(x, y, batch_size=flag.batch_size, epochs=flag.epochs, validation_data=held_out, verbose=2)
    if strategy.is_chief:
        loss, accuracy = model.evaluate(*held_out, verbose=0)
        print(f"held out: loss {loss:.4f}, accuracy {accuracy:.4f}")
        if flag.save:
            model.save(flag.save)


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
