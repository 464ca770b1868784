"""How the ps of a job end, in simulated time: also one that was away when the job was completed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.faults import Cut, Fault, Pause
from tests.simulation.history import Record, Told
from tests.simulation.job import TIMEOUTS
from tests.simulation.test_shipped import scenario
from tests.simulation.world import World

WAY_S = 5.0
"""More than a lease and the few heartbeats around it may take."""


class Lasting(World):
    """Goes on until its ps have ended, too."""

    def ps_ends(self) -> dict[str, tuple[float, str]]:
        """When each ps ended, and with which error."""
        told = [record for record in self.history if isinstance(record, Told) and " has ended " in record.text]
        return {one.text.partition("/")[0]: (one.at, one.text.partition(" has ended ")[2]) for one in told}

    def _conclude(self) -> None:
        self.scheduler.run(self.scheduler.now + 500.0, lambda: len(self.ps_ends()) == len(self._ps))
        self.ends = self.ps_ends()
        super()._conclude()


def ends_of(seed: int, *faults: Fault, **settings: Any) -> tuple[dict[str, tuple[float, str]], list[Record]]:
    """(when each ps ended, and with which error; the history)."""
    world = Lasting(scenario(seed, *faults, over_s=100.0, checkpoint_every=0, **settings))
    history = world.run()
    return world.ends, history


CUT = Cut(6.0, "ps:1", "", 74.0, both_ways=True)
AWAY: dict[str, list[Fault]] = {
    "cut off": [CUT],
    # What was sent to it meanwhile has been given up by whoever sent it.
    "stopped": [Pause(6.0, "ps:1", 74.0), CUT],
}


@pytest.mark.parametrize("how", AWAY)
@pytest.mark.parametrize("seed", range(3))
def test_a_ps_that_was_away_as_the_job_was_completed_ends_well(seed: int, how: str) -> None:
    ends, _ = ends_of(seed, *AWAY[how], standbys=1)
    assert ends["ps:0"][0] < 80.0
    at, failure = ends["ps:1"]
    assert not failure
    assert 80.0 < at < 80.0 + 2 * TIMEOUTS.lease_s + WAY_S
