"""The common part of the programs of `bench.keras_fit`, with Keras 3 on JAX or Keras 2 on TensorFlow.

It needs Keras and NumPy, and nothing of trainband.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 100
HIDDEN = 100
CLASSES = 10
WARM_UP = 2
"""Epochs that are not counted: the first compiles, and the second finds caches cold."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the flags that all programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="an .npz with train_images and train_labels")
    parser.add_argument("--steps", type=int, required=True, help="in an epoch")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--out", required=True, type=Path, help="where the result goes, as JSON")
    return parser


def read(flags: argparse.Namespace) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the examples of one epoch: float32[n, 784] and int32[n]."""
    with np.load(flags.data) as data:
        images, labels = data["train_images"], data["train_labels"]
    images = images.reshape(len(images), -1).astype(np.float32)
    images /= images.max()
    count = flags.steps * BATCH_SIZE
    return np.resize(images, (count, images.shape[1])), np.resize(labels, count).astype(np.int32)


def make_model(keras: Any) -> Any:
    """Make the network of the MNIST MLP, 784-100-10, compiled with Adam."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(HIDDEN, activation="relu"), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss=loss, metrics=["accuracy"])
    return model


def make_clock(keras: Any, flags: argparse.Namespace) -> Any:
    """Make a callback that times epochs and writes what came out."""

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.begun = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
            self.begun = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.seconds.append(time.perf_counter() - self.begun)
            self.loss = float((logs or {})["loss"])

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
            measured = self.seconds[WARM_UP:]
            speed = flags.steps / statistics.median(measured)
            flags.out.write_text(json.dumps({"steps_per_s": speed, "epochs": len(measured), "loss": self.loss}))

    return Clock()


def measure(keras: Any, flags: argparse.Namespace, *, chief: bool = True) -> None:
    """Train by `fit` on arrays."""
    images, labels = read(flags)
    model = make_model(keras)
    callbacks = [make_clock(keras, flags)] if chief else []
    model.fit(
        images,
        labels,
        batch_size=BATCH_SIZE,
        epochs=flags.epochs,
        steps_per_epoch=flags.steps,  # where each update takes two workers' batches, an epoch is two passes
        verbose=flags.verbose,
        callbacks=callbacks,
    )
