"""The callbacks of a `fit` on a strategy: Keras's own list of them, and two that trainband adds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainband.keras.inside import keras

if TYPE_CHECKING:
    from trainband.keras.training import Training

REDRAW_S = 0.05
"""Between two looks of the progress bar, which draws no more often either."""


class Callbacks(keras.callbacks.CallbackList):  # type: ignore[misc, name-defined]
    """Keras's list of callbacks, which asks for a batch's logs only where somebody looks at them.

    Keras's own computes them for every batch and hands them to another thread, also where no callback wants to hear of
    batches: 0.5 ms a step on two cores, of a step of 1.1 ms.
    """

    def __init__(self, callbacks: Any, **settings: Any) -> None:
        super().__init__(callbacks, **settings)
        bars = [callback for callback in self.callbacks if isinstance(callback, keras.callbacks.ProgbarLogger)]
        others = [callback for callback in self.callbacks if callback not in bars]
        self._at_begin = [callback for callback in others if _hears(callback, "begin")]
        self._at_end = [callback for callback in others if _hears(callback, "end")]
        self._bars = [bar for bar in bars if self.params.get("verbose") != 2]
        self._drawn_at = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        for callback in self._at_begin:
            callback.on_train_batch_begin(batch, logs=logs or {})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`. In this thread, so that a callback sees the logs of its batch."""
        found = None
        if self._at_end:
            found = {name: float(value) for name, value in (logs or {}).items()}
            for callback in self._at_end:
                callback.on_train_batch_end(batch, logs=found)
        if self._bars and (time.monotonic() - self._drawn_at >= REDRAW_S or batch + 1 == self.params.get("steps")):
            for bar in self._bars:
                bar.on_train_batch_end(batch, logs=logs if found is None else found)
            self._drawn_at = time.monotonic()


def _hears(callback: Any, when: str) -> bool:
    """Whether a callback wants to hear of batches."""
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)
        for name in (f"on_train_batch_{when}", f"on_batch_{when}")
    )


class Bridge(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Tells a training in which epoch Keras's loop is."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        """See `keras.callbacks.Callback`."""
        self._training.begin_epoch(epoch)


class LineEachEpoch(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """What a worker says that is not the chief: one line for each epoch."""

    def __init__(self, task: str, epochs: int) -> None:
        super().__init__()
        self._task = task
        self._epochs = epochs

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        figures = " - ".join(f"{name}: {float(value):.4f}" for name, value in (logs or {}).items())
        print(f"{self._task}: epoch {epoch + 1}/{self._epochs} of its own batches - {figures}", flush=True)
