"""`tf.image`: values are TensorFlow's, recorded and in a dataset's function, where NumPy computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compat import images_table
from tests.compat.golden_values import golden

import trainband.compat.tf1 as tf

GOLDEN = golden("images")


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    """All of the table, computed once."""
    return images_table.compute(tf)


@pytest.mark.parametrize("name", images_table.TABLE)
def test_value(computed: dict[str, Any], name: str) -> None:
    assert np.shape(computed[name]) == GOLDEN[name].shape
    np.testing.assert_allclose(computed[name].astype(np.float64), GOLDEN[name], rtol=2e-5, atol=2e-5)
