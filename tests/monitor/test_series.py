"""Series: bounded over weeks, and still true."""

from __future__ import annotations

import pytest

from trainband.monitor.series import RESOLUTIONS, Resolution, Series, thinned


@pytest.mark.smoke
def test_months_take_a_bounded_number_of_rows() -> None:
    small = [Resolution(1.0, 60), Resolution(30.0, 40), Resolution(900.0, 50)]
    series = Series(["loss"], small)
    for second in range(100_000):
        series.add(float(second), {"loss": float(second)})
    rows = series.rows()
    assert len(rows) <= 60 + 40 + 50 + 3
    assert rows == sorted(rows)
    assert rows[-1] == (99_999.0, 99_999.0), "the newest as it was"
    assert rows[0][0] < 100_000 - 50 * 900 + 900, "and the oldest that the coarsest ring holds"
    assert all(abs(at - value) < 1e-6 for at, value in rows), "means of the value are at the mean of the time"
    assert sum(resolution.rows for resolution in RESOLUTIONS) < 20_000


def test_what_is_unknown_stays_so() -> None:
    series = Series(["loss", "rate"], [Resolution(1.0, 10)])
    series.add(0.0, {"loss": float("nan"), "rate": 1.0})
    series.add(1.0, {"loss": 2.0})
    assert series.columns() == {"at": [0.0, 1.0], "loss": [None, 2.0], "rate": [1.0, None]}
    assert Series(["loss"]).columns() == {"at": [], "loss": []}


def test_thinning_keeps_the_newest() -> None:
    columns: dict[str, list[float | None]] = {"at": [float(n) for n in range(10)]}
    assert thinned(columns, 4)["at"] == [0.0, 3.0, 6.0, 9.0]
    assert thinned(columns, None) is columns
