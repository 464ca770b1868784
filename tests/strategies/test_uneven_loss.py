"""The warning of a loss that is no mean over the examples, under `Sync()` on parameter servers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband.model.model import Model
from trainband.strategies.uneven_loss import warn_of_uneven_loss

BATCH = {"x": np.ones((6, 3), np.float32), "mask": np.array([1, 1, 0, 1, 0, 1], np.float32)}


def squares(params: Any, batch: Any) -> Any:
    return jnp.square(batch["x"] @ params["w"])


def said_of(loss: Any, batch: Any = BATCH, **settings: Any) -> list[str]:
    said: list[str] = []
    model = Model(init=lambda key: {"w": jax.random.normal(key, (3,))}, loss=loss, optimizer=optax.sgd(0.1), **settings)
    warn_of_uneven_loss(model, batch, said.append)
    return said


def masked(params: Any, batch: Any) -> Any:
    return (squares(params, batch) * batch["mask"]).sum() / batch["mask"].sum()


@pytest.mark.parametrize("loss", [lambda p, b: squares(p, b).sum(), masked], ids=["sum", "mask"])
def test_a_loss_that_is_no_mean_is_warned_of(loss: Any) -> None:
    (text,) = said_of(loss)
    assert text.startswith("WARNING: the loss is not a mean over the examples (")
    assert "Divide" in text


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b: squares(p, b).mean(),
        lambda p, b: (squares(p, b) * b["mask"]).mean() + jnp.square(p["w"]).sum(),
        lambda p, b, key: (squares(p, b) * jax.random.bernoulli(key, 0.5, (len(b["x"]),))).mean(),
        lambda p, b: jnp.sort(squares(p, b)).mean(),
    ],
    ids=["mean", "weighted, with a penalty", "dropout", "not known"],
)
def test_a_mean_and_what_is_not_known_are_not_warned_of(loss: Any) -> None:
    assert said_of(loss) == []


def test_batches_of_one_example_cannot_tell() -> None:
    assert said_of(masked, {name: array[:1] for name, array in BATCH.items()}) == []


@pytest.mark.parametrize("averages", [False, True])
def test_batch_normalisation_is_not_warned_of(averages: bool) -> None:
    def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
        del key
        x = batch["x"] - batch["x"].mean(0)
        return jnp.square(x @ params["w"]).mean(), (state, {})

    dtype = jnp.float32 if averages else jnp.int32
    said = said_of(loss, init_state=lambda key: {"kept": jnp.zeros(3, dtype)})  # noqa: ARG005 - its form
    assert bool(said) == (not averages)
