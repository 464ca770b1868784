"""The directory: whatever happens, at any moment, the newest checkpoint that was committed can be read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoint.samples import KERNEL, commit, manifest, write_parts

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Retention
from trainband.errors import CheckpointError, DamagedCheckpoint

KERNEL_NAME = "params/hidden/kernel"


class Home(CheckpointDirectory):
    """One that remembers what it said."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        super().__init__(path, self.said.append)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "run")


def names(home: CheckpointDirectory) -> list[str]:
    return sorted(path.name for path in home.path.iterdir())


def shift_of(home: CheckpointDirectory) -> float:
    """Which kernel the newest checkpoint holds; it is sound."""
    newest = home.newest()
    assert newest is not None
    assert newest.verify() == []
    return float(newest.read(KERNEL_NAME)[0, 0] - KERNEL[0, 0])


def test_a_directory_that_is_not_there_holds_none(home: Home) -> None:
    assert home.steps() == []
    assert home.newest() is None
    assert home.best is None
    home.sweep()
    assert not home.path.exists()


def test_steps_ascend_and_the_newest_comes_first(home: Home) -> None:
    for step in (20, 3, 1_000_000_000_000):
        commit(home, step)
    assert home.steps() == [3, 20, 1_000_000_000_000]
    assert [checkpoint.global_step for checkpoint in home.candidates()] == [1_000_000_000_000, 20, 3]
    assert home.path_of(20).name == "step-000000000020"
    assert home.path_of(21) == home.path / "step-000000000021"
    assert home.said == []


@pytest.mark.parametrize(
    "name", ["step-7", "step-00000000000x", "other", ".step-000000000007.00000000.partial", "step-000000000009.old"]
)
def test_other_names_are_not_checkpoints(home: Home, name: str) -> None:
    (home.path / name).mkdir(parents=True)
    (home.path / "step-000000000005").write_text("a file")
    assert home.steps() == []


def test_two_that_begin_do_not_meet(home: Home) -> None:
    first, second = home.create_partial(3), home.create_partial(3)
    assert first != second
    assert names(home) == sorted([first.name, second.name])
    assert first.name.startswith(".step-000000000003.")
    assert home.steps() == []


def test_the_manifest_says_which_step_it_is(home: Home) -> None:
    partial = home.create_partial(3)
    assert home.commit(partial, manifest(write_parts(partial), step=5)).path == home.path_of(5)
    assert names(home) == ["step-000000000005"]


