"""The engine: what it holds of pushes, beside what `test_service` shows of it."""

from __future__ import annotations

import optax
import pytest
from tests.ps.jobs import PARAMS, gradient_of
from tests.ps.plans import blocks_of, plan_of

from trainband.model.layout import JobLayout
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.ps.rules import Bounded, Sync, UpdateRule
from trainband.ps.rules.base import Begin, Join, Leave, Push
from trainband.ps.shard.shard import Shard
from trainband.ps.shard.updater import Updater


def updater_of(rule: UpdateRule) -> Updater:
    """One shard and two workers."""
    plan = plan_of(PARAMS, optax.sgd(1.0), rule=rule)
    program = CompiledProgram(plan.shard_optimizer(0).export(), "the test")
    layout: JobLayout = plan.layout
    shard = Shard(layout.shards[0], program)
    shard.initialise(blocks_of(plan, PARAMS)[0])
    updater = Updater(shard, rule.start(0, 2))
    for event in (Begin(10), Join(0), Join(1)):
        updater.advance(event)
    return updater


GRADIENT = gradient_of(plan_of(PARAMS, optax.sgd(1.0)), 1.0)[0]


@pytest.mark.parametrize("rule", [Bounded(staleness=0), Sync()], ids=str)
def test_a_push_that_is_sent_again_is_not_kept_when_all_is_answered(rule: UpdateRule) -> None:
    """Its answer was held when its stream broke off; nothing of it may stay behind."""
    updater = updater_of(rule)
    updater.push(Push(1, 1, 0, 1), GRADIENT)
    first = updater.push(Push(0, 1, 0, 1), GRADIENT)
    at = updater.rule.version
    second = updater.push(Push(0, 2, at, 1), GRADIENT)
    assert not second.answered.is_set()
    updater.advance(Leave(0))
    updater.advance(Join(0))
    again = updater.push(Push(0, 2, at, 1), GRADIENT)
    updater.push(Push(1, 2, at, 1), GRADIENT)
    assert first.answered.is_set()
    assert again.answered.is_set()
    assert (updater.held_of(0), updater.held_of(1)) == (0, 0)


def test_who_waits() -> None:
    updater = updater_of(Sync())
    assert updater.waiting() == set()
    updater.push(Push(1, 1, 0, 1), GRADIENT)
    assert updater.waiting() == {1}
