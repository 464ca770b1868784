"""A batch's distinct ids and summed gradients are those of NumPy's slow ways."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainband.ps.tables import summed, unique


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 5, 2**63, 2**64 - 1, 2**40]), max_size=30), st.integers(1, 4))
def test_ids_and_sums(given_: list[int], dim: int) -> None:
    ids = np.array(given_, np.uint64)
    gradients = np.random.default_rng(0).integers(-9, 9, (len(ids), dim)).astype(np.float32)
    distinct, places = unique(ids)
    assert distinct.tolist() == list(dict.fromkeys(given_))
    np.testing.assert_array_equal(distinct[places], ids)
    expected = np.zeros((len(distinct), dim), np.float32)
    np.add.at(expected, places, gradients)
    found = summed(gradients, places, len(distinct))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
