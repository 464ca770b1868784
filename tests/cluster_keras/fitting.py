"""A Keras model that is trained by `fit` in a job. Run as a script by the tests."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import argparse
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import keras
import trainband
from keras import layers
from trainband.keras.shares import Order


def deadly(x: Any, y: Any, mark: str) -> Iterator[Any]:
    """Batches without an end, of which the third kills this task, where the file is not there yet."""
    for i in itertools.count():
        if i == 2 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        start = i * 16 % len(x)
        yield x[start : start + 16], y[start : start + 16]


def epochs_of_two_workers(examples: int, epochs: int) -> Any:
    """The rows of all epochs, one after the other, in the orders in which `fit` shuffles them for two workers."""
    order, found = Order(workers=2), []
    for epoch in range(epochs):
        order.start_epoch(epoch)
        found.append(order.next_pass().permutation(examples))
    return np.concatenate(found)


def rows() -> tuple[Any, Any]:
    random = np.random.RandomState(0)
    x = random.normal(size=(128, 6)).astype("float32")
    return x, x[:, :3].argmax(1).astype("int32")


def model_of(kind: str) -> Any:
    hidden = [layers.Dense(8, activation="relu")]
    if kind == "normal":
        hidden.append(layers.BatchNormalization())
    if kind == "frozen":
        hidden[0].trainable = False
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss=loss, metrics=["accuracy"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="sync")
    parser.add_argument("--model", default="dense")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", action="store_true", help="a seed of its own for each task")
    parser.add_argument("--kill", default="")
    parser.add_argument("--out")
    flag = parser.parse_args()
    cluster = trainband.cluster.resolve()
    strategy: Any
    match flag.strategy:
        case "plain":
            strategy = None
        case "mirrored":
            strategy = trainband.MultiWorkerMirrored(cluster)
        case "async":
            strategy = trainband.ParameterServer(cluster)
        case _:
            strategy = trainband.ParameterServer(cluster, update=trainband.Sync())
    index = cluster.training_index if cluster is not None and cluster.task.trains else 0
    keras.utils.set_random_seed(7 + index * flag.seeds)
    model = model_of(flag.model)
    if strategy is not None:
        trainband.keras.distribute(model, strategy)
    x, y = rows()
    data: Any = {"x": x, "y": y, "batch_size": flag.batch_size, "shuffle": True}
    if strategy is None:
        every = epochs_of_two_workers(len(x), flag.epochs)
        steps = len(x) // flag.batch_size
        data |= {"x": x[every], "y": y[every], "steps_per_epoch": steps, "shuffle": False}
    if flag.kill:
        data = {"x": deadly(x, y, flag.kill if index == 1 else os.devnull), "steps_per_epoch": 40, "shuffle": False}

    def schedule(epoch: int, logs: Any) -> None:
        del logs
        model.optimizer.learning_rate = 0.02 / (1 + epoch)

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=schedule)] if flag.model == "scheduled" else []
    history = model.fit(**data, epochs=flag.epochs, verbose=0, callbacks=callbacks, validation_data=(x[:32], y[:32]))
    print("history", {name: [f"{value:.6f}" for value in values] for name, values in history.history.items()})
    if strategy is None or strategy.is_chief:
        accuracy = model.evaluate(x, y, verbose=0)[1]
        print(f"accuracy {accuracy:.3f}, loss {history.history['loss'][-1]:.6f}", flush=True)
        if flag.out:
            np.savez(flag.out, *[np.asarray(v.value) for v in model.weights], **history.history)


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {type(error).__name__}: {error}")
