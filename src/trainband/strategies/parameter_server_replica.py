"""ParameterServerReplica: the part of one worker in a training on parameter servers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import ClusterError, PeerError
from trainband.model.batch import Portion, digest_of
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.description import Plan
from trainband.ps.statistics import CheckpointStatus, PsStatus
from trainband.ps.worker.checkpointing import JobSaving, RestoreFrom
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.runtime.overrides import override
from trainband.runtime.signals import AskedToEnd
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.runtime.step_times import StepTimes
from trainband.runtime.waiting import Say
from trainband.spmd.gradient import Carry
from trainband.spmd.refusals import Refusals
from trainband.spmd.report import Progress, ShardRow, StepReport, TaskStatistics, WorkerRow
from trainband.strategies.engine import Engine
from trainband.strategies.gradient_step import GradientStep
from trainband.wire.messages import UNLIMITED
from trainband.wire.workload import LONGEST_S, Workload

AHEAD = 4
"""Updates by each worker, by which a checkpoint is ordered ahead: some milliseconds."""


class ParameterServerReplica(Engine):
    """See `Engine`: one worker."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        client: JobClient,
        step: GradientStep,
        restore: RestoreFrom | None,
        *,
        overlap: bool,
        say: Say,
    ) -> None:
        """Joins the job; leaves it again if anything goes wrong."""
        self.has_left = False
        """Whether this worker takes no part in the job any more."""
        self._cluster = cluster
        self._plan = plan
        self._client = client
        self._step = step
        self._fit = 0
        self._refusals = Refusals(say)
        self._overlap = overlap
        self._in_flight = False
        self._model_state: PyTree = None
        self._worker_state: WorkerState | None = None
        self._steps = 0
        self._loss: Any = None
        self._has_stepped = False
        self._several_ps = len(cluster.spec.ps) > 1
        rule = plan.description.rule
        self._balances = bool(rule.get("balance"))
        self._in_step = rule["name"] == "sync" and not rule["backups"] and rule["aggregate"] is None
        # A checkpoint may speak of the step before the last, or with overlap of the one before that.
        self._carries: deque[tuple[int, Carry]] = deque(maxlen=3)
        try:
            self._now: Exchange = client.join(step.first_values, restore)
            self._carry: Carry = step.first_carry(self._now.params)
            data = client.find_worker_state()
            if data:
                self._worker_state = WorkerState.from_bytes(data, "ps:0")
                self._steps = self._worker_state.steps
                if self._worker_state.carry:
                    self._carry = step.carry_of(self._worker_state, self._carry)
            self._carries.append((self._steps, self._carry))
        except BaseException as exc:
            client.leave(str(exc) if isinstance(exc, AskedToEnd) else f"{type(exc).__name__}: {exc}")
            raise

    @property
    @override
    def task(self) -> str:
        return str(self._cluster.task)

    @property
    @override
    def is_chief(self) -> bool:
        return self._client.is_chief

    @property
    @override
    def job(self) -> str:
        return self._client.job

    @property
    @override
    def global_step(self) -> int:
        return self._now.global_step

    @property
    @override
    def restored(self) -> Checkpoint | None:
        return self._client.restored

    @property
    @override
    def worker_state(self) -> WorkerState | None:
        return self._worker_state

    @property
    @override
    def steps_per_execution(self) -> int:
        """Each step is an exchange."""
        return 1

    @property
    @override
    def place(self) -> Callable[[PyTree], PyTree] | None:
        return self._step.place

    @property
    @override
    def share(self) -> Callable[[], int] | None:
        return (lambda: self._now.share) if self._balances else None

    @property
    @override
    def times(self) -> StepTimes:
        return self._client.times

    @override
    def recording(self, recorder: StepRecorder) -> StepRecording:
        return self._client.recording(recorder)

    @property
    @override
    def trainings(self) -> tuple[int, ...]:
        return self._client.trainings

    @property
    @override
    def in_parts(self) -> bool:
        """One process can ask for all of them."""
        return False

    @property
    @override
    def unused(self) -> int:
        """There are none."""
        return 0

    @override
    def take_known(self) -> Sequence[tuple[int, float]]:
        """Each report says it all."""
        return ()

    @property
    @override
    def refused(self) -> int:
        return self._refusals.total

    @override
    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        self._drain()
        self._refusals.begin()
        self._fit += 1
        state = self._client.await_begin(self._fit, UNLIMITED if last_step is None else last_step, trainings)
        self._now = self._client.pull()
        # A worker that came late, in a script that trains several times, finds its early trainings over.
        return state.fit == self._fit and not self._now.done

    @override
    def finish(self) -> None:
        self._client.finish()

    @override
    def save(self, directory: Path, at: int | None) -> JobSaving:
        if at is None and not self._now.done:
            states = self._client.states()  # this worker may have evaluated for long, while others went on
            newest = max(state.version for state in states)
            # In step, the next update waits for this worker, so all ps hear of it before. Else it is one that is a
            # little ahead, by which all will have heard: each ps is then at the same version.
            ahead = 1 if self._in_step else AHEAD * max(1, len(states[0].live)) if self._several_ps else 0
            at = min(newest + ahead, states[0].last_version)
        return self._client.save(directory, at or 0)

    @override
    def landed(self, checkpoint: CheckpointStatus) -> None:
        self._client.landed(checkpoint.global_step, checkpoint.nbytes, checkpoint.seconds)

    @override
    def leave_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        steps, carry = self._carries[max(0, len(self._carries) - 1 - behind)]
        worker_state = WorkerState.pack(self.task, training, steps, position, carry)
        self._client.leave_worker_state(worker_state.to_bytes(), behind)

    @override
    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        return self._client.lease(request)

    def step(self, batch: PyTree) -> StepReport:
        """See `Engine.step`.

        Raises:
          NonFiniteGradient: the ps have refused this worker's gradient 100 times in a row.
        """
        if not self._has_stepped:
            self._has_stepped = True
            self._client.note_first_batch(digest_of(jax.tree.leaves(batch)))
        begin = time.monotonic()
        computed = self._step(self._now.params, self._carry, batch)
        times = self._client.times
        times.note("compute", begin, time.monotonic())
        times.steps += 1
        value, metrics, self._carry = computed.loss, computed.metrics, computed.carry
        self._steps += 1
        self._loss = value
        self._carries.append((self._steps, self._carry))
        used = self._now.versions
        answer = self._drain()
        # What is sent after the last update could only be dropped; and one of params that a ps has lost has no place.
        if answer is None or not (answer.done or answer.restarted):
            self._client.send(
                computed.gradient,
                used,
                loss=value,
                examples=computed.examples,
                finite=computed.finite,
                workload=_workload(batch, computed.seconds) if self._balances else None,
            )
            self._in_flight = True
        if not self._overlap:
            answer = self._drain()
        if answer is None:  # the first of overlapping steps: nothing is known of it yet
            return StepReport(value, self._now.global_step, applied=False, staleness=0, done=False, metrics=metrics)
        if answer.refusal:
            self._refusals.note(f"{self.task}: a ps {answer.refusal}")
        else:
            self._refusals.none()
        return StepReport(
            value,
            answer.global_step,
            answer.applied,
            answer.staleness,
            answer.done,
            answer.refusal,
            metrics,
            # With overlap the answer is that to the step before.
            None if answer.worker_state is None else answer.worker_state + self._overlap,
        )

    @override
    def catch_up(self, batch: PyTree | None = None) -> None:
        if self._in_step:  # nothing changes without this worker
            return
        if batch is not None:
            self._step.compile(self._now.params, self._carry, batch)
        self._drain()
        self._now = self._client.pull()

    def _drain(self) -> Exchange | None:
        """The answer to the push that is under way, if one is: from now on, its params are the newest."""
        if not self._in_flight:
            return None
        self._in_flight = False
        self._now = self._client.collect()
        return self._now

    @override
    def missing(self) -> int:
        limited = [state for state in self._client.states() if state.last_version < UNLIMITED]
        return max((state.last_version - state.version for state in limited), default=0)

    @override
    def pause(self, reason: str = "") -> str:  # noqa: ARG002 - the others go on
        self._drain()
        self._client.pause()
        return ""

    @override
    def shorten_waits(self, request: str) -> None:
        self._client.shorten_waits(request)

    @override
    def settle(self) -> None:
        """A step that is hoped for does not count here, only what a ps has told of."""

    @override
    def at_work(self) -> tuple[str, ...]:
        return self._client.at_work()

    @override
    def gather(self, work: Callable[[], object]) -> bool:
        """Nobody has to give anything."""
        work()
        return False

    @override
    def end(self) -> None:
        """Each worker ends by itself."""

    @override
    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:  # noqa: ARG002 - it never is
        raise ClusterError(f"{self.task}: the values are those of the job on the ps, and only training changes them.")

    def write(self, replaced: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Gives variables values on the ps, or adds to them: at once, whatever the rule, and it is no update.

        Args:
          replaced: by the names of params, and of model state as `state/name`.
          added: likewise.
        """
        self._drain()
        given = {**replaced, **added}
        blocks, slices = [], []
        for shard in self._plan.layout.shards:
            values: list[NDArray[Any]] = []
            numbers: tuple[list[int], list[int]] = ([], [])
            for i, piece in enumerate(shard.slices):
                name = piece.variable.name
                if name in given:
                    whole = np.asarray(given[name])
                    values.append(whole if piece.whole else whole[piece.start : piece.stop])
                    numbers[name in added].append(i)
                else:
                    values.append(np.zeros(piece.shape))
            typed = zip(values, shard.slices, strict=True)
            blocks.append(shard.pack([value.astype(jax.numpy.dtype(s.variable.dtype)) for value, s in typed], np))
            slices.append(numbers)
        self._now = self._client.assign(blocks, slices)

    @override
    def steer(self, settings: Mapping[str, float]) -> None:
        self._drain()
        self._client.steer(settings)

    @override
    def optimizer_state(self) -> PyTree:
        """It is on the ps."""
        return None

    @override
    def computed(
        self,
        function: Callable[[PyTree, PyTree, PyTree], PyTree],
        batches: Iterable[PyTree],
        what: str,  # noqa: ARG002 - nobody else does it
    ) -> Iterator[tuple[PyTree, PyTree]]:
        params = self.params()
        return ((batch, function(params, self._model_state, batch)) for batch in batches)

    @override
    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - nobody waits for it
        return nullcontext()

    @override
    def params(self) -> PyTree:
        self._drain()
        self._now = self._client.pull()
        leaves = self._plan.layout.gather(self._now.params, np)
        params, self._model_state = self._plan.variables.split([np.array(leaf) for leaf in leaves])
        return params

    @override
    def model_state(self) -> PyTree:
        return self._model_state

    @override
    def progress(self) -> Progress | None:
        try:
            return replace(progress_of(self._client.status()), shards=self._shards())
        except PeerError:
            return None

    def _shards(self) -> tuple[ShardRow, ...]:
        return tuple(ShardRow(*place) for place in self._client.shards())

    @override
    def statistics(self) -> TaskStatistics:
        loss = self._loss
        return TaskStatistics(
            task=self.task,
            is_chief=self.is_chief,
            global_step=self.global_step,
            last_step=None,  # the ps know
            steps=self._steps,
            examples=None,  # the ps count them
            refused=self.refused,
            loss=None if loss is None else float(loss),
            seconds=self.times.seconds(),
            device=self._client.resources.device,
            device_memory_bytes=self._client.resources.memory().device,
            device_memory_limit_bytes=self._client.resources.memory().device_limit,
        )

    @override
    def close(self, failure: str = "") -> None:
        self.has_left = True
        self._client.leave(failure)


def _workload(portion: Portion, computed_s: float) -> Workload:
    """What a portion took, with the time for which its data was waited for."""
    seconds = min(LONGEST_S, computed_s + portion.waited_s) if computed_s else 0.0
    return Workload(seconds, portion.parts, portion.usual, portion.part_examples)


def progress_of(status: PsStatus) -> Progress:
    """A ps's status as the display shows it."""
    rows = tuple(
        WorkerRow(
            w.task,
            w.presence,
            w.rate,
            w.staleness,
            w.loss,
            w.time,
            memory_bytes=w.memory_bytes,
            device_memory_bytes=w.device_memory_bytes,
        )
        for w in status.workers
    )
    limited = 0 < status.last_version < UNLIMITED
    return Progress(
        status.version,
        status.last_version if limited else None,
        status.rate,
        status.loss,
        rows,
        status.examples_rate,
        status.checkpoint,
        learning_rate=status.learning_rate,
    )
