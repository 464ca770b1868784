"""Callbacks of a `fit` on a strategy: Keras's own list, and two that trainband adds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from trainband.keras.keras_internals import keras

if TYPE_CHECKING:
    from trainband.keras.shares import Order
    from trainband.keras.training import Training

REDRAW_S = 0.05
"""Seconds between two updates of the progress bar, which redraws no faster."""


class Callbacks(keras.callbacks.CallbackList):  # type: ignore[misc, name-defined]
    """Keras's list of callbacks, computing a batch's logs only if a callback reads them.

    Keras's own computes them for every batch and passes them to another thread, even if no callback handles
    batches: 0.5 ms a step on two cores, of a step of 1.1 ms.
    """

    def __init__(self, callbacks: Any, **settings: Any) -> None:
        super().__init__(callbacks, **settings)
        bars = [callback for callback in self.callbacks if isinstance(callback, keras.callbacks.ProgbarLogger)]
        others = [callback for callback in self.callbacks if callback not in bars]
        self._at_begin = [callback for callback in others if _handles_batches(callback, "begin")]
        self._at_end = [callback for callback in others if _handles_batches(callback, "end")]
        self._bars = [bar for bar in bars if self.params.get("verbose") != 2]
        self._drawn_at = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self._at_begin:
            callback.on_train_batch_begin(batch, logs=logs or {})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls the callbacks in this thread, so that each sees the logs of its batch."""
        found = None
        if self._at_end:
            found = {name: float(value) if np.ndim(value) == 0 else value for name, value in (logs or {}).items()}
            for callback in self._at_end:
                callback.on_train_batch_end(batch, logs=found)
        if self._bars and (time.monotonic() - self._drawn_at >= REDRAW_S or batch + 1 == self.params.get("steps")):
            for bar in self._bars:
                bar.on_train_batch_end(batch, logs=logs if found is None else found)
            self._drawn_at = time.monotonic()


def _handles_batches(callback: Any, when: str) -> bool:
    """Whether a callback handles batches."""
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)
        for name in (f"on_train_batch_{when}", f"on_batch_{when}")
    )


class Bridge(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Passes the epoch of Keras's loop to the training run and to the order of its examples."""

    def __init__(self, training: Training, order: Order) -> None:
        super().__init__()
        self._training = training
        self._order = order

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        self._training.start_epoch(epoch)
        self._order.start_epoch(epoch)


def with_bridge(callbacks: Any, training: Training, order: Order, **settings: Any) -> Any:
    """Returns Keras's list of a `fit`'s callbacks, with a bridge to a training run.

    Args:
      callbacks: as for Keras: its own list, which is kept, or anything else.
      training, order: see `Bridge`.
      settings: of Keras's list.
    """
    bridge = Bridge(training, order)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.append(bridge)
        return callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    return Callbacks([*given, bridge], add_history=True, add_progbar=settings["verbose"] != 0, **settings)


class LineEachEpoch(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Prints one line per epoch on workers other than the chief.

    Args:
      task: its name.
      epochs: of the training.
      training: tells whether an epoch was trained whole, not ended earlier by another worker.
      of_all: whether its metrics cover all workers' batches.
    """

    def __init__(self, task: str, epochs: int, training: Training, *, of_all: bool) -> None:
        super().__init__()
        self._of = "" if of_all else " of its own batches"
        self._task = task
        self._epochs = epochs
        self._training = training

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._training.epoch_is_whole:
            return
        figures = " - ".join(f"{name}: {np.mean(value):.4f}" for name, value in (logs or {}).items())
        print(f"{self._task}: epoch {epoch + 1}/{self._epochs}{self._of} - {figures}", flush=True)
