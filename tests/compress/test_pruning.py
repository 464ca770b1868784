"""Pruning: which weights are set to 0 and when, and that every strategy keeps them there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray
from tests.ps.jobs import FAST, in_thread, spec_of
from tests.ps.plans import assert_close, blocks_of, gradient_like, plan_of, tree_of

import trainband
from trainband.cluster import Cluster, Task
from trainband.compress import Pruning, Selection
from trainband.errors import ModelError
from trainband.model.optimizer import NewParams, apply_updates
from trainband.model.placement import RoundRobin
from trainband.ps.program.compiled_program import CompiledProgram
from trainband.wire.memory.transport import MemoryTransport

SMALL = Selection(smallest=8)
STRUCTURES: dict[str, Any] = {
    "unstructured": {"sparsity": 0.75},
    "2:4": {"structure": "2:4"},
    "rows": {"sparsity": 0.5, "structure": "rows"},
    "filters": {"sparsity": 0.5, "structure": "filters"},
}


def params() -> Any:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": {"kernel": jax.random.normal(first, (8, 6)), "bias": jnp.ones(6)},
        "out": jax.random.normal(second, (6, 4)),
        "scale": jnp.ones(()),
    }


def pruned(values: Any, **settings: Any) -> NDArray[Any]:
    """What one update without a gradient leaves of one variable."""
    optimizer = Pruning(select=Selection(smallest=1), **settings).wrap(optax.sgd(0.1))
    array = jnp.asarray(values, jnp.float32)
    updates, _ = optimizer.update(jnp.zeros_like(array), optimizer.init(array), array)
    return np.asarray(optax.apply_updates(array, updates))


@pytest.mark.smoke
def test_the_smallest_weights_go_exactly_as_many_as_asked_for() -> None:
    values = [[4.0, -1.0, 3.0], [2.0, 2.0, -5.0]]
    np.testing.assert_array_equal(pruned(values, sparsity=0.5), [[4, 0, 3], [0, 0, -5]])
    np.testing.assert_array_equal(pruned(np.ones((2, 2)), sparsity=0.5), [[0, 0], [1, 1]])  # of equals, the first


def test_of_every_m_inputs_of_an_output_n_are_kept() -> None:
    values = [[1.0, 9.0], [2.0, 8.0], [-3.0, 7.0], [4.0, -6.0], [0.5, 0.25]]  # the last row fills no group
    np.testing.assert_array_equal(pruned(values, structure="2:4"), [[0, 9], [0, 8], [-3, 0], [4, 0], [0.5, 0.25]])
    kernel = np.random.default_rng(0).normal(size=(3, 3, 4, 5))
    groups = pruned(kernel, structure="1:4").reshape(9, 4, 5)
    np.testing.assert_array_equal((groups != 0).sum(axis=1), 1)


def test_whole_rows_and_filters_go_by_their_norm() -> None:
    values = [[1.0, 2.0, 0.0], [9.0, 1.0, 1.0], [2.0, 2.0, 0.0], [0.0, 0.0, 5.0]]
    np.testing.assert_array_equal(
        pruned(values, sparsity=0.5, structure="rows"), [[0] * 3, [9, 1, 1], [0] * 3, [0, 0, 5]]
    )
    np.testing.assert_array_equal(pruned(values, sparsity=1 / 3, structure="filters")[:, 1], 0)


def test_sparsity_rises_by_the_cubic_schedule_and_pruned_weights_stay() -> None:
    pruning = Pruning(sparsity=0.75, begin_step=2, end_step=10, every=4, select=SMALL)
    optimizer = pruning.wrap(optax.adam(0.1))
    now, state = params(), None
    state = optimizer.init(now)
    update = jax.jit(optimizer.update)
    seen, zeros = [], np.zeros((8, 6), bool)
    for step in range(13):
        gradient = jax.tree.map(lambda leaf, at=step: jnp.cos(leaf + at), now)
        updates, state = update(gradient, state, now)
        now = optax.apply_updates(now, updates)
        found = np.asarray(now["hidden"]["kernel"]) == 0
        assert (found >= zeros).all()
        zeros = found
        seen.append(found.sum() / 48)
    half = 0.75 * (1 - 0.5**3)
    rounded = round(half * 48) / 48
    assert seen == [0] * 6 + [rounded] * 4 + [0.75] * 3
    assert float(now["hidden"]["bias"].min()) != 0
    assert float(np.abs(state.inner[0].mu["hidden"]["kernel"])[zeros].max()) < 1  # the optimizer saw no gradient there


def test_weights_that_are_0_when_training_begins_stay_so() -> None:
    first = params()
    first["hidden"]["kernel"] = first["hidden"]["kernel"].at[:4].set(0)
    first["out"] = jnp.zeros((6, 4))  # as it was made, and not pruned
    optimizer = Pruning(sparsity=0.0, select=SMALL).wrap(optax.adam(0.1))
    state, now = optimizer.init(first), first
    for _ in range(3):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, now), state, now)
        now = optax.apply_updates(now, updates)
    np.testing.assert_array_equal(now["hidden"]["kernel"][:4], 0)
    assert (now["hidden"]["kernel"][4:] != 0).all()
    assert (now["out"] != 0).all()


def test_an_optimizer_that_says_what_params_become_is_pruned_too() -> None:
    class Halving:
        init = staticmethod(lambda _: ())

        @staticmethod
        def update(gradient: Any, state: Any, now: Any) -> Any:
            return NewParams(jax.tree.map(lambda p, g: p / 2 + g, now, gradient)), state

    optimizer = Pruning(sparsity=0.5, select=Selection(smallest=1)).wrap(Halving())
    values = jnp.array([[4.0, 1.0], [3.0, 2.0]])
    updates, _ = optimizer.update(jnp.zeros((2, 2)), optimizer.init(values), values)
    np.testing.assert_array_equal(apply_updates(values, updates), [[2, 0], [1.5, 0]])


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize(("ps", "policy"), [(1, None), (2, RoundRobin(max_slice_bytes=32))])
def test_a_ps_makes_the_updates_of_one_device(name: str, ps: int, policy: Any) -> None:
    """With blocks in which several variables lie, and a limit that would slice them: whole ones are kept whole."""
    optimizer = Pruning(select=SMALL, every=2, end_step=4, **STRUCTURES[name]).wrap(optax.adam(1e-2))
    now = params()
    plan = plan_of(now, optimizer, ps=ps, policy=policy)
    assert all(piece.whole for piece in plan.layout.placement.slices if len(piece.variable.shape) == 2)
    programs = [CompiledProgram(plan.shard_optimizer(i).export(), "worker:0") for i in range(ps)]
    blocks = [program.owned(part) for program, part in zip(programs, blocks_of(plan, now), strict=True)]
    states = [program.initialise(part) for program, part in zip(programs, blocks, strict=True)]
    state = optimizer.init(now)
    for step in range(6):
        gradient = gradient_like(now, step)
        updates, state = jax.jit(optimizer.update)(gradient, state, now)
        now = optax.apply_updates(now, updates)
        for i, part in enumerate(blocks_of(plan, gradient)):
            blocks[i], states[i] = programs[i].update(blocks[i], states[i], part, programs[i].room_like(blocks[i]))
        found = tree_of(plan, [[np.asarray(block) for block in part] for part in blocks])
        assert_close(found, now)
        assert jax.tree.map(lambda leaf: (np.asarray(leaf) == 0).sum(), found) == jax.tree.map(
            lambda leaf: (np.asarray(leaf) == 0).sum(), now
        )
    assert (np.asarray(now["hidden"]["kernel"]) == 0).mean() >= 0.5


def regression(**changes: Any) -> trainband.Trainer:
    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {"hidden": jax.random.normal(first, (6, 16)), "out": jax.random.normal(second, (16, 2))}

    def loss(values: Any, batch: Any) -> Any:
        return ((jnp.tanh(batch @ values["hidden"]) @ values["out"] - batch[:, :2]) ** 2).mean()

    return trainband.Trainer(
        **{"init": init, "loss": loss, "optimizer": optax.sgd(0.05, momentum=0.9), "console": False, **changes},
        say=lambda _: None,
    )


def batches(count: int) -> list[NDArray[Any]]:
    random = np.random.default_rng(3)
    return [random.normal(size=(12, 6)).astype(np.float32) for _ in range(count)]


HALF = Pruning(sparsity=0.5, begin_step=2, end_step=8, every=2, select=SMALL)


@pytest.fixture
def job() -> Iterator[Any]:
    """Makes the strategy of the only worker of a job with two ps, which run as threads."""
    transport, spec = MemoryTransport(), spec_of(2, 1)

    def strategy(kind: str, index: int) -> trainband.ParameterServer:
        return trainband.ParameterServer(
            Cluster(spec=spec, task=Task(kind, index)),
            transport=transport,
            timeouts=FAST,
            say=lambda _: None,
            placement=RoundRobin(max_slice_bytes=64),
            device="cpu" if kind == "worker" else None,
        )

    serving = [in_thread(strategy("ps", i).serve, f"ps{i}") for i in range(2)]
    yield lambda: strategy("worker", 0)
    for future in serving:
        future.result(20.0)


def test_two_ps_train_a_pruned_model_as_one_device_does(job: Any) -> None:
    alone = regression(pruning=HALF)
    alone.fit(batches(12), 12)
    with regression(pruning=HALF, strategy=job()) as trainer:
        trainer.fit(batches(12), 12)
        found = trainer.params
    for name, wanted in alone.params.items():
        np.testing.assert_allclose(found[name], wanted, atol=2e-6)
        np.testing.assert_array_equal(found[name] == 0, wanted == 0)
        assert (wanted == 0).mean() == 0.5


def test_a_checkpoint_resumes_with_its_masks_and_is_fine_tuned_without(tmp_path: Any) -> None:
    whole = regression(pruning=HALF)
    whole.fit(batches(12), 12)
    first = regression(pruning=HALF)
    first.fit(batches(6), 6, checkpoint_dir=tmp_path / "runs")
    first.close()
    second = regression(pruning=HALF)
    second.fit(batches(12)[6:], 12, checkpoint_dir=tmp_path / "runs")
    for name, wanted in whole.params.items():
        np.testing.assert_array_equal(second.params[name] == 0, wanted == 0)
    tuned = regression(pruning=Pruning(sparsity=0.5, select=SMALL), optimizer=optax.adam(1e-3))
    tuned.restore(tmp_path / "runs", optimizer=False)
    tuned.fit(batches(5), 5)
    for name, wanted in second.params.items():
        np.testing.assert_array_equal(tuned.params[name] == 0, wanted == 0)
        assert (tuned.params[name] != wanted).any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "sparsity must be a share"),
        ({"sparsity": 1.0}, "sparsity must be a share of the weights, at least 0 and less than 1, got 1.0"),
        ({"structure": "2:2"}, "1 to m - 1 can be kept"),
        ({"structure": "2:4", "sparsity": 0.8}, "implies a sparsity of 0.5, not 0.8"),
        ({"structure": "columns", "sparsity": 0.5}, "structure must be one of unstructured, rows, filters, or n:m"),
        ({"sparsity": 0.5, "begin_step": 5, "end_step": 4}, "end_step must be a whole number of updates, 5 or more"),
        ({"sparsity": 0.5, "every": 0}, "every must be a whole number of updates, 1 or more"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Pruning(**settings)


def test_a_model_without_anything_to_prune_is_refused() -> None:
    with pytest.raises(ModelError, match=r"there is nothing to prune: .* at least 256 elements"):
        regression(pruning=Pruning(sparsity=0.5))
    with pytest.raises(ModelError, match="only='kernel' matches no tensor; the tensors are hidden, out"):
        regression(pruning=Pruning(sparsity=0.5, select=Selection(only="kernel")))
