"""A shard that was taken over fails back when its ps has caught up: nothing is lost, nobody holds it twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from msgspec import structs
from tests.programs import until
from tests.ps.jobs import PARAMS, Job, first_values, in_thread
from tests.ps.plans import tree_of
from tests.ps.test_replication import QUICK, kill_ps, make, push, reference, replicated, standbys

from trainband.job.checkpoints import Overtaken
from trainband.ps.replication.arbiter import Arbiter
from trainband.ps.replication.failover import Failover, Fenced, Role
from trainband.ps.replication.record_log import Follower
from trainband.ps.rules import Async, Sync
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.ps.worker.plan import Plan
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages.replication import Term

__all__ = ["make"]  # the fixture

ARBITER = "worker"


def two_replicas() -> tuple[Failover, Failover]:
    """The primary of shard 0 on ps:1, and its standby on ps:0, with three records."""
    primary, standby = Failover(0, 1, other=0), Failover(0, 0, other=1)
    primary.bootstrap("lineage")
    primary.log.start_install("life of ps:0")
    standby.install_snapshot("lineage", primary.term, 0)
    primary.confirmed(0, ARBITER)
    for record in ("a", "b", "c"):
        primary.log.append(record)
    carry(primary, standby)
    assert (primary.secure, standby.role) == (True, Role.STANDBY)
    return primary, standby


def carry(sender: Failover, receiver: Failover, *, confirmed: bool = True) -> None:
    """The records that have not been sent."""
    term = sender.term.number
    first, entries = sender.log.unsent()
    receiver.receive("lineage", term, first, [record for record, _ in entries], f"life of ps:{sender.me}")
    if confirmed:
        sender.confirmed(receiver.position, ARBITER)


def test_a_vote_is_asked_for_a_term_that_the_silent_primary_cannot_have_begun() -> None:
    """It may have named another arbiter, in a term that its standby has not heard of: two must not hold one term."""
    primary, standby = two_replicas()
    primary.name_arbiter("another worker")
    standby.ask()
    request = standby.asks()
    assert request is not None
    assert standby.granted(request.term, yes=True)
    assert standby.holds
    assert standby.term.number > primary.term.number


def test_the_seats_change_places() -> None:
    primary, standby = two_replicas()
    term = primary.term.number
    primary.fail_back()
    assert (primary.holds, primary.known_as, standby.holds) == (False, Role.STANDBY, False)
    carry(primary, standby)
    assert (primary.role, standby.role) == (Role.STANDBY, Role.PRIMARY)
    assert primary.term == standby.term == Term(term + 1, 0, 1, ARBITER)
    assert standby.log.lacks_standby  # until the other is heard as its standby
    number = standby.log.append("d")
    assert not standby.settled(number)
    at = primary.position
    assert standby.meet(primary.known_as, "lineage", primary.term.number, at, "life of ps:1") == at
    carry(standby, primary)
    assert standby.settled(number)
    assert standby.secure
    with pytest.raises(Fenced):
        primary.settled(1)


def ask(replica: Failover, arbiter: Arbiter) -> bool:
    """Whether the arbiter lets it hold the shard alone."""
    replica.ask()
    vote_request = replica.asks()
    assert vote_request is not None
    yes = arbiter.grants(vote_request)
    replica.granted(vote_request.term, yes)
    return yes


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
@pytest.mark.parametrize("first", ["who has handed over", "the other"])
def test_in_doubt_one_of_them_goes_on_alone(taken: bool, first: str) -> None:
    primary, standby = two_replicas()
    primary.fail_back()
    if taken:
        carry(primary, standby, confirmed=False)
    primary.log.lost()
    arbiter = Arbiter()
    one, other = (primary, standby) if first == "who has handed over" else (standby, primary)
    assert ask(one, arbiter)
    assert (one.holds, one.log.follower) == (True, None)
    assert not ask(other, arbiter)
    with pytest.raises(Fenced):
        one.receive("lineage", other.term.number, other.position + 1, ["e"])
    assert not (other.holds and other.settled(other.log.append("d")))  # it can acknowledge nothing


def test_what_was_asked_for_in_doubt_stands() -> None:
    primary, standby = two_replicas()
    primary.fail_back()
    primary.log.lost()
    primary.ask()
    vote_request, arbiter = primary.asks(), Arbiter()
    assert vote_request is not None
    assert arbiter.grants(vote_request)
    carry(primary, standby, confirmed=False)
    standby.meet(primary.known_as, "lineage", primary.term.number, primary.position, "life of ps:1")
    number = standby.log.append("d")
    carry(standby, primary)  # before the arbiter's word comes
    assert (primary.role, standby.settled(number)) == (Role.STANDBY, True)
    assert primary.granted(vote_request.term, yes=True)
    assert (primary.holds, primary.position) == (True, number)
    standby.log.append("e")
    with pytest.raises(Fenced):
        carry(standby, primary)


def test_what_was_handed_over_is_heard_of_later() -> None:
    primary, standby = two_replicas()
    primary.fail_back()
    carry(primary, standby, confirmed=False)
    primary.log.lost()
    primary.meet(standby.known_as, "lineage", standby.term.number, standby.position, "life of ps:0")
    assert primary.role is Role.STANDBY


def test_records_of_the_other_show_that_it_has_the_shard() -> None:
    primary, standby = two_replicas()
    primary.fail_back()
    carry(primary, standby, confirmed=False)
    standby.meet(primary.known_as, "lineage", primary.term.number, primary.position, "life of ps:1")
    number = standby.log.append("d")
    carry(standby, primary)
    assert (primary.role, primary.position, standby.settled(number)) == (Role.STANDBY, number, True)


def test_the_other_has_not_taken_it_and_is_another_process_now() -> None:
    primary, _ = two_replicas()
    primary.fail_back()
    primary.log.unsent()
    primary.log.lost()
    assert primary.meet(Role.EMPTY, "", 0, 0, "next life of ps:0") is None
    assert (primary.holds, primary.log.follower) == (True, None)


@pytest.mark.parametrize("spoil", ["no standby", "a learner", "a lost one"])
def test_only_to_a_standby_that_knows_that_it_is_one(spoil: str) -> None:
    primary, _ = two_replicas()
    if spoil == "no standby":
        primary.lead_alone()
    elif spoil == "a learner":
        primary.log.follower = Follower("life of ps:0", confirmed=primary.position)
    else:
        primary.log.lost()
    with pytest.raises(RuntimeError, match="to a standby that knows its role"):
        primary.fail_back()


def test_what_was_not_sent_before_goes_with_it() -> None:
    primary, standby = two_replicas()
    number = primary.log.append("d")
    primary.fail_back()
    assert not primary.settled(number)
    carry(primary, standby)
    assert (standby.holds, standby.position) == (True, number + 1)


def has_failed_back(job: Job) -> bool:
    return any("ps:0 takes over shard 0" in line and "has returned it" in line for line in job.said)


def away(job: Job, plan: Plan, workers: int) -> list[tuple[JobClient, Exchange]]:
    """So many workers after the first step of a training, and ps:0, whose shard is on ps:1, has just come back."""
    chief, *others = [job.client(plan, index) for index in range(workers)]
    at = [(chief, chief.join(first_values(plan, PARAMS))), *((other, other.join(pytest.fail)) for other in others)]
    chief.training.start_training(1, 1_000_000)
    until(lambda: standbys(job.said) == 2, "the standbys")
    kill_ps(job, 0)
    at = together(plan, at)
    job.start_ps(0)
    return at


def together(plan: Plan, at: list[tuple[JobClient, Exchange]]) -> list[tuple[JobClient, Exchange]]:
    """A push of each worker."""
    pushes = [in_thread(partial(push, client, plan, now), str(i)) for i, (client, now) in enumerate(at)]
    return [(client, pushed.result(20.0)) for (client, _), pushed in zip(at, pushes, strict=True)]


@pytest.mark.parametrize("resumes", [True, False])
def test_it_goes_home_though_a_worker_has_paused(make: Callable[..., Job], resumes: bool) -> None:
    """The ps that has come back sees neither pauses nor pushes, and hears of both."""
    plan = replicated(Sync())
    job = make(ps=2, workers=2, timeouts=replace(QUICK, lease_s=1.0))
    (chief, now), (paused, then) = away(job, plan, 2)
    paused.training.pause()
    back = job.services[-1].membership.members
    until(lambda: any(member.paused for member in back), "the one that has come back to know of it")
    while not has_failed_back(job):
        if resumes:
            (chief, now), (paused, then) = together(plan, [(chief, now), (paused, then)])
        else:
            now = push(chief, plan, now)
    chief.leave()
    paused.leave()


def test_a_checkpoint_that_was_ordered_ahead_does_not_keep_it_away(make: Callable[..., Job], tmp_path: Path) -> None:
    """One that is, is there all the time where they are made by steps; the chief hears that it is to order it again."""
    plan = replicated(Async())
    job = make(ps=2, workers=1, timeouts=replace(QUICK, lease_s=1.0))
    ((chief, now),) = away(job, plan, 1)
    saving = chief.checkpoints.save(tmp_path, 1_000_000)
    while not has_failed_back(job):
        now = push(chief, plan, now)
    with pytest.raises(Overtaken, match="died, or gave up the save, before it began to write"):
        saving.poll()
    chief.leave()


def test_who_leaves_while_it_is_in_doubt_is_not_waited_for(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replicated(Sync())
    job = make(ps=2, workers=2, timeouts=replace(QUICK, lease_s=1.0))
    fail_back = Failover.fail_back

    def dies(failover: Failover) -> None:
        fail_back(failover)
        job.listeners[0].stop(0.0)
        Thread(target=lambda: kill_ps(job, 0)).start()

    monkeypatch.setattr(Failover, "fail_back", dies)
    at = away(job, plan, 2)
    old = job.services[1]
    while not any("returns shard 0 to" in line for line in job.said):
        at = together(plan, at)
    (chief, now), (other, _) = at
    other.leave()
    pushed = in_thread(lambda: push(chief, plan, now), "chief")
    pushed.result(20.0)
    assert any("takes over shard 0" in line and "vote of" in line for line in job.said)
    assert old.status().waiting_for == ()
    chief.leave()


def test_nobody_is_stuck_because_of_what_the_other_ps_has_not_seen(make: Callable[..., Job]) -> None:
    plan = replicated(Sync())
    plan = replace(plan, description=structs.replace(plan.description, stall_s=20.0))
    job = make(ps=2, workers=2, timeouts=replace(QUICK, lease_s=2.0))
    at = away(job, plan, 2)
    while not has_failed_back(job):
        at = together(plan, at)
    (chief, now), (other, then) = at
    back = job.services[-1]
    with back.task.lock:  # it has been there for long, and only now it has the shard
        for member in back.membership.members:
            member.joined_at -= 100.0
            back.membership.accounts[member.number].pushed_at = 0.0
    pushed = in_thread(lambda: push(chief, plan, now), "chief")
    until(lambda: back.status().waiting_for == ("worker:1",), "the chief's push")
    looked: list[float] = []
    detector = back.stall_detector
    look = detector.handle_stalled

    def recorded(limit_s: float) -> None:
        look(limit_s)
        looked.append(limit_s)

    detector.handle_stalled = recorded  # type: ignore[method-assign]
    until(lambda: len(looked) >= 3, "looks for workers that are stuck")
    assert set(looked) == {20.0}
    push(other, plan, then)
    pushed.result(10.0)
    assert not [line for line in job.said if "is ignored until" in line]
    chief.leave()
    other.leave()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_shard_goes_home(make: Callable[..., Job], keeps: bool) -> None:
    plan = replicated()
    job = make(ps=2, workers=1, transport=MemoryTransport(outlives_sender=keeps), timeouts=replace(QUICK, lease_s=1.0))
    ((client, now),) = away(job, plan, 1)
    made = 1
    while not has_failed_back(job):
        now = push(client, plan, now)
        made += 1
    for _ in range(20):
        now = push(client, plan, now)
        made += 1
    assert now.versions == (made, made)
    assert [link.ps for link in client._links] == [0, 1]  # noqa: SLF001
    assert job.heard[-1] == "ps:0 at ps0:1 has shard 0 now"  # and not that ps:1 was lost
    until(lambda: standbys(job.said) == 5, "the standby that has handed it over")
    expected = reference(made)
    for name, leaf in tree_of(plan, now.params).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-4)
    kill_ps(job, 1)
    now = push(client, plan, now)
    assert now.versions == (made + 1, made + 1)
    client.leave()
