"""Normalization, which adapts to datasets and tensors too."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.sources import arrays, is_dataset


class Normalization(keras.layers.Normalization):  # type: ignore[misc, name-defined]
    """Shifts and scales numbers to the mean 0 and the variance 1 of the data that it has seen."""

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Sees some data."""
        del batch_size
        if is_dataset(data):
            batches = []
            for number, batch in enumerate(data):
                if steps is not None and number >= steps:
                    break
                batches.append(np.asarray(arrays(batch)))
            ranks = {one.ndim for one in batches}
            data = (
                np.stack(batches)
                if ranks <= {0, 1} and len({one.shape for one in batches}) == 1
                else np.concatenate(batches)
            )
        else:
            data = arrays(data)
        super().adapt(np.asarray(data))
