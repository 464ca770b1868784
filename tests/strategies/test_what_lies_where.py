"""The description of what lies where, as people read it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import trainband


def described(params: Any) -> str:
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.zeros, params, is_leaf=lambda leaf: isinstance(leaf, tuple)))
    return str(trainband.OneDevice("cpu").describe(shapes, optax.sgd(0.1)))


def test_the_sums_come_first_and_then_each_variable_with_its_size() -> None:
    assert described({"hidden": {"kernel": (250, 8), "bias": (8,)}}).splitlines() == [
        "OneDevice: 1 device (data 1)",
        "  cpu:0: 8.0 kB of variables",
        "  hidden/bias    float32[8]        32 B  whole",
        "  hidden/kernel  float32[250,8]  8.0 kB  whole",
    ]


def test_many_layers_share_a_line() -> None:
    layer = {"kernel": (50, 5), "bias": (5,)}
    lines = described({"layers": [layer] * 80, "out": (5,), "two": {"a1": (3,), "a2": (3,)}}).splitlines()
    assert lines[1] == "  cpu:0: 81.6 kB of variables"
    assert [line.split() for line in lines[2:]] == [
        ["layers/*/bias", "(80", "of", "them)", "float32[5]", "each", "20", "B", "whole"],
        ["layers/*/kernel", "(80", "of", "them)", "float32[50,5]", "each", "1.0", "kB", "whole"],
        ["out", "float32[5]", "20", "B", "whole"],
        ["two/a1", "float32[3]", "12", "B", "whole"],
        ["two/a2", "float32[3]", "12", "B", "whole"],
    ]
