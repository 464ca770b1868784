"""The rules in which workers wait for each other: promises over seeded random interleavings, and the corner cases."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.ps.rules.base import (
    ALL_UPDATES_MADE,
    LATE,
    Apply,
    Begin,
    Drop,
    Event,
    Instruction,
    Join,
    Known,
    Leave,
    Push,
    Reply,
    RuleError,
    RuleState,
)
from trainband.ps.rules.bounded import BoundedState
from trainband.ps.rules.synchronous import TWICE, SyncState

RULES: list[UpdateRule] = [
    Sync(),
    Sync(backups=1),
    Sync(backups=3),
    Sync(aggregate=2),
    Sync(aggregate=7),
    Bounded(staleness=0),
    Bounded(staleness=3),
    Async(staleness_scale=1.0),
]


@dataclass
class World:
    """Workers that join, push, crash, come back and repeat themselves at random; and what must hold of the rule."""

    rule: UpdateRule
    workers: int
    dice: random.Random
    wanted: int = 25
    state: RuleState = field(init=False)
    inside: set[int] = field(default_factory=set)
    version_of: dict[int, int] = field(default_factory=dict)
    sequence_of: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, Push] = field(default_factory=dict)
    pushed: dict[tuple[int, int], int] = field(default_factory=dict)
    applied: set[tuple[int, int]] = field(default_factory=set)
    dropped: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = self.rule.start(0, self.workers)
        self.advance(Begin(self.wanted))

    def advance(self, event: Event) -> None:
        """One event, and what must hold of any."""
        before, kept = self.state, pickle.dumps(self.state)
        after, todo = before.advance(event)
        assert before.advance(event) == (after, todo)
        assert pickle.dumps(before) == kept
        self.state = after
        assert after.version == before.version + sum(isinstance(item, Apply) for item in todo)
        for item in todo:
            match item:
                case Apply(pushes=pushes):
                    assert list(pushes) == sorted(pushes), "the order of the sum must not depend on who came first"
                    for push in pushes:
                        assert push in self.pushed
                        assert push not in self.applied | self.dropped, "a push was dealt with twice"
                        self.applied.add(push)
                case Drop(worker=worker, sequence=sequence):
                    assert (worker, sequence) not in self.applied
                    self.dropped.add((worker, sequence))
                case Known(worker=worker, sequence=sequence, applied=applied):
                    assert applied == ((worker, sequence) in self.applied)
                    assert applied != ((worker, sequence) in self.dropped)
                case Reply(worker=worker, sequence=sequence):
                    assert self.waiting.pop(worker).sequence == sequence, "an answer to a push that nobody waits for"
                    self.version_of[worker] = after.version

    def step(self) -> None:
        """One thing that may happen."""
        worker = self.dice.randrange(self.workers)
        kind = self.dice.choices(["push", "join", "leave", "again", "impossible", "end"], [40, 12, 2, 4, 2, 1])[0]
        if kind == "end":
            self.end_early()
            return
        if worker not in self.inside:
            if kind in ("join", "push"):
                self.advance(Join(worker))
                self.inside.add(worker)
                self.version_of[worker] = self.state.version
            else:
                self.refused(Push(worker, 10**6, 0, 1))
        elif kind == "leave":
            self.waiting.pop(worker, None)
            self.inside.discard(worker)
            self.advance(Leave(worker))
        elif kind == "impossible":
            self.refused(Push(worker, 10**6, self.state.version + 1, 1))
        elif kind == "again" and worker in self.waiting:
            # Its connection broke while it waited: it comes back and sends the same push again.
            push = self.waiting.pop(worker)
            self.advance(Leave(worker))
            self.advance(Join(worker))
            self.waiting[worker] = push
            self.advance(push)
        elif worker not in self.waiting:
            sequence = self.sequence_of[worker] = self.sequence_of.get(worker, 0) + 1
            push = Push(worker, sequence, self.version_of[worker], self.dice.randrange(1, 9))
            self.waiting[worker] = push
            self.pushed[(worker, sequence)] = push.examples
            self.advance(push)

    def end_early(self) -> None:
        """The training ends where it is: everybody is answered, nothing is applied. Then the next one begins."""
        version, waiting = self.state.version, dict(self.waiting)
        last = self.dice.choice([version, max(0, version - 3)])
        self.advance(Begin(last))
        assert self.state.version == version
        assert not self.waiting, "somebody waits after the end"
        assert not self.state.waiting_for()
        if isinstance(self.state, SyncState):  # Bounded has applied what it holds
            assert {(worker, push.sequence) for worker, push in waiting.items()} <= self.dropped | self.applied
        for worker in sorted(self.inside):
            sequence = self.sequence_of[worker] = self.sequence_of.get(worker, 0) + 1
            push = Push(worker, sequence, self.version_of[worker], 1)
            self.waiting[worker] = push
            self.pushed[(worker, sequence)] = 1
            self.advance(push)
            assert (worker, sequence) in self.dropped
            assert worker not in self.waiting
        assert self.state.version == version
        self.advance(Begin(self.wanted))

    def refused(self, push: Push) -> None:
        kept = pickle.dumps(self.state)
        with pytest.raises(RuleError):
            self.state.advance(push)
        assert pickle.dumps(self.state) == kept

    def check(self) -> None:
        """What must hold between events."""
        if len(self.inside) == self.workers:
            assert self.inside - self.waiting.keys(), "everybody waits: nobody can ever go on"
        assert not self.state.waiting_for() - set(range(self.workers))
        if self.waiting and isinstance(self.state, SyncState) and not self.state.waiting_for():
            assert self.state.rule.backups or self.state.rule.aggregate
        if isinstance(self.state, BoundedState) and self.state.clocks and self.state.version < self.wanted:
            free = [c for w, c in self.state.clocks.items() if w not in self.waiting]
            slowest = min(self.state.clocks.values())
            assert all(clock - slowest <= self.state.staleness for clock in free), "a worker runs too far ahead"
            assert self.state.clocks.keys() <= self.inside


@settings(max_examples=200)
@given(st.sampled_from(RULES), st.integers(2, 16), st.integers(0, 10**9))
def test_promises_hold_in_any_order_of_events(rule: UpdateRule, workers: int, seed: int) -> None:
    if isinstance(rule, Sync) and rule.backups >= workers:
        with pytest.raises(ValueError, match="leaves no gradient"):
            rule.check(workers)
        return
    world = World(rule, workers, random.Random(seed))
    for _ in range(6000):
        world.step()
        world.check()
        if world.state.version == world.wanted and not world.waiting:
            break
    assert world.state.version == world.wanted, f"stuck: {world.state}"
    pending = {key for key in world.pushed if key not in world.applied | world.dropped}
    examples = sum(world.pushed.values())
    dealt = sum(world.pushed[key] for key in world.applied | world.dropped)
    assert examples == dealt + sum(world.pushed[key] for key in pending)
    assert not world.applied & world.dropped
    assert all(key[0] not in world.waiting for key in pending) or not pending


def play(rule: UpdateRule, workers: int, events: Sequence[Event], wanted: int = 100) -> list[tuple[Instruction, ...]]:
    """What a rule says to each of these events, with everybody in the job from the start."""
    state = rule.start(0, workers)
    beginning: list[Event] = [Begin(wanted), *(Join(worker) for worker in range(workers))]
    for event in beginning:
        state, todo = state.advance(event)
        assert todo == ()
    said = []
    for event in events:
        state, todo = state.advance(event)
        said.append(todo)
    return said


def test_sync_waits_for_all_and_adds_up_by_number() -> None:
    said = play(Sync(), 3, [Push(2, 1, 0, 5), Push(0, 1, 0, 5), Push(1, 1, 0, 5)])
    assert said == [
        (),
        (),
        (Apply(((0, 1), (1, 1), (2, 1))), Reply(0, 1, 0), Reply(1, 1, 0), Reply(2, 1, 0)),
    ]


def test_sync_waits_at_the_start_for_planned_workers_that_have_not_come() -> None:
    state: RuleState = Sync().start(0, 2)
    events: list[Event] = [Begin(10), Join(0), Push(0, 1, 0, 5)]
    for event in events:
        state, todo = state.advance(event)
    assert todo == ()
    assert state.waiting_for() == {1}


@pytest.mark.parametrize("left_first", [True, False])
def test_sync_goes_on_without_one_that_leaves(left_first: bool) -> None:
    events: list[Event] = [Push(0, 1, 0, 5), Leave(1)]
    if left_first:
        events.reverse()
    assert play(Sync(), 2, events)[-1] == (Apply(((0, 1),)), Reply(0, 1, 0))


def test_sync_keeps_the_gradient_of_one_that_leaves_after_its_push() -> None:
    said = play(Sync(), 2, [Push(0, 1, 0, 5), Leave(0), Push(1, 1, 0, 5)])
    assert said[-1] == (Apply(((0, 1), (1, 1))), Reply(1, 1, 0))


def test_sync_counts_a_newcomer_from_its_first_push() -> None:
    first: list[Event] = [Join(2), Push(0, 1, 0, 5), Push(1, 1, 0, 5)]  # number 2 was in no plan, and has not pushed
    said = play(Sync(), 2, [*first, Push(2, 1, 1, 5), Push(0, 2, 1, 5), Push(1, 2, 1, 5)])
    assert said[2][0] == Apply(((0, 1), (1, 1)))
    assert said[-1][0] == Apply(((0, 2), (1, 2), (2, 1)))


def test_backups_drop_the_straggler_and_let_it_go_on() -> None:
    said = play(Sync(backups=1), 3, [Push(2, 1, 0, 5), Push(0, 1, 0, 5), Push(1, 1, 0, 5)])
    assert said[1] == (Apply(((0, 1), (2, 1))), Reply(0, 1, 0), Reply(2, 1, 0))
    assert said[2] == (Drop(1, 1, LATE), Reply(1, 1, 1))


def test_more_gradients_than_workers_are_shared_out() -> None:
    """Two workers, five gradients: worker 0 gives three, worker 1 gives two."""
    said = play(
        Sync(aggregate=5),
        2,
        [Push(0, 1, 0, 5), Push(1, 1, 0, 5), Push(0, 2, 0, 5), Push(1, 2, 0, 5), Push(0, 3, 0, 5)],
    )
    assert said[:4] == [(Reply(0, 1, 0),), (Reply(1, 1, 0),), (Reply(0, 2, 0),), ()]
    assert said[4] == (Apply(((0, 1), (0, 2), (0, 3), (1, 1), (1, 2))), Reply(0, 3, 0), Reply(1, 2, 0))


def test_a_push_sent_again_while_its_step_waits_is_counted_once() -> None:
    push = Push(0, 1, 0, 5)
    said = play(Sync(), 2, [push, Leave(0), Join(0), push, Push(1, 1, 0, 5)])
    assert said[3] == ()
    assert said[4][0] == Apply(((0, 1), (1, 1)))


def test_another_push_to_the_same_step_is_dropped() -> None:
    said = play(Sync(), 2, [Push(0, 1, 0, 5), Leave(0), Join(0), Push(0, 2, 0, 5), Push(1, 1, 0, 5)])
    assert said[3] == (Drop(0, 2, TWICE),)
    assert said[4] == (Apply(((0, 1), (1, 1))), Reply(0, 2, 0), Reply(1, 1, 0))


def test_bounded_holds_the_answer_of_one_that_is_ahead() -> None:
    said = play(Bounded(staleness=1), 2, [Push(1, 1, 0, 5), Push(0, 1, 1, 5), Push(0, 2, 2, 5), Push(0, 3, 3, 5)])
    assert said[2] == (Apply(((0, 2),)), Reply(0, 2, 0))  # clock 2 against 1
    assert said[3] == (Apply(((0, 3),)),)  # clock 3 against 1: applied, and held


@pytest.mark.parametrize("event", [Leave(1), Push(1, 2, 1, 5)], ids=["the slowest leaves", "the slowest comes near"])
def test_bounded_lets_it_go_when_the_slowest(event: Event) -> None:
    said = play(
        Bounded(staleness=1),
        2,
        [Push(1, 1, 0, 5), Push(0, 1, 1, 5), Push(0, 2, 2, 5), Push(0, 3, 3, 5), event],
    )
    assert Reply(0, 3, 0) in said[-1]


def test_nobody_is_held_once_the_job_is_complete() -> None:
    said = play(Bounded(staleness=0), 2, [Push(1, 1, 0, 5), Push(0, 1, 1, 5), Push(0, 2, 2, 5)], wanted=3)
    assert said[-1] == (Apply(((0, 2),)), Reply(0, 2, 0))
    assert play(Sync(), 2, [Push(0, 1, 0, 5)], wanted=0)[-1] == (Drop(0, 1, ALL_UPDATES_MADE), Reply(0, 1, 0))


def test_async_scales_stale_updates_down() -> None:
    said = play(Async(staleness_scale=1.0), 2, [Push(0, 1, 0, 5), Push(0, 2, 1, 5), Push(0, 3, 2, 5), Push(1, 1, 0, 5)])
    assert [todo[0] for todo in said] == [
        Apply(((0, 1),), 1.0),
        Apply(((0, 2),), 1.0),
        Apply(((0, 3),), 1.0),
        Apply(((1, 1),), 1 / 3),
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bounded(staleness=-1), "Bounded.staleness must be 0 clocks or more, got -1"),
        (lambda: Sync(backups=-1), "Sync.backups must be 0 or more"),
        (lambda: Sync(aggregate=0), "Sync.aggregate must be at least 1"),
        (lambda: Sync(aggregate=2, backups=1), "not both"),
        (lambda: Sync(backups=2).check(2), "leaves no gradient to wait for in a cluster of 2 workers"),
        (lambda: Async(staleness_scale=-1.0), "Async.staleness_scale must be 0 or more"),
        (lambda: Async(delay_compensation=float("nan")), "Async.delay_compensation must be 0 or more"),
    ],
)
def test_settings_that_cannot_be(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=words):
        make()


def test_bounded_keeps_holding_a_push_that_is_sent_again() -> None:
    ahead = [Push(1, 1, 0, 5), Push(0, 1, 1, 5), Push(0, 2, 2, 5), Push(0, 3, 3, 5)]
    said = play(Bounded(staleness=1), 2, [*ahead, Push(0, 3, 3, 5), Push(1, 2, 1, 5)])
    assert said[4] == ()
    assert Reply(0, 3, 0) in said[5]


def test_an_early_end_drops_the_step_under_way_and_answers_all() -> None:
    said = play(Sync(), 3, [Push(2, 1, 0, 5), Push(0, 1, 0, 5), Begin(0), Push(1, 1, 0, 5)])
    assert said[2] == (Drop(2, 1, ALL_UPDATES_MADE), Drop(0, 1, ALL_UPDATES_MADE), Reply(0, 1, 0), Reply(2, 1, 0))
    assert said[3] == (Drop(1, 1, ALL_UPDATES_MADE), Reply(1, 1, 0))
    held = [Push(1, 1, 0, 5), Push(0, 1, 1, 5), Push(0, 2, 2, 5), Push(0, 3, 3, 5)]
    assert play(Bounded(staleness=1), 2, [*held, Begin(4)])[-1] == (Reply(0, 3, 0),)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_that_begins_at_a_restored_version(rule: UpdateRule) -> None:
    """Pushes computed from versions before the checkpoint's are no lies, but those after it are."""
    state = rule.start(7, 1)
    assert state.version == 7
    for event in (Join(0), Begin(9)):
        state, _ = state.advance(event)
    with pytest.raises(RuleError, match="version 8, but the version is 7"):
        state.advance(Push(0, 1, 8, 1))
    for sequence in range(1, 30):
        state, todo = state.advance(Push(0, sequence, state.version, 1))
        if state.version == 9:
            break
    assert state.version == 9
    state, todo = state.advance(Push(0, 100, 3, 1))
    assert isinstance(todo[0], Drop)


def test_a_push_that_is_sent_again_before_more_of_its_worker_is_answered() -> None:
    """The answer that asked for more was lost: nobody may wait for a worker that waits for itself."""
    state: RuleState = Sync(aggregate=4).start(0, 2)
    for event in (Begin(10), Join(0), Join(1)):
        state, _ = state.advance(event)
    for _ in range(2):
        state, todo = state.advance(Push(1, 1, 0, 1))
        assert todo == (Reply(1, 1, 0),)
