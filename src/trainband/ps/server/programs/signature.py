"""Signature: what the two functions of an update program must take and give, from the definition alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from msgspec import Struct

from trainband.errors import Refused
from trainband.model.layout import ShardLayout


class Block(Struct, frozen=True, array_like=True):
    """One block of a shard."""

    size: int
    dtype: str


class Signature(Struct, frozen=True, array_like=True):
    """The blocks of a shard, and how many elements each leaf of its optimizer's state has."""

    blocks: tuple[Block, ...]
    state_sizes: tuple[int, ...]

    @classmethod
    def of(cls, shard: ShardLayout, state_sizes: Sequence[int]) -> Signature:
        """Of a shard with this layout."""
        blocks = tuple(Block(block.size, np.dtype(block.dtype).name) for block in shard.blocks)
        return cls(blocks, tuple(state_sizes))

    @property
    def elements(self) -> int:
        """Of the shard with its state."""
        return sum(block.size for block in self.blocks) + sum(self.state_sizes)

    @property
    def nbytes(self) -> int:
        """Of the shard with its state, whose elements are taken for 8 bytes each."""
        return sum(block.size * np.dtype(block.dtype).itemsize for block in self.blocks) + 8 * sum(self.state_sizes)

    def check(self, initialise: export.Exported, update: export.Exported) -> None:
        """Raises `Refused` where the two are not functions of these."""
        for name, exported in (("initialise", initialise), ("update", update)):
            check_surroundings(name, exported)
        blocks = [((block.size,), block.dtype) for block in self.blocks]
        state = [_plain(aval) for aval in initialise.out_avals]
        sizes = [math.prod(shape) for shape, _ in state]
        if sizes != list(self.state_sizes):
            raise Refused("the definition says of the optimizer state other sizes than its program has.")
        some = (0,) * len(blocks)
        leaves = (0,) * len(state)
        _compare("initialise", "takes", initialise.in_avals, blocks)
        _compare("update", "takes", update.in_avals, [*blocks, *state, *blocks])
        _compare("update", "gives", update.out_avals, [*blocks, *state])
        _same_tree("initialise", "takes", initialise.in_tree, ((some,), {}))
        _same_tree("initialise", "gives", initialise.out_tree, leaves)
        _same_tree("update", "takes", update.in_tree, ((some, leaves, some), {}))
        _same_tree("update", "gives", update.out_tree, (some, leaves))


def check_surroundings(name: str, exported: export.Exported) -> None:
    """Raises `Refused` where a function is not one of fixed shapes for one CPU, without effects."""
    kept = exported.module_kept_var_idx
    if tuple(exported.platforms) != ("cpu",):
        raise Refused(f"its function {name} was exported for {', '.join(exported.platforms)}; a ps runs cpu alone.")
    if exported.nr_devices != 1:
        raise Refused(f"its function {name} was exported for {exported.nr_devices} devices; a ps has one.")
    if exported.ordered_effects or exported.unordered_effects:
        raise Refused(f"its function {name} has effects; take prints and callbacks out of the optimizer.")
    if exported.uses_global_constants:
        raise Refused(f"its function {name} has shapes that are not fixed; export it for the blocks of its shard.")
    if list(kept) != sorted(set(kept)) or not all(0 <= i < len(exported.in_avals) for i in kept):
        raise Refused(f"its function {name} names arguments that it does not have.")


def _plain(aval: Any) -> tuple[tuple[int, ...], str]:
    if not all(type(size) is int for size in aval.shape):
        raise Refused("it has a shape that is not fixed; export it for the blocks of its shard.")
    return tuple(aval.shape), np.dtype(aval.dtype).name


def _compare(name: str, verb: str, avals: Sequence[Any], expected: Sequence[tuple[tuple[int, ...], str]]) -> None:
    found = [_plain(aval) for aval in avals]
    if found == list(expected):
        return
    if len(found) != len(expected):
        raise Refused(f"its function {name} {verb} {len(found)} arrays; its shard has {len(expected)} for it.")
    i = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
    raise Refused(
        f"its function {name} {verb} {_words(found[i])} as array {i}; its shard has {_words(expected[i])} there."
    )


def _words(plain: tuple[tuple[int, ...], str]) -> str:
    return f"{plain[1]}{list(plain[0])}"


def _same_tree(name: str, verb: str, found: Any, example: Any) -> None:
    if found != jax.tree.structure(example):
        raise Refused(f"its function {name} {verb} its arrays in another structure than the blocks of its shard.")
