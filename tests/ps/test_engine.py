"""The engine: what it holds of pushes, beside what `test_service` shows of it."""

from __future__ import annotations

import optax
import pytest
from tests.ps.jobs import PARAMS, gradient_of
from tests.ps.plans import blocks_of, plan_of

from trainband.ps.engine import Engine
from trainband.ps.layout import JobLayout
from trainband.ps.program import CompiledProgram
from trainband.ps.rules import Bounded, Sync, UpdateRule
from trainband.ps.rules.base import Begin, Join, Leave, Push
from trainband.ps.shard import Shard


def engine_of(rule: UpdateRule) -> Engine:
    """One shard and two workers."""
    plan = plan_of(PARAMS, optax.sgd(1.0), rule=rule)
    program = CompiledProgram(plan.shard_optimizer(0).export(), "the test")
    layout: JobLayout = plan.layout
    shard = Shard(layout.shards[0], program)
    shard.initialise(blocks_of(plan, PARAMS)[0])
    engine = Engine(shard, rule.start(0, 2))
    for event in (Begin(10), Join(0), Join(1)):
        engine.advance(event)
    return engine


GRADIENT = gradient_of(plan_of(PARAMS, optax.sgd(1.0)), 1.0)[0]


@pytest.mark.parametrize("rule", [Bounded(staleness=0), Sync()], ids=str)
def test_a_push_that_is_sent_again_is_not_kept_when_all_is_answered(rule: UpdateRule) -> None:
    """Its answer was held when its stream broke off; nothing of it may stay behind."""
    engine = engine_of(rule)
    engine.push(Push(1, 1, 0, 1), GRADIENT)
    first = engine.push(Push(0, 1, 0, 1), GRADIENT)
    at = engine.rule.version
    second = engine.push(Push(0, 2, at, 1), GRADIENT)
    assert not second.answered.is_set()
    engine.advance(Leave(0))
    engine.advance(Join(0))
    again = engine.push(Push(0, 2, at, 1), GRADIENT)
    engine.push(Push(1, 2, at, 1), GRADIENT)
    assert first.answered.is_set()
    assert again.answered.is_set()
    assert (engine.held_of(0), engine.held_of(1)) == (0, 0)


def test_who_waits() -> None:
    engine = engine_of(Sync())
    assert engine.waiting() == set()
    engine.push(Push(1, 1, 0, 1), GRADIENT)
    assert engine.waiting() == {1}
