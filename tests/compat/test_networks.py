"""Layers and recurrent networks have TensorFlow's variables, values and derivatives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.compat.golden_values import assert_close_to, golden
from tests.compat.networks_table import TABLE, values_of

import trainband.compat.tf1 as tf


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    return golden("networks")


@pytest.mark.parametrize("name", TABLE)
def test_networks_give_what_tensorflow_gives(name: str, wanted: dict[str, Any]) -> None:
    mine = {key: value for key, value in wanted.items() if key.split()[0] == name}
    assert_close_to(values_of(tf, name), mine, 2e-5)
