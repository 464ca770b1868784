"""What `trainband.keras.TensorBoard` writes, and what is refused in its favour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.keras.beside import fits, one_device, rows, silent, small, trained
from tests.train.fakes import events_in

import keras
from trainband.errors import ModelError
from trainband.keras import TensorBoard

X, Y = rows()
"""64 examples: 4 steps an epoch."""

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def written(directory: Path) -> dict[str, list[tuple[int, Any]]]:
    """(step, value) of each tag, in order."""
    found: dict[str, list[tuple[int, Any]]] = {}
    (file,) = events_in(directory)
    for event in file:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, getattr(value, value.WhichOneof("value"))))
    return found


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiled: list[Any] = []
    monkeypatch.setattr(jax.profiler, "start_trace", profiled.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: profiled.append("stop"))
    said: list[str] = []
    callback = TensorBoard(
        tmp_path,
        histogram_freq=2,
        write_images=True,
        write_steps_per_second=True,
        update_freq=3,
        profile_batch=(2, 3),
        say=said.append,
    )
    fit = fits(X, Y, validation_data=(X[:10], Y[:10]), epochs=3, callbacks=[callback])
    model, history = trained(small, fit, one_device())
    train, validation = written(tmp_path / "train"), written(tmp_path / "validation")
    for name in ("loss", "accuracy"):
        for tags, prefix in ((train, ""), (validation, "val_")):
            steps, values = zip(*tags[f"epoch_{name}"], strict=True)
            assert steps == (0, 1, 2)
            np.testing.assert_allclose(values, history[prefix + name], rtol=1e-6)
        assert [step for step, _ in train[f"batch_{name}"]] == [3, 6, 9, 12]
        assert [step for step, _ in validation[f"evaluation_{name}_vs_iterations"]] == [4, 8, 12]
    assert [step for step, _ in train["epoch_steps_per_second"]] == [0, 1, 2]
    assert train["epoch_learning_rate"][0][1] == pytest.approx(1e-3)
    kernels = train["sequential/dense/kernel/histogram"]
    assert [step for step, _ in kernels] == [0, 2]
    assert kernels[1][1].num == 6 * 8
    assert kernels[1][1].sum == pytest.approx(float(np.sum(model.get_weights()[0])), rel=1e-4)
    assert len(json.loads(train["keras"][0][1].string_val[0])["config"]["layers"]) == 3
    assert profiled == [str(tmp_path / "train"), "stop"]
    assert said == ["TensorBoard: write_images is ignored; scalars, histograms, the model and profiles are written"]


def test_nobody_waits_for_batches_that_are_not_written(tmp_path: Path) -> None:
    trained(small, fits(X, Y, callbacks=[TensorBoard(tmp_path)]), one_device())
    assert "on_train_batch_end" not in vars(TensorBoard(tmp_path))
    assert not [tag for tag in written(tmp_path / "train") if tag.startswith("batch_")]


def test_keras_own_is_refused(tmp_path: Path) -> None:
    own = keras.callbacks.TensorBoard(tmp_path)
    with pytest.raises(ModelError, match=r"writes with TensorFlow: use trainband\.keras\.TensorBoard"):
        trained(small, fits(X, Y, callbacks=[own]), one_device())
    model, _ = trained(small, lambda _: None, one_device())
    with pytest.raises(ModelError, match=r"use trainband\.keras\.TensorBoard"):
        model.evaluate(X, Y, callbacks=[own], verbose=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"update_freq": 0}, "update_freq must be 'epoch', 'batch' or a number of batches, got 0"),
        ({"update_freq": "step"}, "got 'step'"),
        ({"profile_batch": (5, 2)}, r"profile_batch must be 0, the number .* got \(5, 2\)"),
        ({"profile_batch": "a"}, "profile_batch must be"),
        ({"profile_batch": -1}, "profile_batch must be"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        TensorBoard(say=silent, **settings)
