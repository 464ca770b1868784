"""Limits the processor time of each test by its level, and records which tests take long.

`pytest -n 4 --record-durations` writes the long ones into `tests/durations.json`; they start first.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Generator

import pytest
from jax import monitoring

from tests.side_by_side import DURATIONS, TOGETHER, scope_of

LONG_S = 8.0
"""Shorter tests are not recorded."""

SHARES_S = {"pure": 1.0, "simulated": 5.0, "one process": 10.0, "several processes": 20.0}
"""Processor time of a test of each level, including its processes, on one quiet core of the machine of `LOOP_S`."""

LOOP_S = 0.0145
"""Processor time of `_loop` on an AMD EPYC, on which the suite takes as long as docs/testing.md says."""

TOLERANCE = 4.0
"""Other work on the machine has tests take up to twice the processor time, and rarely more."""

ALLOWANCE_S = 5.0
"""What may fall on any test: garbage collections, a module that nobody has imported yet, threads of earlier tests."""

_SCHEDULES = "tests/simulation/test_schedules.py::test_every_promise_holds_under_every_schedule"
OVER = {
    f"{_SCHEDULES}[sync-0-50]": 12.0,
    f"{_SCHEDULES}[async-0-50]": 10.0,
    f"{_SCHEDULES}[bounded-0-50]": 10.0,
    f"{_SCHEDULES}[standbys-0-50]": 20.0,
    f"{_SCHEDULES}[standbys-any-0-50]": 26.0,
    "tests/ps/test_waiting_rules.py::test_promises_hold_in_any_order_of_events": 3.0,
    # Whichever test is the first computes what all of them look at.
    "tests/strategies/test_several_devices.py": 30.0,
    # These start a job and attack it, or parse all sources.
    "tests/security/test_attacks.py::test_a_job_withstands_another_user_of_its_machine": 30.0,
    "tests/security/test_inventory.py": 4.0,
    "tests/security/test_program_readers.py": 4.0,
    "tests/test_language.py": 3.0,
    "tests/test_layers.py": 4.0,
    "tests/test_messages.py": 4.0,
    "tests/test_opens.py": 3.0,
    "tests/test_sizes.py": 2.0,
}
"""Tests and files that may take more, and how much. The list may only get shorter."""

_compilations: Counter[str] = Counter()


def _count(event: str, *_: object, **__: object) -> None:
    _compilations[event] += 1


monitoring.register_event_duration_secs_listener(_count)


class Measurement:
    """Processor time and level of a test, from its creation on."""

    def __init__(self) -> None:
        self._own = _processor_time(resource.RUSAGE_SELF)
        self._processes = _processor_time(resource.RUSAGE_CHILDREN)
        self._compilations = _compilations.total()

    @property
    def seconds(self) -> float:
        """So far, of this process and of its children that have ended."""
        now = _processor_time(resource.RUSAGE_SELF) + _processor_time(resource.RUSAGE_CHILDREN)
        return now - self._own - self._processes

    def level(self, nodeid: str) -> str:
        """By what the test has done: started processes, run the simulator, or compiled programs."""
        if _processor_time(resource.RUSAGE_CHILDREN) > self._processes:
            return "several processes"
        if nodeid.startswith("tests/simulation/"):
            return "simulated"
        return "one process" if _compilations.total() > self._compilations else "pure"


class Budget:
    """A pytest plugin: a test that takes more than its level's share fails."""

    def __init__(self, allowance_s: float = ALLOWANCE_S) -> None:
        self._allowance_s = allowance_s
        self._measurement = Measurement()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Starts measuring."""
        self._measurement = Measurement()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Starts again if the test may have paid for a fixture that its whole file uses."""
        if item.nodeid.partition("::")[0] in TOGETHER:
            self._measurement = Measurement()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Compares a test with its share once it has ended."""
        report = yield
        if call.when == "teardown" and report.passed and item.get_closest_marker("slow") is None:
            level, seconds = self._measurement.level(item.nodeid), self._measurement.seconds
            share = OVER.get(item.nodeid, OVER.get(item.nodeid.partition("::")[0], SHARES_S[level]))
            most = TOLERANCE * share + self._allowance_s
            if seconds > most and seconds > most * (slowness := _slowness()):
                report.outcome = "failed"
                report.longrepr = (
                    f"{seconds:.1f} s of processor time; a test of level {level!r} has {share:g} s, and fails here at "
                    f"{most * slowness:.1f} s. Make it cheaper or mark it slow."
                )
        return report


class Recorder:
    """A pytest plugin: records the duration of each long test, or of a file whose tests one process runs."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the duration of one phase."""
        self._seconds[scope_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        """Writes the file."""
        found = {scope: round(seconds) for scope, seconds in sorted(self._seconds.items()) if seconds >= LONG_S}
        DURATIONS.write_text(json.dumps(found, indent=1) + "\n")


def _processor_time(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _loop() -> int:
    total = 0
    for number in range(300_000):
        total += number & 7
    return total


def _slowness() -> float:
    """How many times as long this machine takes at this moment, at least 1."""
    begun = time.thread_time()
    _loop()
    return max(1.0, (time.thread_time() - begun) / LOOP_S)
