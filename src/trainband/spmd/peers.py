"""MeshPeers: a process's dealings, other than training, with those that compute in lockstep with it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.job.reports import Progress, WorkerRow
from trainband.runtime import SYSTEM
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.spmd.process_group import Group
from trainband.spmd.shared_data import SharedData
from trainband.spmd.steps import MeshSteps


class MeshPeers:
    """The `Peers` of a process: in a group, all are present or the job ends.

    Args:
      group: the processes.
      data: the data sources that they share.
      steps: of this process, and so of the job.
    """

    def __init__(self, group: Group, data: SharedData, steps: MeshSteps) -> None:
        self.task, self.is_chief, self.job = group.task, group.is_chief, group.job
        self._group = group
        self._data = data
        self._steps = steps

    def at_work(self) -> tuple[str, ...]:
        """Returns none: all end in the same step."""
        return ()

    def busy(self, what: str) -> AbstractContextManager[object]:
        return self._group.busy(what)

    def shorten_waits(self, request: str) -> None:
        """Does nothing: the other processes are needed for every step, and have their timeout."""

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        return self._data.lease(request)

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """Returns the recorder's notes; no other task's clock is known."""
        return recorder.recording(self.task, SYSTEM.host, SYSTEM.pid)

    def progress(self) -> Progress:
        """Returns the job's progress."""
        known, (rate, examples_rate) = self._steps.statistics(), self._steps.rates()
        row = WorkerRow(
            self.task,
            "live",
            rate,
            0.0,
            known.loss,
            memory_bytes=known.memory_bytes,
            device_memory_bytes=known.device_memory_bytes,
        )
        return Progress(known.global_step, known.last_step, rate, known.loss, (row,), examples_rate, known.checkpoint)
