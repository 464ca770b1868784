"""What the values of a variable are like."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.monitor.tensor_summary import BINS, summary_of


@pytest.mark.smoke
def test_pieces_make_the_summary_of_the_whole() -> None:
    whole = np.random.default_rng(0).normal(3.0, 2.0, (1000, 7)).astype(np.float32)
    whole[5] = 0.0

    def pieces() -> Iterator[NDArray[Any]]:
        yield from (whole[:10], whole[10:400], whole[400:])

    found = summary_of("w", 3, pieces)
    assert (found.elements, found.finite, found.zeros) == (7000, 7000, 7)
    assert found.norm == pytest.approx(np.linalg.norm(whole.astype(np.float64)))
    assert found.mean == pytest.approx(whole.mean(dtype=np.float64))
    assert found.deviation == pytest.approx(whole.std(dtype=np.float64))
    assert (found.minimum, found.maximum) == (float(whole.min()), float(whole.max()))
    assert list(found.counts) == np.histogram(whole.astype(np.float64), BINS)[0].tolist()


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    values = np.array([1.0, math.nan, math.inf, 1.0])
    found = summary_of("w", 0, lambda: iter([values]))
    assert (found.elements, found.finite, found.mean, sum(found.counts)) == (4, 2, 1.0, 2)
    assert summary_of("w", 0, lambda: iter([values[1:3]])).norm is None
    assert summary_of("w", 0, lambda: iter([np.zeros((0, 2))])).elements == 0
