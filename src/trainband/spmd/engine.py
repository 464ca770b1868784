"""SpmdEngine: what runs the steps of a training that all devices of a mesh compute as one program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from trainband.checkpoint import Checkpoint
from trainband.errors import ClusterError
from trainband.model.batch import Dealt, Several, examples_in, examples_in_step
from trainband.model.contents import check_settings
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.statistics import Rate
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime import SYSTEM
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.runtime.step_times import StepTimes
from trainband.runtime.waiting import Say
from trainband.spmd.agreement import first_batches, require_one_loss, warn_of_other_params
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.checkpoints import Checkpoints
from trainband.spmd.compute_devices import ComputeDevices
from trainband.spmd.control_flags import ControlFlags
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.pipeline import BEHIND, Pipeline
from trainband.spmd.process_group import Group, SingleProcess
from trainband.spmd.report import FINISHED, USED_UP, Progress, StepReport, TaskStatistics, WorkerRow
from trainband.spmd.sharding import Rules, whole
from trainband.spmd.shared_data import SharedData
from trainband.spmd.step_inputs import StepInputs
from trainband.spmd.step_program import StepProgram
from trainband.spmd.train_state import scalars_of
from trainband.spmd.values import Values, own


class SpmdEngine:
    """See `Engine`. A step that is not finite changes nothing, as on a ps.

    Params, optimizer and model state lie on the mesh as the rules say, and the batch is split over the axis `data`. The
    result is that of one device on the whole batch, but for rounding: a loss that is the mean over its examples is
    computed by each device alone for its part, and any other is split by JAX's compiler, which adds what exchanges are
    needed in between.

    The outcome of a step is looked at when the next one is under way, so that no device waits for Python: a refusal is
    told one step late, except of the last. With `steps_per_execution`, a call computes so many steps one after the
    other, and what is said of a step here holds for the call. What is too little for a call, at the end of the training
    or of the data, one process computes in single steps; several make a whole call, whose last steps change nothing.

    Of several processes, each runs the same steps in the same order, on batches of its own. What one wants of all goes
    with the gradients, as its control flags, and costs no exchange: so all hear of it in the same step.

    An engine is put together from parts, and what belongs to one part alone is that part's method: `params` and its
    like of `Values`, `save` and its like of `Checkpoints`, `lease` of `SharedData`, `busy` and `close` of the group.

    Args:
      model: what is trained.
      mesh: the devices.
      group: the processes whose devices they are; `None`: this one alone.
      rules: how the variables are split over them.
      restore: what the job begins from.
      say: where lines for people go.
      remainder: see `BatchSharding`.
      central: keep and update the params on the CPU, and send them to the devices for each step; not with a group.
    """

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        group: Group | None = None,
        *,
        rules: Rules = whole,
        restore: RestoreFrom | None = None,
        say: Say,
        remainder: str = "pad",
        central: bool = False,
    ) -> None:
        self._group = group = group or SingleProcess()
        self._model = model
        self._say = say
        self._in_step = group.count > 1
        group.begin_engine()
        with group.busy("starts"):
            cpu = jax.local_devices(backend="cpu")[0] if central else None
            self.steps_per_execution = per_call = 1 if central else model.steps_per_execution
            axes = (DATA,) if DATA in mesh.shape else ()
            counts_down = self._in_step and per_call > 1
            self._values = values = Values(
                model, mesh, group, rules=rules, central=cpu, remainder=remainder, counts_down=counts_down, say=say
            )
            says = say if group.is_chief else lambda _: None
            self._sharding = sharding = BatchSharding(mesh, axes, remainder, group.task, says)
            self._inputs = StepInputs(
                sharding, mesh, group.task, accumulate=model.accumulate, per_call=per_call, in_step=self._in_step
            )
            program = StepProgram(model, mesh, axes, sharding.parts, values.where, cpu)
            self._control = ControlFlags(mesh, per_call) if self._in_step else None
            self._ending = EndOfTraining(group)
            self._pipeline = pipeline = Pipeline(
                program, values, group, self._control, self._ending, per_call=per_call, say=says
            )
            values.make_first(program.first_carry)
            data = SharedData(group)
            self._checkpoints = checkpoints = Checkpoints(
                values, pipeline, group, data, sharers=sharding.own.sharers, per_call=per_call, say=say
            )
            if restore is not None:
                checkpoints.restore(restore)
        self._begun = 0
        self.times = StepTimes()
        self._devices = ComputeDevices(mesh.devices.flat)
        self._examples = 0
        self._accumulate = model.accumulate
        self._rate = Rate()
        self._examples_rate = Rate()
        self._rates_lock = threading.Lock()
        self._are_alike = not self._in_step
        """Whether the first batches of this training were compared with the other processes'."""
        self._has_compared = not self._in_step
        """Whether the params after the first step were."""
        self.task, self.is_chief, self.job = group.task, group.is_chief, group.job
        self.in_parts, self.place = values.in_parts, self._inputs.place
        self.trainings: tuple[int, ...] = ()
        self.params, self.model_state = values.params, values.model_state
        self.optimizer_state, self.computed = values.optimizer_state, values.computed
        self.save, self.landed = checkpoints.save, checkpoints.landed
        self.leave_worker_state = checkpoints.leave_worker_state
        self.gather, self.end = checkpoints.gather, checkpoints.end
        self.take_known, self.settle, self.finish = pipeline.take_known, pipeline.drain, pipeline.finish
        self.lease, self.busy, self.close = data.lease, group.busy, group.close

    # --- what it knows

    @property
    def share(self) -> Callable[[], int] | None:
        """Every step takes a batch as it is."""
        return None

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this process knows."""
        return self._pipeline.step

    @property
    def unused(self) -> int:
        """How many of this process's last batches changed nothing, because another had ended the training."""
        return self._pipeline.unused

    @property
    def refused(self) -> int:
        """How many gradients were refused in the training that was begun last."""
        return self._pipeline.refusals.total

    @property
    def restored(self) -> Checkpoint | None:
        """The checkpoint that the job has begun from."""
        return self._checkpoints.restored

    @property
    def worker_state(self) -> WorkerState | None:
        """What this process left in it."""
        return self._checkpoints.worker_state

    def catch_up(self, batch: PyTree | None = None) -> None:
        """Nobody changes anything while this process is not at a step."""

    def missing(self) -> int:
        """Nothing: what is made here is not lost."""
        return 0

    def at_work(self) -> tuple[str, ...]:
        """Nobody: all end in the same step."""
        return ()

    def shorten_waits(self, request: str) -> None:
        """Does nothing: the other processes are needed for every step, and have their timeout."""

    def progress(self) -> Progress:
        """How far the job is."""
        pipeline, (rate, examples_rate) = self._pipeline, self._rates()
        row = WorkerRow(
            self.task,
            "live",
            rate,
            0.0,
            pipeline.seen_loss,
            memory_bytes=SYSTEM.memory_bytes(),
            device_memory_bytes=self._devices.memory().used,
        )
        status = self._checkpoints.status
        return Progress(pipeline.step, pipeline.last_step, rate, pipeline.seen_loss, (row,), examples_rate, status)

    def statistics(self) -> TaskStatistics:
        """What this process has done: every step of the job."""
        pipeline, memory = self._pipeline, self._devices.memory()
        return TaskStatistics(
            task=self.task,
            is_chief=self.is_chief,
            global_step=pipeline.step,
            last_step=pipeline.last_step,
            steps=pipeline.step,
            examples=self._examples,
            refused=self.refused,
            loss=pipeline.seen_loss,
            seconds=self.times.seconds(),
            checkpoint=self._checkpoints.status,
            device=self._devices.description,
            device_memory_bytes=memory.used,
            device_memory_limit_bytes=memory.limit,
        )

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """See `Engine.recording`: no clock of another task is known."""
        return recorder.recording(self.task, SYSTEM.host, SYSTEM.pid)

    def _rates(self) -> tuple[float, float]:
        """Steps and examples a second, lately. The display and the history ask from threads of their own."""
        with self._rates_lock:
            now = time.monotonic()
            return self._rate.at(now, self._pipeline.step), self._examples_rate.at(now, self._examples)

    # --- the training

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """Begins a training, of which the chief's word counts; returns whether any update is left to make."""
        group, pipeline = self._group, self._pipeline
        group.check()
        pipeline.settle()
        self._begun += 1
        self._are_alike = not self._in_step
        self._sharding.forget()
        key = f"begin/{self._begun}"
        if self.is_chief:
            group.publish(key, [last_step, list(trainings)])
        limit, begun = group.receive(key, "begins a training")
        self.trainings = tuple(begun)
        pipeline.begin(limit, self._begun)
        self._checkpoints.begin_training()
        self._values.begin_training(None if limit is None else limit - pipeline.step)
        self._rates()  # those of this training begin now
        return not pipeline.is_over

    def step(self, batch: PyTree) -> StepReport:
        """Trains on one batch, or on the batches of a call.

        Raises:
          DataError: the batch cannot be split over the devices, or the processes' batches differ in shape.
          NonFiniteGradient: the gradients of 100 steps in a row were not finite.
          PeerError: another process is gone.
        """
        return self._step_with_all(batch) if self._in_step else self._step(batch)

    def _step_with_all(self, batch: PyTree) -> StepReport:
        """Trains in step with the other processes."""
        pipeline = self._pipeline
        self._group.check()
        if isinstance(batch, Dealt):
            batch = batch.batch
            self._sharding.expect(examples_in(batch))
        if not (self._are_alike or pipeline.ended):
            self._compare_batches(batch)
        had_ended = pipeline.ended  # it may have learned of that between two steps
        if had_ended:
            pipeline.drain()
            return self._ended_report(self._no_step())
        pipeline.begin_report()
        report = self._step(batch)
        if not self._has_compared:
            self._compare_params()
        if pipeline.ended:
            pipeline.drain()
        surplus = pipeline.end_report()
        report = report if not surplus else replace(report, steps=report.steps - surplus)
        return self._ended_report(report) if pipeline.ended else report

    def _step(self, batch: PyTree) -> StepReport:
        """Trains, unless all updates are made."""
        pipeline = self._pipeline
        if pipeline.is_over and pipeline.is_settled_over():
            return self._no_step()
        if self.steps_per_execution == 1:
            given = self._inputs.of_step(batch)
            return self._report(self._run(given, (given,)))
        call = self._call_with_all if self._in_step else self._call
        return call(self._inputs.several(batch))

    def _no_step(self) -> StepReport:
        """The report of a call that makes none, because the training is over."""
        pipeline = self._pipeline
        refusal, known = pipeline.take_refusal(), pipeline.take_known()
        return StepReport(float("nan"), pipeline.step, False, 0, pipeline.is_over, refusal, steps=0, known=known)

    def _call(self, several: Several) -> StepReport:
        """A step on each batch; in single steps where there are too few for a call."""
        pipeline, batches, per_call = self._pipeline, several.batches, self.steps_per_execution
        if pipeline.room() < per_call:
            pipeline.settle()  # there is more if a step was refused
        if min(len(batches), pipeline.room()) == per_call:
            metrics = self._run(self._inputs.of_call(several), batches, count=per_call)
            return self._report(metrics, pipeline.losses, per_call)
        losses, metrics = [], None
        for batch in batches:
            if not pipeline.room():
                pipeline.settle()
            if not pipeline.room():
                break
            metrics = self._run(self._inputs.of_step(batch), (batch,))
            losses.append(pipeline.loss)
        return self._report(metrics, losses, len(losses))

    def _call_with_all(self, several: Several) -> StepReport:
        """A whole call, whatever batches there are: all processes compute the same."""
        assert self._control is not None
        batches = several.batches
        ends = len(batches) < self.steps_per_execution
        if ends:
            self._control.ends_at = len(batches)
            self._ending.tell(USED_UP, self._pipeline.calls, len(batches))
            several = self._inputs.filled_up(several)
        metrics = self._run(self._inputs.of_call(several), batches, count=self.steps_per_execution)
        if ends:
            self._pipeline.settle()
        return self._report(metrics, self._pipeline.losses, len(batches))

    def _run(self, given: PyTree, batches: Sequence[PyTree], *, count: int = 1) -> PyTree:
        """Has a call computed, and looks at those before it; its metrics.

        Args:
          given: what it trains on.
          batches: the parts of that which are to count.
          count: how many steps it makes.
        """
        pipeline = self._pipeline
        begin = time.monotonic()
        metrics = pipeline.dispatch(given, count=count, real=len(batches))
        pipeline.steps += len(batches)
        for batch in batches:
            self._examples += examples_in_step(batch, self._accumulate)
        pipeline.settle(BEHIND)
        self.times.note("compute", begin, time.monotonic())
        self.times.steps += len(batches)
        return metrics

    def _report(self, metrics: PyTree, losses: Any = None, steps: int = 1) -> StepReport:
        """The report of what was computed, as far as it is known; begins a checkpoint that is due."""
        pipeline = self._pipeline
        if pipeline.is_over:
            pipeline.settle()
        due = self._checkpoints.begin_due()
        refusal = pipeline.take_refusal()
        return StepReport(
            pipeline.loss,
            pipeline.step,
            applied=not refusal,
            staleness=0,
            done=pipeline.is_over,
            refusal=refusal,
            metrics=metrics,
            worker_state=due,
            steps=steps,
            losses=losses,
            known=pipeline.take_known(),
        )

    def _ended_report(self, report: StepReport) -> StepReport:
        """A report as it is where a process has ended the training for all."""
        pipeline = self._pipeline
        done = pipeline.ended == FINISHED
        if done:
            pipeline.last_step = pipeline.step
        # Where this process has ended it, who gives the batches finds that out, too.
        stopped = "" if done or pipeline.ended == self._ending.own else pipeline.ended
        return replace(report, global_step=pipeline.step, applied=False, done=done, stopped=stopped)

    def _compare_batches(self, batch: PyTree) -> None:
        """Compares the first batches of the processes, which compute one program; not if the training has ended."""
        self._are_alike = True
        key = f"batch/{self._begun}"
        stacks = first_batches(self._group, self._sharding.own, batch, key, self._ending.key, self._say)
        if not stacks:
            self._pipeline.ended = self._ending.why()
            return
        self._inputs.stacks = all(stacks)
        if not self._has_compared:
            require_one_loss(self._group, self._model, self._values.shapes, batch)

    def _compare_params(self) -> None:
        """Warns where the first step has left the processes other params."""
        self._has_compared = True
        self._pipeline.settle()
        leaves = zip(self._values.variables.trained, jax.tree.leaves(self._values.now.params), strict=True)
        mine = {variable.name: own(leaf) for variable, leaf in leaves if leaf.is_fully_replicated}
        if mine:
            warn_of_other_params(self._group, mine, self._values.broadcast, self._say)

    def pause(self, reason: str = "") -> str:
        """Ends this process's part in the training under way: its batches are used up. The others cannot go on either,
        and the reason of the first is returned.
        """
        self._pipeline.end_for_all(reason or USED_UP)
        return self._pipeline.ended

    # --- values

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """Continues from other values, between two trainings. On all processes together; the chief's count."""
        self._pipeline.settle()
        self._values.assign(params, state, optimizer)

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: has numbers of the optimizer's state be these from the next step on.

        Of several processes, one number goes with each step, several with several.

        Raises:
          ModelError: the state has no such leaf.
        """
        if not self.is_chief:
            raise ClusterError(f"{self.task} may not steer the optimizer: only the chief may.")
        if self._control is None:
            self._values.set_optimizer(settings)
            return
        scalars = scalars_of(self._values.now.optimizer)
        check_settings(settings, scalars)
        self._control.steer({1 + list(scalars).index(name): value for name, value in settings.items()})
