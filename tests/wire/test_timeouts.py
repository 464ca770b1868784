"""Timeouts that cannot hold together are refused where they are written down."""

from __future__ import annotations

import pytest

from trainband.wire.transport import Timeouts


@pytest.mark.parametrize(("lease_s", "heartbeat_s"), [(1.0, 2.0), (1.9, 1.0)])
def test_a_lease_that_one_late_heartbeat_would_end(lease_s: float, heartbeat_s: float) -> None:
    text = f"lease_s must be at least twice heartbeat_s, got lease_s={lease_s} with heartbeat_s={heartbeat_s}"
    with pytest.raises(ValueError, match=text):
        Timeouts(lease_s=lease_s, heartbeat_s=heartbeat_s)
    assert Timeouts(lease_s=2 * heartbeat_s, heartbeat_s=heartbeat_s).lease_s == 2 * heartbeat_s


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_no_time_at_all(value: float) -> None:
    with pytest.raises(ValueError, match=r"Timeouts\.call_s must be > 0 seconds"):
        Timeouts(call_s=value)
