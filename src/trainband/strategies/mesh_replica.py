"""MeshReplica: the part of one process in a training whose devices all compute one program, on one mesh."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DamagedCheckpoint, DataError
from trainband.ps.checkpointing import RestoreFrom
from trainband.ps.contents import Contents, without_keys
from trainband.ps.sources import SharedSources
from trainband.ps.statistics import CheckpointStatus, Rate
from trainband.ps.variables import PyTree
from trainband.strategies.alone import Alone
from trainband.strategies.base import Progress, StepReport, WorkerRow
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage
from trainband.strategies.model import Given, Model, Several, examples_in_step
from trainband.strategies.refusals import Refusals
from trainband.strategies.sharding import DATA, Rules, is_on_cpu, on_mesh, whole
from trainband.strategies.spreading import Spreader, owned, spread_evenly
from trainband.strategies.step_program import Flags, StepProgram, Values
from trainband.strategies.values_on_mesh import (
    contents_of,
    copied,
    laid_out,
    placed,
    placed_all,
    restored,
    saved_of,
    steered,
)
from trainband.wire.patience import Say

BEHIND = 1
"""Steps that are under way while the outcome of the one before is looked at. On two cores, small steps are 1.4 times as
many as if each was waited for."""


class Outcome(NamedTuple):
    """What is looked at of a call, once it is computed: of one step, or of several.

    Attributes:
      number: which call of this training it is, from 0, also of those that change nothing.
      steps: how many it is of.
      real: how many of its steps, from the first, had a batch to train on.
      flags: of each step, see `Flags`.
    """

    number: int
    steps: int
    real: int
    flags: jax.Array


class MeshReplica(Alone):
    """See `Replica`. A step that is not finite changes nothing, as on a ps.

    Params, optimizer and model state lie on the mesh as the rules say, and the batch is split over the axis `data`. The
    result is that of one device on the whole batch, but for rounding: a loss that is the mean over its examples is
    computed by each device alone for its part, and any other is split by JAX's compiler, which adds what exchanges are
    needed in between.

    The outcome of a step is looked at when the next one is under way, so that no device waits for Python: a refusal is
    told one step late, except of the last. With `steps_per_execution`, a call computes so many steps one after the
    other, and what is said of a step here holds for the call; what is too little for a call, at the end of the training
    or of the data, is computed in single steps.

    Args:
      model: what is trained.
      mesh: the devices.
      rules: how the variables are split over them.
      restore: what the job begins from.
      say: where lines for people go.
      task: this process's name.
      remainder: see `Spreader`.
      central: keep and update the params on the CPU, and send them to the devices for each step.
    """

    IN_STEP: ClassVar[bool] = False
    """Whether other processes compute the same steps."""

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        *,
        rules: Rules = whole,
        restore: RestoreFrom | None = None,
        say: Say,
        task: str = "local",
        remainder: str = "refuse",
        central: bool = False,
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._say = say
        self._task = task
        self._central = jax.local_devices(backend="cpu")[0] if central else None
        self._on_cpu = is_on_cpu(mesh)
        self._shapes = model.shapes()  # refuses params that no strategy could train
        self._variables = self._shapes.variables
        self._axes = (DATA,) if DATA in mesh.shape else ()
        self._spreader = Spreader(mesh, self._axes, remainder, task)
        self._spreads = mesh.size > 1 or not self._on_cpu
        self._pending: deque[Outcome] = deque()
        self._dispatched = 0
        self._losses: Any = None
        self._seen_loss: float | None = None
        self._settled = 0
        """The global step after all that was looked at."""
        self._known: list[tuple[int, float]] = []
        """That after each step that was looked at since the last report, and its loss."""
        self._refusals = Refusals(self._say if self.is_chief else lambda _: None)
        self._unreported = ""
        """Why a step was refused that no report has spoken of yet."""
        self._step = 0
        self._last_step: int | None = 0
        self._rate = Rate()
        self._examples_rate = Rate()
        self._loss: Any = None
        self._steps = 0
        self._examples = 0
        self._accumulate = model.accumulate
        self._per_call = 1 if central else model.steps_per_execution
        self._checkpoint: CheckpointStatus | None = None
        self._restored: Checkpoint | None = None
        self._luggage: Luggage | None = None
        self._ledgers = SharedSources()
        self._ledgers_lock = threading.Lock()
        self._saving: LocalSaving | None = None
        self._shardings = self._lay_out(rules)
        self._program = StepProgram(model, mesh, self._axes, self._spreader.parts, self._shardings, self._central)
        self._values = self._first_values()
        if restore is not None:
            self._restore(restore)

    # --- how it is laid out

    def _lay_out(self, rules: Rules) -> Values:
        """Where each value lies, a sharding for each leaf."""
        specs = rules(self._variables.trained, self._mesh)
        self._require_one_program(specs)
        several = self.IN_STEP and self._per_call > 1
        return laid_out(self._shapes, specs, self._sharding, ended=self.IN_STEP, left=several)

    def _require_one_program(self, specs: Sequence[PartitionSpec]) -> None:
        """Compares what is about to be trained with what others are, where there are others."""

    def _sharding(self, spec: PartitionSpec) -> jax.sharding.Sharding:
        if self._central is not None:
            return jax.sharding.SingleDeviceSharding(self._central)
        return NamedSharding(self._mesh, spec)

    def _first_values(self) -> Values:
        model, where = self._model, self._shardings
        if isinstance(model.init, Given):  # as constants of a program they would be compiled into it
            params, state = self._agreed((model.first_params(), model.first_state()))
            params = jax.tree.map(placed, params, where.params)
            state = placed_all(state, where.state)
        else:
            params = self._united(self._made(model.first_params, where.params), "first params")
            state = self._united(self._made(model.first_state, where.state), "first model state")
        optimizer = self._made(model.optimizer.init, where.optimizer, params)
        carry = self._made(self._program.first_carry, where.carry, params)
        ended = self._made(lambda: jnp.zeros(()), where.ended) if self.IN_STEP else None
        return Values(params, optimizer, state, carry, ended)

    def _made(self, function: Callable[..., PyTree], where: PyTree, *given: PyTree) -> PyTree:
        """What a function gives, computed where it is to lie."""
        mesh = self._mesh if self._central is None else None
        return jax.jit(on_mesh(function, mesh, self._model.axes), out_shardings=where)(*given)

    def _agreed(self, values: PyTree) -> PyTree:
        """Values that this process alone has; where there are others, the chief's."""
        return values

    def _united(self, values: PyTree, what: str) -> PyTree:  # noqa: ARG002 - there are no others
        """Values that each process has made for itself; where there are others, the same for all."""
        return values

    # --- what it knows

    @property
    def task(self) -> str:
        """See `Replica.task`."""
        return self._task

    @property
    def global_step(self) -> int:
        """See `Replica.global_step`."""
        return self._step

    @property
    def restored(self) -> Checkpoint | None:
        """See `Replica.restored`."""
        return self._restored

    @property
    def luggage(self) -> Luggage | None:
        """See `Replica.luggage`."""
        return self._luggage

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """See `Replica.place`. A CPU has nothing to gain from a batch being there earlier: the step places it."""
        return self._spreader if self._spreads and not self._on_cpu else None

    @property
    def steps_per_execution(self) -> int:
        """See `Replica.steps_per_execution`."""
        return self._per_call

    # --- the training

    @property
    def refused(self) -> int:
        """See `Replica.refused`."""
        return self._refusals.total

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:  # noqa: ARG002 - nobody asks later
        """See `Replica.begin`."""
        self._settle_all()
        self._dispatched, self._settled = 0, self._step
        self._last_step = last_step
        self._refusals.begin()
        self._unreported = ""
        self._known = []
        self._rates()  # those of this training begin now
        return not self._is_over

    def finish(self) -> None:
        """See `Replica.finish`."""
        self._settle_all()
        self._last_step = self._step

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          DataError: the batch cannot be split over the devices.
          NonFiniteGradient: the gradients of 100 steps in a row were not finite.
        """
        if self._is_over and self._is_settled_over():
            return self._no_step()
        if self._per_call == 1:
            batch = self._laid_out(batch)
            return self._reported(self._computed(batch, (batch,)))
        return self._step_on_several(self._several(batch))

    def _no_step(self) -> StepReport:
        """The report of a call that makes none, because the training is over."""
        refusal = self._take_unreported()
        return StepReport(
            float("nan"),
            self._step,
            applied=False,
            staleness=0,
            done=self._is_over,
            refusal=refusal,
            steps=0,
            known=self.take_known(),
        )

    def _step_on_several(self, several: Several) -> StepReport:
        """A step on each batch."""
        batches = several.batches
        if self._room() < self._per_call:
            self._settle_all()  # there is more if a step was refused
        if min(len(batches), self._room()) == self._per_call:
            metrics = self._computed(self._laid_out_together(several), batches, count=self._per_call)
            return self._reported(metrics, self._losses, self._per_call)
        losses, metrics = [], None
        for one in batches:
            if not self._room():
                self._settle_all()
            if not self._room():
                break
            metrics = self._computed(self._laid_out(one), (one,))
            losses.append(self._loss)
        return self._reported(metrics, losses, len(losses))

    def _room(self) -> int:
        """How many more updates this training may make, if no step that is under way is refused; at most a call's."""
        return self._per_call if self._last_step is None else min(self._per_call, self._last_step - self._step)

    def _several(self, batch: PyTree) -> Several:
        if isinstance(batch, Several) and 0 < len(batch.batches) <= self._per_call:
            return batch
        raise DataError(
            f"{self._task}: with steps_per_execution={self._per_call} a call takes what so many steps train on, as "
            "session.feed(batches) gives it; for single batches leave steps_per_execution out."
        )

    def _computed(self, given: PyTree, batches: Sequence[PyTree], *, count: int = 1) -> PyTree:
        """Has a call computed, and looks at those before it; its metrics.

        Args:
          given: what it trains on; of several steps, a tuple.
          batches: the parts of that which are to count.
          count: how many steps it makes.
        """
        metrics = self._dispatch(given, count=count, real=len(batches))
        self._steps += len(batches)
        for batch in batches:
            self._examples += examples_in_step(batch, self._accumulate)
        self._settle_all(BEHIND)
        return metrics

    def _reported(self, metrics: PyTree, losses: Any = None, steps: int = 1) -> StepReport:
        """The report of what was computed, as far as it is known; begins a checkpoint that is due."""
        if self._is_over:
            self._settle_all()
        luggage = self._begin_saving()
        refusal = self._take_unreported()
        return StepReport(
            self._loss,
            self._step,
            applied=not refusal,
            staleness=0,
            done=self._is_over,
            refusal=refusal,
            metrics=metrics,
            luggage=luggage,
            steps=steps,
            losses=losses,
            known=self.take_known(),
        )

    def take_known(self) -> Sequence[tuple[int, float]]:
        """See `Replica.take_known`."""
        known, self._known = self._known, []
        return known

    def _take_unreported(self) -> str:
        refusal, self._unreported = self._unreported, ""
        return refusal

    def _laid_out(self, batch: PyTree) -> PyTree:
        """What a step trains on, where it computes."""
        if not self._spreads:
            return owned(batch)
        return self._spreader(batch) if self._accumulate == 1 else self._all_spread(batch)

    def _laid_out_together(self, several: Several) -> PyTree:
        """What the steps of a call train on, where they compute."""
        if several.stack is not None and self._accumulate == 1:
            stack = self._spreader.stacked(several.stack)
            if stack is not None:
                return stack
        return tuple(map(self._laid_out, several.batches))

    def _all_spread(self, batches: PyTree) -> PyTree:
        spread = tuple(map(self._spreader, batches))
        if any(one.weights is not None for one in spread):
            raise DataError(
                f"{self._task}: micro-batches of accumulate={self._accumulate} are not padded: take batches that the "
                f"{self._spreader.local} devices divide."
            )
        return spread

    @property
    def _is_over(self) -> bool:
        return self._last_step is not None and self._step >= self._last_step

    def _is_settled_over(self) -> bool:
        """Whether all updates are made, by what is known and not only hoped."""
        if self._is_over:
            self._settle_all()
        return self._is_over

    @property
    def _is_to_save(self) -> bool:
        """Whether a checkpoint is due, if no step that is under way is refused."""
        return self._saving is not None and self._saving.due(self._step)

    def _dispatch(self, given: PyTree, words: Any = None, *, count: int = 1, real: int = 1) -> PyTree:
        """Has a call computed, as if all its steps were applied; what it comes to is looked at by `_settle`.

        Gives the metrics of its last step.
        """
        program = self._program.step if count == 1 else self._program.steps
        self._values, flags, self._losses, self._loss, metrics = program(self._values, given, words)
        self._pending.append(Outcome(self._dispatched, count, real, flags))
        self._step += count
        self._dispatched += 1
        return metrics

    def _settle_all(self, behind: int = 0) -> None:
        """Looks at what became of the calls, but for so many."""
        while len(self._pending) > behind:
            outcome = self._pending.popleft()
            for index, flags in enumerate(self._flags_of(outcome)):
                self._unreported = self._settle(outcome, index, flags) or self._unreported

    def _flags_of(self, outcome: Outcome) -> list[Flags]:
        """What came of each step; waits until all are computed."""
        rows: Any = np.asarray(outcome.flags).tolist()
        return [Flags(*rows)] if outcome.steps == 1 else [Flags(*row) for row in rows]

    def _settle(self, outcome: Outcome, index: int, flags: Flags) -> str:
        """Why a step was refused; empty if it was not."""
        self._settled += flags.finite > 0
        if index < outcome.real:
            self._seen_loss = flags.loss
            self._known.append((self._settled, flags.loss))
        if flags.finite:
            self._refusals.none()
            return ""
        self._step -= 1
        refusal = f"refused a gradient that is not finite (after global step {self._settled}, loss {flags.loss:g})"
        self._refusals.note(refusal)
        return refusal

    def pause(self, reason: str = "") -> str:  # noqa: ARG002 - there are no others
        """See `Replica.pause`: nobody waits here."""
        self._settle_all()
        return ""

    def settle(self) -> None:
        """See `Replica.settle`."""
        self._settle_all()

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """See `Replica.assign`."""
        self._settle_all()
        where = self._shardings
        params, state, optimizer = self._agreed((params, state, optimizer))
        self._values = self._values._replace(
            params=jax.tree.map(placed, params, where.params),
            state=placed_all(state, where.state),
            optimizer=jax.tree.map(placed, optimizer, where.optimizer),
        )

    def steer(self, settings: Mapping[str, float]) -> None:
        """See `Replica.steer`."""
        self._values = self._values._replace(optimizer=steered(self._values.optimizer, settings))

    def optimizer_state(self) -> PyTree:
        """See `Replica.optimizer_state`."""
        return jax.tree.map(np.array, without_keys(self._values.optimizer))

    def computed(
        self,
        function: Callable[[PyTree, PyTree, PyTree], PyTree],
        batches: Iterable[PyTree],
        what: str,  # noqa: ARG002 - nobody else does it
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """See `Replica.computed`."""
        params, state, is_spread = self._values.params, self._values.state, self._spreads and self._central is None
        for batch in batches:
            laid = spread_evenly(self._mesh, self._axes, batch) if is_spread else batch
            yield batch, function(params, state, laid)

    def params(self) -> PyTree:
        """See `Replica.params`."""
        return jax.tree.map(np.array, self._values.params)

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return jax.tree.map(np.array, self._values.state)

    def progress(self) -> Progress | None:
        """See `Replica.progress`."""
        rate, examples_rate = self._rates()
        row = WorkerRow(self._task, "live", rate, 0.0, self._seen_loss)
        return Progress(self._step, self._last_step, rate, self._seen_loss, (row,), examples_rate, self._checkpoint)

    def _rates(self) -> tuple[float, float]:
        """Steps and examples a second, lately."""
        now = time.monotonic()
        return self._rate.at(now, self._step), self._examples_rate.at(now, self._examples)

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """See `Replica.lease`."""
        with self._ledgers_lock:
            return self._ledgers.lease(0, request)

    # --- checkpoints

    def save(self, directory: Path, at: int | None) -> LocalSaving:
        """See `Replica.save`."""
        self._saving = LocalSaving(directory, at or 0)
        self._begin_saving()
        return self._saving

    def landed(self, checkpoint: CheckpointStatus) -> None:
        """See `Replica.landed`."""
        self._checkpoint = checkpoint

    def leave_luggage(self, training: int, position: str, behind: int = 0) -> None:  # noqa: ARG002 - it never is
        """See `Replica.leave_luggage`."""
        saving = self._saving
        if saving is not None and saving.begun and saving.luggage is None:  # what comes later is for later ones
            saving.luggage = self._packed(training, position)

    def _packed(self, training: int, position: str) -> bytes:
        return Luggage.pack(self._task, training, self._steps, position, self._values.carry).to_bytes()

    def _begin_saving(self) -> int | None:
        """Begins a checkpoint of things as they now are, if one is due: see `StepReport.luggage`."""
        if self._is_to_save:
            self._settle_all()
        if self._saving is None or not self._is_to_save:
            return None
        with self._ledgers_lock:
            sources = self._ledgers.record()
        self._saving.begin(self._step, self._contents(), self._copies(), sources)
        return 0

    def _copies(self) -> PyTree:
        """What is saved, as it is now: the next step writes where it lies."""
        return copied(saved_of(self._values))

    def _contents(self) -> Contents:
        return contents_of(self._values, self._variables)

    def _restore(self, source: RestoreFrom) -> None:
        """Takes the values of the newest checkpoint that is whole, if there is one."""
        for checkpoint in source.candidates():
            try:
                self._restore_from(checkpoint, source)
            except DamagedCheckpoint as exc:
                self._say(f"{checkpoint.path} is damaged ({exc}); the checkpoint before it is tried")
                continue
            return

    def _restore_from(self, checkpoint: Checkpoint, source: RestoreFrom) -> None:
        luggage = source.luggage(checkpoint)
        self._values = restored(self._values, self._variables, checkpoint, optimizer=source.optimizer)
        self._restored, self._step = checkpoint, checkpoint.global_step
        self._ledgers.restore(checkpoint.manifest.sources, workers=1)
        self._take_luggage(luggage.get(0), str(checkpoint.path))

    def _take_luggage(self, data: bytes | None, sender: str) -> None:
        if data is None:
            return
        self._luggage = Luggage.from_bytes(data, sender)
        self._steps = self._luggage.steps
        if self._luggage.carry:
            self._values = self._values._replace(
                carry=self._luggage.unpack(self._values.carry, lambda leaf: placed(leaf, self._shardings.carry))
            )
