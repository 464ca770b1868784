"""Assigning: a worker gives variables values outside the updates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import optax
import pytest
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, Job, first_values
from tests.ps.plans import blocks_of, plan_of, tree_of
from tests.ps.test_replication import kill_ps, make, push, standbys

from trainband.errors import Refused
from trainband.ps.rules import Sync

__all__ = ["make"]  # the fixture

GIVEN = {name: np.full_like(value, 7.0) for name, value in PARAMS.items()}


def numbers(plan: object, name: str) -> list[tuple[list[int], list[int]]]:
    """For each ps: the slices of one variable, to be replaced, and those of all others, to be added to."""
    shards = plan.layout.shards  # type: ignore[attr-defined]
    return [
        (
            [i for i, piece in enumerate(shard.slices) if piece.variable.name == name],
            [i for i, piece in enumerate(shard.slices) if piece.variable.name != name],
        )
        for shard in shards
    ]


@pytest.mark.parametrize("standby", [0, 1])
def test_what_is_assigned_counts_at_once_and_is_no_update(make: Callable[..., Job], standby: int) -> None:
    plan = plan_of(PARAMS, optax.sgd(1.0), ps=2, rule=Sync(), standbys=standby)
    job = make(ps=2, workers=2 - standby, timeouts=FAST)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.await_training(1, 10)
    until(lambda: standbys(job.said) == 2 * standby, "the standbys")
    first = next(iter(PARAMS))
    wanted = {name: 7.0 if name == first else PARAMS[name] + 7.0 for name in PARAMS}
    # The other worker, for whom an update would wait, has not come.
    now = client.exchanger.assign(blocks_of(plan, GIVEN), numbers(plan, first))
    for moved in range(1 + standby):
        if moved:
            kill_ps(job, 0)
            now = push(client, plan, now)
        assert now.versions == (moved, moved)
        for name, leaf in tree_of(plan, now.params).items():
            np.testing.assert_allclose(leaf, np.broadcast_to(wanted[name] - moved, leaf.shape), rtol=1e-6)
    client.leave()


def test_a_slice_that_is_not_there_is_refused(make: Callable[..., Job]) -> None:
    plan = plan_of(PARAMS, optax.sgd(1.0))
    client = make(ps=1, workers=1, timeouts=FAST).client(plan, 0)
    client.join(first_values(plan, PARAMS))
    with pytest.raises(Refused, match="assigned to another one"):
        client.exchanger.assign(blocks_of(plan, GIVEN), [([99], [])])
