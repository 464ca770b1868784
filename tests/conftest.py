"""What all tests share: repeatable examples, compiled programs, signals, and a watch over what is left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import fork_server, hanging, left_behind
from tests.budget import Budget, Recorder
from tests.compiled import share_compiled_programs
from tests.hanging import pytest_runtest_makereport as pytest_runtest_makereport
from tests.hanging import pytest_runtest_protocol as pytest_runtest_protocol
from tests.side_by_side import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.side_by_side import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler

# The same examples every time: a failure is the change's, never the dice's. No deadline: the first call compiles.
settings.register_profile("trainband", derandomize=True, database=None, deadline=None, print_blob=False)
settings.load_profile("trainband")

left_behind.watch_sockets()

# A shell without job control, or nohup, has its background processes ignore these, and so would every process that a
# test starts: a signal that has a handler is back at its default there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

_forks = pytest.StashKey[fork_server.ServerOfTests]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what only this project's tests understand."""
    hanging.pytest_addoption(parser)
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Prepares what the tests and their processes share."""
    hanging.prepare(config)
    config.pluginmanager.register(Budget())
    if config.option.record_durations and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Recorder())
    if "PYTEST_XDIST_WORKER" not in os.environ:  # else the environment is prepared already
        share_compiled_programs(optimised=config.option.markexpr != "not slow")
    if sys.platform == "linux":
        config.stash[_forks] = fork_server.ServerOfTests(os.environ)
        fork_server.install(config.stash[_forks])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Has one test of each folder start its processes as users do."""
    if _forks in item.config.stash:
        item.config.stash[_forks].enabled = item.get_closest_marker("smoke") is None


def pytest_collection_finish() -> None:
    """Has the garbage collector pass over what has been imported and collected: a look at all of it takes half a
    second, and many tests have it look.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all processes of a test run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_behind.open_now()
    yield
    if left := left_behind.since(before, within_s=20.0):
        pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)
