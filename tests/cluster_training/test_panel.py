"""The live panel of `trainband run`, on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from tests.programs import LINE, Programs

from trainband.strategies.base import Progress, WorkerRow
from trainband.train.console import picture

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TERMINAL = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "", "LINES": ""}


def screen(text: str) -> list[str]:
    """The lines of a terminal that has got this text and is never full: what Live writes, and no more."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif up := re.fullmatch(r"\x1b\[(\d+)A", part):
            row -= int(up[1])
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_the_picture_has_the_bar_on_a_line_of_its_own() -> None:
    console = Console(file=io.StringIO(), width=100)
    rows = (WorkerRow("worker:0", "live", 500.0, 1.0, 0.25), WorkerRow("worker:1", "lost", 0.0, 0.0, None))
    console.print(picture(Progress(1200, 6000, 500.0, 0.25, rows)))
    assert isinstance(console.file, io.StringIO)
    head, bar, titles, *workers = (line.rstrip() for line in console.file.getvalue().splitlines())
    assert head == "global step 1,200/6,000, 500 steps/s, loss 0.2500, 10 s left"
    assert set(bar) <= {"━", "╸", "╺", " "}
    assert titles.split() == ["worker", "steps/s", "staleness", "loss"]
    assert [line.split()[0] for line in workers] == ["worker:0", "worker:1"]


def test_a_terminal_shows_a_panel_below_the_lines(programs: Programs) -> None:
    job = programs.trainband(
        "run",
        "--workers=2",
        str(LINE),
        "--train_steps=6000",
        "--pause_s=0.002",
        environ=TERMINAL,
        terminal=True,
    )
    assert job.wait() == 0, job.output
    text = ESCAPE.sub("", job.stdout)
    assert "waiting for ps:0 at 127.0.0.1:" in text
    assert re.search(r"global step [\d,]+/6,000, [\d,]+ steps/s, [\d,]+ examples/s, loss ", text)
    assert re.search(r"^ ?worker +steps/s +staleness +loss", text, re.M)
    assert job.stdout.rindex("\x1b[?25h") > job.stdout.rindex("\x1b[?25l")  # the cursor is back
    # In the end there are the tasks' lines, whole and alone.
    lines = [line for line in screen(job.stdout) if line]
    about_the_page = [
        line for line in lines if line.startswith("trainband: the page of this job is at http://127.0.0.1:")
    ]
    assert len(about_the_page) <= 1, "a quick job may end before there is one"
    lines = [line for line in lines if line not in about_the_page]
    assert all(line.startswith("[") for line in lines), lines
    for line in (
        "[worker:0] worker:0 is done at global step 6000, refused 0",
        "[worker:1] worker:1 is done at global step 6000, refused 0",
        "[ps:0] trainband: ps:0 ends: the job is complete",
    ):
        assert lines.count(line) == 1


def test_a_panel_does_not_stand_in_the_way_of_a_failure(programs: Programs) -> None:
    """A script that serves nobody: the panel waits for as long as it runs, and a failure is told as ever."""
    job = programs.python(
        "trainband run",
        *("-m", "trainband.cli.main", "run", "-m", "this_module_does_not_exist"),
        environ=TERMINAL,
        terminal=True,
    )
    assert job.wait(60.0) == 1
    text = ESCAPE.sub("", job.stdout)
    assert "waiting for ps:0 at 127.0.0.1:" in text
    assert "No module named this_module_does_not_exist" in text
    assert re.search(r"── \S+ failed: exit code 1 ── its last line ──", text)


@pytest.mark.smoke
def test_no_panel_where_there_is_no_terminal(programs: Programs) -> None:
    job = programs.trainband("run", "--ps=0", "--workers=1", "-m", "this")
    output = job.succeed()
    assert "\x1b" not in output + job.stderr
    assert output.startswith("[worker:0] The Zen of Python")
