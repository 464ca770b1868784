"""Combiners against sums by hand."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from trainband import rows
from trainband.errors import ModelError

ROWS = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
WEIGHTS = np.array([[1, 2, 0.5, 3], [2, 1, 1, 1], [1, 1, 1, 1]], np.float32)
LENGTHS = [3, 0, 2]


def by_hand(values: Any, weights: Any, how: str) -> Any:
    total = (values * weights[:, None]).sum(0)
    by = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[how]
    return total / by if by else total


@pytest.mark.parametrize("how", ["sum", "mean", "sqrtn"])
def test_padded_and_ragged_rows_combine_alike(how: Any) -> None:
    mask = np.arange(4) < np.array(LENGTHS)[:, None]
    expected = [by_hand(ROWS[i, :n], WEIGHTS[i, :n], how) for i, n in enumerate(LENGTHS)]
    padded = jax.jit(lambda: rows.combined(ROWS, how, mask=mask, weights=WEIGHTS))()
    np.testing.assert_allclose(padded, expected, rtol=1e-6)
    flat, weights = ROWS[mask], WEIGHTS[mask]
    filler = np.full((2, 2), 9.0, np.float32)
    ragged = rows.combined_ragged(np.concatenate([flat, filler]), LENGTHS, how, weights=np.append(weights, [1.0, 1.0]))
    np.testing.assert_allclose(ragged, expected, rtol=1e-6)
    gradient = jax.grad(lambda given: rows.combined(given, how, mask=mask).sum())(ROWS)
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[~mask] == 0).all()


@pytest.mark.smoke
def test_another_way_is_refused() -> None:
    with pytest.raises(ModelError, match="by 'sum', 'mean' or 'sqrtn', not 'max'"):
        rows.combined(ROWS, "max")  # type: ignore[arg-type]
