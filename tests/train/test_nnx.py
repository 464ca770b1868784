"""Flax NNX modules: the same numbers as a loop by hand, and everything that can be wrong with a module."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import trainband
from trainband.cluster import Cluster, Task
from trainband.errors import ModelError
from trainband.strategies import OneDevice, ParameterServer
from trainband.train import Trainer

TOLERANCE = 2e-6
"""The same operations in another compiled program: float32 rounding."""


class Net(nnx.Module):
    """Everything that a module may hold: batch statistics, shared and own random streams, plain arrays, a list."""

    def __init__(self, rngs: nnx.Rngs, rate: float = 0.3) -> None:
        self.first = nnx.Linear(6, 4, use_bias=False, rngs=rngs)  # one would be trained by rounding alone
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 3, rngs=rngs)
        self.seen = nnx.Variable({"batches": jnp.zeros((), jnp.int32)})
        self.scale = jnp.full(3, 2.0)
        self.noise = rngs.noise.fork() if "noise" in rngs else None

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.first(x)))
        for block in self.blocks:
            x = x + nnx.relu(block(self.dropout(x)))
        self.features = nnx.Intermediate(x)
        if not self.norm.use_running_average:
            self.seen["batches"] = self.seen["batches"] + 1
            if self.noise is not None:
                x = x + 0.01 * self.noise.normal(x.shape)
        return self.head(x) * self.scale


def net(seed: int = 0, **changes: Any) -> Any:
    return Net(nnx.Rngs(seed, noise=7), **changes)


def loss(model: Net, batch: Any) -> Any:
    x, y = batch
    logits = model(x)
    accuracy = (logits.argmax(-1) == y).mean()
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), {"accuracy": accuracy}


def batches(count: int, size: int = 8, seed: int = 0) -> Iterator[Any]:
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield generator.normal(size=(size, 6)).astype(np.float32), generator.integers(0, 3, size)


@cache
def by_hand() -> tuple[dict[str, Any], list[float]]:
    """The loop of the NNX guides, over 12 batches: (all values at the end, the losses on the way)."""
    model = net()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: Net, optimizer: Any, batch: Any) -> Any:
        (value, _), gradient = nnx.value_and_grad(loss, has_aux=True)(model, batch)
        optimizer.update(model, gradient)
        nnx.pop(model, nnx.Intermediate)
        return value

    losses = [float(step(model, optimizer, batch)) for batch in batches(12)]
    return values(model), losses


def trainer(model: Any, loss: Any = loss, **switches: Any) -> Any:
    fields: dict[str, Any] = {
        "optimizer": optax.adam(1e-2),
        "strategy": OneDevice("cpu"),
        "console": False,
        "say": pytest.fail,
    }
    return Trainer.from_nnx(model, loss, **{**fields, **switches})


def values(model: Any) -> dict[str, Any]:
    """All arrays of a module by their paths, keys as their data."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Not(nnx.Intermediate))):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found[jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return found


