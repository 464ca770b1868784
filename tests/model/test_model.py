"""Model: its promises, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband.errors import ModelError
from trainband.model.batch import examples_in
from trainband.strategies import Model

X = np.ones((4, 3), np.float32)


def init(_key: jax.Array) -> Any:
    return {"w": jnp.ones(3)}


def loss(params: Any, batch: Any) -> Any:
    return (batch @ params["w"]).mean()


def model(**changes: Any) -> Model:
    return Model(**{"init": init, "loss": loss, "optimizer": optax.sgd(0.1), **changes})


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"init": {"w": 1}}, r"init must be a function, got \{'w': 1\}"),
    ({"loss": None}, "loss must be a function, got None"),
    ({"optimizer": "adam"}, "must have the functions init and update, as optax's have, got 'adam'"),
    ({"optimizer": 0.1}, "must have the functions init and update"),
    ({"optimizer": optax.sgd}, "must have the functions init and update"),
]


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_are_checked_at_birth(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model(**arguments)


LOSSES: list[tuple[Callable[[Any, Any], Any], str]] = [
    # what loss returns -> the words
    (
        lambda params, batch: batch @ params["w"],
        r"floating-point scalar, got float32\[4\]; take the mean over the batch",
    ),
    (lambda params, batch: (batch @ params["w"]).mean(keepdims=True), r"got float32\[1\]"),
    (lambda *_: jnp.int32(3), r"got int32\[\]"),
    (lambda *_: True, r"got bool\[\]"),
    (lambda params, batch: (loss(params, batch), 3.0), r"scalar, \{name: metric\}\); it returned a tuple of .*, float"),
    (lambda params, batch: (loss(params, batch), {}, {}), "it returned a tuple of .*, dict, dict"),
    (lambda params, batch: ((batch @ params["w"]), {}), r"got float32\[4\]"),
    (lambda *_: None, "loss.. must return a floating-point scalar.*None"),
    (
        lambda params, batch: (loss(params, batch), {"each": batch @ params["w"]}),
        r"the metric 'each' as float32\[4\]; a metric must be a scalar: take its mean .*trainer\.predict",
    ),
    (lambda params, batch: (loss(params, batch), {"by": {"a": 1.0}}), "the metric 'by' as dict; a metric must be a"),
    (lambda params, batch: {"loss": loss(params, batch)}, "loss.. must return a floating-point scalar, got {'loss'"),
]


@pytest.mark.parametrize(("function", "words"), LOSSES, ids=range(len(LOSSES)))
def test_a_loss_that_is_no_scalar(function: Callable[[Any, Any], Any], words: str) -> None:
    made = model(loss=function)
    with pytest.raises(ModelError, match=words):
        jax.eval_shape(made.value, {"w": X[0]}, X)


def test_losses_with_and_without_metrics() -> None:
    params = {"w": jnp.ones(3)}
    value, metrics, _ = model().value(params, X)
    assert (float(value), dict(metrics)) == (3.0, {})
    with_metrics = model(loss=lambda params, batch: (loss(params, batch), {"twice": 2 * loss(params, batch)}))
    value, metrics, _ = with_metrics.value(params, X)
    assert (float(value), float(metrics["twice"])) == (3.0, 6.0)
    assert with_metrics.value(params, X)[0] == 3.0
    assert model(loss=lambda *_: 1.5).value(params, X)[0] == 1.5  # a Python float will do


VARIABLES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda _: {"w": "text"}, r"params\['w'\] is 'text' of type str"),
    (lambda _: {"f": len}, r"params\['f'\] is <built-in"),
    (lambda _: {"n": 3}, "int32"),
    (lambda _: {}, "no variables"),
    (lambda _: None, "no variables"),
    (lambda _: {"a": {"b": X}, "a/b": X}, "two variables have the name 'a/b'"),
]


@pytest.mark.parametrize(("function", "words"), VARIABLES, ids=range(len(VARIABLES)))
def test_params_that_cannot_be_trained(function: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model(init=function).variables()


def test_variables_are_found_without_making_them() -> None:
    huge = model(init=lambda _key: {"w": jnp.zeros((1 << 20, 1 << 14))})  # 64 GiB
    (variable,) = huge.variables().entries
    assert variable.nbytes == 1 << 36


def test_the_same_seed_gives_the_same_params() -> None:
    random = model(init=lambda key: {"w": jax.random.normal(key, (3,))}, seed=7)
    first, again = random.first_params(), random.first_params()
    other = model(init=random.init, seed=8).first_params()
    np.testing.assert_array_equal(first["w"], again["w"])
    assert not np.array_equal(first["w"], other["w"])


FIRST: list[tuple[str, Callable[[Any], Any]]] = [
    # what people return from init -> arrays of the dtypes that variables() says
    ("NumPy's float64", lambda _: {"w": np.zeros((2, 3)), "b": np.ones(3)}),
    ("Python's floats", lambda _: {"w": 0.5, "b": jnp.ones(3)}),
    ("bfloat16", lambda _: {"w": jnp.ones(3, jnp.bfloat16), "b": np.ones(3, np.float16)}),
]


@pytest.mark.parametrize("function", [function for _, function in FIRST], ids=[name for name, _ in FIRST])
def test_the_first_params_are_what_variables_says(function: Callable[[Any], Any]) -> None:
    made = model(init=function)
    leaves = jax.tree.leaves(made.first_params())
    entries = made.variables().entries
    assert [(leaf.shape, str(leaf.dtype)) for leaf in leaves] == [(entry.shape, entry.dtype) for entry in entries]


COUNTS: list[tuple[Any, int]] = [
    (X, 4),
    ((X, np.zeros(4)), 4),
    ({"label": np.zeros(7), "x": np.zeros((7, 2))}, 7),
    (np.float32(3.0), 1),
    (3, 1),
    ((), 1),
    ({"none": None}, 1),
    (np.zeros((0, 3)), 0),
]


@pytest.mark.parametrize(("batch", "count"), COUNTS, ids=range(len(COUNTS)))
def test_examples_in(batch: Any, count: int) -> None:
    assert examples_in(batch) == count
