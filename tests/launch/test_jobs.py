"""Jobs that a Python program starts and holds in its hands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.programs import until

from trainband.errors import ClusterError, DeadlineExceeded, JobFailed
from trainband.launch import local, run

WAITS = ["-c", "import signal; print('ready', flush=True); signal.pause()"]


def test_a_handle_tells_what_its_job_does_and_ends_it() -> None:
    job = run(WAITS, ps=1, workers=1, show=None)
    until(lambda: len(job.logs("worker:0")) == 1, "the line")
    assert job.logs("worker:0") == ["ready"]
    assert job.status() == {"ps:0": "running", "worker:0": "running"}
    with pytest.raises(DeadlineExceeded, match=r"ps:0, worker:0 did not exit within 0\.1 s"):
        job.wait(0.1)
    with pytest.raises(ClusterError, match="boss"):
        job.logs("boss:0")
    job.stop()
    assert job.wait().exit_code == 128 + signal.SIGTERM
    assert set(job.status().values()) == {"exited"}
    assert "[worker:0] ready" in job.logs()


def test_a_failure_is_raised_with_the_last_lines() -> None:
    shown: list[str] = []
    job = run("-c 'print(7); exit(3)'", ps=0, workers=1, show=shown.append)
    with pytest.raises(JobFailed, match=r"worker:0 failed: exit code 3\. Its last lines:\n    7"):
        job.wait()
    assert job.status() == {"worker:0": "failed: exit code 3"}
    assert "[worker:0] 7" in shown


def test_a_function_of_a_notebook_runs_as_all_the_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path)

    def train() -> None:
        import json

        task = json.loads(os.environ["TF_CONFIG"])["task"]
        Path(directory, f"{task['type']}{task['index']}").touch()

    with local(ps=1, workers=2) as jobs:
        assert jobs.run(train).kind == "succeeded"
        running = jobs.start(WAITS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ps0", "worker0", "worker1"]
    assert running.wait().kind == "interrupted"  # the block has ended it
    assert "trainband: received SIGTERM" in capsys.readouterr().out


def test_a_job_that_cannot_be_started_is_no_job() -> None:
    with pytest.raises(ClusterError, match=r"unknown backend 'cloud'; choose one of .*local"):
        run("train.py", on="cloud")
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1"):
        run("train.py", options={"host": "192.0.2.1"})
