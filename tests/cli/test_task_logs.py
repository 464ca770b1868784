"""`trainband run --log-dir`: the files of the tasks."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import trainband.cli.task_logs as module
from trainband.cli.main import main
from trainband.cli.task_logs import TaskLogs
from trainband.cluster.task import Task
from trainband.errors import YourError

WORKER, PS = Task("worker", 1), Task("ps", 0)
MARK = "--- 2026-11-26T18:00:00Z"


def logs_in(directory: Path, most_bytes: int = 1000) -> TaskLogs:
    """Logs of a job whose clock stands still, with nothing to say."""
    now = datetime(2026, 11, 26, 18, tzinfo=UTC)
    return TaskLogs(directory, pytest.fail, most_bytes=most_bytes, now=lambda: now)


def test_each_start_is_marked_and_nothing_is_lost_between_two_jobs(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "logs"
    for text in ("first", "second \udcff"):
        with logs_in(directory) as logs:
            logs.started(WORKER)
            logs.line(WORKER, text)
            logs.line(PS, "other")
    assert (directory / "worker-1.log").read_text() == (
        f"{MARK} worker:1 started\nfirst\n{MARK} worker:1 started\nsecond \\udcff\n"
    )
    assert (directory / "ps-0.log").read_text() == "other\nother\n"


def test_a_file_that_has_become_long_makes_way_for_another(tmp_path: Path) -> None:
    with logs_in(tmp_path, most_bytes=100) as logs:
        for i in range(25):
            logs.line(WORKER, f"line {i:04}")  # 10 bytes
    assert (tmp_path / "worker-1.log").read_text() == "line 0022\nline 0023\nline 0024\n"
    assert (tmp_path / "worker-1.log.1").read_text().startswith("line 0011\n")


def test_many_tasks_need_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_FILES", 3)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    with logs_in(tmp_path) as logs:
        for i in range(40):
            logs.line(Task("worker", i % 10), f"line {i}")
        assert len(list(descriptors.iterdir())) <= before + 3
    assert [len(path.read_text().splitlines()) for path in tmp_path.iterdir()] == [4] * 10


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "worker-1.log").mkdir()
    with TaskLogs(tmp_path, said.append) as logs:
        logs.line(WORKER, "a")
        logs.line(WORKER, "b")
        logs.line(PS, "c")
    path = tmp_path / "worker-1.log"
    assert said == [f"WARNING: {path} can no longer be written (Is a directory); worker:1 keeps running"]
    assert (tmp_path / "ps-0.log").read_text() == "c\n"


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(YourError, match=r"--log-dir .*/file/logs cannot be made \(Not a directory\)"):
        TaskLogs(tmp_path / "file" / "logs", pytest.fail)


def test_restarts_of_a_job_are_in_its_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint('life', flush=True)\nprint('err', file=sys.stderr)\n"
        f"path = {str(tmp_path / 'lived')!r}\nlived = os.path.exists(path)\nopen(path, 'w').close()\n"
        "sys.exit(0 if lived else 3)"
    )
    arguments = ["--log-dir", str(tmp_path / "logs"), "--ps", "0", "--workers", "1", "--restarts", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments, str(tmp_path / "train.py")])
    assert ended.value.code == 0, capfd.readouterr()
    lines = (tmp_path / "logs" / "worker-0.log").read_text().splitlines()
    assert [re.sub(r"\S+Z", "T", line) for line in lines if line.startswith("---")] == ["--- T worker:0 started"] * 2
    assert sorted(line for line in lines if not line.startswith("---")) == ["err", "err", "life", "life"]
    assert lines[0].startswith("---")
