"""Callbacks that are others here than Keras 3's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainband.compat.tf2.keras.inside import keras
from trainband.keras.tensorboard import TensorBoard as _TensorBoard


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc, name-defined]
    """Saves the model or its weights, under any name.

    Args:
      filepath: where; `{epoch}` and the names of metrics are filled in.
      period: epochs from one to the next, as old programs have it.
      settings: Keras's.
    """

    def __init__(self, filepath: Any, *args: Any, period: int | None = None, **settings: Any) -> None:
        settings.pop("options", None)
        settings.pop("load_weights_on_restart", None)
        names = ("monitor", "verbose", "save_best_only", "save_weights_only", "mode", "save_freq")
        settings |= dict(zip(names, args, strict=False))
        weights = bool(settings.get("save_weights_only"))
        super().__init__("file.weights.h5" if weights else "file.keras", **settings)
        self.filepath = os.fspath(filepath)
        self._period = period or 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if (epoch + 1) % self._period == 0:
            super().on_epoch_end(epoch, logs)


class BackupAndRestore(keras.callbacks.BackupAndRestore):  # type: ignore[misc, name-defined]
    """Saves the training after each epoch, so that a program that is started again resumes it."""

    def __init__(
        self, backup_dir: Any, save_freq: Any = "epoch", delete_checkpoint: bool = True, **settings: Any
    ) -> None:
        settings.pop("save_before_preemption", None)
        super().__init__(os.fspath(backup_dir), save_freq, delete_checkpoint=delete_checkpoint, **settings)

    writes = True
    """Whether this process saves: the first of several, and all resume."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if self.writes:
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if self.writes:
            super().on_train_batch_end(batch, logs)

    def on_train_begin(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if not Path(self._weights_path).exists():
            return
        if not self.model.built and all(layer.built for layer in self.model.layers):
            self.model.built = True
        super().on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if self.writes:
            super().on_train_end(logs)
        self.model._initial_epoch = None  # noqa: SLF001 - else the next fit would begin there


class TensorBoard(_TensorBoard):
    """Writes what `tensorboard --logdir` shows; takes the arguments of older versions."""

    def __init__(self, log_dir: Any = "logs", *args: Any, **settings: Any) -> None:
        for name in ("write_grads", "batch_size", "embeddings_layer_names", "embeddings_data"):
            settings.pop(name, None)
        super().__init__(os.fspath(log_dir), *args, **settings)


_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, _TensorBoard)


def of_process(callbacks: Any, process: int) -> list[Any]:
    """The callbacks of one of several processes that train together: only the first writes files."""
    found = [] if callbacks is None else keras.tree.flatten(callbacks)
    if not process:
        return found
    for one in found:
        if isinstance(one, BackupAndRestore):
            one.writes = False
    return [one for one in found if not isinstance(one, _WRITERS)]
