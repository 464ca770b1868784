"""Comparisons before processes compute in lockstep; real processes are in `tests/cluster_allreduce`."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainband.errors import ModelMismatch
from trainband.model.batch import digest_of
from trainband.spmd.agreement import first_batches, require_one_loss, require_one_program
from trainband.spmd.batch_sharding import OwnPart
from trainband.spmd.process_group import ProcessGroup
from trainband.strategies import Model

WHOLE = P()


class Other(ProcessGroup):
    """The second of two processes, which reads what the first has published."""

    task = "worker:1"

    def __init__(self, theirs: dict[str, Any] | None) -> None:
        self._theirs = theirs
        self._tasks = ["worker:0", "worker:1"]
        self.told: dict[str, Any] = {}

    def gather(self, key: str, value: Any, about: str, *, unless: str = "", patient: bool = False) -> list[Any]:
        del key, about, unless, patient
        self.told = dict(value)
        return [self.told if self._theirs is None else self._theirs, self.told]


def loss(params: Any, batch: Any) -> Any:
    return (batch @ params["w"]).mean(), {"largest": batch.max()}


def model(**changes: Any) -> Model:
    fields: dict[str, Any] = {"init": lambda _: {"w": jnp.ones(3)}, "loss": loss, "optimizer": optax.sgd(0.1)}
    return Model(**{**fields, **changes})


def program(group: ProcessGroup, one: Model, axis: str = "data", spec: Any = WHOLE, remainder: str = "error") -> None:
    mesh = Mesh(np.array(jax.local_devices()[:1]), (axis,))
    require_one_program(group, one, one.shapes(), mesh, [spec], remainder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init": lambda _: {"v": jnp.ones(3)}}, "variable v is float32[3] here and missing there"),
        ({"init": lambda _: {"w": jnp.ones(4)}}, "variable w is float32[4] here and float32[3] there"),
        ({"optimizer": optax.adam(0.1)}, "the optimizer's 0/count is int32[] here and missing there"),
        ({"steps_per_execution": 3}, "steps_per_execution is 3 here and 1 there"),
        ({"accumulate": 2}, "accumulate is 2 here and 1 there"),
        ({"seed": 7}, "seed is 7 here and 0 there"),
        ({"compute_dtype": "bfloat16"}, "compute_dtype is bfloat16 here and none there"),
        ({"worker_transform": optax.trace(0.9)}, "worker_transform is some, float32[3] here and none there"),
    ],
)
def test_another_model_is_named(changes: dict[str, Any], words: str) -> None:
    chief = Other(None)
    program(chief, model())
    start = "worker:1 and worker:0 have different programs: "
    with pytest.raises(ModelMismatch, match=re.escape(start + words) + "; run the same program with the same settings"):
        program(Other(chief.told), model(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axis": "model"}, "the mesh is {'model': 1} here and {'data': 1} there"),
        ({"spec": P("data")}, f"the sharding of w is {P('data')} here and {P()} there"),
        ({"remainder": "pad"}, "remainder is pad here and error there"),
    ],
)
def test_another_strategy_is_named(changes: dict[str, Any], words: str) -> None:
    chief = Other(None)
    program(chief, model())
    with pytest.raises(ModelMismatch, match=re.escape(words)):
        program(Other(chief.told), model(), **changes)


def test_other_metrics_are_named() -> None:
    chief, batch = Other(None), np.ones((2, 3), np.float32)
    require_one_loss(chief, model(), model().shapes(), batch)
    assert set(chief.told) == {"the loss", "largest"}
    plain = model(loss=lambda params, batch: (batch @ params["w"]).mean())
    with pytest.raises(ModelMismatch, match=r"different metrics: largest is missing here and float32\[\] there"):
        require_one_loss(Other(chief.told), plain, plain.shapes(), batch)


class WithBatch:
    """The first of two processes; the second has another part, or the same."""

    is_chief = True

    def __init__(self, part: int, batch: Any) -> None:
        self._theirs = [part, digest_of([batch])]

    def name(self, index: int) -> str:
        return f"worker:{index}"

    def gather(self, key: str, value: Any, about: str, *, unless: str = "", patient: bool = False) -> list[Any]:
        del key, about, unless, patient
        return [value, [*value[:3], *self._theirs]]


@pytest.mark.parametrize(
    ("part", "shift", "warns"),
    [(1, 0.0, True), (1, 1.0, False), (0, 0.0, False)],  # both have the same part
)
def test_workers_that_train_on_the_same_data_are_told_so(part: int, shift: float, warns: bool) -> None:
    said: list[str] = []
    batch = np.ones((4, 2))
    group: Any = WithBatch(part, batch + shift)
    first_batches(group, OwnPart(0, 1, (0,)), batch, "key", "unless", said.append)
    assert bool(said) is warns


def test_a_digest_is_of_whatever_a_batch_may_hold() -> None:
    keys = [jax.random.key(seed) for seed in (0, 0, 1)]
    same, too, other = (digest_of([key, 3.0, np.array(["a"], object), np.float16(1.0)]) for key in keys)
    assert same == too != other