def expect_same(one: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_it_is_the_loop_by_hand() -> None:
    model = net()
    kept = jax.tree.leaves(nnx.state(model, nnx.Param))
    before = [np.array(leaf) for leaf in kept]
    result = trainer(model).fit(batches(12))
    expected, losses = by_hand()
    np.testing.assert_allclose(result.history[:, 1], losses, rtol=1e-5)
    expect_same(expected, values(model))
    for one, other in zip(kept, before, strict=True):
        np.testing.assert_array_equal(one, other)  # what the module had before is not written over
    assert values(model)["['seen'].value['batches']"] == 12
    assert values(model)["['noise']['count'].value"] > 0
    assert not np.array_equal(values(model)["['head']['kernel'].value"], values(net())["['head']['kernel'].value"])
    model.eval()
    assert isinstance(model(next(batches(1))[0]), jax.Array)  # it is an ordinary module


def test_names_are_those_of_nnx() -> None:
    model = net()
    made = trainer(model)
    expected = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    assert str(jax.tree.structure(made.params)) == str(jax.tree.structure(expected))
    jax.tree.map(np.testing.assert_array_equal, made.params, expected)
    assert set(made.model_state) == {"norm", "dropout", "seen", "scale", "noise"}
    assert made.model_state["dropout"]["rngs"]["key"].dtype == np.uint32


def test_training_goes_on_and_the_module_follows() -> None:
    model = net()
    every = list(batches(12))
    made = trainer(model)
    made.fit(every[:5])
    made.fit(every[5:])
    expect_same(by_hand()[0], values(model))
    with trainband.MonitoredSession(made) as session:
        for batch in session.feed(every[:1], repeat=False):
            session.run(batch)
        session.used_up()
    assert values(model)["['seen'].value['batches']"] == 12
    assert made.nnx_model() is model
    assert values(model)["['seen'].value['batches']"] == 13


def test_evaluations_are_without_dropout_and_change_nothing() -> None:
    model = net(rate=0.9)
    made = trainer(model)
    made.fit(batches(10))
    held_out = list(batches(3, size=16, seed=1))
    found, again = made.evaluate(held_out), made.evaluate(held_out)
    before = values(model)
    expect_same(values(made.nnx_model()), before)
    predicted = made.predict(lambda model, batch: model(batch[0]), held_out)
    graph, state = nnx.split(model)
    copy = nnx.merge(graph, state)
    copy.eval()
    np.testing.assert_allclose(predicted, np.concatenate([copy(x) for x, _ in held_out]), rtol=1e-5, atol=1e-6)
    expected = np.mean([loss(copy, batch)[0] for batch in held_out])
    assert found == again
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
    assert not model.dropout.deterministic
    assert not model.norm.use_running_average
    # As the module trains, the loss is another one: else nothing has been shown.
    assert abs(float(np.mean([loss(copy_in_training(model), batch)[0] for batch in held_out])) - expected) > 0.01


def copy_in_training(model: Net) -> Net:
    return nnx.merge(*nnx.split(model))


def test_a_loss_for_evaluations_alone() -> None:
    seen = []

    def error(model: Net, batch: Any) -> Any:
        seen.append(model.norm.use_running_average)
        return (model(batch[0]).argmax(-1) != batch[1]).mean()

    assert 0 <= trainer(net(), evaluation_loss=error).evaluate(batches(1)).loss <= 1
    assert seen == [True]


def test_a_module_trains_in_the_mode_that_it_is_in() -> None:
    model = net()
    model.eval()
    made = trainer(model)
    made.fit(batches(5))
    assert values(model)["['seen'].value['batches']"] == 0
    np.testing.assert_array_equal(model.norm.mean[...], 0.0)


def test_switches_of_the_trainer() -> None:
    model = net()
    result = trainer(model, accumulate=2, remat=True, donate=False, compute_dtype=jnp.bfloat16).fit(batches(6))
    assert result.global_step == 3
    assert values(model)["['seen'].value['batches']"] == 6
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"float32"}


class Plain(nnx.Module):
    """Nothing but params."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(2, 1, rngs=rngs)


def test_a_module_without_a_state_and_a_loss_with_a_key() -> None:
    keys = []

    def squared(model: Plain, batch: Any, key: Any) -> Any:
        keys.append(key)
        return ((model.linear(batch) - 5 + jax.random.uniform(key)) ** 2).mean()

    model = Plain(nnx.Rngs(0))
    made = trainer(model, squared)
    result = made.fit([np.ones((4, 2), np.float32)] * 30)
    assert made.model_state is None
    assert result.history[-1, 1] < result.history[0, 1]
    assert np.isfinite(made.evaluate([np.ones((4, 2), np.float32)]).loss)
    assert all(jnp.issubdtype(key.dtype, jax.dtypes.prng_key) for key in keys)
    assert made.predict(lambda model, x: model.linear(x), [np.ones((3, 2), np.float32)]).shape == (3, 1)


def test_a_loss_with_a_key_of_a_module_with_a_state() -> None:
    def drawn(model: Outgrown, batch: Any, key: Any) -> Any:
        return (model.weight * batch).sum() * 0 + jax.random.uniform(key)

    first, second = (trainer(Outgrown(), drawn).fit([ONES] * 3).history[:, 1] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(set(first)) == 3


def test_a_checkpoint_brings_back_random_streams(tmp_path: Path) -> None:
    every = list(batches(12))
    trainer(net()).fit(every, steps=4, checkpoint_dir=tmp_path)
    again = net(seed=3)
    trainer(again, say=lambda _: None).fit(every, steps=12, checkpoint_dir=tmp_path)
    expect_same(by_hand()[0], values(again))


def test_each_worker_of_a_parameter_server_draws_its_own() -> None:
    """What the loss of each worker draws, without starting a job."""

    def drawn(model: Any, batch: Any) -> Any:
        del batch
        return model.noise.uniform() + 0.0 * model.head.kernel[0, 0]

    cluster = trainband.ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1", "d:1"]})
    found, after = [], []
    for worker in range(3):
        strategy = ParameterServer(Cluster(spec=cluster, task=Task("worker", worker)), device="cpu")
        made = trainer(net(), drawn, strategy=strategy)
        model = made._model  # noqa: SLF001 - what it gives the strategy
        for step in range(2):
            _, _, state = (
                one := model.value(model.first_params(), None, jax.random.key(10 * worker + step), model.first_state())
            )
            found.append(float(one[0]))
            after.append(state["noise"])
    assert found[0] == found[1] == float(net().noise.uniform())
    assert len(set(found)) == 5  # the others never repeat themselves
    for state in after:
        jax.tree.map(np.testing.assert_array_equal, state, after[0])


class Outgrown(nnx.Module):
    """A loss of it makes it grow."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(3))
        self.last = nnx.Variable(jnp.zeros(3))


