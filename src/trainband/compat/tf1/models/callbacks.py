# ruff: noqa: ARG002 - what callbacks are told, and need not use
"""`tf.keras.callbacks`: what happens between the epochs and batches of `fit`."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.tf1.models import phase
from trainband.compat.tf1.operations.summary import FileWriter, Summary
from trainband.runtime.overrides import override


class Callback:
    """What is told when training, epochs and batches begin and end."""

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}
        self.validation_data: Any = None

    def set_params(self, params: dict[str, Any]) -> None:
        """Notes how the model is trained."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Notes what is trained."""
        self.model = model

    def on_train_begin(self, logs: Any = None) -> None:
        """Training begins."""

    def on_train_end(self, logs: Any = None) -> None:
        """Training has ended."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch has ended; the logs have the losses and metrics."""

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch begins."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch has ended; the logs have its loss and metrics."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch begins."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch has ended."""
        self.on_batch_end(batch, logs)


class History(Callback):
    """The losses and metrics of all epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        self.epoch, self.history = [], {}

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


BaseLogger = Callback


class ProgbarLogger(Callback):
    """Prints a line for each epoch."""

    def __init__(self, count_mode: str = "samples", stateful_metrics: Any = None) -> None:
        del count_mode, stateful_metrics
        super().__init__()
        self._begun = 0.0

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begun = time.monotonic()
        print(f"Epoch {epoch + 1}/{self.params.get('epochs')}", flush=True)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        count = self.params.get("samples") or self.params.get("steps")
        done = f"{count}/{count} - " if count else ""
        values = "".join(f" - {name}: {value:.4f}" for name, value in (logs or {}).items())
        print(f"{done}{time.monotonic() - self._begun:.0f}s{values}", flush=True)


class Callbacks:
    """All callbacks of a training, which are told in turn."""

    def __init__(self, model: Any, given: Any, params: dict[str, Any]) -> None:
        self.history = History()
        shown = [ProgbarLogger()] if params.get("verbose") else []
        self._all = [*shown, *(given or []), self.history]
        model.history = self.history
        for one in self._all:
            one.set_params(params)
            one.set_model(model)

    def __getattr__(self, name: str) -> Callable[..., None]:
        kinds = {"on_batch_begin": "on_train_batch_begin", "on_batch_end": "on_train_batch_end"}

        def tell(*values: Any) -> None:
            for one in self._all:
                getattr(one, kinds.get(name, name))(*values)

        return tell


class LambdaCallback(Callback):
    """Calls functions."""

    def __init__(self, **functions: Any) -> None:
        super().__init__()
        for name, function in functions.items():
            if function is not None:
                setattr(self, name, function)


def _better(mode: str, monitor: str) -> Callable[[Any, Any], Any]:
    rises = mode == "max" or (mode != "min" and ("acc" in monitor or monitor.startswith("fmeasure")))
    return np.greater if rises else np.less


class EarlyStopping(Callback):
    """Ends training when a value no longer improves."""

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        super().__init__()
        self.monitor, self.patience, self.verbose, self.baseline = monitor, patience, verbose, baseline
        self.restore_best_weights = restore_best_weights
        self.monitor_op = _better(mode, monitor)
        self.min_delta = abs(min_delta) if self.monitor_op is np.greater else -abs(min_delta)
        self.wait = self.stopped_epoch = 0
        self.best: Any = None
        self.best_weights: Any = None

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        self.wait = self.stopped_epoch = 0
        worst = -np.inf if self.monitor_op is np.greater else np.inf
        self.best = worst if self.baseline is None else self.baseline

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        value = (logs or {}).get(self.monitor)
        if value is None:
            _say_missing("Early stopping", self.monitor, logs)
            return
        if self.monitor_op(value - self.min_delta, self.best):
            self.best, self.wait = value, 0
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            if self.best_weights is not None:
                self.model.set_weights(self.best_weights)

    @override
    def on_train_end(self, logs: Any = None) -> None:
        if self.stopped_epoch > 0 and self.verbose > 0:
            print(f"Epoch {self.stopped_epoch + 1:05d}: early stopping", flush=True)


class ModelCheckpoint(Callback):
    """Writes the model, or its weights, after epochs."""

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        period: int = 1,
        save_freq: Any = "epoch",
        **more: Any,
    ) -> None:
        del save_freq, more
        super().__init__()
        self.filepath, self.monitor, self.verbose = str(filepath), monitor, verbose
        self.save_best_only, self.save_weights_only, self.period = save_best_only, save_weights_only, period
        self.monitor_op = _better(mode, monitor)
        self.best = -np.inf if self.monitor_op is np.greater else np.inf
        self._since = 0

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._since += 1
        if self._since < self.period:
            return
        self._since = 0
        if self.save_best_only:
            value = (logs or {}).get(self.monitor)
            if value is None:
                _say_missing("Saving the best model", self.monitor, logs)
                return
            if not self.monitor_op(value, self.best):
                return
            self.best = value
        path = self.filepath.format(epoch=epoch + 1, **(logs or {}))
        if self.verbose:
            print(f"Epoch {epoch + 1:05d}: saving model to {path}", flush=True)
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class LearningRateScheduler(Callback):
    """Sets the learning rate of each epoch by a function of its number, and perhaps of the rate before."""

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule, self.verbose = schedule, verbose

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        try:
            rate = self.schedule(epoch, _rate(self.model))
        except TypeError:
            rate = self.schedule(epoch)
        if not isinstance(rate, float | np.floating):
            raise ValueError('The output of the "schedule" function should be float.')
        self.model.optimizer.lr = float(rate)
        if self.verbose:
            print(f"Epoch {epoch + 1:05d}: LearningRateScheduler setting learning rate to {rate}.", flush=True)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = _rate(self.model)


class ReduceLROnPlateau(Callback):
    """Makes the learning rate smaller when a value no longer improves."""

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0,
        **more: Any,
    ) -> None:
        super().__init__()
        if factor >= 1.0:
            raise ValueError("ReduceLROnPlateau does not support a factor >= 1.0.")
        self.monitor, self.factor, self.patience, self.verbose = monitor, factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        self.min_delta = more.get("epsilon", min_delta)
        self.rises = _better(mode, monitor) is np.greater
        self.wait = self.cooldown_counter = 0
        self.best = -np.inf if self.rises else np.inf

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        value = (logs or {}).get(self.monitor)
        rate = _rate(self.model)
        if logs is not None:
            logs["lr"] = rate
        if value is None:
            _say_missing("Reducing the learning rate", self.monitor, logs)
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        improved = value > self.best + self.min_delta if self.rises else value < self.best - self.min_delta
        if improved:
            self.best, self.wait = value, 0
        elif self.cooldown_counter <= 0:
            self.wait += 1
            if self.wait >= self.patience and rate > self.min_lr:
                new = max(rate * self.factor, self.min_lr)
                self.model.optimizer.lr = new
                self.cooldown_counter, self.wait = self.cooldown, 0
                if self.verbose:
                    print(f"Epoch {epoch + 1:05d}: ReduceLROnPlateau reducing learning rate to {new}.", flush=True)


class TerminateOnNaN(Callback):
    """Ends training when the loss is not finite."""

    @override
    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training", flush=True)
            self.model.stop_training = True


class CSVLogger(Callback):
    """Writes the losses and metrics of all epochs to a file."""

    def __init__(self, filename: Any, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename, self.sep, self.append = str(filename), separator, append
        self._file: Any = None
        self._writer: Any = None

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        self._file = Path(self.filename).open("a" if self.append else "w", newline="", encoding="utf-8")  # noqa: SIM115

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        row = {"epoch": epoch, **dict(sorted((logs or {}).items()))}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row), delimiter=self.sep)
            if self._file.tell() == 0:
                self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    @override
    def on_train_end(self, logs: Any = None) -> None:
        self._file.close()
        self._writer = None


class TensorBoard(Callback):
    """Writes the losses and metrics of all epochs as summaries."""

    def __init__(self, log_dir: Any = "./logs", *args: Any, **more: Any) -> None:
        del args, more
        super().__init__()
        self.log_dir = str(log_dir)
        self._writer: Any = None

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        self._writer = FileWriter(self.log_dir)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in (logs or {}).items()]
        self._writer.add_summary(Summary(value=values), epoch)
        self._writer.flush()

    @override
    def on_train_end(self, logs: Any = None) -> None:
        self._writer.close()


def _rate(model: Any) -> float:
    rate = model.optimizer.lr
    return float(phase.get_session().run(rate) if hasattr(rate, "as_tensor") else rate)


def _say_missing(what: str, monitor: str, logs: Any) -> None:
    print(f"{what} needs {monitor}, which is not available. Available are: {', '.join(logs or {})}", flush=True)
