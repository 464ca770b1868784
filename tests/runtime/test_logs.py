"""The log: what a program that configures `logging` gets, and what `TRAINBAND_LOG` prints."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainband
from trainband.cli.main import main
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers import tf_config
from trainband.cluster.resolvers.log_level import FORMAT, VARIABLE, follow_environment
from trainband.errors import YourError
from trainband.runtime.logs import CONSOLE, ROOT, add_position, log_to_stderr, task_logger
from trainband.runtime.waiting import say_on_stderr

WORKER = Cluster(spec=ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), task=Task("worker", 0))


class Kept(logging.Handler):
    """A handler of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def shown(self) -> list[tuple[str, str, str]]:
        return [(record.name, record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves the logger `trainband` as it was, and knows of no jobs of other tests."""
    monkeypatch.setattr("trainband.runtime.logs._positions", [])
    before = ROOT.handlers[:], ROOT.level, ROOT.propagate
    hook = sys.excepthook
    yield
    ROOT.handlers[:], ROOT.propagate = before[0], before[2]
    ROOT.setLevel(before[1])
    CONSOLE.setLevel(logging.NOTSET)
    sys.excepthook = hook


@pytest.fixture
def root() -> Iterator[Kept]:
    """A handler of the root logger, as `logging.basicConfig(level=logging.INFO)` and absl give it."""
    logger, kept = logging.getLogger(), Kept()
    level = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(level)


def test_a_program_that_does_not_configure_us_sees_what_it_always_saw(
    root: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    say_on_stderr("worker:0 is back")
    say_on_stderr("WARNING: no checkpoint")
    assert capsys.readouterr() == ("", "trainband: worker:0 is back\ntrainband: WARNING: no checkpoint\n")
    assert root.shown == []


LINES = [("trainband.console", "INFO", "worker:0 is back"), ("trainband.console", "WARNING", "WARNING: no checkpoint")]


def test_a_handler_of_ours_gets_the_lines_as_records(capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept()
    ROOT.addHandler(kept)
    ROOT.setLevel(logging.INFO)
    for _, _, text in LINES:
        say_on_stderr(text)
    assert kept.shown == LINES
    assert capsys.readouterr().err == ""
    ROOT.setLevel(logging.WARNING)  # what it does not want to see is not lost
    say_on_stderr("worker:0 is back")
    assert kept.shown == LINES
    assert capsys.readouterr().err == "trainband: worker:0 is back\n"


def test_a_level_of_ours_gives_them_to_the_roots_handlers(root: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    ROOT.setLevel(logging.INFO)
    for _, _, text in LINES:
        say_on_stderr(text)
    assert root.shown == LINES
    assert capsys.readouterr().err == ""


@pytest.mark.smoke
def test_records_name_their_task() -> None:
    kept = Kept()
    ROOT.addHandler(kept)
    ROOT.setLevel(logging.DEBUG)
    task_logger("trainband.ps.worker", "worker:1").debug("lost %s", "ps:0")
    (record,) = kept.records
    assert (record.name, record.getMessage()) == ("trainband.ps.worker", "lost ps:0")
    assert record.__dict__["task"] == "worker:1"


def test_the_log_on_stderr_leaves_the_consoles_lines_as_they_are(
    root: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr("debug", "worker:0")
    log_to_stderr("info", "worker:0")  # takes the place of the one before
    say_on_stderr("worker:0 is back")
    task_logger("trainband.ps", "ps:1").info("lost worker:0")
    logging.getLogger("trainband.launch").info("started")
    logging.getLogger("trainband.launch").debug("sent")
    words, first, second = capsys.readouterr().err.splitlines()
    assert words == "trainband: worker:0 is back"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} ps:1 INFO trainband\.ps: lost worker:0", first)
    assert second.endswith(" worker:0 INFO trainband.launch: started")
    assert root.shown == []


def test_the_environment_says_level_and_task(capsys: pytest.CaptureFixture[str]) -> None:
    follow_environment({})
    assert ROOT.handlers == []
    follow_environment({VARIABLE: "INFO", tf_config.VARIABLE: tf_config.write(WORKER)})
    logging.getLogger("trainband.x").info("hello")
    assert capsys.readouterr().err.endswith(" worker:0 INFO trainband.x: hello\n")
    follow_environment({VARIABLE: "debug", tf_config.VARIABLE: "{"})  # whoever asks for the cluster is told
    assert logging.getLogger("trainband.x").isEnabledFor(logging.DEBUG)
    with pytest.raises(YourError, match=r"TRAINBAND_LOG = 'loud': there is no such level; use debug, info, warning, e"):
        follow_environment({VARIABLE: "loud"})


def test_the_command_line_gives_the_level_to_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "error")
    with pytest.raises(SystemExit):
        main(["--log-level", "debug", "run", "there_is_no_such_script.py"])
    assert os.environ[VARIABLE] == "debug"
    assert ROOT.level == logging.DEBUG


def test_a_task_follows_the_environment_when_it_first_uses_trainband_and_not_on_import() -> None:
    code = (
        "import trainband, logging; logger = logging.getLogger('trainband')\n"
        "before = logger.level; trainband.Task; print(before, logger.level)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, VARIABLE: "info", "PYTHONPATH": str(Path(trainband.__file__).parents[1])},
    )
    assert done.stdout == "0 20\n"


def test_events_are_lines_of_json_with_what_is_said_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    follow_environment({FORMAT: "json", VARIABLE: "warning", tf_config.VARIABLE: tf_config.write(WORKER)})
    withdraw = add_position(lambda: {"global_step": 7, "term": 2})
    say_on_stderr("WARNING: two\nlines \x1b[2J\x7f")
    say_on_stderr("hello")
    withdraw()
    withdraw()
    task_logger("trainband.x", "ps:1").info("too low")
    try:
        raise ValueError("no")
    except ValueError:
        task_logger("trainband.x", "ps:1").exception("failed: %s", 3)
    text = capsys.readouterr().err
    assert "\x7f" not in text
    first, second, third = (json.loads(line) for line in text.splitlines())
    assert first.pop("time")[-1] == "Z"
    assert first == {
        "level": "warning",
        "logger": "trainband.console",
        "message": "WARNING: two\n    lines \\x1b[2J\\x7f",
        "task": "worker:0",
        "global_step": 7,
        "term": 2,
    }
    assert (second["level"], second["message"]) == ("info", "hello")
    assert (third["level"], third["message"], third["task"]) == ("error", "failed: 3", "ps:1")
    assert third["exception"].endswith("ValueError: no")
    assert "global_step" not in third


def test_json_has_a_level_of_its_own_and_other_formats_are_errors() -> None:
    follow_environment({FORMAT: "JSON"})
    assert ROOT.level == logging.INFO
    follow_environment({FORMAT: "text", VARIABLE: "error"})
    assert (ROOT.level, CONSOLE.level) == (logging.ERROR, logging.NOTSET)
    with pytest.raises(YourError, match="TRAINBAND_LOG_FORMAT = 'xml': there is no such format; use text or json"):
        follow_environment({FORMAT: "xml"})
