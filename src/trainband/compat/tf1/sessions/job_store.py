"""JobStore: a session whose variables live on trainband's parameter servers.

Before this task joins the job, initialisers and restores work on values of this process: those become the job's first
values if this task is the chief. The first run that trains, or reads a shared variable, joins. From then on a run that
updates variables is one exchange with the ps, and any other run pulls the values first. What a run assigns is written
to the ps at once.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.cluster import Cluster
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.device import Devices
from trainband.compat.tf1.graphs.effects import raise_noted
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Stored
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.examined import Examined, examine
from trainband.compat.tf1.sessions.follow_up import FollowUp
from trainband.compat.tf1.sessions.job_model import JobModel, SessionValues
from trainband.compat.tf1.sessions.job_rules import counted_step, is_shared, only_added_to
from trainband.compat.tf1.sessions.placement import ByDevice
from trainband.compat.tf1.sessions.slots import is_slot
from trainband.compat.tf1.sessions.step_batch import StepBatch
from trainband.compat.tf1.sessions.store import LocalStore, Store, Turn, here, uninitialised
from trainband.ps.worker.values import WorkerValues
from trainband.runtime.overrides import override
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies import ParameterServer
from trainband.train import MonitoredSession, StopAtStepHook, Trainer

_OLD_S = 0.1
"""How long the values of an answer are used for the next run: a script's usual pause between two runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """How a supervised session wants its job to be saved, and when to end.

    Attributes:
      checkpoint_dir: the directory of the job's checkpoints; `None`: none.
      save_secs, save_steps: how often.
      last_step: the global step at which the training ends for all workers; `None`: the ps set no limit.
    """

    checkpoint_dir: str | None = None
    save_secs: float | None = 600.0
    save_steps: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """What a task has once it has joined a job."""

    model: JobModel
    trainer: Trainer
    session: MonitoredSession


class JobStore(Store):
    """A store whose variables live on parameter servers. For one session at a time.

    Args:
      names: what trainband calls the jobs, by the names that the script's devices use; by default the same.
    """

    def __init__(
        self,
        cluster: Cluster,
        graph: Graph,
        config: ConfigProto,
        names: Mapping[str, str] | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._cluster = cluster
        self._graph = graph
        self._say = say
        self._local = LocalStore(config)
        self._settings = JobSettings()
        self._job: _Job | None = None
        self._exc: BaseException | None = None
        self._known: dict[Computation, Examined] = {}
        self._compiled: set[tuple[Any, ...]] = set()
        self._answered_at = 0.0
        self._closed = False
        self._names = dict(names or {job: job for job in cluster.spec.jobs})
        jobs = {job: tuple(cluster.spec.task_indices(same)) for job, same in self._names.items()}
        self.devices = Devices(jobs, here(config), config.allow_soft_placement)

    @property
    def is_chief(self) -> bool:
        """Whether this task is the one whose first values count."""
        return self._cluster.is_chief

    @property
    def ended(self) -> bool:
        """Whether training has ended for the whole job."""
        return self._job is not None and self._job.session.should_stop()

    def configure(self, settings: JobSettings) -> None:
        """Sets how the job is saved and ends, before this task joins it."""
        self._settings = settings

    # --- joining

    def join(self) -> None:
        """Joins the job: the chief provides the first values, and the others wait for them, saying so. Idempotent."""
        if self._job is not None:
            return
        # For the whole process: the job's threads must use the graph's dtypes, too.
        jax.config.update("jax_enable_x64", True)
        ps_job = next((job for job, same in self._names.items() if same == "ps"), "ps")
        model = JobModel(self._graph, self._cluster.spec, self._first_values, ps_job)
        trainer = Trainer(
            init=SessionValues(model.first_params),
            init_state=model.first_state,
            loss=model.loss,
            optimizer=model.optimizer(),
            strategy=ParameterServer(
                self._cluster, update=model.rule(), placement=ByDevice(model.homes()), say=self._say
            ),
            seed=self._graph.seed or 0,
            fixed_shapes=False,
            console=False,
            say=self._say,
        )
        settings = self._settings
        # The ps stop at the last step. A hook on each worker would not suffice: when one worker sees the last step,
        # the updates of the others are already under way.
        is_limited = settings.last_step is not None and model.step is not None
        session = MonitoredSession(
            trainer,
            checkpoint_dir=settings.checkpoint_dir,
            hooks=[StopAtStepHook(last_step=settings.last_step)] if is_limited else (),
            save_secs=settings.save_secs or 600.0,
            save_steps=settings.save_steps,
        )
        session.__enter__()
        self._job = _Job(model, trainer, session)
        _open.append(self)
        atexit.register(self._end_with_the_process)

    def _first_values(self, variables: Sequence[Variable]) -> dict[str, Any]:
        """The values that variables begin with: what this process has given them, or their initialisers do."""
        missing = [v for v in variables if v.op_name in set(self._local.missing(variables))]
        if missing:
            self._local.run(Computation([v.initializer for v in missing], []), [])
        return self._local.values(variables)

    # --- running

    @override
    def run(
        self, computation: Computation, feeds: Sequence[Any], turn: Turn | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        known = self._known.get(computation)
        if known is None:
            known = self._known[computation] = examine(computation, self._graph, counted_step(self._graph))
        if self._job is None:
            if not known.shared or known.initialises:
                return self._local.run(computation, feeds, turn)
            self.join()
        if known.trains and known.follow_up is not None:
            return self._train_and_follow(known.follow_up, feeds)
        if known.trains:
            return self._train(computation, known, feeds)
        if not known.shared:
            return self._local.run(computation, feeds, turn)
        return self._look(computation, known, feeds, turn)

    def _look(
        self, computation: Computation, known: Examined, feeds: Sequence[Any], turn: Turn | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs something that makes no update, on the current values."""
        if known.written and known.initialises and not known.loads:
            # The job has its values: another worker's initialiser changes only that worker's own variables.
            done = [op for op in computation.schedule.needed if any(is_shared(v) for v in op.writes)]
            computation = computation.without(done)
        return self._run_on_current(computation, feeds, turn)

    def _run_on_current(
        self, computation: Computation, feeds: Sequence[Any], turn: Turn | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs something on the current values, and writes to the ps what it assigns."""
        needed = computation.schedule.needed
        written = {name: variable for name, variable in computation.writes.items() if is_shared(variable)}
        for name, variable in written.items():
            self._check_writable(name, next(op for op in needed if variable in op.writes))
        self._pull()
        before = self._local.values([written[name] for name in only_added_to(needed, written)])
        found = self._local.run(computation, feeds, turn)
        if written:
            now = self._local.values(list(written.values()))
            grown = {name: now.pop(name) - value for name, value in before.items()}
            self._write(now, grown)
        return found

    def _check_writable(self, name: str, op: Operation) -> None:
        model = self._joined().model
        if name in model.shared:
            return
        if model.step is not None and name == model.step.op_name:
            why = "each update adds one to the global step of a job, and nothing else changes it"
        else:
            why = f"{name} belongs to an optimizer, and only training changes it on parameter servers"
        advice = "restore a checkpoint before the first step, as init_fn or by checkpoint_dir"
        raise UnimplementedError(None, op, f"{why}; {advice}")

    def _write(self, values: Mapping[str, Any], grown: Mapping[str, Any]) -> None:
        """Gives shared variables values on the ps, and adds to others."""
        job = self._joined()
        on_ps = job.session.trainer.join().values
        assert isinstance(on_ps, WorkerValues)
        on_ps.write(job.model.on_ps(values), job.model.on_ps(grown))

    def _pull(self) -> None:
        job = self._joined()
        engine = job.session.trainer.join()
        params, state = engine.values.params(), engine.values.model_state()
        self._local.assign({**params, **(state or {}), **job.model.step_value(engine.steps.global_step)})

    def _train(
        self, computation: Computation, known: Examined, feeds: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs an update, in one exchange with the ps."""
        job = self._joined()
        own = self._local.state_of(known.own) if known.own else {}
        if any(name not in own for name in known.own_read):
            raise uninitialised(computation, {**job.model.shared, **own, **self._all_slots(job.model)})
        self._catch_up(self._batch(computation, feeds, own))
        report = job.session.run(self._batch(computation, feeds, own))
        self._answered_at = time.monotonic()
        if computation.schedule.has_effects:
            raise_noted()
        found = report.metrics
        computation.raise_failed(found["failed"])
        values, late = list(found["values"]), list(found["late"])
        # The newest global step came with the answer.
        for place in known.step_fetches:
            values[place] = np.asarray(report.global_step)
        for place in known.step_late:
            late[place] = np.asarray(report.global_step)
        if found["own"]:
            self._local.put(found["own"])
        counts = report.applied or not report.done  # else it came after the last step
        if counts and (found["written"] or found["grown"]):
            self._write(found["written"], found["grown"])
        return values, late

    def _batch(self, computation: Computation, feeds: Sequence[Any], own: Mapping[str, Any]) -> StepBatch:
        step = np.asarray(self._joined().session.global_step, np.int64)
        return StepBatch(step, tuple(feeds), own, computation)

    def _catch_up(self, batch: StepBatch) -> None:
        """Gets the newest values if the last answer is old, or will be when the step is compiled: TensorFlow reads the
        variables in each run.
        """
        session = self._joined().session
        if session.should_stop():
            return
        steps = session.trainer.join().steps
        kind = (batch.computation, *(np.shape(feed) for feed in batch.feeds))
        if kind not in self._compiled:
            self._compiled.add(kind)
            steps.catch_up(batch)
        elif time.monotonic() > self._answered_at + _OLD_S:
            steps.catch_up()

    def _train_and_follow(self, split: FollowUp, feeds: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Runs an update, and then what the script wants to do with its effect, such as a copy of the new values."""
        found = self.run(split.first, feeds)
        return split.joined(found, self._run_on_current(split.second, split.feeds(found, feeds)))

    def _all_slots(self, model: JobModel) -> dict[str, Any]:
        return {v.op_name: v for v in self._graph.variables.values() if is_slot(v) or v is model.step}

    # --- what others ask

    @override
    def missing(self, variables: Sequence[Variable]) -> list[str]:
        # A job has values for all its variables.
        if self._job is None and any(is_shared(variable) for variable in variables) and not self.is_chief:
            self.join()
        if self._job is None:
            return self._local.missing(variables)
        return self._local.missing([variable for variable in variables if not is_shared(variable)])

    @override
    def values(self, variables: Sequence[Stored]) -> dict[str, Any]:
        # The slots of optimizers are left out: the ps keep them to themselves.
        wanted = [variable for variable in variables if not is_slot(variable)]
        if self._job is None:
            if not self.is_chief:
                self.join()
            else:
                return self._local.values(wanted)
        self._pull()
        return self._local.values(wanted)

    @override
    def assign(self, values: dict[str, Any]) -> None:
        # Before the job these are first values.
        job = self._job
        if job is None:
            self._local.assign(values)
            return
        own = {name: value for name, value in values.items() if not is_shared(self._graph.variables[name])}
        self._local.assign(own)
        others = {name: value for name, value in values.items() if name not in own}
        for name in others:
            self._check_writable(name, self._graph.variables[name].op)
        self._write(others, {})

    def save(self) -> None:
        """Makes the job save a checkpoint soon, if this task is its chief."""
        session = self._joined().session
        if session.is_chief and session.checkpoint_dir is not None:
            session.save()

    @override
    def failing(self, exc: BaseException | None) -> None:
        self._exc = exc

    @override
    def close(self) -> None:
        # Leaves the job; the chief saves what is left to be saved.
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._end_with_the_process)
        if self in _open:
            _open.remove(self)
        job, self._job = self._job, None
        if job is None:
            return
        exc = self._exc
        job.session.__exit__(type(exc) if exc is not None else None, exc, None)
        job.trainer.close()

    def _end_with_the_process(self) -> None:
        """Closes a session that the script left open and that `end_all` has not closed."""
        # An uncaught exception is left there; nothing else tells how the script ended.
        self._exc = self._exc or getattr(sys, "last_value", None)
        if self._job is None or self._job.session.checkpoint_dir is None:
            self.close()
        else:  # a process that is ending can start no thread, and so write no checkpoint
            if self._exc is None and self.is_chief:
                self._say("WARNING: the session was left open, so its last checkpoint is not written; close it")
            self._job.trainer.close("" if self._exc is None else f"{type(self._exc).__name__}: {self._exc}")

    def _joined(self) -> _Job:
        if self._job is None:
            raise RuntimeError("This task has not joined the job, or has left it.")
        return self._job


_open: list[JobStore] = []
"""The stores of this process that take part in a job."""


def end_all(exc: BaseException | None) -> None:
    """Close the sessions that a script has left open. The chief saves, unless the script has failed."""
    for store in list(_open):
        store.failing(exc)
        store.close()
