"""Several processes run the tests side by side, and one of them may be lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.side_by_side import TOGETHER, TOGETHER_BY_TABLE, scope_of

CONFTEST = "from tests.side_by_side import pytest_xdist_make_scheduler"

TESTS = """
import os, pytest

@pytest.mark.parametrize("at", range(30))
def test_one_of_many(at):
    if at in (12, 28):
        os._exit(1)
"""


def test_what_shares_something_is_run_by_one_process() -> None:
    (by_table,) = TOGETHER_BY_TABLE
    assert scope_of(f"{by_table}::test_operation[math-abs]") == scope_of(f"{by_table}::test_operation[math-cos]")
    assert scope_of(f"{by_table}::test_operation[math-abs]") != scope_of(f"{by_table}::test_operation[nn-relu]")
    assert scope_of(f"{TOGETHER[0]}::test_one") == scope_of(f"{TOGETHER[0]}::test_other") == TOGETHER[0]
    assert scope_of("tests/ps/test_rules.py::test_it[a-b]") == "tests/ps/test_rules.py::test_it[a-b]"
    for file in (*TOGETHER, *TOGETHER_BY_TABLE):
        assert (Path(__file__).parents[1] / file).is_file(), file


def test_a_lost_process_costs_the_one_test_that_it_was_lost_in(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    plain = ("-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    command = (sys.executable, "-m", "pytest", "-n2", *plain, tmp_path)
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60, check=False
    )
    assert "2 failed, 28 passed" in done.stdout, done.stdout + done.stderr
