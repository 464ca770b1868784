"""`python -m tests.simulation --seed 1234 --rule sync`: one simulated job, event by event."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from tests.simulation.history import Answered, Heard, Looked, Record
from tests.simulation.planted import PLANTED
from tests.simulation.run import Tracer, failing, run_seed, story
from tests.simulation.scenario import KINDS
from tests.simulation.world import World


def _trace(everything: bool) -> Tracer:
    def start(world: World) -> Callable[[str], None]:
        def show(record: Record) -> None:
            if everything or not isinstance(record, Heard | Looked | Answered):
                print(f"{record.at:9.3f}  {record}")

        def say(text: str) -> None:
            if everything or "heartbeat" not in text:
                print(f"{world.scheduler.now:9.3f}    {text}")

        world.show = show
        return say

    return start


def main(arguments: Sequence[str] | None = None) -> int:
    """Traces one seed, or looks for failing ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the job; the first one, with --seeds")
    parser.add_argument("--rule", choices=sorted(KINDS), default=None, help="of each, with --seeds; else sync")
    parser.add_argument("--planted", choices=sorted(PLANTED), default=None, help="with this bug")
    parser.add_argument("--everything", action="store_true", help="heartbeats too")
    parser.add_argument("--seeds", type=int, default=0, help="no trace: say which of so many seeds fail")
    given = parser.parse_args(arguments)
    plant = PLANTED[given.planted].plant if given.planted else nullcontext
    planted = given.planted or ""
    if given.seeds:
        rules = [given.rule] if given.rule else list(KINDS)
        begin, failed = time.perf_counter(), 0
        for rule in rules:
            for outcome in failing(given.seed, given.seeds, rule, plant):
                failed += 1
                print(story(outcome, rule, planted=planted), flush=True)
        count = given.seeds * len(rules)
        print(f"{failed} of {count} schedules fail; {count / (time.perf_counter() - begin):.0f} schedules/s")
        return 1 if failed else 0
    outcome = run_seed(given.seed, given.rule or "sync", plant, say=_trace(given.everything))
    print(f"\n{outcome.scenario}\n{outcome.events} events, {len(outcome.history)} records")
    for violation in outcome.violations:
        print(f"BROKEN  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
