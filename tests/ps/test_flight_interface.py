"""What any client sees of a ps."""

from __future__ import annotations

import threading

import numpy as np
import optax
import pytest
from tests.ps.checkpoints import OnePs
from tests.ps.plans import plan_of

from trainband.errors import Refused
from trainband.model.placement import RoundRobin
from trainband.ps.service.flight_interface import rows_of_variable, tensors_of

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(6, 2), "b": np.ones(2, np.float32)}
PLAN = plan_of(PARAMS, optax.sgd(1.0), ps=2, policy=RoundRobin(max_slice_bytes=16))


def test_tensors_tell_where_each_slice_lives() -> None:
    found = {tensor.name: tensor for tensor in tensors_of(PLAN.layout.placement, ["a:1", "b:1"])}
    assert set(found) == {"w", "b"}
    rows = sorted((start, stop) for start, stop, _ in found["w"].slices)
    assert rows[0][0] == 0
    assert rows[-1][1] == 6
    assert {address for _, _, address in found["w"].slices} == {"a:1", "b:1"}


def test_rows_are_a_copy_and_the_version_is_given_back() -> None:
    for index in range(2):
        ps = OnePs(PLAN, index).initialise(PARAMS)
        lock = threading.Lock()
        start, values = rows_of_variable(ps.shard, lock, f"ps:{index}", "w")
        np.testing.assert_array_equal(values, PARAMS["w"][start : start + len(values)])
        values[:] = 7
        np.testing.assert_array_equal(
            rows_of_variable(ps.shard, lock, "ps", "w")[1], PARAMS["w"][start : start + len(values)]
        )
        version = ps.shard.acquire()
        assert version.readers == 1
        assert not lock.locked()


def test_a_variable_that_is_not_here() -> None:
    ps = OnePs(PLAN, 0).initialise(PARAMS)
    with pytest.raises(Refused, match=r"ps:0 holds no variable 'x'; GetFlightInfo lists where each one is"):
        rows_of_variable(ps.shard, threading.Lock(), "ps:0", "x")
