"""Layers and functions of Keras 2 that have other names in Keras 3."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf2.keras.inside import keras

CuDNNLSTM = keras.layers.LSTM
CuDNNGRU = keras.layers.GRU
AbstractRNNCell = keras.layers.Layer
_schedules = keras.optimizers.schedules
CosineDecay = _schedules.CosineDecay
CosineDecayRestarts = _schedules.CosineDecayRestarts


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc, name-defined]
    """A batch normalization over the batches of all replicas."""

    def __init__(self, **settings: Any) -> None:
        settings["synchronized"] = settings.pop("synchronized", True)
        super().__init__(**settings)
