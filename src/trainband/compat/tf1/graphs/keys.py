"""The random keys of a run: each random operation has its own stream, which its seed determines."""

from __future__ import annotations

import secrets
from typing import Any

import jax
import numpy as np

DEFAULT_GRAPH_SEED = 87654321
"""The graph's seed for operations with a seed in a graph without one."""


class Keys:
    """The random keys of the operations of one run.

    Args:
      base: a key for operations without a seed.
      counter: uint32, different in every run.
      folded: further numbers to fold into the keys, such as the iteration of a loop.
    """

    def __init__(self, base: Any, counter: Any, folded: tuple[Any, ...] = ()) -> None:
        self._base = base
        self._counter = counter
        self._folded = folded
        self._unseeded: Any = None

    @classmethod
    def of_step(cls, key: Any) -> Keys:
        """Derive the keys from a key that is already different in every step."""
        return cls(key, jax.random.bits(key, (), "uint32"))

    def of(self, seed: int | None, number: int) -> Any:
        """The key of the operation that has this seed, or without one, this number in its graph."""
        if seed is None:
            if self._unseeded is None:
                self._unseeded = jax.random.fold_in(self._base, self._counter)
            key = jax.random.fold_in(self._unseeded, number)
        else:
            key = jax.random.fold_in(jax.random.key(seed), self._counter)
        for one in self._folded:
            key = jax.random.fold_in(key, one)
        return key

    def round(self, number: Any) -> Keys:
        """The keys of one round of a loop."""
        return Keys(self._base, self._counter, (*self._folded, number))


def fresh_base() -> np.ndarray[Any, Any]:
    """Return the data of a fresh random key."""
    return np.array([secrets.randbits(32), secrets.randbits(32)], np.uint32)


def combined_seed(graph_seed: int | None, op_seed: int | None, number: int) -> int | None:
    """Combine the seeds of the graph and of an operation as TensorFlow does; `None` if neither is set.

    If only the graph has a seed, the operation's number takes the place of its own seed.
    """
    if graph_seed is None and op_seed is None:
        return None
    first = DEFAULT_GRAPH_SEED if graph_seed is None else graph_seed
    second = number if op_seed is None else op_seed
    return (first * 1_000_003 + second) % (1 << 31)
