"""First values have the distribution that was asked for, and are a function of the id alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.errors import ModelError
from trainband.rows import Constant, Normal, RowInitializer, TruncatedNormal, Uniform

KEYS = np.arange(4000, dtype=np.uint64)
DIM = 9
BELOW = NormalDist().cdf


def truncated(x: float) -> float:
    return (BELOW(x) - BELOW(-1.5)) / (BELOW(1.5) - BELOW(-1.5))


@pytest.mark.parametrize(
    ("initializer", "below"),
    [
        (Uniform(3.0, -1.0), lambda x: (x + 1) / 4),
        (Uniform(0.5), lambda x: x / 0.5),
        (Normal(2.0), lambda x: BELOW(x / 2)),
        (TruncatedNormal(2.0, 1.5), lambda x: truncated(x / 2)),
    ],
)
def test_values_have_the_distribution(initializer: RowInitializer, below: Callable[[float], float]) -> None:
    rows = initializer.rows(KEYS, DIM)
    assert rows.shape == (4000, DIM)
    assert rows.dtype == np.float32
    values = np.sort(rows.ravel())[::37]
    expected = np.array([below(float(x)) for x in values])
    distance = np.abs(expected - np.linspace(0, 1, len(values))).max()  # of Kolmogorov and Smirnov
    assert expected.min() >= 0.0
    assert expected.max() <= 1.0
    assert distance < 1.95 / math.sqrt(rows.size)  # exceeded by 1 of 1,000 samples
    assert abs(correlation(rows[:, 0], rows[:, 1])) < 0.06
    assert abs(correlation(rows[1:, 0], rows[:-1, 0])) < 0.06


def correlation(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def test_tails_of_the_normal_distribution() -> None:
    rows = Normal(1.0).rows(np.arange(30_000, dtype=np.uint64), 16)
    beyond = np.mean(np.abs(rows) > 4)
    assert np.isfinite(rows).all()
    assert 0.5 < beyond / (2 * BELOW(-4)) < 1.6


def test_a_row_depends_on_its_key_alone() -> None:
    initializer = Normal()
    rows = initializer.rows(KEYS, DIM)
    np.testing.assert_array_equal(initializer.rows(KEYS[::-3].copy(), DIM), rows[::-3])
    np.testing.assert_array_equal(initializer.rows(KEYS[7:8], DIM)[0], rows[7])


def test_constants() -> None:
    assert Constant().rows(KEYS[:2], 2).tolist() == [[0, 0], [0, 0]]
    assert Constant(0.5).rows(KEYS[:1], 2).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(math.inf), "high of an initializer must be finite, not inf"),
        (lambda: Normal(math.nan), "standard_deviation of an initializer must be finite, not nan"),
        (lambda: TruncatedNormal(1.0, 0.0), "the bound of a truncated normal distribution must be positive, not 0.0"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()
