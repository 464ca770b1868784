"""Keras's own `model.quantize("int8")` after training: what is exported holds the 8-bit weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras
import trainband
from trainband.keras import predictor as predictors

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning"),
]


def test_a_model_quantised_after_training_is_exported_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 32)).astype(np.float32)
    y = x @ random.normal(size=(32, 4)).astype(np.float32)
    model = keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    trainband.keras.distribute(model, trainband.OneDevice(say=lambda _: None)).fit(x, y, epochs=5, verbose=0)
    before = model.predict(x, verbose=0)
    model.quantize("int8")
    after = model.predict(x, verbose=0)
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
    predictors.export(model, tmp_path / "out", example=x[:4])
    weights = load_file(tmp_path / "out" / "weights.safetensors")
    kernels = {name: array for name, array in weights.items() if array.ndim == 2}
    assert {array.dtype.name for array in kernels.values()} == {"int8"}
    assert sorted(array.shape for array in kernels.values()) == [(32, 64), (64, 4)]
