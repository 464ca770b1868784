"""Signature: the required arguments and results of an update program's two functions, from the definition alone."""

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
    """The blocks of a shard, and the number of elements of each leaf of its optimizer state."""

    blocks: tuple[Block, ...]
    state_sizes: tuple[int, ...]

    @classmethod
    def of(cls, shard: ShardLayout, state_sizes: Sequence[int]) -> Signature:
        """The signature for a shard with this layout."""
        blocks = tuple(Block(block.size, np.dtype(block.dtype).name) for block in shard.blocks)
        return cls(blocks, tuple(state_sizes))

    @property
    def elements(self) -> int:
        """Elements of the shard with its state."""
        return sum(block.size for block in self.blocks) + sum(self.state_sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the shard with its state, counting 8 for each element of the state."""
        return sum(block.size * np.dtype(block.dtype).itemsize for block in self.blocks) + 8 * sum(self.state_sizes)

    def check(self, initialise: export.Exported, update: export.Exported) -> None:
        """Raises `Refused` if the two functions do not have this signature."""
        for name, exported in (("initialise", initialise), ("update", update)):
            check_surroundings(name, exported)
        blocks = [((block.size,), block.dtype) for block in self.blocks]
        state = [_plain(aval) for aval in initialise.out_avals]
        sizes = [math.prod(shape) for shape, _ in state]
        if sizes != list(self.state_sizes):
            raise Refused("the definition's sizes of the optimizer state differ from its program's.")
        some = (0,) * len(blocks)
        leaves = (0,) * len(state)
        _compare("initialise", "takes", initialise.in_avals, blocks)
        _compare("update", "takes", update.in_avals, [*blocks, *state, *blocks])
        _compare("update", "returns", update.out_avals, [*blocks, *state])
        _same_tree("initialise", "takes", initialise.in_tree, ((some,), {}))
        _same_tree("initialise", "returns", initialise.out_tree, leaves)
        _same_tree("update", "takes", update.in_tree, ((some, leaves, some), {}))
        _same_tree("update", "returns", update.out_tree, (some, leaves))


def check_surroundings(name: str, exported: export.Exported, platform: str = "cpu") -> None:
    """Raises `Refused` unless a function has fixed shapes, one device of the platform, and no effects."""
    kept = exported.module_kept_var_idx
    if tuple(exported.platforms) != (platform,):
        raise Refused(
            f"its function {name} was exported for {', '.join(exported.platforms)}; it would run on {platform}."
        )
    if exported.nr_devices != 1:
        raise Refused(f"its function {name} was exported for {exported.nr_devices} devices; it would run on one.")
    if exported.ordered_effects or exported.unordered_effects:
        raise Refused(f"its function {name} has effects; take prints and callbacks out of it.")
    if exported.uses_global_constants:
        raise Refused(f"its function {name} has shapes that are not fixed; export it for the blocks of its shard.")
    if list(kept) != sorted(set(kept)) or not all(0 <= i < len(exported.in_avals) for i in kept):
        raise Refused(f"its function {name} refers to arguments that it does not have.")


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
        raise Refused(f"its function {name} {verb} its arrays in another structure than its shard's blocks.")
