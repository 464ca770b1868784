"""Quantisation-aware training: the loss computes as the compressed model does, and gradients pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import trainband
from trainband.compress import QuantizationAware, Selection, compress
from trainband.errors import ModelError
from trainband.train import Trainer

SMALL = Selection(smallest=4)
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


def rounded(values: Any, axis: int | None) -> Any:
    values = np.asarray(values)
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    scale = np.abs(values).max(axis=others, keepdims=True) / np.float32(127)
    return np.rint(values / scale) * scale


def init(key: jax.Array) -> Any:
    first, second = jax.random.split(key)
    return {"hidden": jax.random.normal(first, (6, 8)), "out": jax.random.normal(second, (8, 2)), "bias": jnp.ones(8)}


def forward(params: Any, x: Any) -> Any:
    return jax.checkpoint(lambda held, y: jax.nn.relu(y @ held + params["bias"]))(params["hidden"], x) @ params["out"]


def loss(params: Any, batch: Any) -> Any:
    return (forward(params, batch) ** 2).mean(), {"largest": jnp.abs(forward(params, batch)).max()}


@pytest.mark.smoke
def test_the_loss_is_that_of_rounded_weights_and_activations() -> None:
    params = init(jax.random.key(1))
    hidden = np.maximum(rounded(X, None) @ rounded(params["hidden"], 1) + 1, 0)
    wanted = rounded(hidden, None) @ rounded(params["out"], 1)
    value, metrics = jax.jit(QuantizationAware(select=SMALL).loss(loss))(params, X)
    np.testing.assert_allclose(value, (wanted**2).mean(), rtol=2e-2)
    np.testing.assert_allclose(metrics["largest"], np.abs(wanted).max(), rtol=2e-2)
    assert abs(value - (np.asarray(forward(params, X)) ** 2).mean()) > 1e-5
    weights = QuantizationAware(activations=False, select=SMALL).loss(loss)(params, X)[0]
    rest = {"bias": params["bias"], "hidden": rounded(params["hidden"], 1), "out": rounded(params["out"], 1)}
    np.testing.assert_allclose(weights, loss(rest, X)[0], rtol=1e-5)


def test_gradients_pass_the_rounding_unchanged() -> None:
    params = {"w": jnp.linspace(-1, 1, 12).reshape(6, 2)}
    plain = lambda held, x: (x @ held["w"]).sum()  # noqa: E731
    found = jax.grad(QuantizationAware(activations=False, select=SMALL).loss(plain))(params, X)
    np.testing.assert_allclose(found["w"], jax.grad(plain)(params, X)["w"], rtol=1e-6)
    both = jax.grad(QuantizationAware(select=SMALL).loss(plain))(params, X)
    np.testing.assert_allclose(both["w"], np.repeat(rounded(X, None).sum(0)[:, None], 2, 1), rtol=1e-4, atol=1e-5)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(2)(linen.relu(linen.Dense(8)(x)))


@pytest.mark.parametrize("kind", ["plain", "linen", "nnx"])
def test_a_trainer_trains_it_and_its_checkpoints_are_of_the_same_model(kind: str) -> None:
    options: dict[str, Any] = {"optimizer": optax.adam(1e-2), "console": False, "say": lambda _: None}
    aware = QuantizationAware(select=SMALL)
    model = Linen()

    def make(**more: Any) -> Trainer:
        if kind == "nnx":
            rngs = nnx.Rngs(0)
            net = nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), nnx.Dropout(0.1, rngs=rngs), nnx.Linear(8, 2, rngs=rngs))
            return Trainer.from_nnx(net, lambda module, x: ((module(x) - x[:, :2]) ** 2).mean(), **options, **more)
        apply = model.apply if kind == "linen" else forward
        made = (lambda key: model.init(key, X)) if kind == "linen" else init
        return Trainer(init=made, loss=lambda p, x: ((apply(p, x) - x[:, :2]) ** 2).mean(), **options, **more)

    trained = make(quantization=aware)
    before = trained.evaluate([X]).loss
    trained.fit([X], 40)
    assert trained.evaluate([X]).loss < 0.7 * before
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one.params) for one in (trained, make())]
    assert shapes[0] == shapes[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Qwix uses what Flax is about to take away
def test_a_model_of_qwix_is_trained_as_any_module() -> None:
    import qwix

    rngs = nnx.Rngs(0)
    net = nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 2, rngs=rngs))
    rules = [qwix.QtRule(weight_qtype="int8", act_qtype="int8")]
    aware = qwix.quantize_model(net, qwix.QtProvider(rules), jnp.asarray(X))
    trainer = Trainer.from_nnx(
        aware,
        lambda module, x: ((module(x) - x[:, :2]) ** 2).mean(),
        optimizer=optax.adam(1e-2),
        console=False,
        say=lambda _: None,
    )
    before = trainer.evaluate([X]).loss
    trainer.fit([X], 40)
    assert trainer.evaluate([X]).loss < 0.7 * before


def test_integers_compute_what_was_trained() -> None:
    trainer = Trainer(
        init=init,
        loss=lambda params, x: ((forward(params, x) - x[:, :2]) ** 2).mean(),
        optimizer=optax.adam(1e-2),
        quantization=QuantizationAware(select=SMALL),
        console=False,
        say=lambda _: None,
    )
    trainer.fit([X], 60)
    weights = {f"params/{name}": leaf for name, leaf in trainer.params.items()}
    program = trainband.Predictor(forward, example=X).program(weights)
    made = compress(program, int8=True, calibrate={"input": X}, select=SMALL)
    found = made.program(program).compiled()({"input": X})["output"]
    assert ((found - X[:, :2]) ** 2).mean() == pytest.approx(trainer.evaluate([X]).loss, rel=0.02)


def test_a_model_without_anything_to_quantise_is_refused() -> None:
    with pytest.raises(ModelError, match="there is nothing to quantise"):
        Trainer(init=init, loss=loss, optimizer=optax.sgd(0.1), quantization=QuantizationAware())
