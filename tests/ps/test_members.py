"""Members: leases, under a clock that stands in the test."""

from __future__ import annotations

import pytest

from trainband.errors import Refused
from trainband.ps.membership.members import Member, Members, Presence

LEASE_S = 10.0


def failover() -> Members:
    return Members(LEASE_S, ["worker:0", "worker:1", "worker:2"])


def join(members: Members, task: str, incarnation: str, now: float) -> tuple[Member, bool]:
    return members.join(task, incarnation, "host", 4711, now)


def test_a_worker_joins_once_however_often_it_asks() -> None:
    members = failover()
    first, news = join(members, "worker:0", "a", 0.0)
    assert news
    again, news = join(members, "worker:0", "a", 3.0)
    assert again is first
    assert not news
    assert first.heard_at == 3.0
    assert first.joined_at == 0.0
    other, _ = join(members, "worker:1", "b", 3.0)
    assert (first.number, other.number) == (0, 1)
    assert list(members) == members.live() == [first, other]
    assert members.get(1) is other


def test_a_second_claimant_is_refused_until_the_lease_ends() -> None:
    members = failover()
    first, _ = join(members, "worker:0", "a", 0.0)
    with pytest.raises(Refused, match=r"process 4711 on host, last heard from 9\.9 s ago"):
        join(members, "worker:0", "b", 9.9)
    second, news = join(members, "worker:0", "b", 10.0)
    assert news
    assert second is not first
    assert list(members) == [second]


@pytest.mark.parametrize("how", ["left", "failed", "lost"])
def test_a_name_that_was_given_up_is_free_at_once(how: str) -> None:
    members = failover()
    first, _ = join(members, "worker:0", "a", 0.0)
    if how == "lost":
        members.lose(first)
    else:
        members.leave(first, "" if how == "left" else "ValueError: x")
    second, news = join(members, "worker:0", "b", 0.1)
    assert news
    assert second.live
    assert not first.live


def test_leases_end_where_nobody_is_heard() -> None:
    members = failover()
    silent, _ = join(members, "worker:0", "a", 0.0)
    lively, _ = join(members, "worker:1", "b", 0.0)
    assert not members.record_contact(lively, 9.0)
    assert members.expired(9.999) == []
    assert members.expired(10.0) == [silent]
    assert members.lose(silent)
    assert not members.lose(silent)  # no news
    assert members.expired(11.0) == []
    assert members.live() == [lively]
    assert silent.presence is Presence.LOST


def test_a_lost_worker_is_back_by_its_voice() -> None:
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    members.lose(member)
    assert members.record_contact(member, 20.0)
    assert member.live
    assert not members.record_contact(member, 21.0)  # no news


def test_a_lost_worker_is_back_by_joining() -> None:
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    members.lose(member)
    again, news = join(members, "worker:0", "a", 20.0)
    assert again is member
    assert news
    assert member.live


def test_a_lost_worker_whose_name_was_taken_does_not_come_back() -> None:
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    members.lose(member)
    successor, _ = join(members, "worker:0", "b", 1.0)
    assert not members.record_contact(member, 2.0)
    assert not member.live
    assert members.live() == [successor]


def test_a_process_that_was_replaced_is_refused_though_the_other_has_gone() -> None:
    """A push that it still had under way bears a number under which the other has pushed."""
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    members.lose(member)
    successor, _ = join(members, "worker:0", "b", 1.0)
    members.pushed(successor)
    members.leave(successor, "")
    with pytest.raises(Refused, match="another process has taken the place of worker:0 in the job"):
        join(members, "worker:0", "a", 2.0)
    third, _ = join(members, "worker:0", "c", 3.0)
    assert members.live() == [third]


def test_a_process_comes_back_where_the_one_in_its_place_has_not_pushed() -> None:
    """Such as one with another model, which was refused."""
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    members.lose(member)
    wrong, _ = join(members, "worker:0", "b", 1.0)
    members.leave(wrong, "another model")
    again, _ = join(members, "worker:0", "a", 2.0)
    members.pushed(again)
    members.lose(again)
    back, _ = join(members, "worker:0", "a", 4.0)
    assert members.live() == [back]
    with pytest.raises(Refused, match="another process has taken the place of worker:0 in the job"):
        join(members, "worker:0", "b", 5.0)


def test_who_has_left_does_not_come_back_by_a_late_heartbeat() -> None:
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    assert members.leave(member, "")
    assert not members.record_contact(member, 1.0)
    assert member.presence is Presence.LEFT
    assert not members.lose(member)
    assert member.presence is Presence.LEFT


def test_a_failure_is_kept() -> None:
    members = failover()
    member, _ = join(members, "worker:0", "a", 0.0)
    assert members.leave(member, "ValueError: the data is gone")
    assert not members.leave(member, "")  # such as at exit
    assert (member.presence, member.failure) == (Presence.FAILED, "ValueError: the data is gone")


def test_an_unknown_number_is_refused_with_advice() -> None:
    with pytest.raises(Refused, match=r"no worker has the number 3 here.*join again"):
        failover().get(3)
