"""The faults' own fixtures: several jobs run beside each other, each on machines of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster_faults.matrix import Case, Matrix


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
    with Matrix(cases, tmp_path_factory.mktemp("faults")) as running:
        yield running
