"""Checkpoints of whole jobs: every task is a thread, and each resumes from where it was, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.programs import until
from tests.ps.jobs import FAST, in_thread, shut_down, spec_of
from tests.strategies.regression import batches

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.cluster import Cluster, Task
from trainband.errors import CheckpointError
from trainband.model.placement import RoundRobin
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.ps.worker.checkpoints import WorkerCheckpoints
from trainband.strategies import OneDevice, ParameterServer
from trainband.train import Trainer
from trainband.train.hooks import Hook
from trainband.train.session import MonitoredSession
from trainband.wire.memory.transport import MemoryTransport

DATA = [list(batches(12, seed=seed)) for seed in range(3)]
"""Of each worker. A list can be iterated again, and its place is known."""


def init(_: Any) -> Any:
    """Small, for each of many jobs compiles it; rows enough to be sliced."""
    return {"kernel": jnp.linspace(-1.0, 1.0, 18).reshape(6, 3), "bias": jnp.zeros(3)}


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    return (((x @ params["kernel"] + params["bias"]).sum(axis=1) - y) ** 2).mean(), {}


def noisy(params: Any, state: Any, batch: Any, key: Any) -> Any:
    """A loss with dropout and a model state: whoever loses a key or a mean computes something else."""
    x, y = batch
    x = jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0.0)
    value, metrics = loss(params, (x - state["mean"], y))
    return value, ({"mean": 0.9 * state["mean"] + 0.1 * x.mean(), "calls": state["calls"] + 1}, metrics)


def first_state(_: Any) -> Any:
    return {"mean": jnp.zeros(()), "calls": jnp.zeros((), jnp.int32)}


NOISY = {"loss": noisy, "init_state": first_state, "worker_transform": optax.ema(0.5)}


class Failing(RuntimeError):
    """A crash."""


class CrashAfter(Hook):
    """Ends the scripts of all workers after one step and the checkpoint before it, without leaving their data."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._is_saved = threading.Event()

    def after_run(self, session: MonitoredSession, report: Any) -> None:
        if report.global_step < self.step:
            return
        if session.is_chief:
            until(lambda: session.saved is not None, "the checkpoint")
            self._is_saved.set()
        assert self._is_saved.wait(60.0)
        raise Failing("the test ends it here")


class WaitsFor(Hook):
    """Keeps a worker that is not the chief from its first step until something has happened, and the chief until that
    worker has joined.
    """

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._other = threading.Event()

    def before_run(self, session: MonitoredSession) -> None:
        if session.is_chief:
            assert self._other.wait(60.0)
        else:
            self._other.set()
            assert self._event.wait(60.0)


class Job:
    """A cluster whose tasks are threads."""

    def __init__(self, ps: int, workers: int, rule: UpdateRule, slice_bytes: int = 64) -> None:
        self.spec = spec_of(ps, workers)
        self.rule = rule
        self.said: list[str] = []
        self._transport = MemoryTransport()
        self._slice_bytes = slice_bytes
        self._serving = [in_thread(self.strategy("ps", i).serve, f"ps{i}") for i in range(ps)]

    def strategy(self, job: str, index: int) -> ParameterServer:
        return ParameterServer(
            Cluster(spec=self.spec, task=Task(job, index)),
            update=self.rule,
            transport=self._transport,
            timeouts=FAST,
            say=self.said.append,
            placement=RoundRobin(max_slice_bytes=self._slice_bytes),
            device="cpu",
        )

    def run(
        self,
        directory: Path | None,
        steps: int,
        *,
        crash: int = 0,
        save_steps: int | None = None,
        hooks: Sequence[Hook] = (),
        **changes: Any,
    ) -> Any:
        """Every worker fits; (params, model state) of the chief at the end, and its session's result."""
        every = [*hooks, CrashAfter(crash)] if crash else hooks

        def work(index: int) -> Any:
            trainer = trainer_of(self.strategy("worker", index), self.said, **changes)
            try:
                with trainer:
                    result = trainer.fit(
                        DATA[index], steps, checkpoint_dir=directory, save_steps=save_steps, hooks=every
                    )
                    return trainer.params, trainer.model_state, result
            except Failing:
                return None

        futures = [in_thread(lambda i=i: work(i), f"worker{i}") for i in range(len(self.spec.workers))]  # type: ignore[misc]
        found = [future.result(60.0) for future in futures]
        if crash:
            shut_down(self.spec, self._transport)
        self.ends()
        return found[0]

    def ends(self) -> list[str]:
        return [future.result(30.0) for future in self._serving]


