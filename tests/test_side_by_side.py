"""Several processes run the tests side by side, and one of them may be lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import budget
from tests.side_by_side import DURATIONS, TOGETHER, TOGETHER_BY_TABLE, pytest_xdist_make_scheduler, scope_of

ROOT = Path(__file__).resolve().parent.parent

CONFTEST = "from tests.side_by_side import pytest_xdist_make_scheduler"

TESTS = """
import os, pytest

@pytest.mark.parametrize("at", range(30))
def test_one_of_many(at):
    if at in (12, 28):
        os._exit(1)
"""

BUDGET = """
import subprocess
from tests import budget

LEVEL = "{level}"

def pytest_configure(config):
    budget.SHARES_S = dict.fromkeys(budget.SHARES_S, 1000.0) | {{LEVEL: 0.0}}
    config.pluginmanager.register(budget.Budget(allowance_s=0.0))
"""

LEVELS = """
import subprocess, sys, jax

def test_pure():
    sum(range(1000))

def test_one_process():
    jax.jit(lambda x: x + 1)(1.0)

def test_several_processes():
    subprocess.run([sys.executable, "-c", "sum(range(100_000))"], check=True)
"""


def run(tmp_path: Path, conftest: str, tests: str, *options: str) -> str:
    """What pytest prints of these tests."""
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_it.py").write_text(tests)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        *options,
        str(tmp_path),
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_what_shares_something_is_run_by_one_process() -> None:
    (by_table,) = TOGETHER_BY_TABLE
    assert scope_of(f"{by_table}::test_operation[math-abs]") == scope_of(f"{by_table}::test_operation[math-cos]")
    assert scope_of(f"{by_table}::test_operation[math-abs]") != scope_of(f"{by_table}::test_operation[nn-relu]")
    assert scope_of(f"{TOGETHER[0]}::test_one") == scope_of(f"{TOGETHER[0]}::test_other") == TOGETHER[0]
    assert scope_of("tests/ps/test_rules.py::test_it[a-b]") == "tests/ps/test_rules.py::test_it[a-b]"
    for file in (*TOGETHER, *TOGETHER_BY_TABLE):
        assert (ROOT / file).is_file(), file


def test_what_is_recorded_of_tests_is_of_these_tests() -> None:
    for scope in (*json.loads(DURATIONS.read_text()), *budget.OVER):
        assert (ROOT / scope.partition("::")[0]).is_file(), (
            f"{scope} is no test: --record-durations writes the file anew"
        )


@pytest.mark.parametrize("level", ["pure", "one process", "several processes"])
def test_a_test_that_takes_more_than_its_level_has_fails(level: str, tmp_path: Path) -> None:
    output = run(tmp_path, BUDGET.format(level=level), LEVELS)
    assert f"a test of level {level!r} has 0 s" in output, output
    assert re.search(rf"^ERROR \S+::test_{level.replace(' ', '_')}\b", output, re.MULTILINE), output
    assert "3 passed, 1 error" in output, output


def test_a_lost_process_costs_the_one_test_that_it_was_lost_in(tmp_path: Path) -> None:
    output = run(tmp_path, CONFTEST, TESTS, "-n2")
    assert "2 failed, 28 passed" in output, output


class Node:
    """What the scheduler sees of a pytest process."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.tests: list[int] = []
        self.send_runtest_some = self.tests.extend


def test_a_process_may_be_lost_while_another_is_new() -> None:
    options: Any = SimpleNamespace(
        getvalue=lambda _: ["popen", "popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = pytest_xdist_make_scheduler(options, None)
    names = [f"test_it[{number}]" for number in range(30)]
    first, second, new = Node(), Node(), Node()
    for node in (first, second):
        scheduler.add_node(node)
        scheduler.add_node_collection(node, names)
    scheduler.schedule()
    scheduler.add_node(new)
    assert scheduler.remove_node(second) == names[second.tests[0]]
    assert new.tests == [], "it has not collected the tests yet"
    scheduler.add_node_collection(new, names)
    scheduler.schedule()
    assert new.tests
