"""Placement: what every policy promises, for any variables."""

from __future__ import annotations

from itertools import pairwise, product

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.model.layout import JobLayout
from trainband.model.placement import (
    MIB,
    PIECE_BYTES,
    GreedyBytes,
    Placement,
    PlacementPolicy,
    RoundRobin,
    Slice,
    rows_of,
)
from trainband.model.variables import Variable

DTYPES = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
VARIABLES = st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=8).map(
    lambda found: [Variable(f"v{i}", shape, dtype) for i, (shape, dtype) in enumerate(found)]
)
POLICIES = st.builds(
    lambda kind, limit: kind(max_slice_bytes=limit), st.sampled_from([RoundRobin, GreedyBytes]), st.integers(1, 5000)
)


@given(VARIABLES, POLICIES, st.integers(1, 6), st.data())
@pytest.mark.smoke
def test_every_row_has_one_home(
    variables: list[Variable], policy: PlacementPolicy, ps: int, data: st.DataObject
) -> None:
    whole = data.draw(st.sets(st.sampled_from([v.name for v in variables])))
    plan = policy.place(variables, ps, keep_whole=whole)
    assert plan.ps_count == ps
    assert plan.slices == tuple(piece for v in variables for piece in plan.of(v))  # by variable, then by rows
    for variable in variables:
        pieces = plan.of(variable)
        assert tuple(plan.by_variable()[variable]) == pieces
        assert pieces[0].start == 0
        assert pieces[-1].stop == rows_of(variable)
        assert all(a.stop == b.start for a, b in pairwise(pieces))
        assert len(pieces) == 1 or all(piece.start < piece.stop for piece in pieces)
        assert sum(piece.size for piece in pieces) == variable.size
        assert sum(piece.nbytes for piece in pieces) == variable.nbytes
        assert all(0 <= piece.ps < ps for piece in pieces)
        assert (len(pieces) == 1) == pieces[0].whole
        if ps == 1 or variable.name in whole:
            assert len(pieces) == 1
    assert sorted(map(repr, plan.slices)) == sorted(repr(s) for i in range(ps) for s in plan.on(i))
    assert plan == policy.place(variables, ps, keep_whole=whole)  # every task comes to the same plan


@given(VARIABLES, POLICIES, st.integers(2, 6))
def test_no_slice_is_over_the_limit_where_rows_allow_it(
    variables: list[Variable], policy: RoundRobin | GreedyBytes, ps: int
) -> None:
    for piece in policy.place(variables, ps).slices:
        assert piece.nbytes <= (policy.max_slice_bytes or 0) or piece.stop - piece.start == 1


@given(VARIABLES, st.integers(1, 5000), st.integers(1, 6))
def test_round_robin_takes_turns(variables: list[Variable], limit: int, ps: int) -> None:
    plan = RoundRobin(max_slice_bytes=limit).place(variables, ps)
    turns = iter(range(len(plan.slices)))
    for variable in variables:
        places = [piece.ps for piece in plan.of(variable)]
        # In turn over all the slices; those of one variable that come to one ps lie together.
        assert places == sorted(next(turns) % ps for _ in places)


def loads(plan: Placement) -> list[int]:
    return [sum(piece.nbytes + PIECE_BYTES for piece in plan.on(ps)) for ps in range(plan.ps_count)]


@given(VARIABLES, st.integers(1, 5000), st.integers(1, 6))
def test_greedy_is_within_grahams_bound_for_lists(variables: list[Variable], limit: int, ps: int) -> None:
    plan = GreedyBytes(max_slice_bytes=limit).place(variables, ps)
    largest = max(piece.nbytes for piece in plan.slices) + PIECE_BYTES
    assert max(loads(plan)) <= sum(loads(plan)) / ps + (1 - 1 / ps) * largest + 1e-6


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(2, 3))
def test_greedy_is_within_a_third_of_the_best(sizes: list[int], ps: int) -> None:
    variables = [Variable(f"v{i}", (1, n), "float32") for i, n in enumerate(sizes)]
    best = min(
        max(sum(4 * n + PIECE_BYTES for n, home in zip(sizes, homes, strict=True) if home == i) for i in range(ps))
        for homes in product(range(ps), repeat=len(sizes))
    )
    assert max(loads(GreedyBytes().place(variables, ps))) <= best * (4 / 3 - 1 / (3 * ps)) + 1e-6


