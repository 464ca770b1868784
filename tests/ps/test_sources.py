"""Shared data sources on a ps: pieces of those who go come back, and a checkpoint knows them."""

from __future__ import annotations

import pytest

from trainband.data.leases import LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import DataError
from trainband.job.shared_sources import SharedSources

SETTINGS = SourceSettings(examples=10, piece=5, epochs=1, seed=0, shuffle=False)


def ask(
    source: str = "digits", settings: SourceSettings = SETTINGS, number: int = 1, iterator: str = "a"
) -> LeaseRequest:
    return LeaseRequest(source, settings, iterator=iterator, number=number)


def test_pieces_of_one_that_goes_are_others() -> None:
    sources = SharedSources()
    pieces = [sources.lease(worker, ask()) for worker in (0, 1)]
    assert [(one.kind, one.piece) for one in pieces] == [("piece", 0), ("piece", 1)]
    assert sources.lease(2, ask()).kind == "wait"
    sources.release(0)
    again = sources.lease(2, ask(number=2))
    assert (again.kind, again.piece) == ("piece", 0)


def test_sources_do_not_mix_and_settings_must_agree() -> None:
    sources = SharedSources()
    assert sources.lease(0, ask("one")).piece == sources.lease(0, ask("two")).piece == 0
    other = SourceSettings(examples=11, piece=5, epochs=1, seed=0, shuffle=False)
    with pytest.raises(DataError):
        sources.lease(1, ask("one", other))
    assert set(sources.record()) == {"one", "two"}


def test_what_a_checkpoint_says_is_gone_on_from() -> None:
    before = SharedSources()
    before.lease(0, ask())
    before.lease(5, ask())
    after = SharedSources()
    after.restore(before.record(), workers=1)
    # Worker 5 is not in this cluster, so its piece is free; worker 0's is reserved for it.
    got = after.lease(0, ask(iterator="b"))
    more = after.lease(0, LeaseRequest("digits", SETTINGS, finished=((0, got.piece),), iterator="b", number=2))
    assert sorted([got.piece, more.piece]) == [0, 1]
