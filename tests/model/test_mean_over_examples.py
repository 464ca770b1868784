"""Which losses are a mean over the examples: what the analysis says, against numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband.model.analysis.mean_over_examples import why_not_mean_of_examples

EXAMPLES, STEPS, FEATURES, CLASSES = 12, 5, 8, 6
Function = Callable[[Any, Any], Any]
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def params() -> Any:
    random = np.random.default_rng(3)

    def draw(*shape: int) -> Any:
        return 0.5 * random.normal(size=shape).astype(np.float32)

    return {
        "in": draw(FEATURES, 8),
        "out": draw(8, CLASSES),
        "bias": draw(CLASSES),
        "table": draw(CLASSES, FEATURES),
        "places": draw(STEPS, FEATURES),
        "attention": draw(3, FEATURES, 2, 4),
        "kernel": draw(3, 3, 1, 2),
        "state": draw(8, 8),
        "temperature": np.float32(1.5),
    }


def batch() -> Any:
    random = np.random.default_rng(5)
    return {
        "x": random.normal(size=(EXAMPLES, FEATURES)).astype(np.float32),
        "y": random.integers(0, CLASSES, EXAMPLES, np.int32),
        "image": random.normal(size=(EXAMPLES, 8, 8, 1)).astype(np.float32),
        "tokens": random.integers(0, CLASSES, (EXAMPLES, STEPS), np.int32),
        "next": random.integers(0, CLASSES, (EXAMPLES, STEPS), np.int32),
        "frames": random.normal(size=(EXAMPLES, STEPS, FEATURES)).astype(np.float32),
        "weight": random.integers(0, 2, EXAMPLES).astype(np.float32),
        "scale": np.float32(0.7),
    }


PARAMS, BATCH = params(), batch()


def logits(p: Any, b: Any) -> Any:
    return jnp.tanh(b["x"] @ p["in"]) @ p["out"] + p["bias"]


def losses(p: Any, b: Any) -> Any:
    return cross_entropy(logits(p, b), b["y"])


def mlp(p: Any, b: Any) -> Any:
    scores = logits(p, b)
    return cross_entropy(scores, b["y"]).mean(), {"accuracy": (scores.argmax(-1) == b["y"]).mean()}


def two_terms(p: Any, b: Any) -> Any:
    squares = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(p))
    error = jnp.square(logits(p, b) - 1).mean()
    return (losses(p, b).mean() - 0.1 * error) / p["temperature"] + 1e-3 * squares


def convolution(p: Any, b: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(b["image"], p["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
    hidden = jax.lax.reduce_window(jax.nn.relu(hidden), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    hidden = jax.lax.reduce_window(hidden, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4
    return cross_entropy(hidden.reshape(len(hidden), -1)[:, :8] @ p["out"], b["y"]).mean()


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(p: Any, b: Any) -> Any:
    x = p["table"][b["tokens"]] + p["places"]
    query, key, value = jnp.einsum("btd,kdhe->kbthe", layer_norm(x), p["attention"])
    scores = jnp.einsum("bqhe,bkhe->bhqk", query, key) / 2
    scores = jnp.where(jnp.tril(jnp.ones((STEPS, STEPS), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores), value)
    x = x + mixed.reshape(*x.shape)
    x = x + jax.nn.gelu(layer_norm(x) @ p["in"])
    scores = (x @ p["table"].T).reshape(-1, CLASSES)
    return cross_entropy(scores, b["next"].reshape(-1)).mean()


def library_attention(p: Any, b: Any) -> Any:
    query, key, value = jnp.einsum("btd,kdhe->kbthe", b["frames"], p["attention"])
    out = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return jnp.square(out).sum((1, 2, 3)).mean()


def recurrent(p: Any, b: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        state = jnp.tanh(state @ p["state"] + x @ p["in"])
        return state, state @ p["out"]

    frames = jnp.swapaxes(b["frames"], 0, 1)
    _, scores = jax.lax.scan(step, jnp.zeros((frames.shape[1], 8)), frames)
    return cross_entropy(scores.reshape(-1, CLASSES), b["next"].T.reshape(-1)).mean()


def one_at_a_time(p: Any, b: Any) -> Any:
    def of_one(x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(jax.nn.relu(x @ p["in"]) @ p["out"])[y]

    return jax.vmap(of_one)(b["x"], b["y"]).mean()


def own_column(rows: Any) -> Function:
    def function(p: Any, b: Any) -> Any:
        return -jax.nn.log_softmax(logits(p, b))[rows(len(b["y"])), b["y"]].mean()

    return function


def activations(p: Any, b: Any) -> Any:
    scores = logits(p, b)
    names = "relu gelu silu elu softplus log_softmax softmax relu6".split()
    return sum(jnp.square(getattr(jax.nn, name)(scores)).mean() for name in names)


def optax_losses(p: Any, b: Any) -> Any:
    scores = logits(p, b)
    hot = jax.nn.one_hot(b["y"], CLASSES)
    return {
        "softmax": optax.softmax_cross_entropy(scores, optax.smooth_labels(hot, 0.1)).mean(),
        "sigmoid": optax.sigmoid_binary_cross_entropy(scores, hot).mean(),
        "squared": optax.l2_loss(scores, hot).mean(),
        "huber": optax.huber_loss(scores, hot).mean(),
        "cosine": optax.cosine_distance(scores, hot + 0.1).mean(),
        "log_cosh": optax.log_cosh(scores, hot).mean(),
        "focal": optax.sigmoid_focal_loss(scores, hot).mean(),
        "hinge": optax.hinge_loss(scores, 2 * hot - 1).mean(),
    }


def metrics(p: Any, b: Any) -> Any:
    scores = logits(p, b)
    top = jax.lax.top_k(scores, 3)[1]
    return {
        "top": (top == b["y"][:, None]).any(-1).mean(),
        "hits": (scores.argmax(-1) == b["y"]).sum() / len(scores),
        "sorted": jnp.sort(scores, -1)[:, -1].mean(),
        "norm": jnp.linalg.norm(scores, axis=-1).mean(),
        "rate": p["temperature"] * b["scale"],
    }


def shapes(p: Any, b: Any) -> Any:
    x = b["frames"]
    parts = [x[:, 0], x[:, -1], x[:, ::2].sum(1), x.at[:, 1].set(0.0)[:, 1], jnp.flip(x, 1)[:, 0]]
    parts += [jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, 0], jnp.roll(x, 1, 1)[:, 2], jnp.cumsum(x, 1)[:, 3]]
    parts += [jax.lax.dynamic_index_in_dim(x, 2, 1, keepdims=False), *jnp.split(x, STEPS, 1)[0].swapaxes(0, 1)]
    return (jnp.concatenate(parts, -1) ** 2).mean() * p["temperature"]


def either(p: Any, b: Any) -> Any:
    return jax.lax.cond(p["temperature"] > 1, lambda: losses(p, b).mean(), lambda: jnp.square(logits(p, b)).mean())


def _unless_zero(total: Any, count: Any) -> Any:
    count = count.astype(jnp.float32)
    return jnp.where(count == 0, 0.0, total / jnp.where(count == 0, 1.0, count))


ACCEPTED: dict[str, Function] = {
    "mlp": mlp,
    "two terms": two_terms,
    "convolution": convolution,
    "transformer": transformer,
    "library attention": library_attention,
    "recurrent": recurrent,
    "vmap": one_at_a_time,
    "own column": own_column(jnp.arange),
    "own column by numpy": own_column(np.arange),
    "activations": activations,
    "optax": optax_losses,
    "metrics": metrics,
    "shapes": shapes,
    "cond on the params": either,
    "checkpoint": jax.checkpoint(mlp),
    "jit": jax.jit(mlp),
    "sum over the steps": lambda p, b: jnp.square(b["frames"] @ p["in"]).sum((1, 2)).mean(),
    "divided before": lambda p, b: (losses(p, b) / len(b["y"])).sum(),
    "times one over": lambda p, b: losses(p, b).sum() * (1 / len(b["y"])),
    "by an array": lambda p, b: losses(p, b).sum() / jnp.asarray(len(b["y"]), jnp.float32),
    "inner product": lambda p, b: jnp.vdot(logits(p, b), logits(p, b)) / b["x"].size,
    "weights of the examples": lambda p, b: (losses(p, b) * b["weight"]).mean(),
    "constants": lambda p, b: (losses(p, b) * np.ones(len(b["y"]), np.float32)).mean(),
    "bfloat16": lambda p, b: losses(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p), b).mean().astype(float),
    "nothing of the batch": lambda p, b: p["temperature"] * b["scale"],
}

ACCEPTED |= {
    # As Keras has it: the number of examples is the product of a shape, and dividing by none is avoided.
    "size of a shape": lambda p, b: _unless_zero(losses(p, b).sum(), jnp.prod(jnp.array([len(b["y"])]))),
    # And its metrics: a total and a count begin at zero.
    "running totals": lambda p, b: {
        "total": (0.0 + losses(p, b).mean() * len(b["y"]) - 0.0) / len(b["y"]),
        "count": (0.0 + jnp.float32(len(b["y"])) - 0.0) / len(b["y"]),
    },
}

WITH_GRADIENT = {"mlp", "convolution", "transformer", "recurrent", "vmap"}
"""The models: to compile the gradients of the others too would take as long again."""


@jax.custom_jvp
def shared_slope(x: Any) -> Any:
    return x * 2


@shared_slope.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return shared_slope(primals[0]), tangents[0] * primals[0].mean()


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, slope: (jnp.clip(slope, -0.01, 0.01),))


def batch_norm(p: Any, b: Any) -> Any:
    hidden = b["x"] @ p["in"]
    return cross_entropy((hidden - hidden.mean(0)) @ p["out"], b["y"]).mean()


def contrastive(p: Any, b: Any) -> Any:
    hidden = b["x"] @ p["in"]
    return cross_entropy(hidden @ hidden.T, jnp.arange(len(hidden))).mean()


def cut(p: Any, b: Any) -> Any:
    values = losses(p, b)
    return values[: len(values) // 2].mean()


def bytes_of(p: Any, b: Any) -> Any:
    return jnp.minimum(200 * losses(p, b), 255).astype(jnp.uint8)


REFUSED: dict[str, tuple[str, Function]] = {
    "one added to a sum": ("added to something", lambda p, b: (1.0 + losses(p, b).sum()) / len(b["y"])),
    "product of another shape": (
        "but is not it",
        lambda p, b: losses(p, b).sum() / jnp.prod(jnp.array([len(b["y"]), len(b["y"])])).astype(jnp.float32),
    ),
    "sum": ("not divided", lambda p, b: losses(p, b).sum()),
    "count metric": ("not divided", lambda p, b: {"hits": (logits(p, b).argmax(-1) >= 0).sum()}),
    "divided by something": ("not divided", lambda p, b: losses(p, b).sum() / 7),
    "divided twice": ("not divided", lambda p, b: losses(p, b).mean() / len(b["y"])),
    "divided by its root": ("but is not it", lambda p, b: losses(p, b).sum() / len(b["y"]) ** 0.5),
    "divided by one more, coarsely": (
        "but is not it",
        lambda p, b: losses(p, b).astype(jnp.bfloat16).sum() / jnp.bfloat16(len(b["y"]) + 1),
    ),
    "rounded after division": (
        "divided by their number",
        lambda p, b: (100 * losses(p, b) / len(b["y"])).astype(int).sum(),
    ),
    "sum and mean": ("added to something", lambda p, b: losses(p, b).mean() + losses(p, b).sum()),
    "neighbours in pairs": ("reshape of the batch", lambda p, b: losses(p, b).repeat(2).reshape(2, -1)[0].mean()),
    "sum of bytes": ("reduce_sum over", lambda p, b: jnp.sum(bytes_of(p, b), dtype=jnp.uint8) / len(b["y"])),
    "own table": ("positions", lambda p, b: (losses(p, b) * p["places"][jnp.arange(len(b["y"])), 0]).mean()),
    "compared with the mean": (
        "back to the",
        lambda p, b: jnp.tanh(losses(p, b) - losses(p, b).mean()).mean(),
    ),
    "divided by one more": ("but is not it", lambda p, b: losses(p, b).sum() / (len(b["y"]) + 1)),
    "masked": ("div of a mean", lambda p, b: (losses(p, b) * b["weight"]).sum() / b["weight"].sum()),
    "batch norm": ("back to the examples", batch_norm),
    "contrastive": ("with other examples", contrastive),
    "maximum": ("reduce_max over the batch", lambda p, b: losses(p, b).max()),
    "root of the mean": ("sqrt of a mean", lambda p, b: jnp.sqrt(jnp.square(logits(p, b)).mean())),
    "square of the mean": ("of a mean", lambda p, b: losses(p, b).mean() ** 2),
    "product of means": ("mul of a mean", lambda p, b: losses(p, b).mean() * logits(p, b).mean()),
    "deviation": ("back to the examples", lambda p, b: losses(p, b).std()),
    "places as weights": ("positions", lambda p, b: (losses(p, b) * jnp.arange(len(b["y"]))).mean()),
    "constant weights": ("constant", lambda p, b: (losses(p, b) * np.linspace(0, 1, len(b["y"]))).mean()),
    "first example": ("slice of the batch", lambda p, b: losses(p, b)[0]),
    "neighbour": ("slice of the batch", lambda p, b: (losses(p, b) * jnp.roll(b["x"][:, 0], 1)).mean()),
    "reversed": ("rev over the batch", lambda p, b: (losses(p, b) * b["x"][::-1, 0]).mean()),
    "half of them": ("slice of the batch", cut),
    "sorted": ("sort over the batch", lambda p, b: jnp.sort(losses(p, b))[:3].mean()),
    "running sum": ("cumsum over the batch", lambda p, b: jnp.cumsum(losses(p, b)).mean()),
    "others by index": ("number of examples", lambda p, b: (losses(p, b) * b["x"][b["y"], 0]).mean()),
    "penalty by the size": ("number of examples", lambda p, b: losses(p, b).mean() + p["in"].sum() / len(b["y"])),
    "size as a number": ("number of examples", lambda p, b: losses(p, b).mean() * p["temperature"] ** len(b["y"])),
    "branch on the size": ("but is not it", lambda p, b: losses(p, b).mean() * (2 if len(b["y"]) > 150 else 1)),
    "whole number": ("rounded", lambda p, b: (100 * losses(p, b).mean()).astype(int)),
    "hard-wired": ("cannot be traced", lambda p, b: losses(p, b).reshape(EXAMPLES).mean()),
    "slope of others": ("by custom_jvp", lambda p, b: shared_slope(losses(p, b)).mean()),
    "slope by hand": ("by hand", lambda p, b: clipped(losses(p, b)).mean()),
    "slope by hand of params": ("by hand", lambda p, b: losses(jax.tree.map(clipped, p), b).mean()),
    "pairs": ("different axes", lambda p, b: jnp.abs(losses(p, b)[:, None] - losses(p, b)[None]).mean()),
    "a loop over examples": ("scan", lambda p, b: jax.lax.scan(lambda c, x: (c * x, x), 1.0, losses(p, b))[0]),
    "cond on the batch": (
        "cond",
        lambda p, b: jax.lax.cond(b["x"].sum() > 0, lambda: p["bias"], lambda: -p["bias"])[0],
    ),
    "printed": ("side effects", lambda p, b: (jax.debug.print("{}", p["bias"]), losses(p, b).mean())[1]),
    "not a scalar": ("along an axis", losses),
    "fixed key": ("a key in", lambda p, b: (losses(p, b) * jax.random.normal(jax.random.key(0), b["y"].shape)).mean()),
    "shuffled": (
        "batch",
        lambda p, b: (
            losses(p, b) * jax.random.permutation(jax.random.key(p["temperature"].astype(int)), b["weight"])
        ).mean(),
    ),
}


def shards(whole: Any) -> list[Any]:
    half = EXAMPLES // 2
    return [
        jax.tree.map(lambda leaf, part=part: leaf[part] if leaf.ndim else leaf, whole)
        for part in (slice(None, half), slice(half, None))
    ]


def total(function: Function) -> Callable[[Any, Any], jax.Array]:
    """All outputs as one number, so that one gradient speaks for all of them."""
    return lambda p, b: sum(
        (3.0**i * jnp.asarray(out, jnp.float32) for i, out in enumerate(jax.tree.leaves(function(p, b)))), jnp.zeros(())
    )


def quick_to_compile() -> dict[str, Any]:
    """Options for a program that runs once: to compile them is nearly all of the time that these tests take."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    old_emitters = {"xla_cpu_use_fusion_emitters": False}  # a third of the time to compile, with jax 0.10.2
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # a version of XLA may not have this one
        jax.jit(lambda: 0, compiler_options=old_emitters)()
        options |= old_emitters
    return options


