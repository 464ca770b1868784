"""The chief's duties go to another worker, and back: what is saved, shown and said, and whose the directory is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from tests.checkpoint.samples import commit, manifest, rows
from tests.ps.jobs import spec_of
from tests.train.fakes import ONES, FakeEngine, FakeStrategy, Ticking, curves_in, lines_with, mean_model, reports

from trainband.checkpoint import LOCK_FILE, CheckpointDirectory, DirectoryLock, write_part
from trainband.cluster import Cluster, Task
from trainband.errors import CheckpointError, DirectoryLocked, Refused
from trainband.job.checkpoints import CheckpointStatus, SavedParts
from trainband.monitor.history import history as history_of
from trainband.strategies import StepReport
from trainband.train import (
    EarlyStopping,
    Hook,
    MonitoredSession,
    StepCounterHook,
    SummarySaverHook,
    Trainer,
    ValidationHook,
)
from trainband.train import checkpointer as checkpointer_module
from trainband.train import console as console_module
from trainband.train import ending as ending_module

JOB = "5f0c"
TAKES_OVER = "worker:1 takes over the chief's duties (worker:0 is gone)"
GIVES_UP = "worker:1 gives up the chief's duties, which another worker has now"


class Worker(FakeEngine):
    """A worker that is the chief from one step on, and is it no more from another."""

    job = JOB

    def __init__(self, steps: int, turns: Mapping[int, bool] | None = None, *, index: int = 1) -> None:
        super().__init__([*reports(*[1.0] * (steps - 1)), *reports(1.0, first=steps, done=True)])
        self.task = f"worker:{index}"
        self.is_chief = index == 0
        self.turns = dict(turns or {})
        self.begun_with: tuple[int, ...] = ()
        self.known: tuple[int, ...] = (0,)
        self.others: list[tuple[str, ...]] = []

    def start_training(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        self.begun_with = tuple(trainings)
        self.trainings = self.known  # what the chief has said
        return super().start_training(last_step, trainings)

    def step(self, batch: Any) -> StepReport:
        report = super().step(batch)
        self.is_chief = self.turns.get(report.global_step, self.is_chief)
        return report

    def at_work(self) -> tuple[str, ...]:
        return self.others.pop(0) if self.others else ()

    def save(self, directory: Path, at: int | None) -> Any:
        if not self.is_chief:
            raise Refused("only the chief may save a checkpoint")
        return Written(self, directory, at or 0)


class Written:
    """A checkpoint that is written when its step has come."""

    started_at = None

    def __init__(self, engine: Worker, directory: Path, at: int) -> None:
        self.engine = engine
        self.directory = directory
        self.at = max(at, engine.global_step)

    @property
    def waits(self) -> bool:
        return self.engine.global_step < self.at

    def committed(self, status: CheckpointStatus) -> None:
        self.engine.calls.append(("committed", status.global_step))

    def poll(self) -> SavedParts | None:
        if self.waits:
            return None
        pieces = [rows("params/w", np.zeros(3, np.float32))]
        return SavedParts((write_part(self.directory, "ps-0.safetensors", ps=0, version=self.at, pieces=pieces),))


class Lands(Hook):
    """After the steps at which one is due, waits for the checkpoint that was ordered for them."""

    def __init__(self, every: int) -> None:
        self.every = every

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        if report.global_step % self.every == 0 and session.saving:
            assert session._checkpoints.checkpointer is not None  # noqa: SLF001
            session._checkpoints.checkpointer.wait()  # noqa: SLF001


class At(Hook):
    """Calls functions after the steps with their numbers, before the hooks that follow."""

    def __init__(self, actions: Mapping[int, Callable[[MonitoredSession], Any]]) -> None:
        self.actions = actions

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        if report.global_step in self.actions:
            self.actions[report.global_step](session)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long."""
    monkeypatch.setattr(checkpointer_module, "POLL_S", 0.002)
    monkeypatch.setattr(ending_module, "AT_WORK_S", 0.0)


