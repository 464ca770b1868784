"""Sources of a program's weights: a directory of checkpoints, one checkpoint, or a compressed model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainband.compress.compressed import is_compressed, load
from trainband.model.inference import InferenceProgram
from trainband.model.predictor import Predictor
from trainband.model.saved_weights import newest_checkpoint as newest_checkpoint
from trainband.model.saved_weights import weights_of as weights_of


def program_of(path: Path, predictor: Predictor, *, unpack: bool = False, **tracing: Any) -> InferenceProgram:
    """Returns a predictor with the weights at a path.

    Args:
      path: a checkpoint, a directory of them, or a compressed model.
      predictor: the function to compute.
      unpack: decode a compressed model's weights from their bitmaps once, for a program that runs many times.
      tracing: for `Predictor.program`.

    Raises:
      CheckpointError: there is no checkpoint.
      YourError: a compressed model is damaged.
      ModelMismatch, ModelError, DataError: see `Predictor.program`.
    """
    if is_compressed(path):
        compressed = load(path).unpacked() if unpack else load(path)
        named: Any = compressed.shapes  # only the shapes are needed
        return compressed.program(predictor.program(named, source=str(path), **tracing))
    checkpoint = newest_checkpoint(path)
    return predictor.program(
        weights_of(checkpoint), source=str(checkpoint.path), global_step=checkpoint.global_step, **tracing
    )
