"""A signal wakes the thread that waits for it, at any moment and in any thread."""

from __future__ import annotations

import os
import select
import selectors
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import until

from trainband.launch.interrupts import Interrupts
from trainband.runtime.signals import signal_pipe

WAIT_S = 60.0


class SignalsAnotherThread:
    """Has another thread take a signal as soon as the main thread waits in the kernel, where no handler can run."""

    def __init__(self) -> None:
        self._main = Path(f"/proc/self/task/{threading.main_thread().native_id}/status")
        self._thread: threading.Thread | None = None
        self._switches = ""

    def __call__(self, number: int) -> None:
        self._thread = threading.Thread(target=self._signal, args=(number,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(WAIT_S)

    def _signal(self, number: int) -> None:
        until(self._main_waits, "that the main thread waits")
        signal.pthread_kill(threading.get_ident(), number)

    def _main_waits(self) -> bool:
        """Whether it has slept since the last look: between two looks, it has no other thread to wait for."""
        lines = dict(line.split(":\t", 1) for line in self._main.read_text(encoding="utf-8").splitlines())
        before, self._switches = self._switches, lines["voluntary_ctxt_switches"]
        return lines["State"].startswith("S") and before == self._switches


@pytest.fixture
def signal_another_thread() -> Iterator[SignalsAnotherThread]:
    found = SignalsAnotherThread()
    yield found
    found.join()


def test_a_signal_wakes_the_waiting_thread_though_another_takes_it(
    signal_another_thread: SignalsAnotherThread,
) -> None:
    with signal_pipe((signal.SIGHUP,)) as pipe:
        assert pipe is not None
        ready = select.poll()
        ready.register(pipe, select.POLLIN)
        signal_another_thread(signal.SIGHUP)
        assert ready.poll(WAIT_S * 1000), "the signal has woken nobody"
        assert pipe.read() == [signal.SIGHUP]
        assert pipe.read() == []


def test_a_signal_wakes_the_launchers_selector_though_another_thread_takes_it(
    signal_another_thread: SignalsAnotherThread,
) -> None:
    interrupts = Interrupts()
    with selectors.DefaultSelector() as selector:
        interrupts.register(selector)
        with interrupts.signals():
            signal_another_thread(signal.SIGTERM)
            assert selector.select(WAIT_S), "the signal has woken nobody"
            assert interrupts.has_come()
            assert interrupts.read() == [signal.SIGTERM]
            assert not interrupts.has_come()
            assert interrupts.read_one() == 0
    interrupts.close()


def test_the_signals_of_others_come_to_the_others() -> None:
    handled: list[int] = []
    handler = signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with signal_pipe((signal.SIGHUP,)) as pipe:
            assert pipe is not None
            for number in (signal.SIGUSR1, signal.SIGHUP):
                os.kill(os.getpid(), number)
            assert pipe.read() == [signal.SIGHUP]
            assert list(os.read(reader, 64)) == handled == [signal.SIGUSR1]
            os.kill(os.getpid(), signal.SIGUSR1)
        assert list(os.read(reader, 64)) == [signal.SIGUSR1], "one that has not been read by the end"
        assert signal.set_wakeup_fd(writer) == writer
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
        os.close(reader)
        os.close(writer)
