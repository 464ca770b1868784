"""A test that hangs ends, and shows where everything stood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests.hanging import prepare as pytest_configure
from tests.hanging import pytest_addoption, pytest_runtest_makereport, pytest_runtest_protocol
from tests.programs import programs
"""

HANGS = """
import subprocess, sys, threading, time

CHILD = "import time\\ndef child_sleeps():\\n    print('up', flush=True)\\n    time.sleep(600)\\nchild_sleeps()"


def thread_sleeps():
    time.sleep(600)


class SlowToShow(Exception):
    def __str__(self):
        time.sleep(4)
        return "shown at last"


def test_hangs(programs):
    programs.start("child", sys.executable, "-c", CHILD).wait_for("up")
    threading.Thread(target=thread_sleeps, daemon=True).start()
    HOW


def test_after():
    pass
"""


@pytest.mark.smoke
def test_one_that_waits_fails_with_all_stacks(tmp_path: Path) -> None:
    told = _run(tmp_path, "threading.Event().wait()")
    for words in (
        "test_hangs hangs: it has not ended within 2 s",
        "in child_sleeps",
        "in thread_sleeps",
        "in test_hangs",
    ):
        assert words in told
    assert "1 failed, 1 passed" in told


def test_one_that_fails_when_its_process_is_aborted_shows_the_stacks_too(tmp_path: Path) -> None:
    told = _run(tmp_path, 'subprocess.run([sys.executable, "-c", CHILD]); raise SlowToShow()')
    for words in ("test_hangs hangs: it has not ended within 2 s", "in child_sleeps", "shown at last"):
        assert words in told
    assert "1 failed, 1 passed" in told


def test_one_that_is_stuck_in_c_takes_its_process_along(tmp_path: Path) -> None:
    told = _run(tmp_path, "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(600)")
    assert "It does not end when it is told to: ending its process." in told
    assert "in child_sleeps" in told


def _run(directory: Path, how: str) -> str:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(HANGS.replace("HOW", how))
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--hang-s=2",
        f"--rootdir={directory}",
        directory,
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    return done.stdout + done.stderr
