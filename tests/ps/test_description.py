"""The description: two tasks that differ are told in which point."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
from msgspec.structs import replace
from tests.ps.plans import plan_of, small_params

from trainband.errors import ModelError
from trainband.model.placement import GreedyBytes, PlacementPolicy, RoundRobin
from trainband.ps.description import first_difference, placement_of
from trainband.ps.rules import Async, Bounded, Sync
from trainband.ps.rules.registry import describe_rule
from trainband.ps.tables.description import table_of
from trainband.ps.worker.plan import Plan
from trainband.wire.messages.codec import decode, encode
from trainband.wire.messages.description import Description, SliceRecord, VariableRecord
from trainband.wire.messages.tables import Choice, TableRecord


def describe(
    params: Any = None, optimizer: Any = None, ps: int = 1, policy: PlacementPolicy | None = None
) -> Description:
    return plan_of(params or small_params(), optimizer or optax.sgd(0.1), ps=ps, policy=policy).description


def changed(**leaves: Any) -> Any:
    """The small params with other leaves at the top."""
    return {**small_params(), **leaves}


def without(name: str) -> Any:
    return {key: value for key, value in small_params().items() if key != name}


DIFFERENCES: list[tuple[Description, str]] = [
    # what a worker has otherwise than the chief -> the words
    (
        describe(changed(scale=np.zeros(3, np.float32))),
        "scale: the chief has scale float32[], worker:1 has scale float32[3]",
    ),
    (describe(changed(scale=np.zeros((), np.float16))), "worker:1 has scale float16[]"),
    (describe(without("scale")), "scale: the chief has scale float32[], worker:1 has none"),
    (describe(changed(zoom=np.zeros(2, np.float32))), "zoom: the chief has none, worker:1 has zoom float32[2]"),
    # one that is missing, or too much, before others that are there on both sides
    (describe(without("out")), "out/bias: the chief has out/bias bfloat16[2], worker:1 has none"),
    (describe(changed(more=np.zeros(2, np.float32))), "more: the chief has none, worker:1 has more float32[2]"),
    # the first one is named
    (
        describe(changed(hidden={"w": np.ones(1, np.float32)})),
        "hidden/bias: the chief has hidden/bias float32[4], worker:1 has none",
    ),
    (describe(ps=2), "the number of ps differs: the chief has 1, worker:1 has 2"),
    (
        replace(describe(), rule={"name": "sync", "workers": 4}),
        "the update rule differs: the chief has async, worker:1",
    ),
    (replace(describe(), rule={"name": "sync", "workers": 4}), "worker:1 has sync(workers=4)"),
    (describe(optimizer=optax.sgd(0.2)), "the optimizer differs: the chief's traced update has `"),
    (describe(optimizer=optax.adam(0.1)), "the optimizer differs"),
]


@pytest.mark.parametrize(("worker", "words"), DIFFERENCES, ids=range(len(DIFFERENCES)))
def test_the_first_difference_is_named(worker: Description, words: str) -> None:
    difference = first_difference(describe(), worker, "worker:1")
    assert difference is not None
    assert words in difference


def test_the_learning_rates_stand_in_the_words() -> None:
    difference = first_difference(describe(), describe(optimizer=optax.sgd(0.25)), "worker:1")
    assert difference is not None
    assert "0.1" in difference
    assert "0.25" in difference
    assert "only constants differ: probably the learning rate" in difference
    other = first_difference(describe(), describe(optimizer=optax.sgd(0.25, momentum=0.5)), "worker:1")
    assert other is not None
    assert "constants" not in other


def test_another_placement() -> None:
    one = describe(ps=2, policy=RoundRobin(max_slice_bytes=24))
    other = describe(ps=2, policy=GreedyBytes(max_slice_bytes=24))
    difference = first_difference(one, other, "worker:1")
    assert difference is not None
    assert "give worker:1 the same placement policy as the chief" in difference


def test_no_difference() -> None:
    assert first_difference(describe(), describe(), "worker:1") is None
    travelled = decode(encode(describe()), Description, "worker:1")
    assert first_difference(describe(), travelled, "worker:1") is None


def test_texts_of_two_versions_of_jax_are_not_compared() -> None:
    other = replace(describe(optimizer=optax.sgd(0.2)), jax_version="0.0.1")
    assert first_difference(describe(), other, "worker:1") is None


@pytest.mark.parametrize("ps", [1, 3])
def test_a_placement_travels(ps: int) -> None:
    plan = plan_of(small_params(), optax.sgd(0.1), ps=ps, policy=RoundRobin(max_slice_bytes=24))
    assert placement_of(decode(encode(plan.description), Description, "worker:0")) == plan.layout.placement


def table(*slices: tuple[int, int, int, int], shapes: tuple[tuple[int, ...], ...] = ((10, 2), ())) -> Description:
    return replace(
        describe(ps=2),
        variables=tuple(VariableRecord(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)),
        slices=tuple(SliceRecord(*piece) for piece in slices),
    )


COVERS: list[tuple[Description, str]] = [
    # (variable, start, stop, ps) of each slice -> the words
    (table((0, 0, 5, 0), (0, 4, 10, 1), (1, 0, 1, 0)), "slices of v0 overlap or leave rows out"),
    (table((0, 0, 5, 0), (0, 6, 10, 1), (1, 0, 1, 0)), "slices of v0 overlap or leave rows out"),
    (table((0, 5, 10, 0), (0, 0, 5, 1), (1, 0, 1, 0)), "slices of v0 overlap or leave rows out"),
    (table((0, 0, 10, 0), (0, 0, 10, 1), (1, 0, 1, 0)), "slices of v0 overlap"),
    (table((0, 0, 9, 0), (1, 0, 1, 0)), "slices of v0 leave rows out"),
    (table((0, 0, 11, 0), (1, 0, 1, 0)), "slices of v0"),
    (table((0, 0, 10, 0)), "slices of v1 leave rows out"),
    (table((0, 0, 10, 0), (1, 0, 1, 2)), "unknown variable or ps"),
    (table((0, 0, 10, -1), (1, 0, 1, 0)), "unknown variable or ps"),
    (table((0, 0, 10, 0), (2, 0, 1, 0)), "unknown variable or ps"),
    (table((-1, 0, 10, 0), (1, 0, 1, 0)), "unknown variable or ps"),
    # back and forth over the same rows
    (table((0, 0, 20, 0), (0, 20, 10, 1), (1, 0, 1, 0)), "slices of v0"),
]


@pytest.mark.parametrize(("description", "words"), COVERS, ids=range(len(COVERS)))
def test_slices_that_do_not_cover_are_refused(description: Description, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        placement_of(description)


def test_a_plan_that_cannot_be_traced() -> None:
    broken = optax.GradientTransformation(
        lambda params: params["nothing"], lambda gradient, state, _: (gradient, state)
    )
    with pytest.raises(ModelError, match="the optimizer cannot be traced on these params: KeyError: 'nothing'"):
        plan_of(small_params(), broken)


def test_a_plan_is_pure() -> None:
    one, other = describe(ps=3), describe(ps=3)
    assert encode(one) == encode(other)
    assert isinstance(plan_of(small_params(), optax.sgd(0.1)), Plan)


def test_people_are_shown_what_differs_from_the_defaults() -> None:
    rules = {"async": Async(), "async(staleness_scale=0.5)": Async(staleness_scale=0.5), "sync": Sync()}
    assert [describe_rule(rule.settings()) for rule in rules.values()] == list(rules)
    assert describe_rule(Bounded(staleness=3).settings()) == "bounded(staleness=3)"
    assert describe_rule({"name": "later", "bound": 3}) == "later(bound=3)"


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (Choice("Sgd", {}), "the optimizer of table 'items' has invalid settings"),
        (Choice("Sgd", {"learning_rate": None}), "the optimizer of table 'items' has invalid settings"),
        (Choice("eval", {}), "asks for 'eval', which trainband.rows does not have"),
        (Choice("Uniform", {}), "optimizer of table 'items' must be one of trainband.rows"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused(optimizer: Choice, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        table_of(TableRecord("items", 2, optimizer, Choice("Constant", {})))