def task(engine: Worker, said: list[str], **changes: Any) -> Trainer:
    """The trainer of a worker in a cluster of three."""
    strategy: Any = FakeStrategy(engine)
    strategy.cluster = Cluster(spec=spec_of(1, 3), task=Task.parse(engine.task))
    return mean_model(strategy=strategy, say=said.append, **changes)


def fit(engine: Worker, said: list[str], directory: Path | None, *hooks: Hook, steps: int = 8, **more: Any) -> Any:
    """One training with a checkpoint every 3 steps."""
    made = task(engine, said)
    return made.fit([ONES], steps, checkpoint_dir=directory, save_steps=3, hooks=[Lands(3), *hooks], **more)


def home(path: Path) -> CheckpointDirectory:
    """The checkpoints in a directory that nothing is to be said about."""
    return CheckpointDirectory(path, pytest.fail)


def lock_of(path: Path) -> dict[str, Any]:
    """What the lock file says; empty where there is none."""
    file = path / LOCK_FILE
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def test_a_worker_that_becomes_the_chief_saves_from_then_on(tmp_path: Path) -> None:
    engine, said, locks = Worker(8, {4: True}), list[str](), list[Any]()

    def poll(session: MonitoredSession) -> None:
        lock = lock_of(tmp_path)
        locks.append((session.is_chief, lock.get("owner"), lock.get("job")))

    fit(engine, said, tmp_path, At({3: poll, 5: poll}))
    assert home(tmp_path).steps() == [6, 8]
    assert locks == [(False, None, None), (True, "worker:1", JOB)]
    assert lines_with(said, "duties") == [TAKES_OVER]
    newest = home(tmp_path).newest()
    assert newest is not None
    assert (newest.manifest.complete, newest.manifest.trainings, newest.manifest.last_step) == (True, (0,), 8)
    assert not (tmp_path / LOCK_FILE).exists()


def test_its_checkpoints_know_the_trainings_of_the_chief(tmp_path: Path) -> None:
    engine, said = Worker(8, {4: True}), list[str]()
    engine.global_step = 2  # it came when the chief had begun its training long ago, and was not told yet
    engine.known = (1,)
    fit(engine, said, tmp_path)
    newest = home(tmp_path).newest()
    assert newest is not None
    assert engine.begun_with == (2,)
    assert (newest.manifest.trainings, newest.manifest.last_step) == ((1,), 9)


def test_the_trainings_may_become_known_when_the_chief_is_gone(tmp_path: Path) -> None:
    engine, said = Worker(8, {4: True}), list[str]()
    engine.global_step = 2
    engine.known = ()

    def learn(_: MonitoredSession) -> None:
        engine.trainings = (1,)

    fit(engine, said, tmp_path, At({3: learn}))
    newest = home(tmp_path).newest()
    assert newest is not None
    assert (newest.manifest.trainings, newest.manifest.last_step) == ((1,), 9)


def test_a_job_that_goes_on_from_a_checkpoint_has_its_trainings(tmp_path: Path) -> None:
    """Should the chief die before it has begun, this worker begins in its place."""
    partial = home(tmp_path).create_partial(7)
    part = write_part(partial, "ps-0.safetensors", ps=0, version=7, pieces=[rows("params/w", np.zeros(3, np.float32))])
    home(tmp_path).commit(partial, manifest((part,), trainings=(0, 4)))
    engine, said = Worker(8), list[str]()
    engine.global_step = 7
    engine.more = False
    engine.known = ()
    fit(engine, said, tmp_path)
    assert engine.begun_with == (0, 4)
    assert engine.calls[0] == ("begin", 4)


