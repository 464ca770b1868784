"""Random seeds: each operation that draws has a stream of its own, which `tf.random.set_seed` determines."""

from __future__ import annotations

import itertools
import secrets
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.tf2.eager.tensor import Tensor


class _Seeds:
    """The seed of all, and how many operations have drawn."""

    is_given = False
    """Whether the script has said it."""

    def __init__(self) -> None:
        self.start(secrets.randbits(31))

    def start(self, seed: int) -> None:
        self.seed = seed
        self.count = itertools.count()
        self.by_seed: dict[int, int] = {}


_SEEDS = _Seeds()


class Draws:
    """The operations of a trace that draw: each call of what is traced has numbers of its own for them.

    Args:
      base: the first of these numbers, which JAX traces.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self.count = 0
        """How many operations have drawn."""

    def next(self) -> Any:
        """The number of the next operation."""
        self.count += 1
        return self._base + np.uint32(self.count - 1)


class _Open(threading.local):
    def __init__(self) -> None:
        self.draws: list[Draws] = []


_open = _Open()


@contextmanager
def drawing(draws: Draws) -> Iterator[None]:
    """Gives what is traced inside its numbers."""
    _open.draws.append(draws)
    try:
        yield
    finally:
        _open.draws.pop()


def numbers(count: int) -> Tensor:
    """The first of so many numbers, which nobody else gets."""
    first = next(_SEEDS.count)
    for _ in range(count - 1):
        next(_SEEDS.count)
    return Tensor(np.asarray(first % 2**32, np.uint32))


def set_seed(seed: int) -> None:
    """Begin the streams of all random operations anew, from this seed."""
    _SEEDS.start(int(seed))
    _SEEDS.is_given = True


def beginning() -> object:
    """What is another object after each `set_seed`."""
    return _SEEDS.count


def seed_for(what: str) -> int | None:
    """A seed that follows from the global one, for something else than an operation; `None` if that was not given."""
    if not _SEEDS.is_given:
        return None
    return zlib.crc32(f"{what} {_SEEDS.seed} {next(_SEEDS.count)}".encode()) % 2**31


def of_operation(seed: int | None) -> Tensor:
    """What the next operation that draws takes its key from: the seeds, and how many have drawn before it."""
    if _open.draws:
        words = [np.uint32(_SEEDS.seed % 2**32), np.uint32(_own(seed)), _open.draws[-1].next()]
        return Tensor(jnp.stack([jnp.asarray(one, jnp.uint32) for one in words]))
    if seed is None:
        number = next(_SEEDS.count)
    else:
        number = _SEEDS.by_seed[seed] = _SEEDS.by_seed.get(seed, -1) + 1
    return Tensor(np.array([_SEEDS.seed % 2**32, _own(seed), number % 2**32], np.uint32))


def _own(seed: int | None) -> int:
    return 2**31 if seed is None else int(seed) % 2**31


def key_of(words: Any) -> Any:
    """The random key of an operation."""
    key = jax.random.key(words[0])
    return jax.random.fold_in(jax.random.fold_in(key, words[1]), words[2])


def seed_pair(seed: int | None) -> tuple[int, ...] | None:
    """What the random numbers of a dataset begin with: the global seed and its own, of which one must be given.

    `None` where neither is.
    """
    if seed is not None:
        return (_SEEDS.seed if _SEEDS.is_given else 0), int(seed) % 2**64
    return (_SEEDS.seed, next(_SEEDS.count), 1) if _SEEDS.is_given else None
