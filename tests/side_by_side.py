"""Which tests one process runs, where several run the tests side by side (pytest-xdist)."""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = (
    "tests/compat/test_operations.py",
    "tests/keras/test_keras_devices.py",
    "tests/strategies/test_several_devices.py",
)
"""The tests of such a file look at what a fixture of the file has found out, which takes up to a minute."""

LONG = ("tests/cluster_", "tests/keras/", "tests/simulation/")
"""The longest tests begin, so that the end does not wait for one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the tests."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out one by one, but for the files of `TOGETHER`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in TOGETHER else nodeid

    return Scheduler(config, log)
