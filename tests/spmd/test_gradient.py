"""The Trainer's switches that shape a worker's gradient, under every strategy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from tests.strategies.regression import batches, init, loss, model

from trainband.errors import ModelError
from trainband.model.batch import examples_in_step
from trainband.spmd.gradient import GradientFunction, all_finite, mean_of
from trainband.spmd.gradient_all_reduce import each_by_itself

PARAMS: Any = init(jax.random.key(1))


def gradient_of(rank: int = 0, **changes: Any) -> Any:
    """Returns a function of a batch: loss, gradient and carry of the first call."""
    function = GradientFunction(model(**changes), rank)
    return lambda batch: jax.jit(function)(PARAMS, None, function.first_carry(PARAMS), batch)


def assert_close(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)


@pytest.mark.parametrize("sizes", [(8, 8, 8), (4, 8, 12)], ids=["alike", "unequal"])
def test_micro_batches_make_the_gradient_of_all_of_them(sizes: tuple[int, ...]) -> None:
    parts = tuple(next(batches(1, size, seed)) for seed, size in enumerate(sizes))
    whole = tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    value, gradient, *_ = gradient_of(accumulate=3)(parts)
    wanted_value, wanted, *_ = gradient_of()(whole)
    assert_close((value, gradient), (wanted_value, wanted), 1e-5)
    assert examples_in_step(parts, 3) == examples_in_step(whole, 1) == 24


def test_bfloat16_computes_but_the_gradient_is_the_masters() -> None:
    batch = next(batches(1))
    seen = []

    def spy(params: Any, data: Any) -> Any:
        seen.append((params["out"]["kernel"].dtype, data[0].dtype))
        return loss(params, data)

    value, gradient, *_ = gradient_of(loss=spy, compute_dtype=jnp.bfloat16)(batch)
    exact_value, exact, *_ = gradient_of()(batch)
    assert seen[0] == (jnp.bfloat16, jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves((value, gradient))} == {np.dtype("float32")}
    assert_close((value, gradient), (exact_value, exact), 0.1)
    assert float(value) != float(exact_value)


def test_a_worker_transform_sees_the_whole_gradient() -> None:
    batch = next(batches(1))
    _, plain, *_ = gradient_of()(batch)
    _, clipped, *_ = gradient_of(worker_transform=optax.clip_by_global_norm(0.01))(batch)
    assert optax.tree.norm(plain) > 0.02
    np.testing.assert_allclose(optax.tree.norm(clipped), 0.01, rtol=1e-5)


def test_a_worker_transform_keeps_its_state() -> None:
    function = GradientFunction(model(worker_transform=optax.trace(0.5)), 0)
    batch = next(batches(1))
    _, first, _, carry, _ = function(PARAMS, None, function.first_carry(PARAMS), batch)
    _, second, *_ = function(PARAMS, None, carry, batch)
    assert_close(second, jax.tree.map(lambda g: 1.5 * g, first))


def test_each_worker_has_its_own_random_keys_the_same_in_every_run() -> None:
    def noisy(params: Any, batch: Any, key: Any) -> Any:
        return loss(params, batch)[0] * 0.0 + jax.random.uniform(key)

    def draws(rank: int) -> list[float]:
        function = GradientFunction(model(loss=noisy), rank)
        carry = function.first_carry(PARAMS)
        values = []
        for batch in batches(3):
            value, _, _, carry, _ = function(PARAMS, None, carry, batch)
            values.append(float(value))
        return values

    assert draws(0) == draws(0)
    assert len({*draws(0), *draws(1)}) == 6


def counted(params: Any, state: Any, batch: Any, key: Any) -> Any:
    """A loss whose state counts calls and averages the mean of x."""
    del key
    value, metrics = loss(params, batch)
    new = {"calls": state["calls"] + 1, "mean": 0.9 * state["mean"] + 0.1 * batch[0].mean()}
    return value, (new, metrics)


def first_state(key: Any) -> Any:
    del key
    return {"calls": jnp.zeros((), jnp.int32), "mean": jnp.ones(())}


def test_the_model_state_goes_through_micro_batches_one_after_the_other() -> None:
    parts = tuple(batches(3, 8))
    of = model(loss=counted, init_state=first_state, accumulate=3)
    function = GradientFunction(of, 0)
    step = function(PARAMS, of.first_state(), function.first_carry(PARAMS), parts)
    mean = 1.0
    for x, _ in parts:
        mean = 0.9 * mean + 0.1 * x.mean()
    assert int(step.state["calls"]) == 3
    np.testing.assert_allclose(step.state["mean"], mean, rtol=1e-5)


def test_a_state_that_changes_is_refused() -> None:
    def grows(params: Any, state: Any, batch: Any, key: Any) -> Any:
        del state, key
        return loss(params, batch)[0], ({"mean": jnp.ones(2)}, {})

    def forgets(params: Any, state: Any, batch: Any, key: Any) -> Any:
        del state, key
        return loss(params, batch)

    for function, words in (
        (grows, r"changed the shape of the state at \['mean'\]"),
        (forgets, "must return .scalar, .state"),
    ):
        of = model(loss=function, init_state=lambda _: {"mean": jnp.ones(())})
        with pytest.raises(ModelError, match=words):
            of.value(PARAMS, next(batches(1)), None, of.first_state())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state_merge": "sum"}, "state_merge must be 'mean' or 'chief'"),
        ({"accumulate": 0}, "accumulate must be a whole number of micro-batches, 1 or more, got 0"),
        ({"accumulate": 2.0}, "accumulate must be a whole number"),
        ({"remat": "dots"}, "remat must be True, False or one of jax.checkpoint_policies"),
        ({"compute_dtype": "bf16"}, "compute_dtype must be a floating-point dtype, such as 'bfloat16'"),
        ({"compute_dtype": jnp.int8}, "compute_dtype must be a floating-point dtype"),
    ],
)
def test_switches_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model(**changes)


def test_a_gradient_that_is_not_finite_leaves_no_trace_in_a_transform() -> None:
    function = GradientFunction(model(worker_transform=optax.trace(0.5)), 0)
    x, y = next(batches(1))
    carry = function.first_carry(PARAMS)
    carry = function(PARAMS, None, carry, (x * np.nan, y)).carry
    _, gradient, *_ = function(PARAMS, None, carry, (x, y))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_all_finite() -> None:
    good = ((jnp.ones(3), jnp.ones((2, 2), jnp.bfloat16)), ())
    assert all_finite(good)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert not all_finite((*good, (jnp.full(1, bad),)))
        assert not jax.jit(all_finite)((*good, (jnp.full(1, bad, jnp.bfloat16),)))
    assert not all_finite((jnp.array([jnp.inf, -jnp.inf]),))
    assert all_finite((jnp.full(2, 3e38), jnp.full(3, 6e4, jnp.float16))), "large, and their sum is not finite"
    many = [jnp.full(3, 3e38), *[jnp.full((2, 2), 3e38)] * 100]  # of one shape
    assert jax.jit(all_finite)(many)
    for place in (0, 50):
        for bad in (np.nan, np.inf, -np.inf):
            assert not jax.jit(all_finite)([*many[:place], many[place].at[0].set(bad), *many[place + 1 :]])


SUMMED: list[tuple[dict[str, list[float]], float, bool]] = [
    # gradient, loss and metric -> whether the gradient is finite
    ({"a": [1.0, 2.0], "b": [3.0]}, 0.5, True),
    ({"a": [1.0, 2.0], "b": [3.0]}, float("nan"), True),
    ({"a": [3e38, 3e38], "b": [3.0]}, 0.5, True),
    ({"a": [1.0, 2.0], "b": [float("nan")]}, 0.5, False),
    ({"a": [float("inf"), 2.0], "b": [float("-inf")]}, float("inf"), False),
]


@pytest.mark.parametrize(("gradient", "value", "finite"), SUMMED)
@pytest.mark.parametrize("flat", [True, False])
def test_what_is_exchanged_with_a_gradient_does_not_make_it_infinite(
    gradient: dict[str, list[float]], value: float, finite: bool, flat: bool
) -> None:
    """Loss, metrics and the processes' control flags share one array and are separated correctly."""
    given = jax.tree.map(jnp.asarray, {name: np.array(values, np.float32) for name, values in gradient.items()})

    def compute(params: Any, state: Any, batch: Any, key: Any) -> Any:
        del batch, key
        return jnp.float32(value), params, state, {"metric": jnp.float32(value), "count": jnp.int32(3)}

    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    split = each_by_itself(compute, mesh, ("data",), flat=flat)
    flags = jnp.array([[1.0, 0.0, 2.0, 0.001]])
    loss, summed, _, (metrics, told) = jax.jit(lambda batch: split(given, None, (batch, flags), None))(jnp.ones(2))
    assert_close((loss, metrics, mean_of(summed)), (value, {"metric": value, "count": 3.0}, given))
    assert metrics["count"].dtype == jnp.float32, "a mean of whole numbers is none"
    np.testing.assert_array_equal(told, flags[0])
    assert bool(jax.jit(all_finite)(summed)) is finite


def test_float16_is_summed_as_float32() -> None:
    """The sum over many devices may overflow float16, though the mean does not."""
    given = {"w": jnp.full(3, 4e4, jnp.float16), "v": jnp.ones(2)}

    def compute(params: Any, state: Any, batch: Any, key: Any) -> Any:
        del batch, key
        return jnp.float32(0.0), params, state, {}

    split = each_by_itself(compute, Mesh(np.array(jax.devices()[:1]), ("data",)), ("data",), flat=True)
    _, summed, *_ = jax.jit(lambda batch: split(given, None, (batch, jnp.zeros((1, 4))), None))(jnp.ones(2))
    assert {array.dtype for array in summed.arrays} == {np.dtype("float32")}
    mean = mean_of(summed)
    assert mean["w"].dtype == jnp.float16
    assert_close(mean, given)
