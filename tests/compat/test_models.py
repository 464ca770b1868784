"""`tf.keras`: layers, models and their training have TensorFlow's variables, values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.compat.golden_values import assert_close_to, golden
from tests.compat.models_table import LAYERS, TRAINED, values_of_layer, values_of_training

import trainband.compat.tf1 as tf


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    return golden("models")


def _of(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if key.split()[0] == name}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_what_tensorflow_gives(name: str, wanted: dict[str, Any]) -> None:
    assert_close_to(values_of_layer(tf, name), _of(name, wanted), 2e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_fit_gives_what_tensorflow_gives(name: str, wanted: dict[str, Any]) -> None:
    assert_close_to(values_of_training(tf, name), _of(name, wanted), 1e-4)
