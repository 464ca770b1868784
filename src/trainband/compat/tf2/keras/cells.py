"""Cells of recurrent layers: the arguments of Keras 2's `get_initial_state`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.keras.inside import keras


def _initial(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_initial_state(self: Any, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        del dtype
        if isinstance(inputs, int):  # Keras 3's only argument
            inputs, batch_size = None, inputs
        if batch_size is None and inputs is not None:
            batch_size = inputs.shape[0]
        if batch_size is not None and not isinstance(batch_size, int):
            batch_size = int(convert(batch_size))
        return original(self, batch_size)

    return get_initial_state


def install() -> None:
    """Has the cells take them."""
    for kind in (keras.layers.LSTMCell, keras.layers.GRUCell, keras.layers.SimpleRNNCell):
        kind.get_initial_state = _initial(kind.get_initial_state)
