"""A small GPT-2 in JAX: a pure function of a pytree of params, whose embedding also gives the logits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.peers.steps import CONTEXT, EPSILON, HEADS, LAYERS, VOCABULARY, WIDTH

_KERNELS = {"qkv": (WIDTH, 3 * WIDTH), "mixed": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}


def init(key: jax.Array) -> Any:
    """Make the params, with the initial values of GPT-2."""
    normal = jax.nn.initializers.normal(0.02)
    tokens, positions, *layers = jax.random.split(key, 2 + LAYERS)
    return {
        "tokens": normal(tokens, (VOCABULARY, WIDTH), jnp.float32),
        "positions": normal(positions, (CONTEXT, WIDTH), jnp.float32),
        "layers": [
            {
                "attention_norm": _init_norm(),
                "mlp_norm": _init_norm(),
                **{
                    name: {"kernel": normal(one, shape, jnp.float32), "bias": jnp.zeros(shape[1])}
                    for one, (name, shape) in zip(jax.random.split(layer, len(_KERNELS)), _KERNELS.items(), strict=True)
                },
            }
            for layer in layers
        ],
        "norm": _init_norm(),
    }


def logits(params: Any, tokens: Any) -> Any:
    """Return float32[batch, 128, 8192] from int32[batch, 128]."""
    values = params["tokens"][tokens] + params["positions"]
    for layer in params["layers"]:
        values += _attention(layer, _norm(layer["attention_norm"], values))
        inner = jax.nn.gelu(_dense(layer["up"], _norm(layer["mlp_norm"], values)), approximate=True)
        values += _dense(layer["down"], inner)
    return _norm(params["norm"], values) @ params["tokens"].T


def _attention(layer: Any, values: Any) -> Any:
    split = _dense(layer["qkv"], values).reshape(*values.shape[:2], 3, HEADS, WIDTH // HEADS)
    query, key, value = (split[:, :, part] for part in range(3))
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return _dense(layer["mixed"], mixed.reshape(values.shape))


def _dense(layer: Any, values: Any) -> Any:
    return values @ layer["kernel"] + layer["bias"]


def _init_norm() -> Any:
    return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}


def _norm(layer: Any, values: Any) -> Any:
    values = jax.nn.standardize(values, epsilon=EPSILON)
    return values * layer["scale"] + layer["bias"]
