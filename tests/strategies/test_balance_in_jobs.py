"""Sync(balance="speed") in whole jobs: several workers in threads, over the in-memory transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from tests.ps.jobs import in_thread
from tests.strategies.regression import batches, init, loss, model
from tests.strategies.test_rules_in_jobs import RuleJob, make  # noqa: F401 - a fixture
from tests.train.fakes import feed_of

from trainband.errors import ClusterError
from trainband.model.batch import Portion
from trainband.ps.rules import Sync
from trainband.strategies.gradient_step import Computed, GradientStep
from trainband.train.portions import Portions

SECONDS = (0.01, 0.02, 0.04)
"""That each worker says a part of its batches takes."""
STEPS = 12


class Paced:
    """A step that says it took as long as it would on a slower or faster machine."""

    def __init__(self, step: GradientStep, part_s: float) -> None:
        self._step = step
        self._part_s = part_s
        self.seen: list[Portion] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, shards: Any, carry: Any, batch: Portion) -> Computed:
        batch.waited_s = 0.0
        self.seen.append(batch)
        return self._step(shards, carry, batch)._replace(seconds=10 * self._part_s * batch.parts)


def train(replica: Any, part_s: float, seed: int, accumulate: int) -> list[Portion]:
    """Trains a worker; returns what each of its steps was made of."""
    replica.steps._step = paced = Paced(replica.steps._step, part_s)  # noqa: SLF001
    size = 16 // accumulate
    with feed_of(batches(100 * accumulate, size, seed), portions=Portions(replica.steps.share, accumulate)) as feed:
        replica.steps.start_training(STEPS)
        for portion in feed:
            if replica.steps.step(portion).done:
                break
    return paced.seen


@pytest.mark.parametrize(
    ("ps", "standbys", "accumulate"), [pytest.param(1, 0, 1, marks=pytest.mark.slow), (2, 1, 1), (1, 0, 8)]
)
def test_the_result_is_that_of_one_machine(
    make: Callable[..., RuleJob],  # noqa: F811
    ps: int,
    standbys: int,
    accumulate: int,
) -> None:
    """To float32 rounding, while shares go from equal ones to 4:2:1. Tolerance: 1e-5 of a param, 12 steps of Adam."""
    replicas = make(Sync(balance="speed"), ps, standbys=standbys).join(model(optax.adam(1e-2), accumulate=accumulate))
    futures = [
        in_thread(lambda r=r, i=i: train(r, SECONDS[i], i, accumulate), f"worker{i}")  # type: ignore[misc]
        for i, r in enumerate(replicas)
    ]
    seen = [future.result(60.0) for future in futures]
    parts = [tuple(portion.parts for portion in portions) for portions in zip(*seen, strict=True)]
    usual = 16 if accumulate == 1 else 8
    assert parts[0] == (usual, usual, usual)
    assert parts[-1] == ((28, 14, 6) if usual == 16 else (14, 7, 3))
    assert {sum(one) for one in parts} == {3 * usual}
    optimizer = optax.adam(1e-2)
    wanted: Any = init(jax.random.key(0))
    state = optimizer.init(wanted)
    for portions in zip(*seen, strict=True):
        pieces = [piece for portion in portions for piece in portion.batches]
        batch = tuple(np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        assert len(batch[0]) == 48
        gradient = jax.grad(lambda p, b=batch: loss(p, b)[0])(wanted)
        updates, state = optimizer.update(gradient, state, wanted)
        wanted = optax.apply_updates(wanted, updates)
    params = replicas[0].values.params()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), params, wanted)
    shares = [worker.share for worker in replicas[0].peers.status().workers]  # type: ignore[attr-defined]
    assert shares == [pytest.approx(one / (3 * usual)) for one in parts[-1]]


def test_a_batch_that_no_rule_has_measured_out_is_refused(make: Callable[..., RuleJob]) -> None:  # noqa: F811
    (replica,) = make(Sync(balance="speed"), workers=1).join(model(optax.sgd(0.1)))
    replica.steps.start_training(1)
    with pytest.raises(ClusterError, match=r"worker:0: Sync\(balance='speed'\) decides how many examples"):
        replica.steps.step(next(batches(1)))


def test_keys_state_and_transform_are_those_of_the_whole_step(make: Callable[..., RuleJob]) -> None:  # noqa: F811
    """A worker with a random key, a model state and a transform, in steps of one batch and of several."""

    def noisy(params: Any, state: Any, batch: Any, key: Any) -> Any:
        value, metrics = loss(params, batch)
        return value + 0.0 * jax.random.normal(key), ({"count": state["count"] + 1.0}, metrics)

    of = model(
        optax.sgd(0.1),
        loss=noisy,
        init_state=lambda _: {"count": np.zeros((), np.float32)},
        worker_transform=optax.clip_by_global_norm(1e-3),
    )
    (replica,) = make(Sync(balance="speed"), workers=1).join(of)
    before = replica.values.params()
    portions = iter([Portion((one,), 16, 16, 1) for one in batches(1)])
    replica.steps.start_training(2)
    replica.steps.step(next(portions))
    step = jax.tree.map(np.subtract, replica.values.params(), before)
    assert np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(step))) == pytest.approx(1e-4, rel=1e-3)
    replica.steps.step(Portion(tuple(batches(3, 4)), 12, 16, 1))
    replica.values.params()
    assert replica.values.model_state() == {"count": np.float32(4.0)}
