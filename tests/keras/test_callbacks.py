"""Callbacks do what they do under plain Keras."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.keras.beside import expect_same, expect_same_history, fits, one_device, rows, small, trained

import keras
from keras import callbacks
from trainband.keras.callbacks import LineEachEpoch
from trainband.keras.training import Training

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
"""Keras 3.15 with NumPy 2.4: some of its callbacks read the learning rate in an old way."""

X, Y = rows()
STEP = 2e-5


class Reader(keras.callbacks.Callback):  # type: ignore[misc]
    """Reads what the model has after each batch, and the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float, float, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        norm = float(np.abs(self.model.get_weights()[0]).sum())
        self.seen.append((batch, norm, float(logs["loss"]), float(self.model.optimizer.iterations)))


class Stopper(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
        self.model.stop_training = batch == 1


class Meddler(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes weights between two epochs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if epoch == 1:
            self.model.layers[0].bias.assign(np.full(8, 0.5))


CALLBACKS: dict[str, Callable[[Path], list[Any]]] = {
    "early stopping": lambda _: [
        callbacks.EarlyStopping("val_loss", patience=1, min_delta=1.0, restore_best_weights=True)
    ],
    "scheduler": lambda _: [callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.3 if epoch else rate)],
    "plateau": lambda _: [callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=10.0)],
    "terminate on NaN, and stopped within an epoch": lambda _: [callbacks.TerminateOnNaN(), Stopper()],
    "swapped averages": lambda _: [callbacks.SwapEMAWeights(swap_on_epoch=True)],
    "a user's own that changes weights": lambda _: [Meddler()],
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_history_and_weights(name: str, tmp_path: Path) -> None:
    def fit(model: Any) -> Any:
        return fits(X, Y, epochs=4, validation_data=(X, Y), callbacks=CALLBACKS[name](tmp_path))(model)

    def make() -> Any:
        return small(optimizer=keras.optimizers.Adam(0.05, use_ema=name == "swapped averages", ema_momentum=0.5))

    plain, expected = trained(make, fit)
    ours, history = trained(make, fit, one_device())
    expect_same_history(expected, history, 1e-5)
    expect_same(ours, plain, STEP)
    if name == "early stopping":
        assert len(history["loss"]) == 2
    if name in ("scheduler", "plateau"):
        assert history["learning_rate"][-1] < history["learning_rate"][0]


def test_a_reader_of_each_batch() -> None:
    seen = []
    for strategy in (None, one_device()):
        reader = Reader()
        trained(small, fits(X, Y, callbacks=[reader]), strategy)
        seen.append(reader.seen)
    assert len(seen[0]) == 8
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-6)


def test_a_reader_of_a_figure_for_each_class() -> None:
    seen: list[Any] = []

    def fit(model: Any) -> Any:
        def record(_: int, logs: Any) -> None:
            seen.append(logs["f1_score"])

        return fits(X, keras.utils.to_categorical(Y), callbacks=[callbacks.LambdaCallback(on_batch_end=record)])(model)

    for strategy in (None, one_device()):
        trained(lambda: small(loss="mse", metrics=[keras.metrics.F1Score()]), fit, strategy)
    assert len(seen) == 16
    np.testing.assert_allclose(seen[8:], seen[:8], rtol=1e-6)


def test_files(tmp_path: Path) -> None:
    """Whole models, weights, logs and boards, each as plain Keras's."""
    found: list[Any] = []
    for name, strategy in (("plain", None), ("ours", one_device())):
        there = tmp_path / name
        fit = fits(
            X,
            Y,
            validation_split=0.25,
            callbacks=[
                callbacks.ModelCheckpoint(there / "model-{epoch}.keras", monitor="val_loss"),
                callbacks.ModelCheckpoint(there / "w.weights.h5", save_weights_only=True, save_freq=2),
                callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            ],
        )
        model, _ = trained(small, fit, strategy)
        saved = keras.models.load_model(there / "model-2.keras")
        expect_same(saved, model)
        weights = small()
        weights.optimizer.build(weights.trainable_variables)
        weights.load_weights(there / "w.weights.h5")
        first = keras.models.load_model(there / "model-1.keras")
        lines = list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines()))
        found.append((saved, first, weights, lines))
    for one, other in zip(found[0][:3], found[1][:3], strict=True):
        np.testing.assert_allclose(one.predict(X, verbose=0), other.predict(X, verbose=0), rtol=1e-6)
    assert found[0][3][0] == found[1][3][0]
    np.testing.assert_allclose(np.array(found[1][3][1:], float), np.array(found[0][3][1:], float), rtol=1e-5)


class Interrupted(Exception):
    """What ends a training in these tests."""


class Interrupting(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if epoch == 1:
            raise Interrupted


def test_backup_and_restore(tmp_path: Path) -> None:
    """A training that is interrupted and begun again comes to where one comes that is not."""
    ended = []
    for name, strategy in (("plain", None), ("ours", one_device())):
        backup = callbacks.BackupAndRestore(tmp_path / name)
        with pytest.raises(Interrupted):
            trained(small, fits(X, Y, epochs=4, shuffle=False, callbacks=[backup, Interrupting()]), strategy)
        again = callbacks.BackupAndRestore(tmp_path / name)
        ended.append(trained(small, fits(X, Y, epochs=4, shuffle=False, callbacks=[again]), strategy))
    (plain, expected), (ours, history) = ended
    assert len(history["loss"]) == 2
    expect_same_history(expected, history, 1e-5)
    expect_same(ours, plain, STEP)


@pytest.mark.parametrize(("made", "printed"), [(7, ""), (8, "worker:1: epoch 2/3 of its own batches - loss: 0.5000\n")])
def test_a_worker_prints_only_epochs_that_the_job_has_made(
    made: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chief's `EarlyStopping` ends an epoch in which another worker has begun."""
    engine = SimpleNamespace(steps=SimpleNamespace(global_step=made))
    job = SimpleNamespace(trainer=SimpleNamespace(join=lambda: engine), running=SimpleNamespace(reset=lambda: None))
    training = Training(
        lambda batch: cast(Any, job),  # noqa: ARG005 - the form of what makes a job
        None,
        updates=4,
        alone=False,
        epochs=3,
        first_epoch=0,
        dealt=False,
        settings={},
    )
    training._job = cast(Any, job)  # noqa: SLF001 - it is joined at the first step, with a batch
    training.start_epoch(1)
    LineEachEpoch("worker:1", 3, training, of_all=False).on_epoch_end(1, {"loss": np.array([0.25, 0.75])})
    assert capsys.readouterr().out == printed
