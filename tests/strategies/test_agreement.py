"""What processes that compute in step must have in common."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband.strategies.agreement import digest_of

PARAMS = {"kernel": jax.ShapeDtypeStruct((3, 2), np.float32), "bias": jax.ShapeDtypeStruct((2,), np.float32)}


def scaled(factors: Any) -> Any:
    return optax.chain(optax.stateless(lambda updates, _: jax.tree.map(lambda u: u * factors, updates)), optax.sgd(0.1))


def clipped(limit: float) -> Any:
    """With a custom derivative, which an address stands for in the text of what is traced."""

    @jax.custom_jvp
    def clip(update: jax.Array) -> jax.Array:
        return jnp.clip(update, -limit, limit)

    clip.defjvps(lambda tangent, _, update: tangent * update)
    return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


MAKERS: dict[str, tuple[Any, tuple[Any, Any]]] = {
    "a number": (optax.adam, (0.001, 0.002)),
    "a number of its state": (lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate), (0.1, 0.2)),
    "a schedule": (lambda steps: optax.sgd(optax.cosine_decay_schedule(0.1, steps)), (100, 200)),
    "an array": (scaled, (np.array([1.0, 2.0], np.float32), np.array([1.0, 3.0], np.float32))),
    "with a custom derivative": (clipped, (1.0, 2.0)),
    "another seed": (lambda seed: optax.add_noise(0.1, 0.5, jax.random.key(seed)), (0, 1)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_optimizers_that_differ_in_a_number_have_different_digests(name: str) -> None:
    make, (one, other) = MAKERS[name]
    assert digest_of(make(one), PARAMS) == digest_of(make(one), PARAMS)
    assert digest_of(make(one), PARAMS) != digest_of(make(other), PARAMS)
