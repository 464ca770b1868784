"""A test that hangs ends, with the stacks of all its threads and of the processes that it started."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import threading
from collections.abc import Generator, Iterator
from types import FrameType

import psutil
import pytest

from tests.programs import Programs

LIMIT_S = 100.0
"""For one test, with what it sets up and takes down."""

FORCE_S = 10.0
"""For a test to end once it is told to; a thread that is stuck in C hears nothing, and takes its process along."""

_LAST_WORDS_S = 2.0
_SHOWN = 6000
_EXIT_CODE = 70

_stderr = pytest.StashKey[int]()
_watch = pytest.StashKey["_Watch"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds how long a test may take."""
    parser.addoption("--hang-s", type=float, default=LIMIT_S, help="seconds until a test is taken for one that hangs")


def prepare(config: pytest.Config) -> None:
    """Keeps the real stderr, and has every Python process that a test starts print its stacks when it is aborted."""
    config.stash[_stderr] = os.dup(2)
    os.environ["PYTHONFAULTHANDLER"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watches each test."""
    marker = item.get_closest_marker("limit")
    limit_s = float(marker.args[0]) if marker else item.config.getoption("--hang-s")
    watch = item.stash[_watch] = _Watch(item.nodeid, limit_s, item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        watch.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the stacks where a test that hung has failed by itself, as one does whose process was aborted."""
    watch = item.stash[_watch]
    with watch.kept_quiet():
        report = yield
    if watch.found and report.failed and watch.found not in str(report.longrepr):
        report.sections.append(("hangs", watch.found))
    return report


class _Watch:
    """Waits in a thread for the end of one test, on the main thread."""

    def __init__(self, test: str, limit_s: float, stderr: int) -> None:
        self._test = test
        self._limit_s = limit_s
        self._stderr = stderr
        self._ended = threading.Event()
        self.found = ""
        """What is said of the test, once it hangs."""
        self._is_quiet = False
        self._before = signal.signal(signal.SIGALRM, self._fail)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The test has ended."""
        self._ended.set()
        self._thread.join()
        signal.signal(signal.SIGALRM, self._before)

    @contextlib.contextmanager
    def kept_quiet(self) -> Iterator[None]:
        """Within, nothing is raised: an error would end pytest instead of the test."""
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    def _watch(self) -> None:
        if self._ended.wait(self._limit_s):
            return
        self.found = f"{self._test} hangs: it has not ended within {self._limit_s:g} s.\n{_own_stacks()}"
        _abort_children()
        self._ended.wait(_LAST_WORDS_S)
        self.found += "".join(program.output[-_SHOWN:] + "\n" for program in Programs.running())
        if not self._ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        if not self._ended.wait(FORCE_S):
            os.write(
                self._stderr, f"\n{self.found}\nIt does not end when it is told to: ending its process.\n".encode()
            )
            os._exit(_EXIT_CODE)

    def _fail(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._is_quiet:
            pytest.fail(self.found, pytrace=False)


def _own_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _abort_children() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGABRT)
            child.send_signal(signal.SIGCONT)  # one that is stopped hears nothing else
