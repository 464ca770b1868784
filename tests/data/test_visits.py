"""Visits: what was trained on, and what is claimed again after a restore."""

from __future__ import annotations

import json

import pytest

from trainband.data.visits import Given, Visits
from trainband.errors import DataError


def test_a_piece_is_finished_when_its_last_batch_is_trained_on() -> None:
    visits = Visits()
    hold = visits.receive((0, 2), 8, 9, 12)
    for examples, unit in ((2, 11), (1, 12)):
        visits.record_given(Given(examples, [(hold, (unit, 0))]))
    assert (visits.progress, visits.finished) == (((0, 2, 1),), ())
    assert visits.trained(1) == 2
    assert (visits.progress, visits.finished, visits.awaited) == (((0, 2, 3),), (), True)
    assert visits.trained(1) == 0
    assert visits.trained_all() == 1
    assert (visits.progress, visits.finished, visits.awaited) == ((), ((0, 2),), False)
    visits.reported(visits.finished)
    assert visits.finished == ()


@pytest.mark.parametrize("awaited", [False, True])
def test_what_is_left_out_counts_after_the_batches_before_it(awaited: bool) -> None:
    visits = Visits()
    hold = visits.receive((0, 0), 0, 0, 4)
    visits.record_given(Given(3, [(hold, (3, 0))]))
    if not awaited:
        visits.trained(1)
    visits.record_dropped([(hold, (4, 0))])
    assert visits.finished == (() if awaited else ((0, 0),))
    visits.trained(1)
    assert visits.finished == ((0, 0),)


def test_a_restored_one_claims_what_it_had_until_it_was_reported() -> None:
    visits = Visits()
    file, done = visits.receive((1, 3), 3, 3, 4), visits.receive((1, 0), 0, 0, 1)
    visits.record_given(Given(5, [(done, (1, 0)), (file, (3, 2))]))
    visits.trained_all()
    again = Visits.from_state(json.loads(json.dumps(visits.state())))
    assert (again.progress, again.finished) == (((1, 3, 0),), ((1, 0),))
    assert again.state() == visits.state()
    again.reported(again.finished)
    assert (again.progress, again.finished) == ((), ())
    assert [again.receive((1, 3), 3, 3, 4).row for _ in range(2)] == [2, 0]


def test_another_thing_is_no_state() -> None:
    with pytest.raises(DataError, match="not a position"):
        Visits.from_state({"progress": [[0, 0]], "rows": [], "finished": []})