def distances(functions: dict[str, Function], with_gradient: Callable[[str], bool]) -> dict[str, float]:
    """How far the mean over two halves, of value and gradient, is from the whole batch's.

    All functions are one program: what they have in common is compiled once.
    """

    def compute(p: Any, b: Any) -> Any:
        numbers = {name: total(function) for name, function in functions.items()}
        return {
            name: jax.value_and_grad(number)(p, b) if with_gradient(name) else number(p, b)
            for name, number in numbers.items()
        }

    compiled = jax.jit(compute, compiler_options=quick_to_compile())
    whole, first, second = (compiled(PARAMS, part) for part in (BATCH, *shards(BATCH)))

    def apart(a: Any, b: Any, c: Any) -> float:
        a, b, c = map(np.asarray, (a, b, c))
        return float(np.max(np.abs((a + b) / 2 - c)) / (1 + np.max(np.abs(c))))

    return {
        name: max(jax.tree.leaves(jax.tree.map(apart, first[name], second[name], whole[name]))) for name in functions
    }


@pytest.fixture(scope="module")
def distances_of_accepted() -> dict[str, float]:
    return distances(ACCEPTED, lambda name: name in WITH_GRADIENT)


@pytest.fixture(scope="module")
def distances_of_refused() -> dict[str, float]:
    chosen = {name: function for name, (_, function) in REFUSED.items() if name not in ALIKE_ALL_THE_SAME}
    return distances(chosen, lambda name: "slope" in name)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_mean_of_examples_is_seen(name: str) -> None:
    assert why_not_mean_of_examples(ACCEPTED[name], PARAMS, BATCH) == ""


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_is_one(distances_of_accepted: dict[str, float], name: str) -> None:
    assert distances_of_accepted[name] < (2e-2 if name == "bfloat16" else 1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused_with_the_reason(name: str) -> None:
    wanted, function = REFUSED[name]
    assert wanted in why_not_mean_of_examples(function, PARAMS, BATCH)


SURELY_NONE = {
    "not a scalar",
    "sum",
    "count metric",
    "divided by something",
    "divided twice",
    "sum and mean",
    "one added to a sum",
    "compared with the mean",
    "masked",
    "batch norm",
    "root of the mean",
    "square of the mean",
    "product of means",
    "deviation",
}
"""What is refused because of what it is, not because the analysis knows too little of it."""


@pytest.mark.parametrize("name", REFUSED)
def test_only_what_surely_is_no_mean_is_warned_of(name: str) -> None:
    reason = why_not_mean_of_examples(REFUSED[name][1], PARAMS, BATCH, surely=True)
    assert bool(reason) == (name in SURELY_NONE), reason


ALIKE_ALL_THE_SAME = {
    "branch on the size",
    "hard-wired",
    "printed",
    "not a scalar",
    "whole number",
    "cond on the batch",
}
"""Refused, but not seen to differ by these numbers, or not to be computed for half the batch."""


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - ALIKE_ALL_THE_SAME))
def test_what_is_refused_does_differ(distances_of_refused: dict[str, float], name: str) -> None:
    assert distances_of_refused[name] > 1e-4


