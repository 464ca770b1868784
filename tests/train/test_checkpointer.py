"""The checkpointer: from an order to a committed checkpoint, and what becomes of a directory that refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.samples import write_parts
from tests.ps.jobs import in_thread
from tests.train.fakes import ONES, lines_with, mean_model

from trainband.checkpoint import LOCK_FILE, CheckpointDirectory, DirectoryLock, Retention
from trainband.errors import CheckpointError, DirectoryLocked, Refused, Unreachable
from trainband.job.checkpoints import CheckpointStatus, Overtaken, SavedParts, TrainingRecord
from trainband.model.worker_state import WorkerState
from trainband.runtime import SystemRuntime
from trainband.train import checkpointer as module
from trainband.train.checkpointer import Checkpointer

RECORD = TrainingRecord(strategy="OneDevice", trainings=(0,))


class FakeSaving:
    """A checkpoint that a engine writes: it waits for its step, is being written, and is there or is not."""

    started_at = None

    def __init__(self, directory: Path, at: int, notes: list[int]) -> None:
        self.directory = directory
        self.at = at
        self.waits = at > 0
        self.outcome: SavedParts | Exception | None = None
        self.polls = threading.Semaphore(0)
        self.notes = notes
        self.refusal: Exception | None = None

    def poll(self) -> SavedParts | None:
        self.polls.release()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def write(self) -> None:
        """Its step has come, and all of it is written."""
        self.waits = False
        state = WorkerState(task="local", training=1, steps=7, position="", carry=())
        self.outcome = SavedParts(write_parts(self.directory), {0: state.to_bytes()})

    def committed(self, status: CheckpointStatus) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.notes.append(status.global_step)

    def await_poll(self) -> None:
        """Waits until it has been looked at after this."""
        while self.polls.acquire(blocking=False):
            pass
        assert self.polls.acquire(timeout=20.0)


class FakeEngine:
    """Gives out savings, and notes them."""

    global_step = 7
    is_chief = True

    def __init__(self) -> None:
        self.savings: list[FakeSaving] = []
        self.refusal: Exception | None = None
        self.notes: list[int] = []
        self.steps = self.checkpoints = self.peers = self

    def save(self, directory: Path, at: int) -> FakeSaving:
        if self.refusal is not None:
            raise self.refusal
        self.savings.append(FakeSaving(directory, at, self.notes))
        return self.savings[-1]


class Bench:
    """A checkpointer under test and what it said."""

    def __init__(self, path: Path, **arguments: Any) -> None:
        self.said: list[str] = []
        self.engine: Any = FakeEngine()
        self.home = CheckpointDirectory(path, self.said.append)
        self.checkpointer = Checkpointer(self.home, "worker:0", Retention(), self.said.append, **arguments)

    def order(self, at: int = 0, **record: Any) -> FakeSaving:
        """Orders a checkpoint that the engine accepts."""
        self.checkpointer.order(self.engine, at, TrainingRecord(strategy="OneDevice", trainings=(0,), **record))
        saving: FakeSaving = self.engine.savings[-1]
        return saving

    def leftovers(self) -> list[str]:
        """What lies in the directory beside its lock and what was committed."""
        names = (path.name for path in self.home.path.iterdir())
        return sorted(name for name in names if name != LOCK_FILE and not name.startswith("step-"))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is looked after at once."""
    monkeypatch.setattr(module, "POLL_S", 0.002)


@pytest.mark.smoke
def test_from_an_order_to_a_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "new" / "runs")
    with bench.checkpointer as checkpointer:
        assert (tmp_path / "new" / "runs" / LOCK_FILE).exists()
        assert bench.engine.notes == []
        saving = bench.order(complete=True, metrics={"loss": 0.5}, best=("loss", 0.5))
        states = [checkpointer.busy]
        saving.await_poll()
        assert bench.home.steps() == []
        saving.write()
        checkpointer.finish()
        states.append(checkpointer.busy)
        assert states == [True, False]
        assert bench.home.steps() == [7]
        assert checkpointer.saved is not None
        assert checkpointer.saved.global_step == 7
    checkpoint = bench.home.newest()
    assert checkpoint is not None
    manifest = checkpoint.manifest
    assert (manifest.strategy, manifest.trainings, manifest.complete) == ("OneDevice", (0,), True)
    assert manifest.metrics == {"loss": 0.5}
    assert [(entry.task, entry.steps) for entry in manifest.workers.values()] == [("local", 7)]
    assert bench.home.best == (7, "loss", 0.5)
    assert bench.engine.notes == [7]
    assert lines_with(bench.said, "WARNING") == []
    assert not (bench.home.path / LOCK_FILE).exists()


