"""Random seeds: each operation that draws has a stream of its own, which `tf.random.set_seed` determines."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.eager.tensor import Tensor


class _Seeds:
    """The seed of all, and how many operations have drawn."""

    def __init__(self) -> None:
        self.start(secrets.randbits(31))

    def start(self, seed: int) -> None:
        self.seed = seed
        self.count = itertools.count()
        self.by_seed: dict[int, int] = {}


_SEEDS = _Seeds()


def set_seed(seed: int) -> None:
    """Begin the streams of all random operations anew, from this seed."""
    _SEEDS.start(int(seed))


def of_operation(seed: int | None) -> Tensor:
    """What the next operation that draws takes its key from: the seeds, and how many have drawn before it."""
    if seed is None:
        number = next(_SEEDS.count)
    else:
        number = _SEEDS.by_seed[seed] = _SEEDS.by_seed.get(seed, -1) + 1
    own = 2**31 if seed is None else int(seed) % 2**31
    return Tensor(np.array([_SEEDS.seed % 2**32, own, number % 2**32], np.uint32))


def key_of(words: Any) -> Any:
    """The random key of an operation."""
    key = jax.random.key(words[0])
    return jax.random.fold_in(jax.random.fold_in(key, words[1]), words[2])