def test_shapes_will_do_and_scalars_of_the_batch_are_no_examples() -> None:
    kinds = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (PARAMS, BATCH))
    assert why_not_mean_of_examples(transformer, *kinds) == ""
    assert why_not_mean_of_examples(lambda p, b: losses(p, b).mean() * b["scale"], *kinds) == ""


def test_dropout_with_a_key_from_the_others_is_a_mean_of_examples() -> None:
    def dropout(others: Any, b: Any) -> Any:
        p, key = others
        mask_key, noise_key, each_key = jax.random.split(key, 3)
        x = b["x"] * jax.random.bernoulli(mask_key, 0.9, b["x"].shape) / 0.9
        x = x + 0.1 * jax.random.normal(noise_key, (len(x), 1)) + jax.random.uniform(noise_key, (FEATURES,))
        keys = jax.random.split(each_key, len(x))
        x = x + jax.vmap(lambda key: jax.random.truncated_normal(key, -1, 1, (FEATURES,)))(keys)
        return losses(p, b | {"x": x}).mean()

    key = jax.random.key(0)
    assert why_not_mean_of_examples(dropout, (PARAMS, key), BATCH) == ""
    raw = lambda others, b: dropout((others[0], jax.random.wrap_key_data(others[1])), b)  # noqa: E731
    assert why_not_mean_of_examples(raw, (PARAMS, jax.random.key_data(key)), BATCH) == ""


def test_the_two_numbers_of_examples_may_be_those_that_are_used() -> None:
    def folded(p: Any, b: Any) -> Any:
        return losses(p, b).reshape(2, -1).mean(1).mean()

    assert "cannot be traced" in why_not_mean_of_examples(folded, PARAMS, BATCH)
    assert "reshape" in why_not_mean_of_examples(folded, PARAMS, BATCH, sizes=(6, 12))
    assert why_not_mean_of_examples(mlp, PARAMS, BATCH, sizes=(6, 12)) == ""
    assert "two different" in why_not_mean_of_examples(mlp, PARAMS, BATCH, sizes=(12, 12))


def test_a_batch_without_examples_is_refused() -> None:
    assert "no array" in why_not_mean_of_examples(lambda p, b: p * b, 1.0, 2.0)
    uneven = (np.zeros(3), np.zeros(4))
    assert "differ in length" in why_not_mean_of_examples(lambda p, b: p * b[0].mean() * b[1].mean(), 1.0, uneven)
