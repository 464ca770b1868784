"""Absence: whether it is the ps that was away."""

from __future__ import annotations

from trainband.ps.membership.absence import Absence


def test_a_word_that_was_under_way_does_not_end_an_absence() -> None:
    absence = Absence(10.0)
    for now in range(5):
        absence.record_check(now, live=True, silent=False)
    absence.record_check(60.0, live=False, silent=False)
    assert absence.stood_still
    absence.record_check(61.0, live=True, silent=False)  # a heartbeat from before
    for now in range(62, 72):
        absence.record_check(now, live=True, silent=False)
    absence.record_check(72.0, live=False, silent=False)
    assert absence.stood_still
    assert not absence.is_deserted(81.0)
    assert absence.is_deserted(82.0)


def test_workers_that_stay_end_an_absence() -> None:
    absence = Absence(10.0)
    absence.record_check(0.0, live=False, silent=True)
    assert absence.was_cut_off
    for now in range(1, 22):
        absence.record_check(now, live=True, silent=False)
    assert not absence.was_cut_off
