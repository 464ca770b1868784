"""What is used of Keras that it does not promise to keep is there in the version that is installed."""

from __future__ import annotations

import pytest
from tests.private import found

import keras
from trainband.keras import keras_internals as inside


@pytest.mark.smoke
@pytest.mark.parametrize("name", inside.NAMES)
def test_keras_has_it(name: str) -> None:
    found(name, f"Keras {keras.__version__}")


@pytest.mark.smoke
def test_a_compiled_model_has_it() -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for of, one in (("optimizer", model.optimizer), ("model", model)):
        gone = [name for name in inside.OF_INSTANCES[of] if not hasattr(one, name)]
        assert not gone, f"Keras {keras.__version__}: a compiled {of} has no {', '.join(gone)} any more"
