"""Layout: what goes into a shard's blocks comes out of them again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainband.model import layout as layout_module
from trainband.model.layout import Block, JobLayout, ShardLayout, narrow
from trainband.model.placement import MIB, GreedyBytes, RoundRobin, Slice
from trainband.model.variables import Variable

SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


def variables_of(dtypes: list[str]) -> st.SearchStrategy[list[Variable]]:
    return st.lists(st.tuples(SHAPES, st.sampled_from(dtypes)), min_size=1, max_size=9).map(
        lambda found: [Variable(f"v{i}", shape, dtype) for i, (shape, dtype) in enumerate(found)]
    )


def values_of(variables: list[Variable]) -> list[NDArray[Any]]:
    generator = np.random.default_rng(7)
    return [generator.normal(size=v.shape).astype(jnp.dtype(v.dtype)) for v in variables]


def as_bytes(block: Any) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(block)).reshape(-1).view(np.uint8)


def assert_same(got: list[Any], wanted: list[NDArray[Any]]) -> None:
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert np.asarray(ours).tobytes() == theirs.tobytes()


@given(
    variables_of(["float16", "bfloat16", "float32", "float64"]),
    st.integers(1, 5),
    st.integers(1, 200),
    st.sampled_from([RoundRobin, GreedyBytes]),
    st.integers(0, 100),
)
def test_there_and_back_in_numpy(
    variables: list[Variable], ps: int, limit: int, policy: type[RoundRobin | GreedyBytes], pack: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "PACK_BYTES", pack)
        layout = JobLayout.of(policy(max_slice_bytes=limit).place(variables, ps))
    values = values_of(variables)
    shards = layout.scatter(values, np)
    for packed, filled in zip(shards, layout.filled(reversed(list(enumerate(values)))), strict=True):
        assert_same(list(filled), list(packed))
    # over the wire and back
    received = [
        shard.from_wire([as_bytes(b) for b in blocks]) for shard, blocks in zip(layout.shards, shards, strict=True)
    ]
    for shard, blocks in zip(layout.shards, received, strict=True):
        assert blocks is not None
        assert [(b.size, b.dtype) for b in blocks] == [(b.size, jnp.dtype(b.dtype)) for b in shard.blocks]
        assert sum(b.nbytes for b in blocks) == shard.nbytes
        assert sorted(i for block in shard.blocks for i in block.members) == list(range(len(shard.slices)))
    blocks_of_all = [blocks for blocks in received if blocks is not None]
    assert_same(layout.gather(blocks_of_all, np), values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "_MOST_SLICED", 1)
        assert_same(layout.gather(layout.with_views(blocks_of_all), np), values)


@settings(max_examples=12)  # each compiles
@given(variables_of(["float16", "bfloat16", "float32"]), st.integers(1, 4), st.integers(1, 100))
def test_there_and_back_in_a_compiled_program(variables: list[Variable], ps: int, limit: int) -> None:
    layout = JobLayout.of(GreedyBytes(max_slice_bytes=limit).place(variables, ps))
    values = values_of(variables)
    shards = jax.jit(layout.scatter)(values)
    assert_same(jax.jit(layout.gather)(shards), values)
    for ours, theirs in zip(jax.tree.leaves(shards), jax.tree.leaves(layout.scatter(values, np)), strict=True):
        assert as_bytes(ours).tobytes() == as_bytes(theirs).tobytes()


PACKS: list[tuple[list[tuple[int, str]], list[tuple[int, ...]]]] = [
    # (elements, dtype) of each slice -> members of each block
    # small ones of a dtype share a block, in the place of the first of them
    ([(1, "float32"), (2, "bfloat16"), (3, "float32")], [(0, 2), (1,)]),
    # one of exactly PACK_BYTES is a block of its own
    ([(1, "float32"), (MIB // 4, "float32"), (1, "float32")], [(0, 2), (1,)]),
    ([(MIB // 4 - 1, "float32"), (MIB // 4 - 1, "float32")], [(0, 1)]),
    # the threshold is in bytes
    ([(MIB // 4, "bfloat16"), (MIB // 4, "bfloat16")], [(0, 1)]),
    ([(0, "float32")], [(0,)]),
    ([], []),
]


@pytest.mark.parametrize(("slices", "members"), PACKS)
def test_small_slices_are_packed_and_large_ones_are_not(
    slices: list[tuple[int, str]], members: list[tuple[int, ...]]
) -> None:
    pieces = [Slice(Variable(f"v{i}", (n,), dtype), 0, n, 0) for i, (n, dtype) in enumerate(slices)]
    assert [block.members for block in ShardLayout.of(pieces).blocks] == members


def test_a_large_variable_is_not_copied() -> None:
    variable = Variable("w", (512, 1024), "float32")
    layout = JobLayout.of(RoundRobin(max_slice_bytes=MIB).place([variable], 2))
    value = np.ones(variable.shape, np.float32)
    shards = layout.scatter([value], np)
    assert all(np.shares_memory(block, value) for blocks in shards for block in blocks)
    (views,) = (layout.shards[1].unpack(shards[1]),)
    assert all(np.shares_memory(view, value) for view in views)
    raw = [as_bytes(block) for block in shards[0]]
    received = layout.shards[0].from_wire(raw)
    assert received is not None
    assert all(np.shares_memory(a, b) for a, b in zip(raw, received, strict=True))


@pytest.mark.parametrize(
    ("block", "travels_as"),
    [
        (Block("float32", 1, (0,)), "bfloat16"),
        (Block("float64", 1, (0,)), "bfloat16"),
        (Block("bfloat16", 1, (0,)), "bfloat16"),
        (Block("float16", 1, (0,)), "float16"),
        (Block("float32", 1, (0,), trained=False), "float32"),
        (Block("int32", 1, (0,)), "int32"),
        (Block("complex64", 1, (0,)), "complex64"),
    ],
)
def test_only_wide_floats_that_are_trained_are_narrowed(block: Block, travels_as: str) -> None:
    assert narrow(block, "bfloat16").name == travels_as
    assert narrow(block, "").name == block.dtype


WRONG: list[tuple[str, list[int]]] = [
    ("a block too few", [24]),
    ("a block too many", [24, 8, 0]),
    ("a byte too few", [23, 8]),
    ("a byte too many", [24, 9]),
    ("an element too many", [28, 8]),
    ("the wrong order", [8, 24]),
    ("nothing", []),
]


@pytest.mark.parametrize("sizes", [sizes for _, sizes in WRONG], ids=[name for name, _ in WRONG])
def test_other_sizes_are_no_blocks(sizes: list[int]) -> None:
    pieces = [Slice(Variable("a", (2, 3), "float32"), 0, 2, 0), Slice(Variable("b", (4,), "bfloat16"), 0, 4, 0)]
    layout = ShardLayout.of(pieces)
    assert layout.from_wire([np.zeros(24, np.uint8), np.zeros(8, np.uint8)]) is not None
    assert layout.from_wire([np.zeros(n, np.uint8) for n in sizes]) is None
