"""The faults' own fixtures: several jobs run beside each other, each on machines of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.cluster_faults.matrix import EVERY_CASE, Case, Matrix, run

MATRIX = pytest.StashKey[Matrix]()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> None:
    """Takes the place of the watch of all tests: the threads of the jobs beside a test's own are not its."""


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Runs the cases that were chosen, a few at the same time, and knows how each has ended."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "case" in item.callspec.params
        and item.get_closest_marker("skip") is None
    ]
    cases = [case for case in chosen if isinstance(case, Case)]
    twice = len(cases) > 1 and not os.environ.get(EVERY_CASE)
    with Matrix(cases, tmp_path_factory.mktemp("faults"), run, twice=twice) as running:
        request.config.stash[MATRIX] = running
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tells what has passed only the second time."""
    matrix = config.stash.get(MATRIX, None)
    for case, why in matrix.failed_once.items() if matrix is not None else ():
        terminalreporter.section(f"{case} failed beside another case, and passed alone")
        terminalreporter.line(why)
