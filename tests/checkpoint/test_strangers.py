"""A checkpoint directory that somebody else can write into: nothing in it makes a reader wait, or fills its memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.samples import commit

from trainband.checkpoint import Checkpoint, CheckpointDirectory, DirectoryLock
from trainband.errors import CheckpointError, DamagedCheckpoint

PART = "ps-0.safetensors"


@pytest.fixture
def home(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path, lambda _: None)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)


@pytest.mark.parametrize("spoil", [fifo, device, loop])
@pytest.mark.parametrize("name", ["manifest.json", PART])
def test_what_is_no_regular_file_is_damage(home: CheckpointDirectory, spoil: Callable[[Path], None], name: str) -> None:
    path = commit(home, 7)
    spoil(path / name)
    with pytest.raises(DamagedCheckpoint, match=name):
        Checkpoint.open(path)
    assert home.newest() is None


def test_a_link_is_followed_unless_it_must_not_be(home: CheckpointDirectory, tmp_path: Path) -> None:
    path = commit(home, 7)
    (path / PART).rename(tmp_path / "elsewhere")
    (path / PART).symlink_to(tmp_path / "elsewhere")
    assert Checkpoint.open(path).verify() == []
    with pytest.raises(DamagedCheckpoint, match="not a regular file"):
        Checkpoint.open(path, follow=False)


@pytest.mark.parametrize("name", ["manifest.json", PART])
def test_a_file_of_terabytes_is_not_read(home: CheckpointDirectory, name: str) -> None:
    path = commit(home, 7)
    os.truncate(path / name, 3 << 40)
    with pytest.raises(DamagedCheckpoint, match=f"{name}.* has 3,298,534,883,328 bytes|{name}.*it has 3,298,534,883,3"):
        Checkpoint.open(path)


def test_a_header_of_terabytes_is_not_read(home: CheckpointDirectory) -> None:
    path, size = commit(home, 7), 3 << 40
    document = json.loads((path / "manifest.json").read_bytes())
    document["parts"][0]["nbytes"] = size
    (path / "manifest.json").write_text(json.dumps(document))
    with (path / PART).open("r+b") as file:
        file.write((size - 8).to_bytes(8, "little"))
        file.truncate(size)
    (damage,) = Checkpoint.open(path).verify()
    assert "100,000,000 is the limit" in str(damage)


def test_a_tensor_that_memory_does_not_hold_is_one_typed_error(
    home: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("trainband.checkpoint.reader.aligned_empty", full)
    with pytest.raises(CheckpointError, match=r"not enough memory for 10 rows of params/hidden/kernel"):
        Checkpoint.open(commit(home, 7)).read("params/hidden/kernel")


@pytest.mark.parametrize(
    "edit",
    [{"created_at": 1e300}, {"trainings": [1 << 70]}, {"last_step": -1}, {"global_step": 1 << 70}],
    ids=["no time", "trainings", "last step", "global step"],
)
def test_numbers_that_nobody_can_show_are_damage(home: CheckpointDirectory, edit: dict[str, object]) -> None:
    path = commit(home, 7)
    document = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps({**document, **edit}))
    with pytest.raises(DamagedCheckpoint):
        Checkpoint.open(path)


def test_a_step_that_is_a_loop_or_has_too_many_digits_is_none(home: CheckpointDirectory) -> None:
    commit(home, 7)
    loop(home.path / "step-000000000009")
    (home.path / f"step-{'9' * 100}").mkdir()
    assert home.steps() == [7]


@pytest.mark.parametrize("spoil", [fifo, device])
def test_a_mark_that_is_no_file_marks_nothing(home: CheckpointDirectory, spoil: Callable[[Path], None]) -> None:
    spoil(home.path / "best.json")
    assert home.best is None


@pytest.mark.parametrize("spoil", [fifo, device])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "LOCK")
    with pytest.raises(CheckpointError, match="not a regular file"):
        DirectoryLock(tmp_path, "worker:0").acquire()


def test_a_lock_file_names_no_path(tmp_path: Path) -> None:
    """Its token becomes part of a file name."""
    (tmp_path / ".LOCK...").mkdir()
    held = {"owner": "x", "host": "x", "pid": 1, "process_start": 0, "machine": "", "acquired_at": 1e300}
    (tmp_path / "LOCK").write_text(json.dumps({**held, "lease_s": 1.0, "token": "../../outside"}))
    with pytest.raises(CheckpointError, match="in use by a job that its lock file does not name"):
        DirectoryLock(tmp_path, "worker:0").acquire()
