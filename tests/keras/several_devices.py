"""What `fit` under the strategies of one process does with four devices. Run as a script, which has them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import numpy as np
from tests.keras.beside import compiled, fits, one_device, rows, silent, trained

import keras
import trainband
from keras import layers

X, Y = rows()


def dense() -> Any:
    model = keras.Sequential([layers.Input((6,)), layers.Dense(16, activation="relu"), layers.Dense(3)])
    return compiled(model, weighted_metrics=["accuracy"])


def normal() -> Any:
    """Averages of batch normalisation, and a metric of the user's that does not add up."""
    model = keras.Sequential([layers.Input((6,)), layers.Dense(16), layers.BatchNormalization(), layers.Dense(3)])
    return compiled(model, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))


def strategies() -> dict[str, Any]:
    return {
        "OneDevice": one_device(),
        "Mirrored": trainband.Mirrored(say=silent),
        "central": trainband.Mirrored(central_storage=True, say=silent),
        "tensor": trainband.ModelParallel({"data": 2, "model": 2}, [("dense/kernel", (None, "model"))], say=silent),
        "fsdp": trainband.ModelParallel({"data": -1}, trainband.auto_fsdp(smallest=8), say=silent),
    }


def main() -> None:
    """Writes what a model comes to under each strategy."""
    make, out = {"dense": dense, "normal": normal}[sys.argv[1]], Path(sys.argv[2])
    found: dict[str, Any] = {}
    schedule = keras.callbacks.LearningRateScheduler(lambda _, rate: 0.5 * rate)
    # The last batch of an epoch is of 6 examples, or of 1, which 2 and 4 devices do not divide.
    fit = {
        "dense": fits(
            X[:54],
            Y[:54],
            sample_weight=np.linspace(0, 2, 54).astype("float32"),
            callbacks=[schedule],
            validation_data=(X, Y),
        ),
        "normal": fits(X[:61], Y[:61], class_weight={0: 2.0, 2: 0.5}, callbacks=[schedule], validation_split=0.2),
    }[sys.argv[1]]
    for name, strategy in strategies().items():
        model, history = trained(make, fit, strategy)
        values = [float(x) for value in model.get_weights() for x in np.ravel(value)]
        state = [float(x) for variable in model.optimizer.variables for x in np.ravel(np.asarray(variable.value))]
        found[name] = {
            "weights": values,
            "optimizer": state,
            "history": history,
            "evaluated": model.evaluate(X[:40], Y[:40], verbose=0, batch_size=16),
            "predicted": float(np.abs(model.predict(X[:42], verbose=0, batch_size=16)).sum()),
            "devices": len(model.trainable_variables[0].value.sharding.device_set),
        }
    out.write_text(json.dumps(found, default=float), encoding="utf-8")


if __name__ == "__main__":
    main()
