"""Which tests one process runs, where several run the tests side by side (pytest-xdist)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that the long tests took, by scope, on two cores: `pytest --record-durations` writes it."""

TOGETHER = (
    "tests/cli/test_checkpoint.py",
    "tests/cli/test_status_asked.py",
    "tests/cluster_allreduce/test_everywhere.py",
    "tests/compat/test_operations.py",
    "tests/keras/test_keras_devices.py",
    "tests/launch/test_ray.py",
    "tests/model/test_mean_over_examples.py",
    "tests/ps/test_program_checker.py",
    "tests/strategies/test_several_devices.py",
    "tests/test_layers.py",
)
"""The tests of such a file look at what a fixture of the file has found out, or has started, which takes seconds to a
minute. Dealt out one by one, they would have it done in each process, and again after each test of another file."""

TOGETHER_BY_TABLE = ("tests/compat/test_conformance.py",)
"""The same, for the tests of each table: `test_it[table-line]`."""

WAIT = "tests/cluster_"
"""The tests in these folders wait most of their time, and most others compute."""

BEFORE = "tests/keras/"
"""The tests in this folder look at Keras as it is, and those of scripts of TensorFlow 2 change it for their process."""

AFTER = "tests/compat"
"""The tests in these folders must not run before those."""

SPREAD = 0.85
"""Over how much of the short ones the others are spread: the end shall not wait for one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders tests: those that wait or take long, the longest first, among the many short ones that compute, so that
    the processor always has something to do, and no core is idle at the end.

    Processes take them in this order, so that what is `BEFORE` others here is so in each process.
    """
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    long: dict[str, list[pytest.Item]] = {}
    others: list[pytest.Item] = []
    for item in items:
        scope = scope_of(item.nodeid)
        if item.nodeid.startswith(WAIT) or (scope in seconds and not item.nodeid.startswith((BEFORE, AFTER))):
            long.setdefault(scope, []).append(item)
        else:
            others.append(item)
    others.sort(key=lambda item: not item.nodeid.startswith(BEFORE))
    between = int(SPREAD * len(others)) // max(1, len(long))
    mixed: list[pytest.Item] = []
    for index, scope in enumerate(sorted(long, key=lambda scope: -seconds.get(scope, 0.0))):
        mixed += [*long[scope], *others[index * between : (index + 1) * between]]
    items[:] = mixed + others[len(long) * between :]


def scope_of(nodeid: str) -> str:
    """What one process runs: a test, or all that look at what one of them has found out."""
    file = nodeid.partition("::")[0]
    if file in TOGETHER_BY_TABLE:
        return nodeid.partition("-")[0]
    return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out one by one, but for the files of `TOGETHER`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Gives what a lost process had yet to run to the others, but for the test that it was lost in.

            The base class gives them what that process had finished, too, which nobody is told to run, so that the
            others wait for work in silence; and it runs the test again that has just ended its process.
            """
            left: list[str] = []
            for scope, tests in self.assigned_work.pop(node).items():
                undone = [test for test, done in tests.items() if not done]
                left += undone
                if undone := [test for test in undone if test != left[0]]:
                    self.workqueue[scope] = dict.fromkeys(undone, False)
            for other in self.nodes:
                self._reschedule(other)
            return left[0] if left else None

        def _reschedule(self, node: Any) -> None:
            """Gives a process its next test, and also the one after it: it begins none before it knows which follows.

            The base class gives one that is new, as after another was lost, only the first.
            """
            while node in self.registered_collections and not node.shutting_down:  # not while a new one collects
                before = len(self.workqueue)
                try:
                    super()._reschedule(node)
                except OSError:  # it has just been lost: `remove_node` is about to give its tests to others
                    return
                if len(self.workqueue) == before:
                    return

    return Scheduler(config, log)
