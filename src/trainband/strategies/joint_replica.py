"""JointReplica: the part of one process in a training that several processes compute in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import msgspec
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import CheckpointError, ClusterError, DataError
from trainband.ps.checkpointing import RestoreFrom
from trainband.ps.contents import check_settings, without_keys
from trainband.ps.variables import PyTree
from trainband.strategies.agreement import (
    MAKES,
    first_batches,
    require_one_loss,
    require_one_program,
    same_batches,
    warn_of_other_params,
)
from trainband.strategies.base import FINISHED, USED_UP, StepReport
from trainband.strategies.ending import Ending
from trainband.strategies.joint_saving import JointSaving
from trainband.strategies.joint_values import JointValues, own
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage
from trainband.strategies.mesh_replica import BEHIND, MeshReplica, Outcome
from trainband.strategies.model import Dealt, Model, Several, examples_in
from trainband.strategies.sharding import Rules, whole
from trainband.strategies.step_program import Flags, Values, scalars_of
from trainband.strategies.together import Together
from trainband.strategies.values_on_mesh import copied, saved_of
from trainband.strategies.words import Words
from trainband.wire.patience import Say

KNOWN_AFTER = BEHIND + 1
"""Calls after which every process has heard what one has said in a call."""

BIAS = 8
"""Makes the word about a checkpoint more than 0, also where the step that it is of has just been made."""


class JointReplica(MeshReplica):
    """See `MeshReplica`. Each process runs the same steps in the same order, on batches of its own.

    What one wants of all goes with the gradients, as four numbers from each process, and costs no exchange: so all hear
    of it in the same step. Where several steps are computed in one call, it goes with the first of them.

    - The first says that the process can go no further: no step changes anything from this one on. One call is
      under way behind it by the time that is known, so a process that ends computes two more, on a batch that does not
      count. Where the data ends within a call, this goes with its first step that has no batch.
    - The second is the chief's: how many steps from now the next checkpoint is of. The others then leave their luggage
      or, where no process has all the values, give the chief their parts.
    - The third and fourth are the chief's too: which number of the optimizer's state is another one from this step on,
      and what.

    Args:
      model, mesh, rules, restore, say, remainder: see `MeshReplica`.
      together: the processes.
    """

    IN_STEP: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        mesh: Mesh,
        together: Together,
        *,
        rules: Rules = whole,
        restore: RestoreFrom | None = None,
        say: Say,
        remainder: str = "refuse",
    ) -> None:
        self._together = together
        self._is_chief = together.is_chief
        self._begun = 0
        self._words = Words(mesh, model.steps_per_execution)
        self._reporting = -1
        """The call whose report is being made."""
        self._stacks = False
        """Whether all processes have NumPy's arrays for the steps of a call."""
        self._surplus = 0
        """Of its batches, how many came after the end."""
        self._passed: deque[_Boundary] = deque(maxlen=KNOWN_AFTER + 1)
        self._saved_step: int | None = None
        self._trainings: tuple[int, ...] = ()
        self._unused = 0
        self._until = 0
        self._ended = ""
        """Why the training has, once this process knows that it has."""
        self._batch: PyTree = None
        self._alike = False
        self._has_compared = False
        """Whether the params after the first step were compared with the others'."""
        self._announced_of: LocalSaving | None = None
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._saving_at: int | None = None
        self._orders = 0
        self._all_give = False
        """Whether all others wait for such orders."""
        self._shared = JointValues(together, mesh)
        self._ending = Ending(together)
        together.begin_replica()
        with together.busy("starts"):
            super().__init__(
                model, mesh, rules=rules, restore=restore, say=say, task=together.task, remainder=remainder
            )

    def _require_one_program(self, specs: Sequence[PartitionSpec]) -> None:
        remainder = self._spreader.remainder
        require_one_program(self._together, self._model, self._shapes, self._mesh, specs, remainder)

    def _first_values(self) -> Values:
        with self._together.watched():
            return super()._first_values()

    # --- what it knows

    @property
    def is_chief(self) -> bool:
        """See `Replica.is_chief`."""
        return self._is_chief

    @property
    def job(self) -> str:
        """See `Replica.job`."""
        return self._together.job

    @property
    def trainings(self) -> tuple[int, ...]:
        """See `Replica.trainings`."""
        return self._trainings

    @property
    def unused(self) -> int:
        """See `Replica.unused`."""
        return self._unused

    @property
    def in_parts(self) -> bool:
        """See `Replica.in_parts`."""
        return not self._program.whole

    # --- the training

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """See `Replica.begin`."""
        self._together.check()
        self._settle_all()
        self._begun += 1
        self._ended, self._unused, self._until, self._alike = "", 0, 0, False
        self._saved_step = None
        self._ending.begin(self._begun)
        self._passed.clear()
        self._passed.append(_Boundary(0, self._step, self._steps))
        self._batch = self._saving = self._saving_at = self._announced_of = None
        self._spreader.forget()
        key = f"begin/{self._begun}"
        if self.is_chief:
            self._together.tell(key, [last_step, list(trainings)])
        limit, begun = self._together.hear(key, "begins a training")
        self._trainings = tuple(begun)
        zero = jax.make_array_from_callback((), self._everywhere, lambda _: np.zeros((), np.float32))
        self._values = self._values._replace(ended=zero)
        goes_on = super().begin(limit)
        self._limit()
        return goes_on

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          PeerError: another process is gone.
          DataError: the workers' batches differ in shape.
        """
        self._together.check()
        if isinstance(batch, Dealt):
            batch = batch.batch
            self._spreader.expect(examples_in(batch))
        if not self._ended and not self._alike and not self._are_alike(batch):
            self._ended = self._ending.why()
        if self._ended:  # it may have learned of that between two steps
            self.settle()
            report = self._no_step()
        else:
            report = self._step_with_all(batch)
        return report if not self._ended else self._ended_report(report)

    def _step_with_all(self, batch: PyTree) -> StepReport:
        self._reporting, self._surplus = self._dispatched, 0
        report = super().step(batch)
        if not self._has_compared:
            self._compare()
        if self._ended:
            self.settle()
        self._reporting = -1
        return report if not self._surplus else replace(report, steps=report.steps - self._surplus)

    def _compare(self) -> None:
        self._has_compared = True
        self._settle_all()
        leaves = zip(self._variables.trained, jax.tree.leaves(self._values.params), strict=True)
        mine = {variable.name: own(leaf) for variable, leaf in leaves if leaf.is_fully_replicated}
        if mine:
            warn_of_other_params(self._together, mine, self._agreed, self._say)

    def _ended_report(self, report: StepReport) -> StepReport:
        """A report as it is where the training has ended."""
        done = self._ended == FINISHED
        if done:
            self._last_step = self._step
        # Where this process has ended it, who gives the batches finds that out, too.
        stopped = "" if done or self._ended == self._ending.own else self._ended
        return replace(report, global_step=self._step, applied=False, done=done, stopped=stopped)

    def _step_on_several(self, several: Several) -> StepReport:
        """See `MeshReplica._step_on_several`. All compute whole calls, whatever batches they have.

        Raises:
          DataError: there are too few batches, and not because the data ends.
        """
        batches = several.batches
        missing = self._per_call - len(batches)
        if missing and not several.last:
            raise DataError(
                f"{self.task}: a batch has another shape than the one before, but workers that compute in step need "
                "batches of one size. Drop the last, shorter batch of an epoch, or fill it up."
            )
        if missing:
            self._words.ends_at = len(batches)
            self._ending.tell(USED_UP, self._dispatched, len(batches))
            several = _filled_up(several, missing)
        given = self._laid_out_together(several)
        metrics = self._computed(given, batches, count=self._per_call)
        if missing:
            self._settle_all()
        return self._reported(metrics, self._losses, len(batches))

    def _laid_out_together(self, several: Several) -> PyTree:
        """See `MeshReplica._laid_out_together`; all compute one program, so all lay them out alike.

        Raises:
          DataError: the batches have become others.
        """
        if self._stacks and several.stack is None:
            raise DataError(
                f"{self.task}: the batches were NumPy arrays at first, and are not any more: workers that compute in "
                "step need one kind."
            )
        return super()._laid_out_together(several if self._stacks else replace(several, stack=None))

    def _limit(self) -> None:
        """Has the device count how many updates the training may still make: a call may have some steps too many."""
        if self._per_call > 1:
            most = np.iinfo(np.int32).max
            left = most if self._last_step is None else min(most, max(0, self._last_step - self._step))
            limit = jax.make_array_from_callback((), self._everywhere, lambda _: np.asarray(left, np.int32))
            self._values = self._values._replace(left=limit)

    def _dispatch(self, given: PyTree, words: Any = None, *, count: int = 1, real: int = 1) -> PyTree:
        self._batch = given
        announced = 0.0 if self._saving is self._announced_of else self._announced()
        words = self._words.next(0.0 if words is None else float(words), announced)
        with self._together.watched(self._begun, self._dispatched + 1):
            return super()._dispatch(given, words, count=count, real=real)

    def steer(self, settings: Mapping[str, float]) -> None:
        """See `Replica.steer`. One number goes with each step, several with several."""
        if not self.is_chief:
            raise ClusterError(f"{self.task} may not steer the optimizer: only the chief may.")
        scalars = scalars_of(self._values.optimizer)
        check_settings(settings, scalars)
        self._words.steer({1 + list(scalars).index(name): value for name, value in settings.items()})

    def _announced(self) -> float:
        """What the chief says of its checkpoint with the next step; once, and not before the others can note it."""
        saving = self._saving
        if not self._is_chief or saving is None:
            return 0.0
        if saving.at > self._step + KNOWN_AFTER * self._per_call and not self.in_parts:
            return 0.0
        self._announced_of = saving
        self._settle_all()  # the others hear of it when they know all that was before
        return float(max(saving.at, saving.step or 0) - self._step + BIAS)

    def _flags_of(self, outcome: Outcome) -> list[Flags]:
        with self._together.watched(self._begun, self._dispatched):
            flags = super()._flags_of(outcome)
        self._together.settled()
        return flags

    def _settle(self, outcome: Outcome, index: int, flags: Flags) -> str:
        if flags.saves and not self._is_chief:
            self._saving_at = self._settled + int(flags.saves) - BIAS
        if flags.ends and flags.goes_on and not self._ended:
            self._ended = self._ending.why()
            self._until = outcome.number + 1 + BEHIND
        before, refusal = self._step, ""
        if flags.goes_on and not self._ended:
            refusal = super()._settle(outcome, index, flags)
        else:
            self._step -= 1
            self._leave_out(outcome, index, flags)
        if self._step != before:
            for boundary in self._passed:
                boundary.step -= boundary.calls > outcome.number
        return refusal

    def _leave_out(self, outcome: Outcome, index: int, flags: Flags) -> None:
        """Notes that a step came after the end."""
        if index >= outcome.real:
            return
        if outcome.number == self._reporting:
            self._surplus += 1
            self._steps -= 1
        else:
            self._unused += 1
            self._known.append((self._settled, flags.loss))

    def settle(self) -> None:
        """See `Replica.settle`. Takes part in as many steps as all others do, where that is found to be the end: one
        of them may have learned it later.
        """
        self._settle_all()
        while self._batch is not None and self._dispatched < self._until:
            self._dispatch(self._batch, count=self._per_call, real=0)
        self._settle_all()

    def _are_alike(self, batch: PyTree) -> bool:
        """Whether the training can begin: all compute one program, so their batches must have the same shapes.

        Not if another process has ended the training already.
        """
        self._alike = True
        stacks = first_batches(
            self._together, self._spreader.own, batch, f"batch/{self._begun}", self._ending.key, self._say
        )
        self._stacks = all(stacks)
        if stacks and not self._has_compared:
            require_one_loss(self._together, self._model, self._shapes, batch)
        return bool(stacks)

    def finish(self) -> None:
        """See `Replica.finish`."""
        self._end_for_all(FINISHED)
        super().finish()

    def pause(self, reason: str = "") -> str:
        """See `Replica.pause`: the others cannot go on either."""
        self._end_for_all(reason or USED_UP)
        return self._ended

    def _end_for_all(self, reason: str) -> None:
        """Takes part in steps that change nothing, until all know that this process goes no further."""
        self._together.check()
        if self._is_settled_over() or self._ended:
            self.settle()
            return
        self._ending.tell(reason, self._dispatched)
        if self._batch is None:  # it never took part in a step; the others look before their first one
            self._ended = reason
            return
        while not (self._ended or self._is_settled_over()):
            self._dispatch(self._batch, 1.0, count=self._per_call, real=0)
            self._settle_all(BEHIND)
        self.settle()

    def at_work(self) -> tuple[str, ...]:
        """See `Replica.at_work`: all end in the same step."""
        return ()

    def lease(self, request: LeaseRequest) -> LeaseAnswer:  # noqa: ARG002 - none is granted
        """See `Replica.lease`."""
        raise DataError(
            f"{self.task}: trainband.data.shared deals pieces out to workers that go at their own speeds. Workers that "
            "compute in step need as many batches each: give each its part, such as Batches(..., shard=...)."
        )

    def close(self, failure: str = "") -> None:
        """See `Replica.close`."""
        self._together.close(failure)

    def busy(self, what: str) -> AbstractContextManager[object]:
        """See `Replica.busy`."""
        return self._together.busy(what)

    # --- values

    def _agreed(self, values: PyTree) -> PyTree:
        return self._shared.agreed(values)

    def _united(self, values: PyTree, what: str) -> PyTree:
        return self._shared.united(values, what, self._say)

    def optimizer_state(self) -> PyTree:
        """See `Replica.optimizer_state`. Where it is in parts, all processes must ask for it together."""
        self._shared.come_for("asks for the optimizer's state", self._values.optimizer)
        return self._shared.fetched(without_keys(self._values.optimizer))

    def computed(
        self, function: Callable[[PyTree, PyTree, PyTree], PyTree], batches: Iterable[PyTree], what: str
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """See `Replica.computed`. Where each process has all values, it computes alone."""
        if not self.in_parts:
            params, state = own(self._values.params), own(self._values.state)
            for batch in batches:
                yield batch, function(params, state, batch)
            return

        def by_all(*given: PyTree) -> PyTree:
            with self._together.watched():
                outputs = function(*given)
                jax.block_until_ready(outputs)
            return self._shared.fetched(outputs)

        yield from super().computed(by_all, same_batches(self._together, batches, what), what)

    def params(self) -> PyTree:
        """See `Replica.params`. Where the params are in parts, all processes must ask for them together."""
        self._shared.come_for("asks for the params", self._values.params)
        return self._shared.fetched(self._values.params)

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return self._shared.fetched(self._values.state)

    # --- checkpoints

    def save(self, directory: Path, at: int | None) -> LocalSaving:
        """See `Replica.save`. Where the values are in parts, it is of a step that all can hear of before."""
        at_once = self._is_over or self._ended or self._all_give
        if self.in_parts and not at_once:
            at = max(at or 0, self._step + (KNOWN_AFTER + 1) * self._per_call)
            if self._last_step is not None:
                at = min(at, self._last_step)
        saving = JointSaving(directory, at or 0, self._together)
        self._saving = saving
        if self.in_parts and at_once and saving.due(self._step):
            self._announced_of = saving
            self._order("gather")
        self._begin_saving()
        return saving

    def end(self) -> None:
        """See `Replica.end`: the chief's last checkpoints, where the values are in parts."""
        if self.in_parts:
            self.gather(lambda: None)

    def gather(self, work: Callable[[], object]) -> bool:
        """See `Replica.gather`."""
        self._settle_all()
        if self.is_chief:
            self._all_give = True
            try:
                work()
            finally:
                self._all_give = False
                self._order("over")
            return False
        gave, word = False, ""
        while word != "over":
            self._orders += 1
            word = self._together.hear(f"order/{self._orders}", "gives the chief its parts of the variables")
            if word == "gather":
                self._gathered()
                gave, self._saving_at = True, None  # in place of one that was ordered before
        return gave

    def _order(self, word: str) -> None:
        self._orders += 1
        self._together.tell(f"order/{self._orders}", word)

    def leave_luggage(self, training: int, position: str, behind: int = 0) -> None:
        """See `Replica.leave_luggage`."""
        carry = self._values.carry if self.is_chief else ()  # all have the same
        luggage = Luggage.pack(self.task, training, self._steps - behind, position, carry).to_bytes()
        if not self.is_chief:
            at, self._saved_step = self._step if self._saved_step is None else self._saved_step, None
            self._together.tell(f"luggage/{at}/{self._together.index}", luggage.hex())
        elif self._saving is not None and self._saving.begun and self._saving.luggage is None:
            self._saving.luggage = luggage

    def _copies(self) -> PyTree:
        if self.in_parts:
            return self._gathered()
        return copied(own(saved_of(self._values)))

    @property
    def _is_to_save(self) -> bool:
        if self.is_chief:
            return super()._is_to_save
        return self._saving_at is not None and self._step >= self._saving_at

    def _begin_saving(self) -> int | None:
        if self._is_chief:
            return super()._begin_saving() if self._saving is not None else None
        if self._is_to_save:
            self._settle_all()
        self._passed.append(_Boundary(self._dispatched, self._step, self._steps))
        if self._saving_at is None or not self._is_to_save:
            return None
        if self.in_parts:
            self._gathered()
        at, self._saving_at = self._saving_at, None
        # What was saved is of the first call that ended there: an order may be for a step within it.
        saved = next(boundary for boundary in self._passed if boundary.step >= at)
        self._saved_step = saved.step
        return self._steps - saved.batches

    def _gathered(self) -> PyTree:
        """All values, on the chief; the others only give their parts."""
        values = saved_of(self._values)
        if self.is_chief:
            return self._shared.fetched(values)
        self._shared.fetched(values, lambda _: ())
        return None

    def _restore(self, source: RestoreFrom) -> None:
        """The chief chooses the checkpoint."""
        if self.is_chief:
            super()._restore(source)
            self._together.tell("restored", [self._step] if self._restored is not None else [])
            return
        steps = self._together.hear("restored", MAKES)
        if not steps:
            return
        (step,) = steps
        found = next((one for one in source.candidates() if one.global_step == step), None)
        if found is None:
            raise CheckpointError(
                f"{self.task} does not see the checkpoint of global step {step:,}, from which the job goes on: all "
                "workers must see the checkpoints' directory under the same path."
            )
        self._restore_from(found, source)

    def _restore_from(self, checkpoint: Checkpoint, source: RestoreFrom) -> None:
        super()._restore_from(checkpoint, source)  # with the carry of the chief, which all have
        luggage = source.luggage(checkpoint)
        # Those who compute one part together must go on at one place in the data.
        owner = next((number for number in self._spreader.own.sharers if number in luggage), None)
        if owner is None:
            self._luggage = None
            if luggage:
                self._say(
                    f"{self.task} begins at the start of its data: fewer workers left the checkpoint, and only of "
                    "trainband.data.Batches is it known how far they have come together"
                )
        else:
            own = Luggage.from_bytes(luggage[owner], str(checkpoint.path))
            self._luggage = msgspec.structs.replace(own, task=self.task, carry=())
            self._steps = own.steps


@dataclass(slots=True)
class _Boundary:
    """Where a process was between two calls.

    Attributes:
      calls: of this training, that were made by then.
      step: the global step, as far as it is known.
      batches: that this process had trained on.
    """

    calls: int
    step: int
    batches: int


def _filled_up(several: Several, missing: int) -> Several:
    """With so many batches more: the last one again."""
    stack = None
    if several.stack is not None:
        stack = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], missing, 0)]), several.stack)
    return Several((*several.batches, *several.batches[-1:] * missing), several.last, stack)
