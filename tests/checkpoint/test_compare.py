"""How far two checkpoints are apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.checkpoint import samples

from trainband.checkpoint import Checkpoint, CheckpointDirectory, write_part
from trainband.checkpoint.compare import Change, compare
from trainband.errors import DamagedCheckpoint


@pytest.fixture
def home(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path, pytest.fail)


def holding(home: CheckpointDirectory, step: int, *parts: dict[str, NDArray[Any]]) -> Checkpoint:
    """A checkpoint of these tensors, one file from each ps."""
    partial = home.create_partial(step)
    written = tuple(
        write_part(partial, f"ps-{i}", ps=i, version=0, pieces=[samples.rows(name, x) for name, x in part.items()])
        for i, part in enumerate(parts)
    )
    return home.commit(partial, samples.manifest(written, step))


def only(changes: list[Change]) -> Change:
    (change,) = changes
    return change


@pytest.mark.smoke
def test_a_checkpoint_is_identical_to_itself_and_to_its_copy(home: CheckpointDirectory) -> None:
    first, second = (Checkpoint.open(samples.commit(home, step)) for step in (1, 2))
    changes = compare(first, second)
    assert [change.tensor for change in changes] == sorted(first.manifest.tensors)
    assert all(change.identical and change.same and change.largest == 0 for change in changes)


def test_the_most_changed_comes_first(home: CheckpointDirectory) -> None:
    x = np.array([3.0, 4.0], np.float32)
    first = holding(home, 1, {"params/a": x, "params/b": x, "params/same": x, "params/kind": x, "params/old": x})
    second = holding(
        home,
        2,
        {"params/a": x + 1, "params/b": 2 * x, "params/same": x, "params/kind": x.astype(np.float64), "params/new": x},
    )
    kind, new, old, b, a, same = compare(first, second)
    assert [one.tensor for one in (kind, new, old, b, a, same)] == [
        f"params/{name}" for name in ("kind", "new", "old", "b", "a", "same")
    ]
    assert not any(one.comparable or one.same for one in (kind, new, old))
    assert (new.first, old.second) == (None, None)
    assert b.largest == 4.0
    assert b.relative == pytest.approx(1.0)
    assert a.largest == 1.0
    assert a.relative == pytest.approx(math.sqrt(2) / 5)
    assert (same.identical, b.identical) == (True, False)


NAN, INF = math.nan, math.inf

VALUES: list[tuple[list[float], list[float], bool, float, float]] = [
    # a, b -> identical, largest, relative
    ([NAN, 1.0], [NAN, 1.0], True, 0.0, 0.0),
    ([NAN, 1.0], [NAN, 2.0], False, 1.0, 1.0),
    ([NAN, 1.0], [1.0, 1.0], False, INF, INF),
    ([INF, 1.0], [INF, 1.5], False, 0.5, 0.0),
    ([INF, 1.0], [-INF, 1.0], False, INF, INF),
    ([0.0, 0.0], [0.0, 3.0], False, 3.0, INF),
    ([0.0, 1.0], [-0.0, 1.0], False, 0.0, 0.0),  # not the same bits, and not different
]


@pytest.mark.parametrize(("a", "b", "identical", "largest", "relative"), VALUES)
def test_odd_values(
    home: CheckpointDirectory, a: list[float], b: list[float], identical: bool, largest: float, relative: float
) -> None:
    first, second = (holding(home, i, {"params/w": np.array(x)}) for i, x in enumerate((a, b)))
    change = only(compare(first, second))
    assert (change.identical, change.same) == (identical, identical)
    assert (change.largest, change.relative) == (largest, relative)


KINDS = [np.bool_, np.int8, np.uint64, np.float16, np.float64, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind).name)
def test_every_dtype(home: CheckpointDirectory, kind: Any) -> None:
    first, second = (holding(home, i, {"params/w": np.array([0, i]).astype(kind)}) for i in range(2))
    assert only(compare(first, second)).largest == 1.0


TOLERANCES: list[tuple[float, float, bool]] = [
    # rtol, atol -> whether 1.0 and 1.125, and NaN and NaN, are the same
    (0.0, 0.0, False),
    (0.0, 0.125, True),
    (0.0, 0.124, False),
    (0.112, 0.0, True),  # of b
    (0.11, 0.0, False),
    (0.1, 0.0125, True),
]


@pytest.mark.parametrize(("rtol", "atol", "same"), TOLERANCES)
def test_tolerance(home: CheckpointDirectory, rtol: float, atol: float, same: bool) -> None:
    first, second = (holding(home, i, {"params/w": np.array([x, NAN])}) for i, x in enumerate((1.0, 1.125)))
    change = only(compare(first, second, rtol=rtol, atol=atol))
    assert (change.same, change.identical) == (same, False)


def test_no_tolerance_makes_a_nan_the_same_as_a_number(home: CheckpointDirectory) -> None:
    first, second = (holding(home, i, {"params/w": np.array([x])}) for i, x in enumerate((NAN, 1.0)))
    for a, b in ((first, second), (second, first)):
        assert not only(compare(a, b, rtol=1e9, atol=1e9)).same


def test_params_only_is_params_and_model_state(home: CheckpointDirectory) -> None:
    x = np.zeros(2, np.float32)
    names = ("params/w", "model_state/mean", "model_state", "optimizer/0/count", "workers/0/carry/0")
    first, second = (holding(home, i, dict.fromkeys(names, x)) for i in range(2))
    assert [c.tensor for c in compare(first, second, params_only=True)] == ["model_state", *sorted(names[:2])]


def test_the_one_of_each_ps_is_compared(home: CheckpointDirectory) -> None:
    first = holding(home, 1, {"optimizer/count": np.array(5)}, {"optimizer/count": np.array(6)})
    second = holding(home, 2, {"optimizer/count": np.array(5)}, {"optimizer/count": np.array(9)})
    change = only(compare(first, second))
    assert (change.identical, change.largest) == (False, 3.0)


def test_more_than_a_chunk(home: CheckpointDirectory) -> None:
    x = np.ones(200_000, np.float32)
    y = x.copy()
    y[[0, -1]] = (2.0, 4.0)
    first, second = holding(home, 1, {"params/w": x}), holding(home, 2, {"params/w": y})
    change = only(compare(first, second))
    assert change.largest == 3.0
    assert change.relative == pytest.approx(math.sqrt(10 / 200_000))


def test_damage_is_not_a_difference(home: CheckpointDirectory) -> None:
    first, second = (Checkpoint.open(samples.commit(home, step)) for step in (1, 2))
    samples.flip(second.path / "ps-1.safetensors", -1)
    with pytest.raises(DamagedCheckpoint, match="model_state/mean"):
        compare(first, second)
