"""What cannot be is said clearly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.keras.beside import fits, one_device, rows, small, trained

import keras
from keras import layers
from trainband.errors import DataError, ModelError
from trainband.keras import distribute
from trainband.strategies import OneDevice

ROOT = Path(__file__).resolve().parents[2]
X, Y = rows()


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (
            "numpy",
            "Keras computes with numpy here, but trainband needs JAX; set the environment variable KERAS_BACKEND=jax",
        ),
        ("torch", "(needs torch, which is not installed|computes with torch).*KERAS_BACKEND=jax"),
        ("tensorflow", "(needs tensorflow, which is not installed|computes with tensorflow).*KERAS_BACKEND=jax"),
    ],
)
def test_another_backend(backend: str, words: str) -> None:
    code = "import trainband\ntry:\n    with trainband.OneDevice('cpu').scope():\n        pass\n"
    code += "except trainband.TrainbandError as error:\n    print(error)\n"
    environ = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    pattern = re.compile(words)
    assert pattern.search(done.stdout), done.stdout + done.stderr


def refused(make: Any, words: str, fit: Any = None) -> None:
    with pytest.raises(ModelError, match=words):
        trained(make, fit or fits(X, Y), one_device())


def test_no_model() -> None:
    with pytest.raises(ModelError, match=r"distribute: expected a keras.Model, got 3"):
        distribute(3, one_device())


def test_settings_that_contradict() -> None:
    with pytest.raises(ModelError, match="save_steps= needs a checkpoint_dir="):
        distribute(small(), one_device(), save_steps=3)


def test_a_class_in_place_of_a_strategy() -> None:
    with pytest.raises(ModelError, match=r"such as OneDevice\(\), got the class; call it"):
        distribute(small(), OneDevice)  # type: ignore[arg-type]


def test_not_compiled() -> None:
    refused(lambda: keras.Sequential([layers.Dense(3)]), r"is not compiled; call compile\(optimizer=")


def test_nothing_to_train() -> None:
    def make() -> Any:
        model = small()
        model.trainable = False
        return model

    refused(make, "has no trainable variables; make some trainable")


def test_run_eagerly() -> None:
    refused(lambda: small(run_eagerly=True), r"compile\(run_eagerly=True\) runs layers one by one")


def test_a_loss_scale_optimizer() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    refused(lambda: small(optimizer=optimizer), "use the policy mixed_bfloat16.*auto_scale_loss=False")


def test_an_optimizer_without_its_config() -> None:
    class Own(keras.optimizers.SGD):  # type: ignore[misc]
        def __init__(self, secret: int) -> None:
            super().__init__(0.1)
            self.secret = secret

    refused(lambda: small(optimizer=Own(3)), r"the optimizer Own cannot be rebuilt from its config .*get_config\(\)")


def test_the_model_is_itself_again_after_an_error() -> None:
    """A training that has ended with an error leaves a model that can be asked."""

    class Breaks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
            raise KeyError("mine")

    keras.utils.set_random_seed(1)
    model = distribute(small(), one_device())
    with pytest.raises(KeyError, match="mine"):
        fits(X, Y, callbacks=[Breaks()])(model)
    assert model.predict(X, verbose=0).shape == (64, 3)
    assert len(fits(X, Y)(model).history["loss"]) == 2


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # of Keras, which traces metrics with it
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_ids_that_do_not_fit_into_32_bits(method: str) -> None:
    model = keras.Sequential([layers.Input((1,), dtype="int32"), layers.Embedding(8, 1), layers.Flatten()])
    model.compile("sgd", "mse")
    distribute(model, one_device())
    ids = np.array([[1], [2], [3], [2**32 + 1]])
    others = [] if method == "predict" else [np.ones((4, 1), np.float32)]
    with pytest.raises(DataError, match=r"\(int64\[4, 1\]\) holds 4294967297.*jax_enable_x64"):
        getattr(model, method)(ids, *others, verbose=0)
