"""Rows in fewer bytes are rounded as they say, and saved as they are."""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.ps.tables import TableStore
from trainband.rows import Constant, Sgd, Table

DIM = 6
Small = Literal["bfloat16", "int8"]
VALUES = np.random.default_rng(0).standard_normal((300, DIM), np.float32) * np.float32(3)
IDS = np.arange(300)


def store_with(values: NDArray[np.float32], dtype: Small, rounding: Literal["nearest", "stochastic"]) -> TableStore:
    table = Table("t", dim=DIM, optimizer=Sgd(1.0), initializer=Constant(), dtype=dtype, rounding=rounding)
    store = TableStore(table)
    store.apply(np.arange(len(values)), -values, 0)
    return store


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    found = store_with(VALUES, "bfloat16", "nearest").lookup(IDS)
    np.testing.assert_array_equal(found, VALUES.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_int8_is_rounded_to_the_nearest_of_its_row() -> None:
    found = store_with(VALUES, "int8", "nearest").lookup(IDS)
    scale = np.abs(VALUES).max(1, keepdims=True) / 127
    np.testing.assert_allclose(found, np.rint(VALUES / scale) * scale, rtol=1e-6)
    assert not store_with(VALUES[:1] * 0, "int8", "nearest").lookup(IDS[:1]).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_random_rounding_keeps_the_mean(dtype: Small) -> None:
    row = np.array([1.0, 0.3712, -0.0041, -0.7777, 0.5004, 0.001], np.float32)
    found = store_with(np.tile(row, (3000, 1)), dtype, "stochastic").lookup(np.arange(3000))
    assert all(1 <= len(np.unique(column)) <= 2 for column in found.T)
    spread = np.maximum(found.max(0) - found.min(0), 1e-7)
    assert (np.abs(found.astype(np.float64).mean(0) - row) <= 0.05 * spread).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_small_changes_are_not_lost_by_random_rounding(dtype: Small) -> None:
    row = np.array([1.0, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
    change, ids = np.tile(np.where(row == 0.5, np.float32(0.0005), np.float32(0)), (100, 1)), np.arange(100)
    moved = []
    roundings: list[Literal["nearest", "stochastic"]] = ["nearest", "stochastic"]
    for rounding in roundings:
        store = store_with(np.tile(row, (100, 1)), dtype, rounding)
        before = store.lookup(ids)
        for step in range(1, 101):
            store.apply(ids, change, step)
        moved.append((before - store.lookup(ids))[:, 1:].mean())
    assert moved == [0, pytest.approx(0.05, rel=0.1)]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_rows_are_loaded_as_they_were(dtype: Small, rounding: Literal["nearest", "stochastic"]) -> None:
    saved, loaded = store_with(VALUES, dtype, rounding), store_with(VALUES[:10], dtype, rounding)
    loaded.load(saved.snapshot())
    np.testing.assert_allclose(loaded.lookup(IDS), saved.lookup(IDS), rtol=1e-6)


def test_fewer_bytes() -> None:
    sizes = [store_with(VALUES, dtype, "nearest")._rows.records.size for dtype in ("bfloat16", "int8")]  # noqa: SLF001
    assert sizes == [16 + 2 * DIM + 4, 16 + 4 + DIM + 6]
