"""What steps spend their time on, between two moments."""

from __future__ import annotations

import pytest

from trainband.runtime.step_times import Since, StepTimes


def test_what_was_spent_between_two_moments() -> None:
    times = StepTimes(steps=3, compute=2.0, waited_for={"ps:1": 1.0})
    since = Since(times, 100.0)
    times.steps += 4
    times.compute += 1.0
    times.network += 0.5
    times.record_wait("ps:0", 0.0, 0.25)
    times.record_wait("ps:1", 0.0, 0.125)
    spent = since.spent(104.0)
    assert (spent.steps, spent.total) == (4, 4.0)
    assert spent.seconds == {"data": 0.0, "compute": 1.0, "send": 0.0, "network": 0.5, "ps": 0.0, "other": 2.5}
    assert spent.waited_for == {"ps:0": 0.25, "ps:1": 0.125}
    assert spent.share("other") == pytest.approx(0.625)
    assert Since(times, 104.0).spent(104.0).share("compute") == 0.0
