"""JobStore: a session whose variables live on trainband's parameter servers.

Before this task joins the job, initialisers and restores work on values of this process: those become the job's first
values if this task is the chief. The first run that trains, or reads a shared variable, joins. From then on a run that
updates variables is one exchange with the ps, and any other run pulls the values first.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.cluster import Cluster
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.device import Devices
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.effects import raise_noted
from trainband.compat.tf1.graphs.errors import UnimplementedError
from trainband.compat.tf1.graphs.graph import Graph, Stored
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.keys import Keys
from trainband.compat.tf1.graphs.lowering import Computation, Frame
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.job_rules import (
    FLAG,
    Addition,
    Assignment,
    adds,
    applications,
    is_shared,
    updates_of_job,
)
from trainband.compat.tf1.sessions.placement import ByDevice
from trainband.compat.tf1.sessions.ps_optimizer import JobOptimizer, Update
from trainband.compat.tf1.sessions.slots import is_slot
from trainband.compat.tf1.sessions.step_batch import StepBatch, attached
from trainband.compat.tf1.sessions.store import LocalStore, here, uninitialised
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.ps.rules import Async, Sync, UpdateRule
from trainband.strategies import ParameterServer
from trainband.train import MonitoredSession, Trainer
from trainband.wire.patience import Say, say_on_stderr

ANCHOR = "trainband/nothing"
"""The only param of a job whose graph trains nothing: a job must have one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """What a supervised session adds to a job.

    Attributes:
      checkpoint_dir: where the job's checkpoints are and go; none if `None`.
      save_secs, save_steps: how often.
    """

    checkpoint_dir: str | None = None
    save_secs: float | None = 600.0
    save_steps: int | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What a job has to know of a computation, found once.

    Attributes:
      trains: whether it is an update.
      shared: the variables of the job that it touches.
      own, own_read: the names of this process's own that it touches, and reads.
      written: the variables of the job that it changes.
      initialises: whether all that it changes, it gives a first value.
      step_fetches, step_late: which of its fetches, and of its late variables, are the global step.
    """

    trains: bool
    shared: tuple[Stored, ...]
    own: tuple[str, ...]
    own_read: tuple[str, ...]
    written: tuple[Stored, ...]
    initialises: bool
    step_fetches: tuple[int, ...]
    step_late: tuple[int, ...]


class JobStore:
    """See `Store`. For one session at a time."""

    def __init__(self, cluster: Cluster, graph: Graph, config: ConfigProto, say: Say = say_on_stderr) -> None:
        self._cluster = cluster
        self._graph = graph
        self._say = say
        self._local = LocalStore(config)
        self._settings = JobSettings()
        self._trainer: Trainer | None = None
        self._session: MonitoredSession | None = None
        self._exc: BaseException | None = None
        self._step: Variable | None = None
        self._updates: dict[str, Update] = {}
        self._shared: dict[str, Variable] = {}
        self._pending: dict[str, Any] = {}
        self._known: dict[Computation, _Known] = {}
        self._closed = False
        jobs: dict[str, tuple[int, ...]] = {job: tuple(cluster.spec.task_indices(job)) for job in cluster.spec.jobs}
        self.devices = Devices(jobs, here(config), config.allow_soft_placement)
        """See `Store.devices`."""

    @property
    def is_chief(self) -> bool:
        """Whether this task is the one whose first values count."""
        return self._cluster.is_chief

    @property
    def joined(self) -> bool:
        """Whether this task takes part in the job."""
        return self._session is not None

    @property
    def ended(self) -> bool:
        """Whether the job has ended its training for all."""
        return self._session is not None and self._session.should_stop()

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        return 0 if self._session is None else self._session.global_step

    @property
    def restored(self) -> bool:
        """Whether the job went on from a checkpoint."""
        return self._trainer is not None and self._trainer.join().restored is not None

    def configure(self, settings: JobSettings) -> None:
        """Says more of the job, before this task joins it."""
        self._settings = settings

    # --- joining

    def join(self) -> None:
        """Takes part in the job: the chief gives the first values, others wait for them, saying so. Idempotent."""
        if self._session is not None:
            return
        # For the whole process: the threads that serve the job must see the dtypes that the graph has.
        jax.config.update("jax_enable_x64", True)
        graph = self._graph
        self._step = get_global_step(graph)
        self._shared = {
            variable.op_name: variable
            for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
            if variable is not self._step and not is_slot(variable)
        }
        self._updates = updates_of_job(graph, self._step, self._shared, len(self._cluster.spec.ps))
        trainer = Trainer(
            init=self._first_params,
            init_state=self._first_state,
            loss=self._loss,
            optimizer=JobOptimizer(self._updates),
            strategy=ParameterServer(
                self._cluster, update=self._rule(), placement=ByDevice(self._homes()), say=self._say
            ),
            seed=graph.seed or 0,
            fixed_shapes=False,
            console=False,
            say=self._say,
        )
        settings = self._settings
        session = MonitoredSession(
            trainer,
            checkpoint_dir=settings.checkpoint_dir,
            save_secs=settings.save_secs or 600.0,
            save_steps=settings.save_steps,
        )
        session.__enter__()
        self._trainer, self._session = trainer, session
        _open.append(self)
        atexit.register(self._end_with_the_process)

    def _rule(self) -> UpdateRule:
        settings = {op.attributes["synchronous"] for op in self._graph.operations if "synchronous" in op.attributes}
        if not settings:
            return Async()
        aggregate = settings.pop()
        workers = len(self._cluster.spec.workers)
        if aggregate == workers:
            return Sync()
        return Sync(backups=workers - aggregate) if aggregate < workers else Sync(aggregate=aggregate)

    def _homes(self) -> dict[str, int]:
        found = {}
        for name, variable in self._shared.items():
            spec = DeviceSpec.from_string(variable.device)
            if spec.job == "ps" and spec.task is not None:
                found[name] = self._cluster.spec.task_indices("ps").index(spec.task)
        return found

    def _first_params(self, key: Any) -> dict[str, Any]:
        values = self._first_values(key, [name for name in self._shared if name in self._updates])
        values |= {name: jnp.zeros((), jnp.float32) for name in self._updates if name not in self._shared}
        return values or {ANCHOR: jnp.zeros((), jnp.float32)}

    def _first_state(self, key: Any) -> dict[str, Any]:
        return self._first_values(key, [name for name in self._shared if name not in self._updates])

    def _first_values(self, key: Any, names: Sequence[str]) -> dict[str, Any]:
        """The values that variables begin with: what this process has given them, or their initialisers do."""
        variables = [self._shared[name] for name in names]
        if isinstance(jax.random.key_data(key), jax.core.Tracer):  # only their shapes are asked for
            return {
                v.op_name: jnp.zeros(tuple(size or 0 for size in v.shape.sizes or ()), v.dtype.numpy) for v in variables
            }
        missing = [v for v in variables if v.op_name in set(self._local.missing(variables))]
        if missing:
            self._local.run(Computation([v.initializer for v in missing], []), [])
        return {name: jnp.asarray(value) for name, value in self._local.values(variables).items()}

    # --- running

    def run(self, computation: Computation, feeds: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """See `Store.run`."""
        known = self._known.get(computation)
        if known is None:
            known = self._known[computation] = self._examined(computation)
        if self._session is None:
            if not known.shared or known.initialises:
                return self._local.run(computation, feeds)
            self.join()
        if known.trains:
            return self._train(computation, known, feeds)
        if not known.shared:
            return self._local.run(computation, feeds)
        return self._look(computation, known, feeds)

    def _examined(self, computation: Computation) -> _Known:
        """What this store has to know of a computation.

        Raises:
          UnimplementedError: it updates some of the variables that the graph trains, and not the others.
        """
        needed, step = computation.schedule.needed, get_global_step(self._graph)
        applied = {op.attributes["application"].variable.op_name for op in applications(needed)}
        every = {op.attributes["application"].variable.op_name for op in applications(self._graph.operations)}
        if applied and applied != every:
            raise UnimplementedError(
                None,
                applications(needed)[0],
                f"a run trains {', '.join(sorted(applied))} and not {', '.join(sorted(every - applied))}; on "
                "parameter servers all variables that the graph trains are updated together",
            )
        for op in needed if applied else ():
            assigned = {variable.op_name for variable in op.writes} & applied
            if assigned and "application" not in op.attributes:
                raise UnimplementedError(
                    None,
                    op,
                    f"{', '.join(assigned)} is trained and assigned in one run; on parameter servers only its "
                    "optimizer changes it. Put a penalty into the loss in place of a constraint",
                )
        touched = {**computation.reads, **computation.writes}
        initialises = all("initializes" in op.attributes for op in needed if op.writes)
        return _Known(
            trains=bool(applied) or (not every and any(adds(op) for op in needed)),
            shared=tuple(v for v in touched.values() if is_shared(v)),
            own=tuple(name for name, v in touched.items() if not is_shared(v)),
            own_read=tuple(name for name, v in computation.reads.items() if not is_shared(v)),
            written=tuple(v for v in computation.writes.values() if is_shared(v)),
            initialises=initialises and not any(is_shared(v) for v in computation.reads.values()),
            step_fetches=tuple(
                i
                for i, tensor in enumerate(computation.fetches)
                if step is not None and tensor.op.attributes.get("variable") is step
            ),
            step_late=tuple(i for i, name in enumerate(computation.late) if step is not None and name == step.op_name),
        )

    def _look(
        self, computation: Computation, known: _Known, feeds: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """A run that makes no update, on the values as they now are."""
        if known.written and known.initialises:
            return [], []  # the job has its values: initialising it again, as another worker's script does, is nothing
        for variable in known.written:
            if not self._can_assign(variable.op_name):
                raise UnimplementedError(
                    None,
                    next(op for op in computation.schedule.needed if variable in op.writes),
                    f"{variable.op_name} lives on a ps, where only the training operation changes it",
                )
        self._pull()
        found = self._local.run(computation, feeds)
        self._pending |= self._local.values(known.written)
        return found

    def _can_assign(self, name: str) -> bool:
        """Whether a shared variable can be given a value between the steps."""
        update = self._updates.get(name)
        trained = update is not None and not isinstance(update.rule, Assignment)
        return not trained and (self._step is None or name != self._step.op_name)

    def _pull(self) -> None:
        session = self._joined()
        replica = session.trainer.join()
        params, state = replica.params(), replica.model_state()
        self._local.assign({**params, **(state or {}), **self._pending, **self._step_value(replica.global_step)})

    def _train(
        self, computation: Computation, known: _Known, feeds: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """A run that updates: one exchange."""
        session = self._joined()
        own = self._local.state_of(known.own) if known.own else {}
        if any(name not in own for name in known.own_read):
            raise uninitialised(computation, {**self._shared, **own, **self._all_slots()})
        if self._pending:
            own |= self._pending
        batch = StepBatch(np.asarray(session.global_step, np.int64), tuple(feeds), own, computation)
        report = session.run(batch)
        if computation.schedule.has_effects:
            raise_noted()
        if report.applied:
            self._pending.clear()
        found = report.metrics
        values, late = list(found["values"]), list(found["late"])
        # The newest global step came with the answer.
        for place in known.step_fetches:
            values[place] = np.asarray(report.global_step)
        for place in known.step_late:
            late[place] = np.asarray(report.global_step)
        if found["own"]:
            self._local.put(found["own"])
        return values, late

    def _loss(self, params: dict[str, Any], state: dict[str, Any], batch: StepBatch, key: Any) -> Any:
        """The run as trainband's loss: see `Model.loss`."""
        computation = batch.computation
        # The graph has its own gradients: what follows is no function of the params for JAX's.
        still = jax.lax.stop_gradient(params)
        values = {**still, **state, **batch.own, **self._step_value(batch.step)}
        frame = Frame(values, Keys.of_step(key), dict(zip(computation.fed, batch.feeds, strict=True)))
        frame.pushes = {}
        frame.run(computation.schedule)
        gradient = {name: jnp.zeros_like(value) for name, value in still.items()}
        for name, push in frame.pushes.items():
            gradient[name] = push.astype(still[name].dtype)
        for name, update in self._updates.items():
            if isinstance(update.rule, Addition):
                gradient[name] = frame.state[name] - still[name]
            elif isinstance(update.rule, Assignment):
                if name in batch.own:
                    gradient[name] = batch.own[name].astype(still[name].dtype)
                frame.hyper[name] = {FLAG: float(name in batch.own)}
            for number, place in update.pushed.items():
                if name in frame.hyper:
                    gradient[place] = jnp.asarray(frame.hyper[name][number], jnp.float32)
        own = {
            name: frame.state[name]
            for name, variable in computation.writes.items()
            if not is_shared(variable) and name in frame.state
        }
        metrics = {
            "values": [frame.value(tensor) for tensor in computation.fetches],
            "late": [frame.state[name] for name in computation.late],
            "own": own,
        }
        loss = jnp.asarray(_loss_value(computation, frame), jnp.float32)
        after = {name: frame.state[name] for name in state}
        return attached(params, loss, gradient), (after, metrics)

    def _step_value(self, step: Any) -> dict[str, Any]:
        if self._step is None:
            return {}
        return {self._step.op_name: jnp.asarray(step, self._step.dtype.numpy)}

    def _all_slots(self) -> dict[str, Any]:
        return {v.op_name: v for v in self._graph.variables.values() if is_slot(v) or v is self._step}

    # --- what others ask

    def missing(self, variables: Sequence[Variable]) -> list[str]:
        """See `Store.missing`: a job has values for all its variables."""
        if self._session is None and any(is_shared(variable) for variable in variables) and not self.is_chief:
            self.join()
        if self._session is None:
            return self._local.missing(variables)
        return self._local.missing([variable for variable in variables if not is_shared(variable)])

    def values(self, variables: Sequence[Stored]) -> dict[str, Any]:
        """See `Store.values`; without the slots of optimizers, which the ps keep to themselves."""
        wanted = [variable for variable in variables if not is_slot(variable)]
        if self._session is None:
            if not self.is_chief:
                self.join()
            else:
                return self._local.values(wanted)
        self._pull()
        return self._local.values(wanted)

    def assign(self, values: dict[str, Any]) -> None:
        """See `Store.assign`: before the job, first values; in it, only what no optimizer trains."""
        if self._session is None:
            self._local.assign(values)
            return
        own = {name: value for name, value in values.items() if not is_shared(self._graph.variables[name])}
        self._local.assign(own)
        others = {name: value for name, value in values.items() if name not in own}
        for name in others:
            if not self._can_assign(name):
                raise UnimplementedError(
                    None,
                    self._graph.variables[name].op,
                    f"{name} cannot be given a value once the job has begun: restore before the first step, as "
                    "init_fn or by checkpoint_dir",
                )
        self._pending |= {name: value for name, value in others.items() if name in self._shared}

    def save(self) -> None:
        """Has the job save a checkpoint soon, if this task is its chief."""
        session = self._joined()
        if session.is_chief and session.checkpoint_dir is not None:
            session.save()

    def failing(self, exc: BaseException | None) -> None:
        """See `Store.failing`."""
        self._exc = exc

    def close(self) -> None:
        """See `Store.close`: leaves the job; the chief saves what is left to be saved."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._end_with_the_process)
        if self in _open:
            _open.remove(self)
        session, self._session = self._session, None
        if session is None or self._trainer is None:
            return
        exc = self._exc
        session.__exit__(type(exc) if exc is not None else None, exc, None)
        self._trainer.close()

    def _end_with_the_process(self) -> None:
        """For scripts that leave their session open, where nobody has ended it before: see `end_all`."""
        # What an uncaught error has left there; nobody else says how a script has ended.
        self._exc = self._exc or getattr(sys, "last_value", None)
        if self._session is None or self._session.checkpoint_dir is None:
            self.close()
        elif self._trainer is not None:  # a process that is ending can start no thread, and so write no checkpoint
            if self._exc is None and self.is_chief:
                self._say("WARNING: the session was left open, so its last checkpoint is not written; close it")
            self._trainer.close("" if self._exc is None else f"{type(self._exc).__name__}: {self._exc}")

    def _joined(self) -> MonitoredSession:
        if self._session is None:
            raise RuntimeError("this task has not joined the job, or has left it.")
        return self._session


_open: list[JobStore] = []
"""The stores of this process that take part in a job."""


def end_all(exc: BaseException | None) -> None:
    """Ends the sessions that a script has left open: the chief saves, unless the script has failed."""
    for store in list(_open):
        store.failing(exc)
        store.close()


def _loss_value(computation: Computation, frame: Frame) -> Any:
    """What the run minimises, for the display: the sum of what its gradient is of."""
    for op in computation.schedule.ordered:
        if op.early:
            return jnp.sum(frame.value(op.inputs[0]))
    return jnp.zeros(())
