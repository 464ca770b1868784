"""What an optimizer's update depends on: found by following the traced program, for the optimizers people use."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trainband.errors import ModelError
from trainband.model.analysis.dependence import Formulas, analyse
from trainband.model.placement import GreedyBytes
from trainband.model.variables import Variables
from trainband.ps.rules import Async
from trainband.ps.worker.plan import Plan


def shaped(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, np.float32)


PARAMS = {"hidden": {"kernel": shaped(7, 3), "bias": shaped(3)}, "out": {"kernel": shaped(3, 3)}}
NAMES = ["hidden/bias", "hidden/kernel", "out/kernel"]


def only_kernels(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def noise() -> Any:
    """Adds what depends on nothing but a position: no element's own arithmetic."""

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda g: g + jnp.arange(g.size, dtype=g.dtype).reshape(g.shape), gradient), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def neighbours() -> Any:
    """Adds to each row the row before."""
    return optax.stateless(lambda updates, _: jax.tree.map(lambda g: g + jnp.roll(g, 1, axis=0), updates))


def averaged_state() -> Any:
    """The mixing goes through the state alone: it shows in the next update."""

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda g, s: g * s, gradient, state), jax.tree.map(
            lambda g, s: s + g.mean(), gradient, state
        )

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.ones_like, params), update)


@pytest.mark.parametrize(
    ("optimizer", "rows", "others", "by_block"),
    [
        (optax.sgd(0.1), [], [], True),
        (optax.sgd(0.1, momentum=0.9, nesterov=True), [], [], True),
        (optax.adam(0.1), [], [], True),
        (optax.adamw(optax.cosine_decay_schedule(0.1, 100)), [], [], True),
        (optax.rmsprop(0.1), [], [], True),
        (optax.lion(0.1), [], [], True),
        (optax.chain(optax.clip(1.0), optax.adagrad(0.1)), [], [], True),
        (optax.MultiSteps(optax.adam(0.1), 4), [], [], True),  # a cond whose branches work element by element
        (optax.adamw(0.1, mask=only_kernels), [], [], False),  # kernels decay, biases do not
        (optax.lamb(0.1), [0, 1, 2], [], False),  # a norm over each variable
        (optax.adafactor(0.1), [0, 1, 2], [], False),
        (optax.contrib.muon(0.1), [1, 2], [], False),  # matrices as a whole, vectors by Adam
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), [0, 1, 2], [0, 1, 2], False),
        (optax.apply_if_finite(optax.sgd(0.1), 3), [0, 1, 2], [0, 1, 2], False),
        (neighbours(), [0, 1, 2], [], False),
        (averaged_state(), [0, 1, 2], [], False),
        (noise(), [0, 1, 2], [], False),
    ],
)
def test_what_is_mixed(optimizer: Any, rows: list[int], others: list[int], by_block: bool) -> None:
    formulas = Formulas()
    whole = analyse(optimizer, PARAMS, formulas)
    assert whole.rows_mixed() == rows
    assert whole.variables_mixed() == others
    plan = Plan.of(Variables.of(PARAMS), optimizer, GreedyBytes(), Async(), 1)
    assert plan.shard_optimizer(0).by_block is by_block


def test_rows_that_are_mixed_stay_together() -> None:
    policy = GreedyBytes(max_slice_bytes=16)
    sliced = Plan.of(Variables.of(PARAMS), optax.adam(0.1), policy, Async(), 3).layout.placement
    whole = Plan.of(Variables.of(PARAMS), optax.lamb(0.1), policy, Async(), 3).layout.placement
    assert len(sliced.slices) > 3
    assert [piece.variable.name for piece in whole.slices] == NAMES
    assert all(piece.whole for piece in whole.slices)


def test_variables_that_are_mixed_are_refused_on_several_ps() -> None:
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    Plan.of(Variables.of(PARAMS), clipped, GreedyBytes(), Async(), 1)
    with pytest.raises(ModelError, match=r"hidden/bias, hidden/kernel, out/kernel are mixed.* over 2 ps\. Use one ps"):
        Plan.of(Variables.of(PARAMS), clipped, GreedyBytes(), Async(), 2)


def test_an_optimizer_that_asks_for_the_loss_is_refused() -> None:
    with pytest.raises(ModelError, match=r"missing 3 required.*'value_fn'.*can be a schedule"):
        Plan.of(Variables.of(PARAMS), optax.lbfgs(), GreedyBytes(), Async(), 1)


def test_arithmetic_that_differs_by_dtype_may_still_be_done_by_block() -> None:
    params = {"a": shaped(4), "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16), "c": shaped(2, 2)}
    plan = Plan.of(Variables.of(params), optax.adam(0.1), GreedyBytes(), Async(), 1)
    assert plan.shard_optimizer(0).by_block
    assert len(plan.layout.shards[0].blocks) == 2


def test_names_that_come_again_deeper_in_the_tree_are_told_apart() -> None:
    params = {"bias": shaped(3), "layer": {"bias": shaped(3), "kernel": shaped(7, 3)}}
    whole = analyse(optax.adam(0.1), params, Formulas())
    assert (whole.rows_mixed(), whole.variables_mixed()) == ([], [])
    assert whole.formula is not None
