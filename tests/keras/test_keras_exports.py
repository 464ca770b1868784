"""Keras models out of their jobs' checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import keras
import trainband
from keras import layers
from trainband.export.source import program_of
from trainband.keras import predictor_of

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)


def model_of(frozen: float = 1.0) -> Any:
    """With a layer that is not trained, running averages, and a random stream."""
    model = keras.Sequential(
        [
            layers.Input((3,)),
            layers.Dense(4, name="first", trainable=False, kernel_initializer=keras.initializers.Constant(frozen)),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5, name="drop"),
            layers.Dense(1, name="last"),
        ],
        name="small",
    )
    model.compile("sgd", "mse")
    return model


def test_a_jobs_checkpoint_is_exported_with_what_it_does_not_hold(tmp_path: Path) -> None:
    with trainband.OneDevice().scope(checkpoint_dir=tmp_path / "runs"):
        model = model_of()
    model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0)
    program = program_of(tmp_path / "runs", predictor_of(model_of()), example=X)
    found = program.compiled()({"input": X})["output"]
    np.testing.assert_allclose(found, model.predict(X, verbose=0), rtol=1e-5)
    assert program.global_step == 4
    assert not [name for name in program.weights if "seed_generator" in name]
