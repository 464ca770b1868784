"""`python -m tests.simulation.in_step --seed 1234`: a simulated job of workers in lockstep, event by event."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from tests.simulation.in_step.job import Job
from tests.simulation.in_step.planted import PLANTED
from tests.simulation.in_step.promises import violations
from tests.simulation.in_step.scenario import Scenario


def main(arguments: Sequence[str] | None = None) -> int:
    """Traces the job of one seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.in_step", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the job")
    parser.add_argument("--planted", choices=sorted(PLANTED), default=None, help="with this bug")
    given = parser.parse_args(arguments)
    with PLANTED[given.planted].plant() if given.planted else nullcontext():
        job = Job(Scenario.of(given.seed))
        job.show = lambda record: print(f"{job.scheduler.now:9.3f}  {record}")
        outcome = job.run()
    print(f"\n{outcome.scenario}\n{job.scheduler.count} events")
    found = violations(outcome)
    for violation in found:
        print(f"BROKEN  {violation}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
