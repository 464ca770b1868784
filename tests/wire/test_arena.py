"""Receive memory: aligned, used again, and cheap to ask for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.wire.arena import Arena, aligned_memory, as_bytes, layout
from trainband.wire.frame import BODY_ALIGNMENT

_SIZES = st.lists(st.integers(0, 5000), max_size=20).map(tuple)


@given(sizes=st.lists(_SIZES, min_size=1, max_size=5))
def test_views_are_aligned_apart_and_of_the_sizes_asked_for(sizes: list[tuple[int, ...]]) -> None:
    arena = Arena()
    for one in sizes:
        views = arena.views(one)
        assert tuple(view.size for view in views) == one
        for number, view in enumerate(views):
            view[:] = number % 251
        for number, view in enumerate(views):
            assert (view == number % 251).all()
            assert view.size == 0 or view.ctypes.data % BODY_ALIGNMENT == 0


def test_the_same_sizes_give_the_same_views() -> None:
    arena = Arena()
    assert arena.views((3, 100)) is arena.views((3, 100))


def test_memory_is_used_again_until_it_is_too_small() -> None:
    arena = Arena()
    start = arena.views((1000,))[0].ctypes.data
    assert arena.views((10, 20))[0].ctypes.data == start
    assert arena.views((1000,))[0].ctypes.data == start
    small = arena.views((1000,))[0]
    small[:] = 7
    large = arena.views((1_000_000,))[0]
    large[:] = 1
    assert (small == 7).all(), "what somebody still looks at stays"


@given(sizes=_SIZES)
def test_views_lie_in_memory_as_the_layout_says(sizes: tuple[int, ...]) -> None:
    arena = Arena()
    views = arena.views(sizes)
    offsets, end = layout(sizes)
    assert arena.memory.size == end
    for view, offset, size in zip(views, offsets, sizes, strict=True):
        if size:
            assert view.ctypes.data - arena.memory.ctypes.data == offset


@pytest.mark.parametrize("capacity", [0, 1, 63, 64, 1_000_000])
def test_aligned_memory(capacity: int) -> None:
    memory = aligned_memory(capacity)
    assert memory.size == capacity
    assert capacity == 0 or memory.ctypes.data % BODY_ALIGNMENT == 0


def test_bytes_of_an_array_are_its_memory() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    as_bytes(array)[0] = 5
    assert array[0, 0] == 5
    assert as_bytes(np.array(1.0)).size == 8
    assert as_bytes(np.empty((0, 4))).size == 0
