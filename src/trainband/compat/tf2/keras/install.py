"""What is changed in Keras so that programs for TensorFlow run on it, once for each process."""

from __future__ import annotations

from trainband.compat.tf2.keras import (
    activations,
    cells,
    distribution,
    entries,
    layers,
    logits,
    losses,
    models,
    old_arguments,
    optimizers,
    ranks,
    saving,
    seeds,
    steps,
    symbolic,
    variables,
)
from trainband.compat.tf2.keras.inside import hide_tensorflow

_done: list[bool] = []


def once() -> None:
    """Changes it, if nobody has yet."""
    if _done:
        return
    _done.append(True)
    hide_tensorflow()
    seeds.install()
    for part in (
        variables,
        symbolic,
        activations,
        old_arguments,
        layers,
        logits,
        losses,
        optimizers,
        steps,
        distribution,
        entries,
        models,
        saving,
        ranks,
        cells,
    ):
        part.install()
