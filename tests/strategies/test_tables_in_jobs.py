"""Tables in whole jobs: every task is a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray
from tests.ps.jobs import FAST, in_thread, shut_down, spec_of

from trainband import rows
from trainband.cluster import Cluster, Task
from trainband.errors import CheckpointError, ClusterError, DataError, ModelError, ModelMismatch, NonFiniteGradient
from trainband.model.tables import Tables
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.strategies import OneDevice, ParameterServer
from trainband.train import Trainer
from trainband.wire.memory.transport import MemoryTransport

DIM = 3
KNOWN = 40
FAR = (1 << 62) + 12345
"""Ids are this and the numbers from 0 on: JAX would keep 32 bits of them."""
SGD = rows.Table("items", dim=DIM, optimizer=rows.Sgd(0.5), initializer=rows.Uniform(0.1))


def batches(count: int, seed: int, size: int = 16) -> list[dict[str, NDArray[Any]]]:
    """Two ids an example, most of them several times in a batch."""
    random = np.random.default_rng(seed)
    numbers = [random.zipf(1.5, (size, 2)) % KNOWN for _ in range(count)]
    return [
        {"ids": number.astype(np.int64) + FAR, "number": number, "y": np.sin(number).sum(1).astype(np.float32)}
        for number in numbers
    ]


def init(_: Any) -> Any:
    return {"weight": jnp.linspace(0.5, 1.0, DIM), "bias": jnp.zeros(())}


def of_rows(params: Any, looked_up: Any, batch: Any) -> Any:
    return (looked_up.sum(1) @ params["weight"] + params["bias"] - batch["y"]) ** 2


def loss(params: Any, looked_up: Any, batch: Any) -> Any:
    assert batch["ids"] is None
    return of_rows(params, looked_up["item"], batch).mean()


def dense(first: NDArray[np.float32], steps: Sequence[Sequence[Any]]) -> tuple[Any, list[float]]:
    """The params and losses of a dense embedding; each step is the batches of all workers."""
    losses: list[float] = []

    def of_all(params: Any, batch: Any) -> Any:
        return of_rows(params, params["items"][batch["number"]], batch).mean()

    trainer = Trainer(
        init=lambda key: {**init(key), "items": jnp.asarray(first)},
        loss=of_all,
        optimizer=optax.multi_transform(
            {"row": optax.sgd(0.5), "rest": optax.sgd(0.1)}, {"items": "row", "weight": "rest", "bias": "rest"}
        ),
        strategy=OneDevice("cpu"),
        console=False,
    )
    joined = [{name: np.concatenate([batch[name] for batch in step]) for name in ("number", "y")} for step in steps]
    for batch in joined:
        trainer.fit([batch], 1)
        losses.append(float(trainer.evaluate([joined[0]]).loss))
    return trainer.params, losses


class Job:
    """A cluster whose tasks are threads."""

    def __init__(self, ps: int = 1, workers: int = 1, rule: UpdateRule | None = None, **arguments: Any) -> None:
        self.spec = spec_of(ps, workers)
        self.said: list[str] = []
        self._transport = MemoryTransport()
        self._arguments = {"update": rule or Async(), **arguments}
        self.serving = [in_thread(self.strategy("ps", i).serve, f"ps{i}") for i in range(ps)]

    def strategy(self, job: str, index: int) -> ParameterServer:
        return ParameterServer(
            Cluster(spec=self.spec, task=Task(job, index)),
            transport=self._transport,
            timeouts=FAST,
            say=self.said.append,
            device="cpu",
            **self._arguments,
        )

    def trainer(self, index: int = 0, table: rows.Table = SGD, **changes: Any) -> Trainer:
        arguments = {"init": init, "loss": loss, "optimizer": optax.sgd(0.1), **changes}
        tables = {"item": (table, lambda batch: batch["ids"])}
        return Trainer(
            strategy=self.strategy("worker", index), tables=tables, console=False, say=self.said.append, **arguments
        )

    def fit(self, data: Sequence[Any], steps: int, directory: Path | None = None, **changes: Any) -> Any:
        """Every worker fits; (params, rows of the known ids) at the end, on the chief."""

        def work(index: int) -> Any:
            with self.trainer(index, **changes) as trainer:
                trainer.fit(data[index], steps, checkpoint_dir=directory)
                return trainer.params, known_rows(trainer)

        futures = [in_thread(lambda i=i: work(i), f"worker{i}") for i in range(len(self.spec.workers))]  # type: ignore[misc]
        found = [future.result(60.0) for future in futures]
        for future in self.serving:
            future.result(30.0)
        return found[0]

    def shut_down(self) -> None:
        """Ends the ps of a job that fails."""
        shut_down(self.spec, self._transport)
        for future in self.serving:
            future.result(30.0)


def first_of_each(_: Any, found: Any, __: Any) -> Any:
    return found["item"][:, 0]


def known_rows(trainer: Trainer) -> NDArray[np.float32]:
    batch = {"ids": np.arange(KNOWN).reshape(-1, 1) + FAR, "y": np.zeros(KNOWN, np.float32)}
    return np.asarray(trainer.predict(first_of_each, [batch]))


def first_rows() -> NDArray[np.float32]:
    job = Job()
    with job.trainer() as trainer:
        return known_rows(trainer)


@pytest.mark.parametrize("ps", [1, 3])
@pytest.mark.parametrize("rule", [Async(), Bounded(staleness=1)], ids=["async", "bounded"])
def test_one_worker_trains_as_a_dense_embedding_does(ps: int, rule: UpdateRule) -> None:
    data = batches(12, seed=1)
    expected, _ = dense(first_rows(), [[batch] for batch in data])
    params, found = Job(ps, 1, rule).fit([data], len(data))
    np.testing.assert_allclose(found, expected["items"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params["weight"], expected["weight"], rtol=1e-5)


@pytest.mark.parametrize("standbys", [0, 1])
def test_two_workers_in_step_train_as_a_dense_embedding_on_both_batches(standbys: int) -> None:
    data = [batches(10, seed=seed) for seed in (1, 2)]
    expected, _ = dense(first_rows(), list(zip(*data, strict=True)))
    params, found = Job(2, 2, Sync(), standbys=standbys).fit(data, 10)
    np.testing.assert_allclose(found, expected["items"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params["bias"], expected["bias"], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [rows.Adagrad(0.1), rows.LazyAdam(0.01)], ids=["adagrad", "adam"])
def test_a_job_that_resumes_on_more_ps_ends_where_it_would_have(tmp_path: Path, optimizer: Any) -> None:
    table = rows.Table("items", dim=DIM, optimizer=optimizer, initializer=rows.Normal(0.1))
    data = [batches(10, seed=seed) for seed in (3, 4)]
    whole = Job(2, 2, Sync()).fit(data, 10, table=table)
    Job(2, 2, Sync()).fit(data, 6, tmp_path, table=table)
    params, found = Job(3, 2, Sync()).fit(data, 10, tmp_path, table=table)
    np.testing.assert_array_equal(found, whole[1])
    np.testing.assert_array_equal(params["weight"], whole[0]["weight"])


def test_evaluations_and_predictions_insert_no_rows() -> None:
    job = Job()
    with job.trainer() as trainer:
        trainer.fit(batches(3, seed=1), 3)
        unseen = {"ids": np.full((4, 2), 77), "y": np.zeros(4, np.float32)}
        first = trainer.predict(first_of_each, [unseen])
        assert np.ptp(first, axis=0).max() == 0.0
        assert np.abs(first).max() <= 0.1
        before = known_rows(trainer)
        assert np.isfinite(trainer.evaluate([unseen]).loss)
        np.testing.assert_array_equal(known_rows(trainer), before)


def test_a_session_that_is_given_single_batches_gets_the_rows_of_each() -> None:
    data = batches(6, seed=5)
    expected, _ = dense(first_rows(), [[batch] for batch in data])
    job = Job(2)
    with job.trainer() as trainer:
        for batch in data:
            trainer.fit(iter([batch]), 1)
        np.testing.assert_allclose(known_rows(trainer), expected["items"], rtol=1e-5, atol=1e-6)


def test_several_features_may_share_a_table_and_ids_may_be_texts() -> None:
    words = np.array([["a", "b"], ["c", "a"]])
    tables = Tables({"left": (SGD, lambda batch: batch["words"][:, 0]), "right": (SGD, lambda b: b["words"][:, 1])})
    assert tables.tables == (SGD,)
    split = tables.split({"words": words, "y": np.zeros(2)})
    assert split.batch["words"] is None
    left, right = split.ids.of_feature.values()
    assert left[0] == right[1]
    assert len({left[0], left[1], right[0]}) == 3


def test_a_gradient_of_a_row_that_is_not_finite_is_refused() -> None:
    job = Job()
    bad = {"ids": np.array([[FAR, FAR + 1]]), "y": np.array([np.inf], np.float32)}
    with job.trainer() as trainer, pytest.raises(NonFiniteGradient):
        trainer.fit([bad] * 200, 200)
    assert any(f"in bias, weight, row {FAR} of table 'items'" in line for line in job.said)
    job.shut_down()


class Other(rows.Sgd):
    """Not one of `trainband.rows`."""


@pytest.mark.parametrize(
    ("tables", "kind", "said"),
    [
        ({"item": SGD}, ModelError, r"tables\['item'\] must be a pair .*, got Table"),
        (
            {"a": (SGD, len), "b": (rows.Table("items", dim=2, optimizer=rows.Sgd(0.1)), len)},
            ModelError,
            "two tables have the name 'items'",
        ),
    ],
)
def test_tables_that_are_no_tables(tables: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        Tables(tables)


def test_ids_must_be_integers_or_texts() -> None:
    tables = Tables({"item": (SGD, lambda batch: batch)})
    with pytest.raises(DataError, match=r"the ids of tables\['item'\] must be integers or texts, got float64"):
        tables.split(np.zeros(3))
    with pytest.raises(DataError, match="neither an integer, a text nor bytes"):
        tables.split(np.array(["a", None], object))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": optax.sgd(0.1)}, "optimizer of table 'items' must be one of trainband.rows"),
        ({"initializer": np.zeros}, "initializer of table 'items' must be one of trainband.rows"),
        ({"admit": 3}, "admit of table 'items' must be one of trainband.rows, not 3"),
        ({"name": "a/b"}, "the name of a table has letters"),
    ],
)
def test_a_table_that_no_ps_could_hold(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        rows.Table(**{"name": "items", "dim": DIM, "optimizer": rows.Sgd(0.1), **changes})


def test_ids_may_be_a_column_of_an_array_that_is_itself_a_view() -> None:
    tables = Tables({"item": (SGD, lambda batch: batch["ids"][:, 0])})
    ids = np.arange(8).reshape(4, 2) + FAR
    assert tables.split({"ids": ids[:2]}).batch["ids"] is None


def test_a_checkpoint_of_other_tables_is_refused(tmp_path: Path) -> None:
    data = [batches(8, seed=1)]
    Job().fit(data, 4, tmp_path, table=rows.Table("items", dim=DIM, optimizer=rows.LazyAdam(0.01)))
    for name, optimizer, said in (
        ("items", rows.Ftrl(0.01), "the rows of table 'items' were trained with LazyAdam, whose state Ftrl cannot use"),
        ("renamed", rows.Sgd(0.5), "has rows of table 'items', which this model does not have: they would be lost"),
    ):
        job = Job()
        with pytest.raises((CheckpointError, ModelMismatch), match=said):
            job.fit(data, 8, tmp_path, table=rows.Table(name, dim=DIM, optimizer=optimizer))
        job.shut_down()


def test_ids_out_of_range_are_an_error_of_the_data() -> None:
    job = Job()
    table = rows.Table("items", dim=DIM, optimizer=rows.Sgd(0.5), ids=100)
    with job.trainer(table=table) as trainer, pytest.raises(DataError, match="ids from 0 to 99, and 46"):
        trainer.fit(batches(4, seed=1), 4)
    job.shut_down()


def test_what_excludes_tables_is_said() -> None:
    with pytest.raises(ModelError, match="OneDevice has no parameter servers here, which hold the rows"):
        Trainer(init=init, loss=loss, optimizer=optax.sgd(0.1), strategy=OneDevice("cpu"), tables={"item": (SGD, len)})
    job = Job()
    with pytest.raises(ClusterError, match=r"a model with tables excludes Trainer\(accumulate=...\)"):
        job.trainer(accumulate=2).fit(batches(2, seed=1), 1)
    with pytest.raises(ClusterError, match="a model with tables excludes a worker_transform with a state"):
        job.trainer(worker_transform=optax.trace(0.9)).fit(batches(2, seed=1), 1)
    with pytest.raises(ModelError, match=r"the loss takes the rows before the batch: loss\(params, rows, batch\)"):
        job.trainer(loss=lambda _, __: 0.0)
    other = rows.Table("items", dim=DIM, optimizer=Other(0.1))
    with pytest.raises(ModelError, match=r"the optimizer of table 'items' is .* a ps runs only those of"):
        job.trainer(table=other).fit(batches(2, seed=1), 1)
    job.shut_down()
