"""Arguments that layers of Keras 2 took, and Keras 3's do not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.keras.inside import keras

_UNUSED = {
    "BatchNormalization": ("fused", "virtual_batch_size", "adjustment"),
    "LSTM": ("implementation", "time_major"),
    "GRU": ("implementation", "time_major"),
    "SimpleRNN": ("implementation", "time_major"),
    "RNN": ("time_major",),
}
"""Arguments that changed how a layer computed, but not its results."""


def _init(original: Callable[..., Any], unused: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in unused:
            kwargs.pop(name, None)
        if kwargs.get("renorm"):
            raise ValueError("BatchNormalization: renorm=True is not supported by Keras 3.")
        kwargs.pop("renorm", None)
        axis = kwargs.get("axis")
        if isinstance(axis, list | tuple) and len(axis) == 1:
            kwargs["axis"] = axis[0]
        original(self, *args, **kwargs)

    # Keras reads the form of `__init__`.
    init.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return init


def install() -> None:
    """Has Keras's layers take them."""
    for name, unused in _UNUSED.items():
        kind = getattr(keras.layers, name)
        kind.__init__ = _init(kind.__init__, unused)
