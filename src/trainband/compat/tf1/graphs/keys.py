"""The random keys of one run: every random operation has a stream of its own, the same for the same seed."""

from __future__ import annotations

import secrets
from typing import Any

import jax
import numpy as np


class Keys:
    """Where the random operations of one run get their keys from.

    Args:
      base: a key for operations without a seed.
      counter: uint32, another one in every run.
      folded: what else makes a key another one: the number of a loop's round.
    """

    def __init__(self, base: Any, counter: Any, folded: tuple[Any, ...] = ()) -> None:
        self._base = base
        self._counter = counter
        self._folded = folded

    @classmethod
    def of_step(cls, key: Any) -> Keys:
        """From a key that is another one in every step already."""
        return cls(key, jax.random.bits(key, (), "uint32"))

    def of(self, seed: int | None, number: int) -> Any:
        """The key of the operation that has this seed, or without one, this number in its graph."""
        key = self._base if seed is None else jax.random.key(seed)
        key = jax.random.fold_in(key, self._counter)
        if seed is None:
            key = jax.random.fold_in(key, number)
        for one in self._folded:
            key = jax.random.fold_in(key, one)
        return key

    def round(self, number: Any) -> Keys:
        """The keys of one round of a loop."""
        return Keys(self._base, self._counter, (*self._folded, number))


def fresh_base() -> np.ndarray[Any, Any]:
    """The data of a key that nobody else has."""
    return np.array([secrets.randbits(32), secrets.randbits(32)], np.uint32)


def combined_seed(graph_seed: int | None, op_seed: int | None, number: int) -> int | None:
    """The seed of an operation, as TensorFlow combines them; `None` where nobody has set one.

    Where only the graph has a seed, the operation's number stands for its own.
    """
    if graph_seed is None and op_seed is None:
        return None
    first = 87654321 if graph_seed is None else graph_seed
    second = number if op_seed is None else op_seed
    return (first * 1_000_003 + second) % (1 << 31)
