"""ParameterServerSteps: a worker's steps, each of which is an exchange with all parameter servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from trainband.job.engine import Steps
from trainband.job.reports import StepReport, TaskStatistics, TrainingStatus
from trainband.model.batch import Portion, digest_of
from trainband.model.variables import PyTree
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.table_rows import Lookup
from trainband.runtime.memory import PARTS
from trainband.runtime.overrides import override
from trainband.spmd.refusals import Refusals
from trainband.strategies.gradient_step import Computed, GradientStep
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.messages.workload import LONGEST_S, Workload


class ParameterServerSteps(Steps):
    """`Steps` of one worker.

    Args:
      client: of a worker that has joined the job.
      step: computes gradients.
      overlap: whether the next one is computed while a push and its answer travel.
    """

    steps_per_execution = 1
    """Each step is an exchange."""

    def __init__(self, client: JobClient, step: GradientStep, *, overlap: bool) -> None:
        self._membership = client.membership
        self._exchanger = client.exchanger
        self._control = client.training
        self._checkpoints = client.checkpoints
        self._peers = client.peers
        self._step = step
        self._overlap = overlap
        self.place, self.times = step.place, client.membership.times
        self._refusals = Refusals(client.membership.say)
        self._training_number = 0
        self._last_step: int | None = None
        self._loss: Any = None
        self._in_step = client.checkpoints.in_step
        self._tables = client.tables
        if self._tables is not None:
            self.place = self._tables.prepare(step.place)
        self._balances = bool(client.membership.plan.description.rule.get("balance"))
        self.share = self._next_share if self._balances else None
        self._steps, self._carry = 0, step.first_carry(self._exchanger.now.params)
        found = client.checkpoints.worker_state
        if found is not None:
            self._steps = found.steps
            if found.carry:
                self._carry = step.carry_of(found, self._carry)
        self._checkpoints.record_step(self._steps, self._carry)

    @property
    @override
    def global_step(self) -> int:
        return self._exchanger.now.global_step

    @property
    @override
    def training(self) -> TrainingStatus:
        starts = self._membership.training.starts
        return TrainingStatus(starts=starts, last_step=self._last_step, refused=self._refusals.total)

    @override
    def start_training(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        self._exchanger.drain()
        self._refusals.start_training()
        self._training_number += 1
        state = self._control.await_training(
            self._training_number, UNLIMITED if last_step is None else last_step, trainings
        )
        self._last_step = state.last_version if state.last_version < UNLIMITED else None
        if self._tables is not None:
            self._tables.forget()
        # A worker that joins late, in a script that trains several times, finds its early training runs finished.
        return not self._exchanger.pull().done and state.fit == self._training_number

    @override
    def step(self, batch: PyTree) -> StepReport:
        """Like `Steps.step`.

        Raises:
          NonFiniteGradient: the ps have refused this worker's gradient 100 times in a row.
        """
        exchanger, times = self._exchanger, self.times
        if not self._membership.first_batch:
            self._membership.first_batch = digest_of(jax.tree.leaves(batch))
        begin = time.monotonic()
        lookup = None
        if self._tables is not None:
            batch, lookup = self._tables.of_step(batch)
        computed = self._step(exchanger.now.params, self._carry, batch)
        times.record("compute", begin, time.monotonic())
        times.steps += 1
        self._loss, self._carry = computed.loss, computed.carry
        self._steps += 1
        self._checkpoints.record_step(self._steps, self._carry)
        used = exchanger.now.versions
        answer = exchanger.drain()
        # A push after the last update could only be dropped; and one of params that a ps has lost is invalid.
        if answer is None or not (answer.done or answer.restarted):
            exchanger.send(
                computed.gradient if lookup is None else with_rows(computed, lookup),
                used,
                loss=computed.loss,
                examples=computed.examples,
                finite=computed.finite,
                workload=_workload(batch, computed.seconds) if self._balances else None,
                asked=None if self._tables is None else self._tables.next_asked(),
            )
        if not self._overlap:
            answer = exchanger.drain()
        if answer is None:  # the first of overlapping steps: nothing is known of it yet
            return StepReport(
                computed.loss, self.global_step, applied=False, staleness=0, done=False, metrics=computed.metrics
            )
        if answer.refusal:
            self._refusals.record(f"{self._membership.task}: a ps {answer.refusal}")
        else:
            self._refusals.none()
        return StepReport(
            computed.loss,
            answer.global_step,
            answer.applied,
            answer.staleness,
            answer.done,
            answer.refusal,
            computed.metrics,
            # With overlap the answer belongs to the step before.
            None if answer.worker_state is None else answer.worker_state + self._overlap,
        )

    def _next_share(self) -> int:
        return self._exchanger.now.share

    @override
    def catch_up(self, batch: PyTree | None = None) -> None:
        if self._in_step:  # nothing changes without this worker
            return
        if batch is not None:
            batch = batch if self._tables is None else self._tables.zeros(batch)
            self._step.compile(self._exchanger.now.params, self._carry, batch)
        if self._tables is not None:
            self._tables.forget()
        self._exchanger.pull()

    @override
    def pop_known(self) -> Sequence[tuple[int, float]]:
        """Returns nothing: each report is complete."""
        return ()

    @override
    def settle(self) -> None:
        """Does nothing: only steps confirmed by a ps count here."""

    @override
    def missing(self) -> int:
        limited = [state for state in self._control.states() if state.last_version < UNLIMITED]
        return max((state.last_version - state.version for state in limited), default=0)

    @override
    def pause(self, reason: str = "") -> str:  # noqa: ARG002 - the others continue
        self._exchanger.drain()
        self._control.pause()
        return ""

    @override
    def finish(self) -> None:
        self._control.finish()

    @override
    def statistics(self) -> TaskStatistics:
        loss, resources = self._loss, self._membership.resources
        memory = resources.memory()
        return TaskStatistics(
            task=self._membership.task,
            is_chief=self._peers.is_chief,
            global_step=self.global_step,
            last_step=None,  # the ps know it
            steps=self._steps,
            examples=None,  # the ps count them
            refused=self._refusals.total,
            loss=None if loss is None else float(loss),
            seconds=self.times.seconds(),
            device=resources.device,
            device_memory_bytes=memory.device,
            device_memory_limit_bytes=memory.device_limit,
            memory_bytes=memory.process,
            memory_parts=dict(zip(PARTS, memory.parts, strict=False)),
        )


def with_rows(computed: Computed, lookup: Lookup) -> list[tuple[Any, ...]]:
    """Returns the gradient of each ps, with that of its rows."""
    rows = lookup.gradients(computed.rows)
    return [(*blocks, *arrays) for blocks, arrays in zip(computed.gradient, rows, strict=True)]


def _workload(portion: Portion, computed_s: float) -> Workload:
    """Returns the time of a portion, including the time spent waiting for its data."""
    seconds = min(LONGEST_S, computed_s + portion.waited_s) if computed_s else 0.0
    return Workload(seconds, portion.parts, portion.usual, portion.part_examples)
