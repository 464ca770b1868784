"""Values and derivatives of recorded operations, and what optimizers do, are those of TensorFlow.

`test_ops` compares the functions behind the operations; here it is what recording adds to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compat import operations_table
from tests.compat.golden_values import golden
from tests.compat.operations_table import IN_A_GRAPH

import trainband.compat.tf1 as tf

GOLDEN = {
    key: value for key, value in golden("operations").items() if key.partition("/")[0] in {*IN_A_GRAPH, "optimizer"}
}


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    """All of the table, computed once."""
    return operations_table.compute(tf, sorted(IN_A_GRAPH))


def test_the_same_things_have_a_derivative(computed: dict[str, Any]) -> None:
    assert set(computed) == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_value(computed: dict[str, Any], name: str) -> None:
    assert np.shape(computed[name]) == GOLDEN[name].shape
    np.testing.assert_allclose(computed[name], GOLDEN[name], rtol=2e-5, atol=2e-5)
