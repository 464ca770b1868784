"""The update rules: invariants over seeded random interleavings, with no thread and no clock."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainband.errors import Refused
from trainband.ps.rules import Async
from trainband.ps.rules.asynchronous import AsyncState
from trainband.ps.rules.base import (
    ALL_UPDATES_MADE,
    Apply,
    Begin,
    Drop,
    Instruction,
    Join,
    Known,
    Leave,
    Push,
    Reply,
    RuleError,
)
from trainband.ps.rules.registry import RULES, rule_of


@dataclass
class World:
    """Workers that behave at random, and the rule between them."""

    dice: random.Random
    state: AsyncState
    workers: int
    inside: set[int] = field(default_factory=set)
    next_sequence: dict[int, int] = field(default_factory=dict)
    last_push: dict[int, Push] = field(default_factory=dict)
    applied: list[tuple[int, int]] = field(default_factory=list)
    last_version: int = 0

    def advance(self, event: Join | Leave | Push | Begin) -> tuple[Instruction, ...]:
        """One event, with what must hold of any."""
        before, kept = self.state, pickle.dumps(self.state)
        after, todo = before.advance(event)
        assert before.advance(event) == (after, todo)  # the same again
        assert pickle.dumps(before) == kept  # and nothing of it shows in the state that was
        applies = [item for item in todo if isinstance(item, Apply)]
        assert after.version == before.version + len(applies)
        for item in applies:
            self.applied += item.pushes
        assert len(set(self.applied)) == len(self.applied), "a push was applied twice"
        replies = [item for item in todo if isinstance(item, Reply)]
        if isinstance(event, Push):
            assert [(r.worker, r.sequence) for r in replies] == [(event.worker, event.sequence)]
            assert todo[-1] == replies[0]
            assert replies[0].staleness == before.version - event.version
            assert len(todo) == 2  # applied, dropped, or dealt with before
        else:
            assert todo == ()
        self.state = after
        return todo

    def refused(self, event: Push) -> None:
        """An event that cannot be: it raises, and changes nothing."""
        before, kept = self.state, pickle.dumps(self.state)
        with pytest.raises(RuleError):
            before.advance(event)
        assert pickle.dumps(before) == kept

    def step(self) -> None:
        """One thing that may happen."""
        worker = self.dice.randrange(self.workers)
        kind = self.dice.choices(["push", "again", "join", "leave", "begin", "future"], [12, 2, 2, 1, 1, 1])[0]
        if kind == "join":
            self.advance(Join(worker))
            self.inside.add(worker)
        elif kind == "leave":
            self.advance(Leave(worker))
            self.inside.discard(worker)
        elif kind == "begin":
            self.last_version = max(0, self.state.version + self.dice.randrange(-5, 20))
            self.advance(Begin(self.last_version))
        elif kind == "future":
            versions = [-1, self.state.version + 1, self.state.version + 1000]
            self.refused(Push(worker, self._number(worker), self.dice.choice(versions), 1))
        elif kind == "again" and worker in self.last_push:
            push = self.last_push[worker]
            if worker in self.inside:
                todo = self.advance(push)
                assert todo[0] == Known(worker, push.sequence, (worker, push.sequence) in self.applied)
            else:
                self.refused(push)
        else:
            push = Push(worker, self._number(worker), self.dice.randint(0, self.state.version), 1)
            if worker not in self.inside:
                self.refused(push)
                return
            enough = self.state.version >= self.last_version
            todo = self.advance(push)
            self.last_push[worker] = push
            if enough:
                assert todo[0] == Drop(worker, push.sequence, ALL_UPDATES_MADE)
            else:
                assert todo[0] == Apply(((worker, push.sequence),))

    def _number(self, worker: int) -> int:
        self.next_sequence[worker] = self.next_sequence.get(worker, 0) + self.dice.choice([1, 1, 1, 5])
        return self.next_sequence[worker]


@settings(max_examples=300)
@given(st.integers(1, 16), st.integers(0, 2**32), st.integers(0, 50))
def test_async_over_any_interleaving(workers: int, seed: int, start: int) -> None:
    state = Async().start(start, workers)
    assert state.version == start
    world = World(random.Random(seed), state, workers, last_version=start)
    for _ in range(120):
        world.step()
        assert world.state.waiting_for() == frozenset()
    assert world.state.version == start + len(world.applied)


@settings(max_examples=100)
@given(st.integers(1, 16), st.integers(1, 40), st.integers(0, 2**32))
def test_exactly_as_many_updates_as_were_asked_for(workers: int, steps: int, seed: int) -> None:
    dice = random.Random(seed)
    state = Async().start(0, workers)
    for worker in range(workers):
        state, _ = state.advance(Join(worker))
    state, _ = state.advance(Begin(steps))
    applied = dropped = 0
    for sequence in range(steps + 3 * workers):
        todo: tuple[Instruction, ...]
        state, todo = state.advance(Push(dice.randrange(workers), sequence, dice.randint(0, state.version), 1))
        applied += isinstance(todo[0], Apply)
        dropped += isinstance(todo[0], Drop)
    assert (applied, dropped, state.version) == (steps, 3 * workers, steps)


def test_a_push_is_applied_once_even_if_its_worker_was_lost_and_found_between() -> None:
    state = Async().start(0, 1)
    state, _ = state.advance(Join(0))
    state, _ = state.advance(Begin(10))
    push = Push(0, 1, 0, 1)
    state, todo = state.advance(push)
    assert isinstance(todo[0], Apply)
    again: list[list[Join | Leave]] = [[Join(0)], [Leave(0), Join(0)]]
    for events in again:
        for event in events:
            state, _ = state.advance(event)
        state, todo = state.advance(push)
        assert todo[0] == Known(0, 1, applied=True)


def test_a_push_before_any_training_is_dropped_and_answered() -> None:
    state, _ = Async().start(0, 1).advance(Join(7))
    state, todo = state.advance(Push(7, 1, 0, 32))
    assert todo == (Drop(7, 1, ALL_UPDATES_MADE), Reply(7, 1, 0))
    assert state.version == 0


def test_the_words_of_a_refusal() -> None:
    state = Async().start(3, 1)
    with pytest.raises(RuleError, match="worker number 2, which is not in the job"):
        state.advance(Push(2, 1, 0, 1))
    state, _ = state.advance(Join(2))
    with pytest.raises(RuleError, match="params of version 4, but the version is 3"):
        state.advance(Push(2, 1, 4, 1))
    with pytest.raises(RuleError, match="version -1"):
        state.advance(Push(2, 1, -1, 1))


def test_rules_travel_as_settings() -> None:
    for rule in (Async(),):
        assert rule_of(rule.settings()) == rule
        assert rule.settings()["name"] in RULES
    with pytest.raises(Refused, match="unknown update rule 'bulk'; expected one of async"):
        rule_of({"name": "bulk"})
    with pytest.raises(Refused, match="unknown update rule None"):
        rule_of({})
    with pytest.raises(Refused, match=r"'async' does not accept \{'bound': 3\}"):
        rule_of({"name": "async", "bound": 3})