def test_a_worker_without_a_word_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        saving.outcome = SavedParts(write_parts(saving.directory), missing=("worker:1", "worker:2"))
        checkpointer.finish()
    (line,) = lines_with(bench.said, "older data positions")
    assert "global step 7 has only older data positions of worker:1, worker:2" in line


FAULTS: list[tuple[str, Exception]] = [
    ("a part", CheckpointError("ps:1 could not write its part: No space left on device")),
    ("a ps", Unreachable("ps:1 at 10.0.0.7:2222 gave no answer")),
    ("anything", RuntimeError("a fault")),
]


@pytest.mark.parametrize("fault", [row[1] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_what_goes_wrong_is_said_and_raised_at_the_end(fault: Exception, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        bench.order().outcome = fault
        checkpointer.wait()
        assert lines_with(bench.said, str(fault)) == [
            f"WARNING: could not write a checkpoint; training continues without it. {fault}"
        ]
        with pytest.raises(CheckpointError, match="the training is done, but its last checkpoint is not in") as caught:
            checkpointer.finish()
        assert caught.value.__cause__ is fault
        assert str(fault) in str(caught.value)
        assert bench.leftovers() == []
        bench.order().write()  # the next one succeeds, and all is well
        checkpointer.finish()
    assert bench.home.steps() == [7]


def test_a_replica_that_refuses(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.refusal = Unreachable("ps:0 gave no answer")
    with bench.checkpointer as checkpointer:
        checkpointer.order(bench.engine, 0, RECORD)
        assert not checkpointer.busy
        assert bench.leftovers() == []
        with pytest.raises(CheckpointError, match="ps:0 gave no answer"):
            checkpointer.finish()


def test_an_order_that_waits_is_withdrawn(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        waiting = bench.order(at=100)
        waiting.await_poll()
        bench.order().write()
        assert waiting.directory.exists() is False
        checkpointer.finish()
        assert bench.home.steps() == [7]
        last = bench.order(at=200)
        last.await_poll()
    assert bench.leftovers() == []


def test_one_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        first = bench.order()
        second = in_thread(lambda: bench.order(), "order")
        first.await_poll()
        assert not second.done()
        assert len(bench.engine.savings) == 1
        first.write()
        second.result(20.0).write()
        checkpointer.finish()
    assert bench.home.steps() == [7]
    assert bench.engine.notes == [7, 7]


def test_a_directory_that_another_job_has(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with (
        DirectoryLock(tmp_path, "worker:0"),
        pytest.raises(DirectoryLocked, match=r"in use by worker:0 \(process \d+ on .*use another directory"),
        bench.checkpointer,
    ):
        pass
    assert bench.said == []


def test_a_lock_that_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, runtime=SystemRuntime(Leaping()))
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        saving.await_poll()
        (tmp_path / LOCK_FILE).unlink()
        with DirectoryLock(tmp_path, "worker:5"):
            saving.await_poll()
            saving.await_poll()
            assert lines_with(bench.said, "was taken over by worker:5")
            saving.outcome = CheckpointError("given up")
            checkpointer.wait()
            checkpointer.order(bench.engine, 0, RECORD)
            assert len(bench.engine.savings) == 1
            with pytest.raises(CheckpointError, match="in use by worker:5"):
                checkpointer.finish()
        bench.order().write()
        checkpointer.finish()
        assert bench.home.steps() == [7]


def test_an_order_that_came_to_nothing_is_no_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        saving.outcome = Overtaken("ps:0 was given up before it began to write.")
        checkpointer.wait()
        assert (checkpointer.busy, bench.leftovers()) == (False, [])
        assert bench.said == ["ps:0 was given up before it began to write."]
        checkpointer.finish()


# --- one job, several tasks


def test_another_of_the_job_takes_the_directory_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job="a")
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        saving.await_poll()
        successor = DirectoryLock(tmp_path, "worker:1", job="a")
        successor.acquire()
        saving.write()
        checkpointer.wait()
        bench.engine.is_chief = False
        checkpointer.order(bench.engine, 0, RECORD)
        checkpointer.finish()
        assert len(bench.engine.savings) == 1
        successor.renew()
    successor.renew()
    assert bench.home.steps() == []
    assert bench.leftovers() == []
    (line,) = bench.said
    assert "was taken over from worker:0 by worker:1" in line
    assert line.endswith("of the same job. That task now writes the checkpoints.")


def test_one_that_is_the_chief_all_the_same_takes_it_back(tmp_path: Path) -> None:
    """It was cut off for a while; whoever took it over will hear that it is there again."""
    bench = Bench(tmp_path, job="a", runtime=SystemRuntime(Leaping()))
    with bench.checkpointer as checkpointer:
        successor = DirectoryLock(tmp_path, "worker:1", job="a")
        successor.acquire()
        saving = bench.order()
        saving.write()
        checkpointer.wait()
        with pytest.raises(CheckpointError, match=r"its last checkpoint is not in .* of the same job"):
            checkpointer.finish()
        bench.order().write()
        checkpointer.finish()
        assert bench.home.steps() == [7]
        with pytest.raises(DirectoryLocked):
            successor.renew()


def test_a_successor_is_believed_until_it_must_be_known(tmp_path: Path) -> None:
    now = [0.0]
    waiting = threading.Semaphore(0)

    def clock() -> float:
        if threading.current_thread().name.endswith("order"):
            waiting.release()
        return now[0]

    bench = Bench(tmp_path, job="a", runtime=SystemRuntime(clock))
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        successor = DirectoryLock(tmp_path, "worker:1", job="a")
        successor.acquire()
        saving.write()
        checkpointer.wait()
        now[0] += module.RENEW_S / 2
        ordering = in_thread(lambda: checkpointer.order(bench.engine, 0, RECORD), "order")
        for _ in range(5):
            assert waiting.acquire(timeout=20.0)
        bench.engine.is_chief = False
        ordering.result(20.0)
        successor.renew()
    assert len(bench.engine.savings) == 1


@pytest.mark.parametrize("job", ["a", "b", ""])
def test_the_directory_is_taken_when_the_job_is_known(job: str, tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "worker:1", job="a") as holder:
        bench = Bench(tmp_path)
        with bench.checkpointer as checkpointer:
            if job != "a":
                with pytest.raises(DirectoryLocked, match="in use by worker:1"):
                    checkpointer.joined(job)
                holder.renew()
            else:
                checkpointer.joined(job)
                with pytest.raises(DirectoryLocked):
                    holder.renew()
                bench.order().write()
                checkpointer.finish()
    assert bench.home.steps() == ([7] if job == "a" else [])
    assert lines_with(bench.said, "WARNING") == []


def test_a_job_that_is_known_finds_another_there(tmp_path: Path) -> None:
    with (
        DirectoryLock(tmp_path, "worker:1", job="a"),
        pytest.raises(DirectoryLocked, match="in use by worker:1"),
        Bench(tmp_path, job="b").checkpointer,
    ):
        pass


def test_one_that_comes_late_tries_a_directory_again_at_each_save(tmp_path: Path) -> None:
    bench = Bench(tmp_path, job="b", late=True)
    with bench.checkpointer as checkpointer:
        pass
    with DirectoryLock(tmp_path, "worker:1", job="a") as holder:
        bench = Bench(tmp_path, job="b", late=True)
        with bench.checkpointer as checkpointer:
            checkpointer.order(bench.engine, 0, RECORD)
            assert lines_with(bench.said, "WARNING: could not write a checkpoint; training continues without")
            holder.release()
            bench.order().write()
            checkpointer.finish()
    assert bench.home.steps() == [7]


def test_who_is_refused_because_another_is_the_chief_asks_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def save(*_: Any) -> Any:
        asked.append(1)
        bench.engine.is_chief = len(asked) < 3
        raise Refused("only the chief may save")

    asked: list[int] = []
    bench.engine.save = save
    with bench.checkpointer as checkpointer:
        checkpointer.order(bench.engine, 0, RECORD)
        checkpointer.finish()
        assert not checkpointer.busy
    assert len(asked) == 3
    assert bench.said == []
    assert bench.leftovers() == []


def test_what_fails_when_another_is_the_chief_is_no_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        bench.engine.is_chief = False
        saving.outcome = CheckpointError("the directory has gone")
        checkpointer.finish()
    assert bench.said == []


def test_a_checkpoint_that_was_committed_with_another_chief_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.checkpointer as checkpointer:
        saving = bench.order()
        saving.refusal = Refused("only the chief may say so")
        saving.write()
        checkpointer.finish()
    assert bench.home.steps() == [7]
    assert lines_with(bench.said, "WARNING") == []


def test_giving_up_waits_for_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    checkpointer = bench.checkpointer.__enter__()
    saving = bench.order()
    saving.await_poll()
    checkpointer.abandon()
    assert bench.leftovers() == []
    assert not (tmp_path / LOCK_FILE).exists()
    assert bench.home.steps() == []


class Leaping:
    """A clock that advances by a minute each time that it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


def in_the_way(path: Path) -> Path:
    """A directory that cannot be made, whoever runs this: a file has its place."""
    path.touch()
    return path / "runs"


REFUSALS: list[tuple[str, Callable[[Path], Path]]] = [
    ("a file in its place", lambda path: in_the_way(path / "file")),
    ("a name too long", lambda path: path / ("x" * 300)),
]


@pytest.mark.parametrize("refused", [row[1] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_directory_that_cannot_be_written(refused: Callable[[Path], Path], tmp_path: Path) -> None:
    bench = Bench(refused(tmp_path))
    with bench.checkpointer as checkpointer:
        checkpointer.order(bench.engine, 0, RECORD)
        with pytest.raises(CheckpointError, match="its last checkpoint is not in"):
            checkpointer.finish()
    assert bench.engine.savings == []
    assert lines_with(bench.said, "WARNING: could not write a checkpoint; training continues without")


def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full from now on."""

    def full(*_: Any) -> None:
        raise CheckpointError("cannot make a directory: No space left on device; free some space.")

    monkeypatch.setattr(CheckpointDirectory, "create_partial", full)


@pytest.mark.parametrize("save_steps", [2, None], ids=["by steps", "by seconds"])
def test_a_training_goes_on_without_its_checkpoints(
    save_steps: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch)
    said: list[str] = []
    made = mean_model(say=said.append)
    with pytest.raises(CheckpointError, match="the training is done, but its last checkpoint is not in"):
        made.fit([ONES], 7, checkpoint_dir=tmp_path, save_steps=save_steps)
    assert made.global_step == 7
    assert float(made.params["w"]) == 1 - 0.5 * 7
    # Before each of 2, 4, 6 and 8, and the last; not at each step.
    assert len(lines_with(said, "WARNING: could not write a checkpoint")) == (5 if save_steps else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["history"]


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    said: list[str] = []
    made = mean_model(say=said.append)
    with pytest.MonkeyPatch.context() as patch:
        refusing(patch)
        with pytest.raises(CheckpointError):
            made.fit([ONES], 3, checkpoint_dir=tmp_path, save_steps=2)
    made.fit([ONES], 3, checkpoint_dir=tmp_path)
    assert CheckpointDirectory(tmp_path, pytest.fail).steps() == [6]
    again = mean_model(say=said.append)
    assert again.fit([ONES], 3, checkpoint_dir=tmp_path).steps == 0