def test_the_lock_of_the_dead_chief_is_taken_over_at_once(tmp_path: Path) -> None:
    dead = DirectoryLock(tmp_path, "worker:0", job=JOB)
    dead.acquire()
    (tmp_path / ".step-000000000003.0123abcd.partial").mkdir()
    engine, said = Worker(8, {4: True}), list[str]()
    fit(engine, said, tmp_path)
    assert home(tmp_path).steps() == [6, 8]
    assert lines_with(said, "WARNING") == []
    assert not list(tmp_path.glob(".step*"))


@pytest.mark.parametrize("job", ["another", ""])
def test_a_directory_of_another_job_is_not_written_into(job: str, tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:7", job=job) as other:
        engine, said = Worker(8, {4: True}), list[str]()
        with pytest.raises(CheckpointError, match=r"its last checkpoint is not in .* in use by worker:7"):
            fit(engine, said, tmp_path)
        other.renew()
        assert home(tmp_path).steps() == []
    assert lines_with(said, "training continues without")


def test_one_that_is_the_chief_no_more_saves_no_more(tmp_path: Path) -> None:
    engine, said, found = Worker(9, {2: True, 5: False}), list[str](), list[Any]()

    def poll(session: MonitoredSession) -> None:
        found.append((session.is_chief, session.saving, sorted(path.name for path in tmp_path.iterdir())))

    fit(engine, said, tmp_path, At({5: poll}), steps=9)
    assert home(tmp_path).steps() == [3]
    assert found == [(False, False, ["history", "step-000000000003"])]
    assert lines_with(said, "duties") == [TAKES_OVER, GIVES_UP]
    assert lines_with(said, "WARNING") == []


def test_the_chief_alone_keeps_the_history_and_the_next_one_in_a_file_of_its_own(tmp_path: Path) -> None:
    said = list[str]()
    fit(Worker(4, index=0), said, tmp_path, steps=4)
    fit(Worker(4, index=1), said, tmp_path, steps=4)
    fit(Worker(4, {2: True, 3: False}, index=2), said, tmp_path, steps=4)
    assert [path.stem.rpartition("Z-")[2] for path in sorted(tmp_path.glob("history/*"))] == ["worker-0", "worker-2"]
    history = history_of(tmp_path)
    (run,) = history.runs
    assert run.tasks == ("worker:0", "worker:2")
    told = [(event.task, event.kind) for event in history.events if event.kind != "checkpoint"]
    assert told == [("worker:0", "start"), ("worker:0", "end"), ("worker:2", "chief")]
    assert len(history.left_out) == 0


def test_they_may_come_back(tmp_path: Path) -> None:
    engine, said = Worker(9, {1: True, 4: False, 7: True}), list[str]()
    fit(engine, said, tmp_path, steps=9)
    assert home(tmp_path).steps() == [3, 9]
    assert lines_with(said, "duties") == [TAKES_OVER, GIVES_UP, TAKES_OVER]


def test_the_chief_of_the_spec_has_them_again(tmp_path: Path) -> None:
    engine, said = Worker(8, {2: False, 4: True}, index=0), list[str]()
    fit(engine, said, tmp_path)
    assert home(tmp_path).steps() == [6, 8]
    assert lines_with(said, "duties")[1:] == ["worker:0 takes back the chief's duties"]


# --- the end


def test_one_that_becomes_the_chief_with_the_last_step_ends_the_training(tmp_path: Path) -> None:
    engine, said = Worker(8, {8: True}), list[str]()
    result = fit(engine, said, tmp_path, validation=[ONES], every=100)
    newest = home(tmp_path).newest()
    assert newest is not None
    assert (newest.manifest.global_step, newest.manifest.complete) == (8, True)
    assert [one.global_step for one in result.evaluations] == [8]
    assert lines_with(said, "duties") == [TAKES_OVER]


def test_where_the_chief_has_left_with_all_done_nobody_does_it_again(tmp_path: Path) -> None:
    first, said = Worker(8, {7: True}), list[str]()
    fit(first, said, tmp_path)
    said.clear()
    late = Worker(8, {8: True})
    fit(late, said, tmp_path, validation=[ONES], every=100)
    assert said == []
    assert home(tmp_path).steps() == [8]


def test_it_waits_for_the_others_where_its_batches_are_used_up(tmp_path: Path) -> None:
    engine, said = Worker(9, {2: True}), list[str]()
    engine.others = [("worker:2",), ("worker:2",)]
    task(engine, said).fit([ONES] * 2, checkpoint_dir=tmp_path)
    assert engine.others == []
    assert home(tmp_path).steps() == [2]


def test_one_that_is_the_chief_no_more_waits_for_nobody(tmp_path: Path) -> None:
    engine, said = Worker(9, {2: True}), list[str]()

    def at_work() -> tuple[str, ...]:
        engine.is_chief = False
        return ("worker:0",)

    engine.at_work = at_work  # type: ignore[method-assign]
    task(engine, said).fit([ONES] * 2, checkpoint_dir=tmp_path)
    assert home(tmp_path).steps() == []
    assert lines_with(said, "duties") == [TAKES_OVER, GIVES_UP]


def test_between_two_trainings(tmp_path: Path) -> None:
    engine, said = Worker(4), list[str]()
    made = task(engine, said)
    made.fit([ONES], 4, checkpoint_dir=tmp_path)
    assert home(tmp_path).steps() == []
    engine.is_chief = True
    engine.reports = [*reports(1.0, first=5), *reports(1.0, first=6, done=True)]
    engine.known = (0, 4)
    made.fit([ONES], 2, checkpoint_dir=tmp_path)
    newest = home(tmp_path).newest()
    assert newest is not None
    assert (newest.manifest.global_step, newest.manifest.trainings, newest.manifest.complete) == (6, (0, 4), True)
    assert engine.calls[-1] != "finish"
    assert lines_with(said, "duties") == [TAKES_OVER]


def test_a_stop_that_is_refused_ends_this_session_alone() -> None:
    engine, said = Worker(8, {2: True}), list[str]()

    def finish() -> None:
        raise Refused("worker:0 is the chief")

    engine.finish = finish  # type: ignore[method-assign]
    result = fit(engine, said, None, At({4: lambda session: session.request_stop("enough")}))
    assert (result.steps, result.stopped) == (4, "enough")
    assert engine.calls[-1] == "pause"
    assert lines_with(said, "worker:0 is the chief") == [
        "worker:1 leaves the training but cannot end it for all: worker:0 is the chief"
    ]


# --- a chief that comes back


def test_a_chief_that_comes_back_has_its_directory_at_once(tmp_path: Path) -> None:
    acting = DirectoryLock(tmp_path, "worker:1", job=JOB)
    acting.acquire()
    engine, said = Worker(8, index=0), list[str]()
    fit(engine, said, tmp_path)
    with pytest.raises(DirectoryLocked):
        acting.renew()
    assert home(tmp_path).steps() == [3, 6, 8]
    assert lines_with(said, "WARNING") == []
    assert lines_with(said, "duties") == []


def test_a_chief_that_finds_another_job_there_leaves_untrained(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:1", job="another") as other:
        engine, said = Worker(8, index=0), list[str]()
        with pytest.raises(DirectoryLocked, match="in use by worker:1"):
            fit(engine, said, tmp_path)
        ((called, failure),) = engine.calls
        assert called == "close"
        assert failure.startswith("DirectoryLocked: ")
        other.renew()


def test_a_lock_without_a_job_is_met_before_joining(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:1"):
        engine, said = Worker(8, index=0), list[str]()
        made = task(engine, said)
        with pytest.raises(DirectoryLocked, match="in use by worker:1"):
            made.fit([ONES], 8, checkpoint_dir=tmp_path)
        assert made._strategy.starts == 0  # type: ignore[attr-defined]  # noqa: SLF001


def test_an_heir_that_finds_another_job_there_before_it_has_begun_leaves(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:5", job="another") as other:
        engine, said = Worker(8), list[str]()
        engine.is_chief = True
        with pytest.raises(DirectoryLocked, match="in use by worker:5"):
            fit(engine, said, tmp_path)
        assert [call[0] for call in engine.calls] == ["close"]
        other.renew()


def test_an_heir_from_the_beginning_says_so(tmp_path: Path) -> None:
    engine, said = Worker(8), list[str]()
    engine.is_chief = True
    fit(engine, said, tmp_path)
    assert home(tmp_path).steps() == [3, 6, 8]
    assert lines_with(said, "duties") == [TAKES_OVER]


# --- hooks and the console


def test_curves_begin_where_it_becomes_the_chief(tmp_path: Path) -> None:
    engine, said = Worker(8, {4: True, 7: False}), list[str]()
    hooks = [SummarySaverHook(save_steps=1), StepCounterHook(every_steps=1, clock=Ticking(1.0))]
    fit(engine, said, tmp_path, *hooks)
    curves = curves_in(tmp_path)
    assert [step for step, _ in curves["loss"]] == [4, 5, 6]
    assert [step for step, _ in curves["global_step/sec"]] == [5, 6]


def test_each_time_that_it_becomes_the_chief_its_curves_have_a_new_file(tmp_path: Path) -> None:
    """TensorBoard reads only the newest file, and that is the other chief's by then."""
    engine, said = Worker(8, {2: True, 4: False, 6: True}), list[str]()
    fit(engine, said, tmp_path, SummarySaverHook(save_steps=1))
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert [step for step, _ in curves_in(tmp_path)["loss"]] == [2, 3, 6, 7, 8]


def test_without_a_directory_an_heir_writes_no_curves() -> None:
    engine, said = Worker(4, {2: True}), list[str]()
    assert fit(engine, said, None, SummarySaverHook(save_steps=1), steps=4).steps == 4


def test_validation_goes_on_from_what_was_the_best(tmp_path: Path) -> None:
    commit(home(tmp_path), 3)
    home(tmp_path).mark_best(3, "loss", -5.0)
    engine, said = Worker(9, {4: True}), list[str]()
    engine.params = lambda: {"w": np.ones(())}  # type: ignore[method-assign]
    stopping = EarlyStopping(patience=2)
    result = fit(engine, said, tmp_path, validation=[ONES], every=2, early_stopping=stopping)
    assert [one.global_step for one in result.evaluations] == [4, 6]
    assert result.stopped == "loss has not improved on -5.0 in 2 validations"
    assert "finish" in engine.calls
    assert home(tmp_path).best == (3, "loss", -5.0)


def test_validation_is_at_the_usual_steps_and_counts_anew(tmp_path: Path) -> None:
    engine, said = Worker(20, {1: True, 5: False, 11: True}), list[str]()
    engine.params = lambda: {"w": np.ones(())}  # type: ignore[method-assign]
    hook = ValidationHook([ONES], every_steps=4, early_stopping=EarlyStopping(patience=2))
    other = home(tmp_path)

    def find_better(_: MonitoredSession) -> None:
        commit(other, 7)
        other.mark_best(7, "loss", -3.0)

    at = At({7: find_better})
    result = fit(engine, said, tmp_path, at, hook, steps=20)
    assert [one.global_step for one in hook.evaluations] == [4, 12, 16]
    assert result.stopped == "loss has not improved on -3.0 in 2 validations"


def test_the_console_is_the_chiefs(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Console:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> None:
            shown.append("on")

        def __exit__(
            self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
        ) -> None:
            shown.append("off")

    monkeypatch.setattr(console_module, "Console", Console)
    engine, said = Worker(8, {2: True, 4: False, 6: True}), list[str]()
    note = At({step: lambda session: shown.append(str(session.global_step)) for step in range(1, 9)})
    task(engine, said, console=True).fit([ONES], 8, hooks=[note])
    assert shown == ["1", "on", "2", "3", "off", "4", "5", "on", "6", "7", "8", "off"]