def grow(model: Any, batch: Any) -> Any:
    model.extra = nnx.Variable(batch)
    return model.weight.sum()


def widen(model: Any, batch: Any) -> Any:
    model.last[...] = batch
    model.last = nnx.Variable(jnp.zeros(5))
    return model.weight.sum()


def no_params() -> Any:
    return nnx.Dropout(0.5, rngs=nnx.Rngs(0))


ONES = np.ones(3, np.float32)

# module, loss, what is said
WRONG_MODULES: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: {"kernel": jnp.ones(3)}, loss, r"needs a flax\.nnx\.Module, got a dict"),
    (lambda: Net, loss, r"needs a module, not a class; pass Net\(\.\.\., rngs=nnx\.Rngs\(0\)\)"),
    (no_params, loss, r"the Dropout has no nnx\.Param"),
    (net, "loss", r"loss must be a function, got 'loss'"),
]


@pytest.mark.parametrize(("make", "function", "said"), WRONG_MODULES)
def test_modules_that_cannot_be_trained(make: Callable[[], Any], function: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        trainer(make(), function)


# loss of an Outgrown, what is said
WRONG_LOSSES: list[tuple[Any, str]] = [
    (grow, r"loss\(\) changed the variables of the module: extra, a variable \[3\], is new"),
    (widen, r"last was a variable \[3\] and is now a variable \[5\]"),
    (lambda model, batch: ((model.weight * batch).sum(), 1, 2), r"it returned a tuple of \w+, int, int"),
    (lambda model, batch: ((model.weight * batch).sum(), 1), r"it returned a tuple of \w+, int"),
    (lambda model, batch: model.weight * batch, r"floating-point scalar, got float32\[3\]"),
    (lambda *_: None, r"floating-point scalar, got None"),
]


@pytest.mark.parametrize(("function", "said"), WRONG_LOSSES)
def test_losses_that_cannot_be_trained(function: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        trainer(Outgrown(), function).fit([ONES])


@pytest.mark.parametrize("switch", ["init", "init_state"])
def test_switches_that_the_module_is(switch: str) -> None:
    with pytest.raises(ModelError, match=f"takes no {switch}="):
        trainer(net(), **{switch: lambda key: key})


def replaced_head(model: Net) -> None:
    model.head = nnx.Linear(4, 5, rngs=nnx.Rngs(0))


def lost_a_block(model: Net) -> None:
    model.blocks.pop()


def other_rate(model: Net) -> None:
    model.dropout.rate = 0.1


def to_evaluation(model: Any) -> None:
    model.eval()


# what is done to a module with a trainer, what is said, whether its values can still be brought back
CHANGES: list[tuple[Callable[[Net], None], str, bool]] = [
    (replaced_head, r"head/bias was a param float32\[3\] and is now a param float32\[5\]", False),
    (lost_a_block, r"blocks/1/bias is missing", False),
    (to_evaluation, r"deterministic was False and is now True.*model\.train\(\)", True),
    (other_rate, r"rate was 0\.3 and is now 0\.1", True),
]


@pytest.mark.parametrize(("change", "said", "fits"), CHANGES)
def test_a_module_that_was_changed_meanwhile(change: Callable[[Net], None], said: str, fits: bool) -> None:
    model = net()
    made = trainer(model)
    change(model)
    with pytest.raises(ModelError, match=f"the Net was changed after its trainer was made: .*{said}"):
        made.fit(batches(2))
    if fits:
        assert made.nnx_model() is model
    else:
        with pytest.raises(ModelError, match="was changed"):
            made.nnx_model()


NO_FLAX = """
import sys
sys.modules["flax"] = None
import optax
from trainband import Trainer
try:
    Trainer.from_nnx(object(), print, optimizer=optax.sgd(0.1))
except ValueError as exc:
    print(type(exc).__name__, exc)
"""


def test_without_flax() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FLAX], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (
        "ModelError Trainer.from_nnx needs Flax, which is not installed: pip install 'trainband[flax]'.\n",
        0,
    )
