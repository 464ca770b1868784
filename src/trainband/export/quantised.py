"""Weights as 8-bit integers, with one scale per output channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.model.inference import InferenceProgram, Tensors

_SMALLEST = 512
"""Elements from which on a weight is worth its scales."""


def quantised_weights(program: InferenceProgram) -> InferenceProgram:
    """Returns the program with its matrices and filters rounded to 255 levels, symmetrically, by their last axis."""
    stored: dict[str, NDArray[Any]] = {}
    encoded = set()
    for name, weight in program.weights.items():
        if weight.dtype == np.float32 and weight.ndim > 1 and weight.size >= _SMALLEST:
            largest = np.abs(weight).max(axis=tuple(range(weight.ndim - 1)), keepdims=True)
            scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            stored[f"{name}/values"] = np.clip(np.round(weight / scale), -127, 127).astype(np.int8)
            stored[f"{name}/scale"] = scale
            encoded.add(name)
        else:
            stored[name] = weight
    names = list(program.weights)
    function = program.function

    def decoding(weights: Tensors, inputs: Tensors) -> dict[str, Any]:
        decoded = {
            name: weights[f"{name}/values"].astype(np.float32) * weights[f"{name}/scale"]
            if name in encoded
            else weights[name]
            for name in names
        }
        return function(decoded, inputs)

    return program.with_weights(stored, decoding)
