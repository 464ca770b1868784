"""NarrowVersions: a version is converted once, and stays as it is while it is sent."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from trainband.model.layout import ShardLayout
from trainband.model.placement import Slice
from trainband.model.variables import Variable
from trainband.ps.program.gradients import narrowed
from trainband.ps.shard import narrow_versions
from trainband.ps.shard.narrow_versions import NarrowVersion, NarrowVersions
from trainband.ps.shard.shard import ParamsVersion

VARIABLES = [Variable("w", (3,), "float32"), Variable("count", (2,), "int32", trained=False)]


def version_of(number: int) -> ParamsVersion:
    return ParamsVersion(number, (jnp.full(3, number + 1e-6, jnp.float32), jnp.full(2, number, jnp.int32)))


def test_each_version_is_converted_once_and_not_overwritten_while_read(monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []

    def counting(blocks: Any, spare: Any) -> Any:
        converted.append(float(blocks[0][0]))
        return narrowed(blocks, spare)

    monkeypatch.setattr(narrow_versions, "narrowed", counting)
    layout = ShardLayout.of([Slice(one, 0, one.shape[0], 0) for one in VARIABLES])
    narrow = NarrowVersions(layout, "bfloat16", threading.Lock())
    assert narrow.nbytes == 3 * 2 + 2 * 4
    read, first = version_of(1), NarrowVersion(())
    for version in (read, *map(version_of, range(2, 7))):
        acquired = [narrow.acquire(version), narrow.acquire(version)]
        assert acquired[0] is acquired[1]
        weights, count = narrow.arrays(version, acquired[0])
        assert [weights.dtype, count.dtype] == ["bfloat16", "int32"]
        np.testing.assert_array_equal(weights, np.full(3, version.number, jnp.bfloat16))
        np.testing.assert_array_equal(count, [version.number] * 2)
        del weights, count
        first = acquired[0] if version is read else first
        for one in acquired[version is read :]:
            narrow.release(one)
    assert len(converted) == 6
    np.testing.assert_array_equal(narrow.arrays(read, first)[0], np.ones(3, jnp.bfloat16))
