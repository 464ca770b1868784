"""`trainband --log-format json run`: what becomes of the lines of tasks and launcher."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainband
from trainband.cli.json_output import JsonOutput
from trainband.cluster.task import Task

WORKER = Task("worker", 1)


def shown(*lines: tuple[str, str], quiet: bool = False) -> tuple[str, list[dict[str, Any]]]:
    """What comes on stdout, and the events on stderr, of lines with their streams; `report` is the launcher's."""
    stdout, stderr = io.StringIO(), io.StringIO()
    output = JsonOutput(stdout=stdout, stderr=stderr, quiet=quiet, clock=lambda: 1.5)
    for stream, line in lines:
        if stream == "note":
            output.report(line)
        else:
            output.line(WORKER, line, stream)
    return stdout.getvalue(), [json.loads(line) for line in stderr.getvalue().splitlines()]


def test_what_a_script_prints_stays_and_all_else_is_an_event() -> None:
    stdout, events = shown(("stdout", "loss 0.5"), ("stderr", "\x1b[2Jlook \u202e out"), ("note", "trainband: so"))
    assert stdout == "[worker:1] loss 0.5\n"
    assert events == [
        {
            "time": "1970-01-01T00:00:01.500Z",
            "level": "info",
            "logger": "stderr",
            "message": "\x1b[2Jlook \u202e out",
            "task": "worker:1",
        },
        {"time": "1970-01-01T00:00:01.500Z", "level": "info", "logger": "trainband.launch", "message": "so"},
    ]


def test_an_event_of_a_task_stays_one_and_cannot_speak_for_another() -> None:
    event = {"time": "t", "level": "warning", "logger": "trainband.ps", "message": "m\nn", "global_step": 7}
    _, (found,) = shown(("stderr", json.dumps(event | {"task": "ps:0"})))
    assert found == event | {"task": "worker:1"}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"time": 1, "level": "info", "logger": "x", "message": "m"}',
        '{"message": "mine"}',
        '{"time": "t", "level": "shout", "logger": "x", "message": "m"}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_what_is_no_event_becomes_the_message_of_one(line: str) -> None:
    _, (found,) = shown(("stderr", line))
    assert (found["logger"], found["message"], found["task"]) == ("stderr", line, "worker:1")


def test_quiet_leaves_out_what_trainband_says_but_for_warnings() -> None:
    said = {"time": "t", "level": "info", "logger": "trainband.console", "message": "m"}
    warned = said | {"level": "warning"}
    _, events = shown(*(("stderr", json.dumps(one)) for one in (said, warned)), quiet=True)
    assert events == [warned | {"task": "worker:1"}]


SCRIPT = """
import sys, trainband
from trainband.runtime.waiting import say_on_stderr
trainband.Task
say_on_stderr("WARNING: look out")
print("printed")
print("to stderr", file=sys.stderr)
if "2" in sys.argv: raise ValueError("no such luck")
"""


@pytest.mark.parametrize(("argument", "code"), [("1", 0), ("2", 1)])
def test_every_line_on_stderr_is_an_event(argument: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ["--log-format", "json", "run", "--ps", "0", "--workers", "1", "train.py", argument]
    done = subprocess.run(
        [sys.executable, "-m", "trainband.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(trainband.__file__).parents[1])},
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "[worker:0] printed\n")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= event.keys() for event in events)
    of_task = [(one["level"], one["logger"], one["message"]) for one in events if one.get("task") == "worker:0"]
    assert ("warning", "trainband.console", "WARNING: look out") in of_task
    assert ("info", "stderr", "to stderr") in of_task
    errors = [event for event in events if event["level"] == "error"]
    assert len(errors) == code
    if errors:
        assert errors[0]["task"] == "worker:0"
        assert errors[0]["message"] == "ValueError has ended this program: no such luck"
        assert errors[0]["exception"].startswith("Traceback (most recent call last):\n")


def test_an_error_of_the_command_line_is_an_event() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainband.cli.main", "--log-format", "json", "run", "no_such_script.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(trainband.__file__).parents[1])},
    )
    assert done.returncode == 2
    event = json.loads(done.stderr)
    assert (event["level"], event["message"][:40]) == ("error", "error: there is no script 'no_such_scrip")
