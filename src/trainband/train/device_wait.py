"""DeviceWait: how long the device still computes a step while hooks or the user's loop hold its report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from trainband.runtime import Runtime
from trainband.runtime.step_times import StepTimes

LONG_S = 0.002
"""A wait longer than this starts a thread that watches for its end: that costs some 50 us a step."""


class DeviceWait:
    """Counts as computing the time that hooks and the user's loop wait for a step's loss.

    A step's report comes while the device still computes the step. A reader of the loss waits for it, outside any
    measured part of the step.

    Args:
      times: of the task.
      runtime: its clock and threads.
    """

    def __init__(self, times: StepTimes, runtime: Runtime) -> None:
        self._times = times
        self._clock: Callable[[], float] = runtime.clock
        self._runtime = runtime
        self._loss: Any = None
        self._began = self._data = 0.0
        self._ready = threading.Event()
        self.ready_at = 0.0
        """When the last watched loss was computed."""
        self._losses: SimpleQueue[Any] | None = None

    def start(self, loss: Any) -> None:
        """Records that a step was dispatched; its loss, if it is an array, may still be computed."""
        if not hasattr(loss, "is_ready") or loss.is_ready():
            return
        self._loss, self._began, self._data = loss, self._clock(), self._times.data
        if self._losses is not None:
            self._ready.clear()
            self._losses.put(loss)

    def end(self) -> None:
        """Records that the next step begins."""
        loss, self._loss = self._loss, None
        if loss is None or not loss.is_ready():
            return  # it was not waited for
        now = self._clock()
        if self._losses is None:
            if now - self._began > LONG_S:
                self._losses = SimpleQueue()
                self._runtime.thread(self._watch, "trainband-device-wait").start()
            return
        if self._ready.wait(LONG_S):  # it is computed: the thread has yet to run
            waited = self._times.data - self._data  # for the next batch, already counted
            took = max(0.0, min(self.ready_at - self._began, now - self._began - waited))
            self._times.record("compute", self._began, self._began + took)

    def close(self) -> None:
        """Ends the thread, if there is one."""
        self._loss = None
        if self._losses is not None:
            self._losses.put(None)

    def _watch(self) -> None:
        assert self._losses is not None
        while (loss := self._losses.get()) is not None:
            try:
                loss.block_until_ready()
            except Exception:
                continue
            self.ready_at = self._clock()
            self._ready.set()
            del loss
