"""Three small models that every strategy must train alike: an MLP, a convnet with batch norm, a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from trainband.spmd import batch_sharding, step_inputs, step_program, values

SIZE = 24
"""Examples in a step's batch, over all devices."""


def _dense(key: jax.Array, rows: int, columns: int) -> Any:
    return {"kernel": jax.random.normal(key, (rows, columns)) / np.sqrt(rows), "bias": jnp.zeros(columns)}


def _apply(layer: Any, x: jax.Array) -> jax.Array:
    result: jax.Array = x @ layer["kernel"] + layer["bias"]
    return result


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


def mlp() -> dict[str, Any]:
    """Two dense layers."""

    def init(key: jax.Array) -> Any:
        hidden, out = jax.random.split(key)
        return {"hidden": _dense(hidden, 16, 32), "out": _dense(out, 32, 8)}

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        return _cross_entropy(_apply(params["out"], jax.nn.relu(_apply(params["hidden"], x))), y)

    return {"init": init, "loss": loss}


def convnet() -> dict[str, Any]:
    """A convolution, batch normalisation over the whole batch with running averages, and a dense layer."""

    def init(key: jax.Array) -> Any:
        kernel, out = jax.random.split(key)
        return {
            "conv": jax.random.normal(kernel, (3, 3, 1, 8)) / 3,
            "norm": {"scale": jnp.ones(8), "shift": jnp.zeros(8)},
            "out": _dense(out, 32, 8),
        }

    def init_state(_: jax.Array) -> Any:
        return {"mean": jnp.zeros(8), "variance": jnp.ones(8)}

    def loss(params: Any, state: Any, batch: Any, _: jax.Array) -> Any:
        x, y = batch
        x = x.reshape(-1, 4, 4, 1)
        x = jax.lax.conv_general_dilated(x, params["conv"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = (x - mean) / jnp.sqrt(variance + 1e-3) * params["norm"]["scale"] + params["norm"]["shift"]
        state = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state, {"mean": mean, "variance": variance})
        value, metrics = _cross_entropy(_apply(params["out"], jax.nn.relu(x).reshape(x.shape[0], -1)), y)
        return value, (state, metrics)

    return {"init": init, "loss": loss, "init_state": init_state}


def transformer() -> dict[str, Any]:
    """One block of attention and an MLP over 16 tokens, with layer normalisation."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, 6)
        return {
            "embedding": jax.random.normal(keys[0], (32, 16)),
            "attention": {name: _dense(k, 16, 16) for name, k in zip(("q", "k", "v", "out"), keys[1:5], strict=True)},
            "mlp": _dense(keys[5], 16, 32),
            "out": _dense(keys[5], 32, 8),
        }

    def normal(x: jax.Array) -> jax.Array:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3)

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        x = params["embedding"][jnp.clip((8 * x).astype(jnp.int32) + 16, 0, 31)]
        q, k, v = (_apply(params["attention"][name], normal(x)).reshape(*x.shape[:2], 2, 8) for name in "qkv")
        weights = jax.nn.softmax(
            jnp.where(jnp.tril(jnp.ones((16, 16), bool)), jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
        )
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + _apply(params["attention"]["out"], mixed)
        return _cross_entropy(_apply(params["out"], jax.nn.gelu(_apply(params["mlp"], normal(x))).mean(1)), y)

    return {"init": init, "loss": loss}


MODELS: dict[str, Callable[[], dict[str, Any]]] = {"mlp": mlp, "convnet": convnet, "transformer": transformer}

RULES: dict[str, Any] = {
    "mlp": [("hidden/kernel", (None, "model")), ("hidden/bias", ("model",)), ("out/kernel", ("model",))],
    "convnet": [("conv", (None, None, None, "model")), ("out/kernel", ("model", None))],
    "transformer": [
        ("attention/[qkv]/kernel", (None, "model")),
        ("mlp/kernel", (None, "model")),
        ("embedding", ("model",)),
    ],
}
"""For ModelParallel."""


def optimizer() -> Any:
    """With a state, and no division that makes small roundings large, as Adam's."""
    return optax.sgd(0.05, momentum=0.9)


def use_programs_of_accelerators() -> None:
    """Has this process compute with the programs for accelerators, which are other ones: on CPUs, slowly."""
    for module in (batch_sharding, step_inputs, step_program, values):
        module.is_on_cpu = lambda _: False  # type: ignore[attr-defined]


def batches(count: int, size: int = SIZE, rank: int = 0, ranks: int = 1) -> list[Any]:
    """The same ones each time; or a part of each."""
    generator = np.random.default_rng(7)
    made = []
    for _ in range(count):
        x = generator.normal(size=(size, 16)).astype(np.float32)
        y = generator.integers(0, 8, size).astype(np.int32)
        rows = slice(rank * size // ranks, (rank + 1) * size // ranks)
        made.append((x[rows], y[rows]))
    return made
