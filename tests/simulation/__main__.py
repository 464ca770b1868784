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


class _Trace(list[Record]):
    """A history that prints itself while it grows."""

    def __init__(self, everything: bool) -> None:
        super().__init__()
        self._everything = everything

    def append(self, record: Record) -> None:
        super().append(record)
        if self._everything or not isinstance(record, Heard | Looked | Answered):
            print(f"{record.at:9.3f}  {record}")


def _trace(everything: bool) -> Tracer:
    def begin(world: World) -> Callable[[str], None]:
        world.write_history_to(_Trace(everything))

        def say(text: str) -> None:
            if everything or "heartbeat" not in text:
                print(f"{world.scheduler.now:9.3f}    {text}")

        return say

    return begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Traces one seed, or looks for failing ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the job; the first one, with --count")
    parser.add_argument("--rule", choices=sorted(KINDS), default="sync")
    parser.add_argument("--planted", choices=sorted(PLANTED), default=None, help="with this bug")
    parser.add_argument("--everything", action="store_true", help="heartbeats too")
    parser.add_argument("--count", type=int, default=0, help="no trace: say which of so many seeds fail")
    given = parser.parse_args(arguments)
    plant = PLANTED[given.planted].plant if given.planted else nullcontext
    planted = given.planted or ""
    if given.count:
        begin, failed = time.perf_counter(), 0
        for outcome in failing(given.seed, given.count, given.rule, plant):
            failed += 1
            print(story(outcome, given.rule, planted=planted))
        rate = given.count / (time.perf_counter() - begin)
        print(f"{failed} of {given.count} schedules fail; {rate:.0f} schedules/s")
        return 1 if failed else 0
    outcome = run_seed(given.seed, given.rule, plant, say=_trace(given.everything))
    print(f"\n{outcome.scenario}\n{outcome.events} events, {len(outcome.history)} records")
    for violation in outcome.violations:
        print(f"BROKEN  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