def test_the_largest_goes_first_and_ties_to_the_lowest() -> None:
    sizes = {"a": 1000, "b": 10_000, "c": 10_000, "d": 5000}
    variables = [Variable(name, (size,), "float32") for name, size in sizes.items()]
    assert [piece.ps for piece in GreedyBytes().place(variables, 2).slices] == [1, 0, 1, 0]


def test_thousands_of_scalars_are_divided_too() -> None:
    """By their bytes alone, all 3,000 would go to the ps without the matrix."""
    variables = [Variable("w", (1 << 20,), "float32"), *(Variable(f"s{i}", (), "float32") for i in range(3000))]
    plan = GreedyBytes().place(variables, 2)
    counts = [len(plan.on(ps)) for ps in range(2)]
    assert min(counts) > 800
    assert max(loads(plan)) - min(loads(plan)) <= 4 + PIECE_BYTES


DEFAULT_CUTS: list[tuple[int, int, list[int]]] = [
    # bytes of one variable, ps -> slices on each ps
    (8 * MIB, 4, [1, 1, 1, 1]),  # a ps's share
    (2 * MIB, 4, [1, 1, 0, 0]),  # but no less than 1 MiB
    (1 * MIB, 4, [1, 0, 0, 0]),
    (3072 * MIB, 2, [24, 24]),  # and no more than 64 MiB
    (3072 * MIB, 1, [1]),
]


@pytest.mark.parametrize(("nbytes", "ps", "slices"), DEFAULT_CUTS)
def test_a_variable_is_cut_by_default_if_it_exceeds_the_share_of_a_ps(nbytes: int, ps: int, slices: list[int]) -> None:
    plan = GreedyBytes().place([Variable("w", (nbytes // 4096, 1024), "float32")], ps)
    assert [len(plan.on(number)) for number in range(ps)] == slices


def test_offsets_beyond_int32_are_whole_numbers_of_any_size() -> None:
    variable = Variable("w", ((1 << 31) + 10, 4), "int8")
    layout = JobLayout.of(GreedyBytes().place([variable], 2))
    assert layout.placement.slices[-1].stop == (1 << 31) + 10
    assert sum(block.size for shard in layout.shards for block in shard.blocks) == variable.size
    shards = [[jax.ShapeDtypeStruct((b.size,), b.dtype) for b in shard.blocks] for shard in layout.shards]
    (whole,) = jax.eval_shape(layout.gather, shards)
    assert whole.shape == variable.shape
    scattered = jax.eval_shape(layout.scatter, [whole])
    assert [[block.shape for block in blocks] for blocks in scattered] == [
        [b.shape for b in blocks] for blocks in shards
    ]


CUTS: list[tuple[tuple[int, ...], int, int, list[int]]] = [
    # shape, max_slice_bytes, ps -> rows of each slice
    ((10, 10), 200, 2, [5, 5]),
    ((10, 10), 199, 2, [3, 3, 4]),  # one row is 40 bytes, four are 160
    ((10, 10), 40, 2, [1] * 10),
    ((3, 100), 1, 2, [1, 1, 1]),  # a row is never split
    ((10, 10), 40, 1, [10]),  # nowhere else to put a piece
    ((), 1, 4, [1]),  # a scalar is one row
    ((0, 10), 1, 4, [0]),
    ((10, 0), 1, 4, [10]),
]


@pytest.mark.parametrize(("shape", "limit", "ps", "rows"), CUTS)
def test_cuts(shape: tuple[int, ...], limit: int, ps: int, rows: list[int]) -> None:
    plan = RoundRobin(max_slice_bytes=limit).place([Variable("v", shape, "float32")], ps)
    assert [piece.stop - piece.start for piece in plan.slices] == rows


def test_shapes_of_slices() -> None:
    assert Slice(Variable("v", (10, 3), "float32"), 2, 5, 0).shape == (3, 3)
    assert Slice(Variable("v", (), "float32"), 0, 1, 0).shape == ()
    assert Slice(Variable("v", (), "float32"), 0, 1, 0).nbytes == 4


@pytest.mark.parametrize("policy", [RoundRobin, GreedyBytes])
def test_a_limit_of_nothing_is_refused(policy: type[RoundRobin | GreedyBytes]) -> None:
    with pytest.raises(ValueError, match="max_slice_bytes must be at least 1 byte, got 0"):
        policy(max_slice_bytes=0)