def trainer_of(strategy: Any, said: list[str], **changes: Any) -> Trainer:
    arguments = {"init": init, "loss": loss, "optimizer": optax.sgd(1e-2, momentum=0.9), **changes}
    return Trainer(strategy=strategy, console=False, say=said.append, **arguments)


def raw(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


RESUMED: list[tuple[str, int, int, dict[str, Any]]] = [
    ("2 ps, 3 workers", 2, 3, NOISY),
    ("the chief's state, micro-batches", 1, 2, {**NOISY, "state_merge": "chief", "accumulate": 2}),
]


@pytest.mark.parametrize(("ps", "workers", "changes"), [case[1:] for case in RESUMED], ids=[c[0] for c in RESUMED])
def test_sync_stopped_and_resumed_is_never_stopped(
    tmp_path: Path, ps: int, workers: int, changes: dict[str, Any]
) -> None:
    whole = Job(ps, workers, Sync()).run(None, 10, **changes)
    Job(ps, workers, Sync()).run(tmp_path, 6, **changes)
    stopped = newest(tmp_path)
    assert stopped.global_step == 6
    assert [part.version for part in stopped.manifest.parts] == [6] * ps
    assert [entry.steps for entry in stopped.manifest.workers.values()] == [6] * workers
    resumed = Job(ps, workers, Sync()).run(tmp_path, 10, **changes)
    assert raw(resumed[:2]) == raw(whole[:2])
    assert resumed[2].updates == 4


@pytest.mark.parametrize(("ps", "workers"), [(2, 2)])
def test_sync_goes_on_from_an_ordered_checkpoint_after_a_crash(tmp_path: Path, ps: int, workers: int) -> None:
    """The checkpoint is made while training goes on, and the worker states of all are of that very step."""
    whole = Job(ps, workers, Sync()).run(None, 10, **NOISY)
    Job(ps, workers, Sync()).run(tmp_path, 1000, crash=4, save_steps=3, **NOISY)
    found = newest(tmp_path)
    assert found.global_step == 3
    assert {part.version for part in found.manifest.parts} == {found.global_step}
    assert {entry.steps for entry in found.manifest.workers.values()} == {found.global_step}
    assert len(found.manifest.workers) == workers
    resumed = Job(ps, workers, Sync()).run(tmp_path, 10, **NOISY)
    assert raw(resumed[:2]) == raw(whole[:2])


def newest(directory: Path) -> Checkpoint:
    found = CheckpointDirectory(directory, pytest.fail).newest()
    assert found is not None
    assert found.verify() == []
    return found


@pytest.mark.parametrize("rule", [Async(), Bounded(staleness=2)], ids=["async", "bounded"])
def test_an_ordered_checkpoint_is_of_one_version_on_all_ps(
    tmp_path: Path, rule: UpdateRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = threading.Event()
    in_time = []

    def save(checkpoints: WorkerCheckpoints, directory: Path, at: int, original: Any = WorkerCheckpoints.save) -> Any:
        saving = original(checkpoints, directory, at)
        if all(state.version < at for state in checkpoints._training.states()):  # noqa: SLF001
            in_time.append(at)
        ordered.set()
        return saving

    monkeypatch.setattr(WorkerCheckpoints, "save", save)
    Job(3, 2, rule).run(tmp_path, 60, save_steps=20, hooks=[WaitsFor(ordered)])
    assert 20 in in_time
    directory = CheckpointDirectory(tmp_path, pytest.fail)
    assert directory.steps()[-1] == 60
    for checkpoint in directory.candidates():
        if checkpoint.global_step in (*in_time, 60):  # a ps that has passed the version by then saves at once
            assert {part.version for part in checkpoint.manifest.parts} == {checkpoint.global_step}
        assert checkpoint.verify() == []
        assert set(checkpoint.manifest.workers) == {"0", "1"}
    assert 20 in directory.steps()


@pytest.mark.parametrize("there", [True, False], ids=["from one device", "to one device"])
def test_between_one_device_and_ps(tmp_path: Path, there: bool) -> None:
    """One worker under Sync is one device, to rounding; the checkpoint is the same to the bit."""

    def alone(steps: int) -> Any:
        said: list[str] = []
        with trainer_of(OneDevice("cpu", say=said.append), said, **NOISY) as trainer:
            result = trainer.fit(DATA[0], steps, checkpoint_dir=tmp_path)
            return trainer.params, trainer.model_state, result

    def spread(steps: int) -> Any:
        return Job(2, 1, Sync()).run(tmp_path, steps, **NOISY)

    first, second = (alone, spread) if there else (spread, alone)
    before = first(5)
    same = second(5)  # it has nothing to do: what it has is what was saved
    assert raw(same[:2]) == raw(before[:2])
    after = second(9)
    with trainer_of(OneDevice("cpu", say=lambda _: None), [], **NOISY) as trainer:
        trainer.fit(DATA[0], 9)
        wanted = (trainer.params, trainer.model_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), after[:2], wanted)


def test_other_numbers_of_ps_and_workers(tmp_path: Path) -> None:
    before = Job(1, 3, Sync()).run(tmp_path, 5)
    after = Job(3, 2, Sync(), slice_bytes=24).run(tmp_path, 5)
    assert raw(after[0]) == raw(before[0])
    assert Job(2, 2, Async()).run(tmp_path, 8)[2].global_step == 8


def test_a_damaged_part_makes_way_for_the_checkpoint_before(tmp_path: Path) -> None:
    before = Job(2, 1, Sync()).run(tmp_path, 4)
    Job(2, 1, Sync()).run(tmp_path, 7)
    part = newest(tmp_path).path / "part-00001-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    job = Job(2, 1, Sync())
    after = job.run(tmp_path, 4)
    assert raw(after[0]) == raw(before[0])
    assert [line for line in job.said if "is damaged" in line and "trying the one before it" in line]
    assert [line for line in job.said if "resumes from" in line and "(global step 4)" in line]


def test_damaged_worker_state_makes_way_too(tmp_path: Path) -> None:
    before = Job(1, 1, Sync()).run(tmp_path, 4, **NOISY)
    Job(1, 1, Sync()).run(tmp_path, 7, **NOISY)
    part = newest(tmp_path).path / "workers.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    after = Job(1, 1, Sync()).run(tmp_path, 4, **NOISY)
    assert raw(after[:2]) == raw(before[:2])


def test_early_stopping_ends_it_for_all(tmp_path: Path) -> None:
    class StopAt5(Hook):
        def after_run(self, session: MonitoredSession, report: Any) -> None:
            if session.is_chief and report.global_step >= 5:
                session.request_stop("enough")

    job = Job(2, 3, Sync())

    def work(index: int) -> Any:
        with trainer_of(job.strategy("worker", index), job.said) as trainer:
            return trainer.fit(DATA[index], 1000, checkpoint_dir=tmp_path, hooks=[StopAt5()] if index == 0 else [])

    futures = [in_thread(lambda i=i: work(i), f"worker{i}") for i in range(3)]  # type: ignore[misc]
    results = [future.result(60.0) for future in futures]
    assert [result.global_step for result in results] == [5] * 3
    assert [result.stopped for result in results] == ["enough", *["the chief has ended the training"] * 2]
    assert job.ends() == ["the job is complete"] * 2
    found = newest(tmp_path)
    assert {part.version for part in found.manifest.parts} == {5}
    assert found.manifest.complete


def test_a_directory_that_no_ps_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllowedDirectories, "admit", lambda _, path: Path(f"{path}, which is another disk here"))
    job = Job(2, 1, Sync())

    def work() -> Any:
        with trainer_of(job.strategy("worker", 0), job.said) as trainer:
            return trainer.fit(DATA[0], 3, checkpoint_dir=tmp_path)

    with pytest.raises(CheckpointError, match=r"ps:[01].* does not find .*use a checkpoint directory that"):
        in_thread(work, "worker").result(60.0)
    job.ends()
