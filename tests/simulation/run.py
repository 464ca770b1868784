"""Running one seed, and what is said of one that fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from tests.simulation.checks import violations
from tests.simulation.history import Record, Violation
from tests.simulation.scenario import Scenario
from tests.simulation.world import World

Tracer = Callable[[World], Callable[[str], None]]
"""Is given the world before it begins, and gives what is told every message."""

Plant = Callable[[], AbstractContextManager[object]]
"""Within its context, a bug is in the shipped code."""


class Outcome(NamedTuple):
    """What became of one seed."""

    scenario: Scenario
    history: list[Record]
    violations: list[Violation]
    events: int


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Within, nobody looks for garbage, which takes a quarter of the time; afterwards that of one job is little."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)


def run_scenario(scenario: Scenario, plant: Plant = nullcontext, say: Tracer | None = None) -> Outcome:
    """Runs a job and checks its history."""
    with plant(), _garbage_kept():
        world = World(scenario)
        if say is not None:
            world.say = world.network.say = say(world)
        history = world.run()
    return Outcome(scenario, history, violations(history, scenario.terms), world.scheduler.count)


def run_seed(seed: int, rule: str, plant: Plant = nullcontext, say: Tracer | None = None) -> Outcome:
    """Runs the scenario of a seed."""
    return run_scenario(Scenario.of(seed, rule), plant, say)


def failing(first: int, count: int, rule: str, plant: Plant = nullcontext) -> Iterator[Outcome]:
    """The seeds among so many that break a promise."""
    for seed in range(first, first + count):
        outcome = run_seed(seed, rule, plant)
        if outcome.violations:
            yield outcome


def how_to_replay(seed: int, rule: str, *, planted: str = "") -> str:
    """The command that shows this seed again."""
    options = f" --planted {planted}" if planted else ""
    return f"python -m tests.simulation --seed {seed} --rule {rule}{options}"


def story(outcome: Outcome, rule: str, *, planted: str = "") -> str:
    """A failing seed in words: what it broke, and how to see it."""
    lines = [f"seed {outcome.scenario.seed} under {rule}: {len(outcome.violations)} broken promises"]
    lines += [f"  {violation}" for violation in outcome.violations[:5]]
    lines.append(f"  replay: {how_to_replay(outcome.scenario.seed, rule, planted=planted)}")
    return "\n".join(lines)
