"""Seeds of Keras's own random numbers, which follow from `tf.random.set_seed`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.seeds import beginning, seed_for, set_seed
from trainband.compat.tf2.keras.inside import backend_module, keras, seed_module
from trainband.keras.keras_internals import ArrayDataAdapter


class _OfKeras:
    """Which seed Keras's own function has given."""

    beginning: object = None


def _seed_for(what: str) -> int | None:
    """A seed that follows from TensorFlow's; `None` if there is none, or Keras's own function has given it."""
    return None if beginning() is _OfKeras.beginning else seed_for(what)


def _default(original: Callable[[], Any]) -> Callable[[], Any]:
    def make_default_seed() -> Any:
        found = _seed_for("Keras")
        return original() if found is None else found

    return make_default_seed


def _seeding(original: Callable[[int], None]) -> Callable[[int], None]:
    """Keras's `set_random_seed`, which begins the random numbers of operations anew, too."""

    @functools.wraps(original)
    def set_random_seed(seed: int) -> None:
        original(seed)
        set_seed(seed)
        _OfKeras.beginning = beginning()

    return set_random_seed


def _shuffling(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """One pass of Keras's over arrays, which are put into another order when the first batch is asked for."""

    def batches(self: Any) -> Iterator[Any]:
        found = original(self)
        seed = _seed_for("order")
        if seed is None:
            return found
        before = np.random.get_state()
        np.random.seed(seed)
        try:
            first = list(itertools.islice(found, 1))
        finally:
            np.random.set_state(before)
        return itertools.chain(first, found)

    return batches


def install() -> None:
    """Has Keras take its seeds from TensorFlow's, if a program has given one."""
    keras.utils.set_random_seed = _seeding(keras.utils.set_random_seed)
    ArrayDataAdapter.get_jax_iterator = _shuffling(ArrayDataAdapter.get_jax_iterator)
    make = _default(seed_module.make_default_seed)
    seed_module.make_default_seed = backend_module.random.make_default_seed = make
