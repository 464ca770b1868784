"""Row optimizers do what their formulas say, row by row; those that optax has do what optax does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from trainband.errors import ModelError
from trainband.ps.tables import TableStore
from trainband.rows import Adagrad, Ftrl, LazyAdam, RowOptimizer, RowwiseAdagrad, Sgd, Table, Uniform
from trainband.rows.optimizers import Floats, State

DIM = 5
Doubles = NDArray[np.float64]
Row = tuple[Doubles, dict[str, Any]]


def trained(optimizer: RowOptimizer, batches: list[tuple[NDArray[np.int64], Floats]], dim: int = DIM) -> Floats:
    store = TableStore(Table("t", dim=dim, optimizer=optimizer, initializer=Uniform(1.0, -1.0)))
    for step, (ids, gradients) in enumerate(batches):
        store.apply(ids, gradients, step)
    return store.lookup(np.arange(40))


def first_rows() -> Floats:
    return trained(Sgd(1.0), [])


def batches(count: int, *, every_row: bool) -> list[tuple[NDArray[np.int64], Floats]]:
    random = np.random.default_rng(3)
    chosen = [np.arange(40) if every_row else random.choice(40, 15, replace=False) for _ in range(count)]
    return [(ids, random.standard_normal((len(ids), DIM), np.float32)) for ids in chosen]


def sgd(o: Sgd, row: Doubles, g: Doubles, s: dict[str, Any]) -> Doubles:  # noqa: ARG001
    return row - o.learning_rate * g


def adagrad(o: Adagrad, row: Doubles, g: Doubles, s: dict[str, Any]) -> Doubles:
    s["a"] = s.get("a", o.initial) + g**2
    return np.asarray(row - o.learning_rate * g / np.sqrt(s["a"] + o.epsilon))


def rowwise(o: RowwiseAdagrad, row: Doubles, g: Doubles, s: dict[str, Any]) -> Doubles:
    s["a"] = s.get("a", o.initial) + np.mean(g**2)
    return row - o.learning_rate * g / (math.sqrt(s["a"]) + o.epsilon)


def adam(o: LazyAdam, row: Doubles, g: Doubles, s: dict[str, Any]) -> Doubles:
    s["t"] = s.get("t", 0) + 1
    s["m"] = o.beta1 * s.get("m", 0.0) + (1 - o.beta1) * g
    s["v"] = o.beta2 * s.get("v", 0.0) + (1 - o.beta2) * g**2
    m, v = s["m"] / (1 - o.beta1 ** s["t"]), s["v"] / (1 - o.beta2 ** s["t"])
    return np.asarray(row - o.learning_rate * m / (np.sqrt(v) + o.epsilon))


def ftrl(o: Ftrl, row: Doubles, g: Doubles, s: dict[str, Any]) -> Doubles:
    n = s.get("n", o.initial)
    sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / o.learning_rate
    s["z"] = s.get("z", 0.0) + g - sigma * row
    s["n"] = n + g**2
    z = s["z"]
    solved = -(z - np.sign(z) * o.l1) / ((o.beta + np.sqrt(s["n"])) / o.learning_rate + o.l2)
    return np.where(np.abs(z) <= o.l1, 0.0, solved)


CASES: list[tuple[Any, Callable[..., Doubles]]] = [
    (Sgd(0.1), sgd),
    (Sgd(0.1, l2=0.01, max_norm=0.9), sgd),
    (Adagrad(0.1), adagrad),
    (Adagrad(0.1, l2=0.01, max_norm=0.9), adagrad),
    (RowwiseAdagrad(0.1), rowwise),
    (RowwiseAdagrad(0.1, initial=0.2, l2=0.01, max_norm=0.9), rowwise),
    (LazyAdam(0.1), adam),
    (LazyAdam(0.1, l2=0.01, max_norm=0.9), adam),
    (Ftrl(0.1), ftrl),
    (Ftrl(0.1, l1=0.5, l2=0.3, initial=0.1, max_norm=0.9), ftrl),
]


@pytest.mark.parametrize(("optimizer", "reference"), CASES)
def test_rows_follow_the_formula(optimizer: Any, reference: Callable[..., Doubles]) -> None:
    rows: list[Doubles] = list(first_rows().astype(np.float64))
    state: list[dict[str, Any]] = [{} for _ in rows]
    given = batches(12, every_row=False)
    for ids, gradients in given:
        for id_, gradient in zip(ids.tolist(), gradients.astype(np.float64), strict=True):
            decayed = gradient if isinstance(optimizer, Ftrl) else gradient + optimizer.l2 * rows[id_]
            row = reference(optimizer, rows[id_], decayed, state[id_])
            norm = float(np.linalg.norm(row))
            if optimizer.max_norm is not None and norm > optimizer.max_norm:
                row = row * optimizer.max_norm / norm
            rows[id_] = row
    np.testing.assert_allclose(trained(optimizer, given), np.array(rows), rtol=2e-4, atol=2e-6)


def test_l1_makes_values_zero() -> None:
    found = trained(Ftrl(0.1, l1=2.0), batches(3, every_row=True))
    assert 0.1 < np.mean(found == 0.0) < 0.9


@pytest.mark.parametrize(
    ("optimizer", "same"),
    [(Sgd(0.1), optax.sgd(0.1)), (Adagrad(0.1), optax.adagrad(0.1)), (LazyAdam(0.1), optax.adam(0.1))],
)
def test_where_every_row_is_updated_it_is_optax(optimizer: RowOptimizer, same: optax.GradientTransformation) -> None:
    given = batches(6, every_row=True)
    params = jnp.asarray(first_rows())
    state = same.init(params)
    for _, gradients in given:
        updates, state = same.update(jnp.asarray(gradients), state, params)
        params = optax.apply_updates(params, updates)
    # optax computes Adam's corrections of the bias in float32, where 1 - 0.999 ** count has lost digits.
    np.testing.assert_allclose(trained(optimizer, given), np.asarray(params), rtol=2e-5, atol=1e-5)


@dataclass(frozen=True)
class Momentum:
    """An elementwise transformation of optax's, by the seam."""

    def state(self, dim: int) -> tuple[tuple[int, float], ...]:
        return ((dim, 0.0),)

    def update(self, rows: Floats, state: State, gradients: Floats, count: NDArray[np.uint32]) -> tuple[Floats, State]:
        assert count.min() >= 1
        changes, (trace,) = optax.trace(0.9).update(gradients, optax.TraceState(trace=state[0]))
        moved: Floats = (rows - 0.1 * np.asarray(changes)).astype(np.float32)
        kept: Floats = np.asarray(trace).astype(np.float32)
        return moved, (kept,)


def test_any_elementwise_transformation_fits() -> None:
    given = batches(5, every_row=True)
    params, state = jnp.asarray(first_rows()), None
    same = optax.sgd(0.1, momentum=0.9)
    state = same.init(params)
    for _, gradients in given:
        updates, state = same.update(jnp.asarray(gradients), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(trained(Momentum(), given), np.asarray(params), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sgd(0.0), "the learning rate of a table must be positive and finite, not 0.0"),
        (lambda: Adagrad(math.nan), "the learning rate of a table must be positive and finite, not nan"),
        (lambda: LazyAdam(0.1, l2=-1.0), "l2 of a table must be at least 0 and finite, not -1.0"),
        (lambda: Ftrl(0.1, max_norm=0.0), "max_norm of a table must be positive, not 0.0"),
        (lambda: Adagrad(0.1, epsilon=0.0), "an accumulator starts at 0 or above, and epsilon is positive"),
        (lambda: LazyAdam(0.1, beta1=1.0), "beta1 and beta2 of LazyAdam must be at least 0 and below 1"),
        (lambda: Ftrl(0.1, beta=0.0), "l1, beta and initial of Ftrl must be at least 0, and one of the last two"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()