def test_a_part_that_is_not_there_is_not_committed(home: Home) -> None:
    partial = home.create_partial(3)
    whole = manifest(write_parts(partial), step=3)
    (partial / "ps-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"ps:1 has written ps-1.safetensors.*is missing.*shared file system"):
        home.commit(partial, whole)
    assert home.steps() == []


def test_a_step_again_replaces_it(home: Home) -> None:
    commit(home, 3, shift=1.0)
    commit(home, 3, shift=2.0)
    assert shift_of(home) == 2.0
    assert names(home) == ["step-000000000003"]


def test_discard_and_sweep_leave_the_rest(home: Home) -> None:
    commit(home, 3)
    home.mark_best(3, "accuracy", 0.5)
    (home.path / "LOCK").touch()
    (home.path / "notes.txt").touch()
    (home.path / ".best.json.01234567.tmp").touch()
    home.discard(home.create_partial(4))
    home.discard(home.path / ".step-000000000009.01234567.partial")  # is none
    assert home.create_partial(5).exists()
    (home.path / ".trash-step-000000000001.01234567" / "sub").mkdir(parents=True)
    home.sweep()
    assert names(home) == ["LOCK", "best.json", "notes.txt", "step-000000000003"]


def test_what_made_way_counts_until_the_new_one_is_there(home: Home) -> None:
    commit(home, 2, shift=2.0)
    path = commit(home, 3, shift=3.0)
    aside = home.path / ".step-000000000003.01234567.replaced"
    path.rename(aside)
    assert home.steps() == [2, 3]
    assert home.path_of(3) == aside
    assert shift_of(home) == 3.0
    home.sweep()
    assert names(home) == ["step-000000000002", "step-000000000003"]
    assert shift_of(home) == 3.0


def test_what_made_way_is_swept_once_the_new_one_is_there(home: Home) -> None:
    path = commit(home, 3, shift=1.0)
    path.rename(home.path / ".step-000000000003.01234567.replaced")
    commit(home, 3, shift=2.0)
    assert shift_of(home) == 2.0
    home.sweep()
    assert names(home) == ["step-000000000003"]


# Damage.


def test_a_damaged_one_is_named_and_the_one_before_it_used(home: Home) -> None:
    commit(home, 1)
    commit(home, 2)
    (home.path_of(2) / "ps-0.safetensors").write_bytes(b"short")
    assert [checkpoint.global_step for checkpoint in home.candidates()] == [1]
    (line,) = home.said
    assert line.startswith("step-000000000002 is damaged: ")
    assert "ps-0.safetensors has 5 bytes, not" in line
    assert line.endswith("Now falling back to step-000000000001.")


def test_if_all_are_damaged_there_is_none(home: Home) -> None:
    commit(home, 1)
    (home.path_of(1) / "manifest.json").write_bytes(b"{")
    assert home.newest() is None
    assert home.said[0].endswith("Now no older checkpoint is left.")


def test_one_that_is_removed_meanwhile_is_not_damaged(home: Home) -> None:
    for step in (1, 2, 3):
        commit(home, step)
    candidates = home.candidates()
    assert next(candidates).global_step == 3
    home.discard(home.path_of(2))
    assert [checkpoint.global_step for checkpoint in candidates] == [1]
    assert home.said == []


def test_one_that_is_being_replaced_is_found_where_it_is(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    path = commit(home, 3)
    real = Checkpoint.open
    aside = home.path / ".step-000000000003.01234567.replaced"

    def open_late(path: Path) -> Checkpoint:
        if not aside.exists():
            path.rename(aside)
        return real(path)

    monkeypatch.setattr(Checkpoint, "open", open_late)
    assert [checkpoint.path for checkpoint in home.candidates()] == [aside]
    assert not path.exists()
    assert home.said == []


def test_a_reader_beside_a_writer_always_finds_one(home: Home) -> None:
    commit(home, 1)
    reader = Home(home.path)
    ended = threading.Event()

    def write() -> None:
        for shift in range(60):
            commit(home, 1 + shift // 20, shift=float(shift))
            home.retain(Retention(keep=1))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = [reader.newest()]
    while not ended.is_set():
        found.append(reader.newest())
    writer.join()
    assert all(found)
    assert reader.said == []


# Retention.


def test_retain_removes_and_tells(home: Home) -> None:
    for step in range(1, 8):
        commit(home, step, created_at=step * 1800.0)
    assert home.retain(Retention(keep=2, every_hours=1), protect=[4]) == [2]
    assert home.steps() == [1, 3, 4, 5, 6, 7]
    assert home.retain(Retention(keep=2), {1, 99}) == [3, 4, 5]
    assert names(home) == [home.path_of(step).name for step in (1, 6, 7)]


def test_a_damaged_one_is_neither_counted_nor_removed(home: Home) -> None:
    for step in (1, 2, 3):
        commit(home, step)
    (home.path_of(3) / "manifest.json").unlink()
    (home.path_of(2) / "ps-0.safetensors").unlink()
    assert home.retain(Retention(keep=1)) == []
    assert home.steps() == [1, 2, 3]


def test_a_replaced_checkpoint_counts_with_its_own_time(home: Home) -> None:
    for step, at in ((1, 0.0), (2, 3600.0), (3, 3700.0)):
        commit(home, step, created_at=at)
    hourly = Retention(keep=1, every_hours=1)
    assert home.retain(hourly) == []
    commit(home, 2, created_at=3500.0)
    assert home.retain(hourly) == [2]


def test_one_that_cannot_be_removed_is_gone_for_readers(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def rmtree(_: Path) -> None:
        raise OSError(16, "Device or resource busy")

    commit(home, 1)
    commit(home, 2)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", rmtree)
        home.retain(Retention(keep=1))
    assert home.steps() == [2]
    assert "(Device or resource busy); the next start" in home.said[0]
    home.sweep()
    assert names(home) == ["step-000000000002"]


# The best.


def test_best(home: Home) -> None:
    commit(home, 3)
    home.mark_best(3, "accuracy", 0.75)
    assert home.best == (3, "accuracy", 0.75)
    home.mark_best(4, "loss", 0.25)
    assert Home(home.path).best == (4, "loss", 0.25)
    assert names(home) == ["best.json", "step-000000000003"]


@pytest.mark.parametrize("text", ["", "[]", '{"step": 3}', '{"step": "3", "metric": "loss", "value": 1.0}', "\x00"])
def test_a_damaged_best_is_said(home: Home, text: str) -> None:
    home.path.mkdir()
    (home.path / "best.json").write_text(text)
    assert home.best is None
    assert "best.json is damaged" in home.said[0]


def test_a_best_that_is_no_number_is_refused(home: Home) -> None:
    with pytest.raises(ValueError, match="finite"):
        home.mark_best(3, "loss", float("nan"))


# Disks that refuse, and processes that die, at each step of a commit.


class Crash(BaseException):
    """A death of the process: nothing that handles errors runs after it."""


def fail_at(count: int, patched: pytest.MonkeyPatch, error: Callable[[], BaseException], after: bool) -> list[str]:
    """The `count`-th change of the disk from now fails, before or after it has been made; the names of all so far."""
    made: list[str] = []

    def failing(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> Any:
            made.append(name)
            if len(made) - 1 != count:
                return real(*args, **more)
            if after:
                real(*args, **more)
            raise error()

        patched.setattr(os, name, call)

    for name in ("rename", "replace", "fsync", "unlink", "rmdir"):
        failing(name)
    return made


def steps_of_a_commit(tmp_path: Path) -> list[str]:
    home = Home(tmp_path / "count")
    commit(home, 1)
    partial = home.create_partial(1)
    whole = manifest(write_parts(partial), 1)
    with pytest.MonkeyPatch.context() as patched:
        made = fail_at(-1, patched, Crash, after=False)
        home.commit(partial, whole)
    return made


def test_the_steps_of_a_commit(tmp_path: Path) -> None:
    # manifest: its bytes, its name, its directory; old aside, new in, the parent; the old one is removed
    made = steps_of_a_commit(tmp_path)
    assert made[:7] == ["fsync", "replace", "fsync", "rename", "rename", "fsync", "rename"]
    assert set(made[7:]) == {"unlink", "rmdir"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Crash, lambda: OSError(5, "Input/output error")], ids=["dies", "error"])
@pytest.mark.parametrize("again", [False, True], ids=["new", "replacing"])
def test_whatever_fails_in_a_commit_the_newest_is_sound(
    tmp_path: Path, again: bool, error: Callable[[], BaseException], after: bool
) -> None:
    for count in range(len(steps_of_a_commit(tmp_path))):
        home = Home(tmp_path / f"{count}")
        commit(home, 1, shift=1.0)
        step = 1 if again else 2
        partial = home.create_partial(step)
        whole = manifest(write_parts(partial, 2.0), step)
        refused = False
        with pytest.MonkeyPatch.context() as patched:
            fail_at(count, patched, error, after)
            try:
                home.commit(partial, whole)
            except (Crash, CheckpointError):
                refused = True
        there = shift_of(home)
        assert there in (1.0, 2.0)
        assert refused or there == 2.0  # what is said to be committed is
        later = Home(home.path)
        later.sweep()
        assert shift_of(later) == there
        assert [name for name in names(later) if name.startswith(".")] == []
        commit(later, step, shift=3.0)
        assert shift_of(later) == 3.0


def test_an_error_of_a_commit_names_the_cause(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = home.create_partial(1)
    whole = manifest(write_parts(partial), 1)
    fail_at(0, monkeypatch, lambda: OSError(28, "No space left on device"), after=False)
    with pytest.raises(CheckpointError, match=r"cannot commit .*step-000000000001: No space left.*make room"):
        home.commit(partial, whole)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from tests.checkpoint.samples import commit
from tests.checkpoint.test_directory import Home, shift_of
from trainband.checkpoint import Retention

dice = random.Random(1)
path = Path(sys.argv[1])
commit(Home(path), 1)
last, lines, rounds = 0.0, 0, 40
for _ in range(rounds):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        home = Home(path)
        home.sweep()
        for shift in range(int(last) + 1, 1_000_000):
            commit(home, 1 + shift // 3, created_at=float(shift), shift=float(shift))  # each step three times
            os.write(write, b"%d\\n" % shift)
            home.retain(Retention(keep=2))
    os.close(write)
    told = os.read(read, 10)  # has started
    time.sleep(dice.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 65536):
        told += more
    os.close(read)
    committed = float(told.split()[-1])
    there = shift_of(Home(path))
    assert committed <= there <= committed + 1, (committed, there)
    last, lines = there, lines + len(told.split())
home = Home(path)
home.sweep()
assert not [p for p in path.iterdir() if p.name.startswith(".")], list(path.iterdir())
print(rounds, "deaths", lines, "commits")
"""


def test_a_job_that_is_killed_at_any_moment_leaves_its_last_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "40 deaths" in done.stdout


UNPRIVILEGED = """
import os, sys
import numpy as np
from pathlib import Path
from trainband.checkpoint import CheckpointDirectory, DirectoryLock, Piece, write_part
from trainband.errors import CheckpointError

os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
here = Path()
x = (Piece("x", (1,), "int8", 0, 1), np.zeros(1, np.int8))
for refused in (
    lambda: CheckpointDirectory(here, print).create_partial(1),
    lambda: CheckpointDirectory(here, print).mark_best(1, "loss", 1.0),
    lambda: write_part(here, "part", ps=0, version=0, pieces=[x]),
    lambda: DirectoryLock(here, "worker:0").acquire(),
):
    try:
        refused()
    except CheckpointError as error:
        print(error)
"""


def test_a_directory_without_the_right_to_write(home: Home) -> None:
    home.path.mkdir()
    home.path.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, home.path], capture_output=True, text=True, check=False)
    assert done.stdout.count("Permission denied; give this user permission, or use another directory.") == 4, done
    assert names(home) == []


def test_a_commit_that_fails_puts_the_old_one_back(home: Home) -> None:
    path = commit(home, 1, shift=1.0)
    partial = home.create_partial(1)
    whole = manifest(write_parts(partial, 2.0), 1)
    with pytest.MonkeyPatch.context() as patched:
        fail_at(4, patched, lambda: OSError(5, "Input/output error"), after=False)
        with pytest.raises(CheckpointError, match="cannot commit"):
            home.commit(partial, whole)
    assert names(home) == sorted([path.name, partial.name])
    assert shift_of(home) == 1.0


def test_a_read_only_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    home.path.mkdir()
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(CheckpointError, match=r"cannot create .*Read-only file system; give this user permission"):
        home.create_partial(1)


def test_a_file_where_the_directory_should_be(home: Home) -> None:
    home.path.write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot list .*run: Not a directory"):
        home.steps()
    with pytest.raises(CheckpointError, match="cannot create"):
        home.create_partial(1)


def test_negative_steps_are_refused(home: Home) -> None:
    with pytest.raises(ValueError, match="not be negative"):
        home.create_partial(-1)


def test_reading_needs_no_right_to_write(home: Home) -> None:
    commit(home, 1)
    before = names(home)
    newest = home.newest()
    assert newest is not None
    np.testing.assert_array_equal(newest.read(KERNEL_NAME), KERNEL)
    assert names(home) == before
    (newest.path / "ps-1.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint):
        newest.read(KERNEL_NAME)
