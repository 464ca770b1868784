"""MeshReplica: the part of one process in a training whose devices all compute one program, on one mesh."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DamagedCheckpoint, DataError, NonFiniteGradient
from trainband.ps.checkpointing import RestoreFrom
from trainband.ps.contents import (
    Contents,
    Held,
    check_settings,
    contents_of_state,
    contents_of_variables,
    key_kinds,
    with_keys,
    without_keys,
)
from trainband.ps.dependence import apply_updates
from trainband.ps.placement import Slice, rows_of
from trainband.ps.saver import buffer_of
from trainband.ps.sources import SharedSources
from trainband.ps.statistics import CheckpointStatus, Rate
from trainband.ps.variables import PyTree, path_name
from trainband.strategies.base import MOST_REFUSALS, Progress, StepReport, WorkerRow
from trainband.strategies.gradient import GradientFunction, all_finite
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage
from trainband.strategies.model import Given, Model, examples_in, examples_in_step
from trainband.strategies.separable import why_not_mean_of_examples
from trainband.strategies.sharding import DATA, Rules, state_specs, whole
from trainband.strategies.spreading import Compute, Spreader, by_compiler, each_by_itself, owned, spread_evenly
from trainband.wire.patience import Say

BEHIND = 1
"""Steps that are under way while the outcome of the one before is looked at. On two cores, small steps are 1.4 times as
many as if each was waited for."""

WORDS = 4
"""Numbers that each process tells all others in each step, see `JointReplica`."""

copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


class Values(NamedTuple):
    """What a training changes.

    Attributes:
      params, optimizer, state: the params, the optimizer's state and the model's.
      carry: see `GradientFunction`.
      ended: more than 0 once some process has asked for the end: no step changes anything any more. `None` where there
        is one process.
    """

    params: PyTree
    optimizer: PyTree
    state: PyTree
    carry: PyTree
    ended: Any


class Outcome(NamedTuple):
    """What is looked at of a step, once it is computed.

    Attributes:
      begun_at: the global step before it.
      number: which step of this training it is, from 0, also of those that change nothing.
      real: whether its batch was one to train on.
      flags: whether the gradient was finite, and the sum of all processes' words.
      loss: of the batch.
    """

    begun_at: int
    number: int
    real: bool
    flags: jax.Array
    loss: jax.Array


class MeshReplica:
    """See `Replica`. A step that is not finite changes nothing, as on a ps.

    Params, optimizer and model state lie on the mesh as the rules say, and the batch is split over the axis `data`. The
    result is that of one device on the whole batch, but for rounding: a loss that is the mean over its examples is
    computed by each device alone for its part, and any other is split by JAX's compiler, which adds what exchanges are
    needed in between.

    The outcome of a step is looked at when the next one is under way, so that no device waits for Python: a refusal is
    told one step late, except of the last.

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
        self._on_cpu = mesh.devices.flat[0].platform == "cpu"
        # On the CPU a branch costs nothing, and choosing between old and new values 0.14 ms of a step of 1.1 ms
        # (784-100-10, Adam, two cores). On an accelerator a branch would wait for the host.
        self._branches = central or self._on_cpu
        self._variables = model.variables()  # refuses params that no strategy could train
        self._axes = (DATA,) if DATA in mesh.shape else ()
        self._spreader = Spreader(mesh, self._axes, remainder, task)
        self._spreads = mesh.size > 1 or not self._on_cpu
        self._pending: deque[Outcome] = deque()
        self._dispatched = 0
        self._seen_loss: Any = None
        self._refusals = 0
        self._step = 0
        self._last_step: int | None = 0
        self._rate = Rate()
        self._examples_rate = Rate()
        self._loss: Any = None
        self._steps = 0
        self._examples = 0
        self._accumulate = model.accumulate
        self._checkpoint: CheckpointStatus | None = None
        self._restored: Checkpoint | None = None
        self._luggage: Luggage | None = None
        self._ledgers = SharedSources()
        self._ledgers_lock = threading.Lock()
        self._saving: LocalSaving | None = None
        self._apart: bool | None = None
        self._shardings = self._lay_out(rules)
        self._whole = all(leaf.is_fully_replicated for leaf in jax.tree.leaves(self._shardings))
        self._gradient_of = GradientFunction(model, 0, self._spread)
        self._values = self._first_values()
        if restore is not None:
            self._restore(restore)
        self._train = self._train_centrally() if central else self._train_on_mesh()

    # --- how it is laid out

    def _lay_out(self, rules: Rules) -> Values:
        """Where each value lies, a sharding for each leaf."""
        variables = self._variables
        specs = rules(variables.trained, self._mesh)
        params = variables.unflatten([self._sharding(spec) for spec in specs])
        kinds = jax.eval_shape(self._model.optimizer.init, jax.eval_shape(self._model.first_params))
        leaves = [self._sharding(spec) for spec in state_specs(kinds, variables, specs)]
        optimizer = jax.tree.unflatten(jax.tree.structure(kinds), leaves)
        everywhere = self._sharding(PartitionSpec())
        return Values(params, optimizer, everywhere, everywhere, everywhere)

    def _sharding(self, spec: PartitionSpec) -> jax.sharding.Sharding:
        if self._central is not None:
            return jax.sharding.SingleDeviceSharding(self._central)
        return NamedSharding(self._mesh, spec)

    def _first_values(self) -> Values:
        model, where = self._model, self._shardings
        if isinstance(model.init, Given):  # as constants of a program they would be compiled into it
            params, state = self._agreed((model.first_params(), model.first_state()))
            params = jax.tree.map(_placed, params, where.params)
            state = _placed_all(state, where.state)
        else:
            params = jax.jit(model.first_params, out_shardings=where.params)()
            state = jax.jit(model.first_state, out_shardings=where.state)()
        optimizer = jax.jit(model.optimizer.init, out_shardings=where.optimizer)(params)
        carry = jax.jit(self._gradient_of.first_carry, out_shardings=where.carry)(params)
        ended = jax.jit(lambda: jnp.zeros(()), out_shardings=where.ended)() if self.IN_STEP else None
        return Values(params, optimizer, state, carry, ended)

    def _agreed(self, values: PyTree) -> PyTree:
        """Values that this process alone has; where there are others, the chief's."""
        return values

    # --- the program

    def _spread(self, compute: Compute) -> Compute:
        """How the gradient's computation is split over the devices; the batch comes with the processes' words."""
        split = by_compiler(compute)
        if self._spreader.parts == 1 or self._mesh.size != self._spreader.parts or not self._whole:
            return split
        alone = each_by_itself(compute, self._mesh, self._axes, flat=self._on_cpu)

        def chosen(params: PyTree, state: PyTree, batch: PyTree, key: Any) -> Any:
            parts = batch[0] if self._accumulate > 1 else batch[:1]
            apart = all(part.weights is None and self._is_mean(params, part.batch, key) for part in parts)
            return (alone if apart else split)(params, state, batch, key)

        return chosen

    def _is_mean(self, params: PyTree, batch: PyTree, key: Any) -> bool:
        """Whether the loss is the mean over the examples, so that each device may compute its part by itself."""
        if self._apart is None:
            model = self._model

            def values(others: PyTree, batch: PyTree) -> PyTree:
                params, key = others
                loss, metrics, _ = model.value(params, batch, key)
                return loss, dict(metrics)

            examples = examples_in(batch)
            sizes = examples // self._spreader.parts, examples
            reason = why_not_mean_of_examples(values, (params, key), batch, sizes) if model.init_state is None else ""
            self._apart = model.init_state is None and not reason
        return self._apart

    def _gradient(self, values: Values, batch: PyTree, words: Any) -> Any:
        """(gradient, the other values after it, loss, metrics, the sum of all words); traceable."""
        words = jnp.zeros((self._mesh.size, WORDS), jnp.float32) if words is None else words
        step = self._gradient_of(values.params, values.state, values.carry, (batch, words))
        metrics, words = step.metrics
        return step.gradient, values._replace(state=step.state, carry=step.carry), step.loss, metrics, words

    def _updated(self, values: Values, gradient: PyTree, new: Values, words: Any) -> tuple[Values, jax.Array]:
        """(the values after a step, its flags); traceable."""
        if values.ended is not None:
            values = values._replace(optimizer=_as_told(values.optimizer, words[2], words[3]))
        applies = finite = all_finite(gradient)
        ended, carry = None, new.carry
        if values.ended is not None:
            ended = values.ended + words[0]
            applies = finite & (ended == 0)
            carry = jax.tree.map(partial(jnp.where, ended == 0), carry, values.carry)

        def update() -> tuple[PyTree, PyTree, PyTree]:
            updates, optimizer = self._model.optimizer.update(gradient, values.optimizer, values.params)
            return apply_updates(values.params, updates), optimizer, new.state

        old = (values.params, values.optimizer, values.state)
        if self._branches:
            kept = jax.lax.cond(applies, update, lambda: old)
        else:
            kept = jax.tree.map(partial(jnp.where, applies), update(), old)
        return Values(kept[0], kept[1], kept[2], carry, ended), jnp.concatenate(
            [finite[None].astype(jnp.float32), words]
        )

    def _train_on_mesh(self) -> Callable[..., Any]:
        where = self._shardings if self.IN_STEP else self._shardings._replace(ended=None)

        def train(values: Values, batch: PyTree, words: Any) -> Any:
            gradient, new, loss, metrics, words = self._gradient(values, batch, words)
            after, flags = self._updated(values, gradient, new, words)
            return after, loss, flags, metrics

        return jax.jit(train, out_shardings=(where, None, None, None), donate_argnums=self._donated)

    def _train_centrally(self) -> Callable[..., Any]:
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        gradient_of = jax.jit(self._gradient)
        updated = jax.jit(self._updated, donate_argnums=self._donated)

        def train(values: Values, batch: PyTree, words: Any) -> Any:
            used = jax.device_put(values._replace(optimizer=()), everywhere)
            gradient, new, loss, metrics, words = gradient_of(used, batch, words)
            gradient, new, words = jax.device_put(
                (gradient, Values((), (), new.state, new.carry, None), words), self._central
            )
            after, flags = updated(values, gradient, new, words)
            return after, loss, flags, metrics

        return train

    @property
    def _donated(self) -> tuple[int, ...]:
        return (0,) if self._model.donate else ()

    # --- what it knows

    @property
    def task(self) -> str:
        """See `Replica.task`."""
        return self._task

    @property
    def is_chief(self) -> bool:
        """See `Replica.is_chief`."""
        return True

    @property
    def job(self) -> str:
        """See `Replica.job`."""
        return ""

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
    def trainings(self) -> tuple[int, ...]:
        """See `Replica.trainings`: this job is as old as this replica."""
        return ()

    # --- the training

    @property
    def in_parts(self) -> bool:
        """See `Replica.in_parts`: this process can ask for all of them."""
        return False

    @property
    def unused(self) -> int:
        """See `Replica.unused`: there are none."""
        return 0

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:  # noqa: ARG002 - nobody asks later
        """See `Replica.begin`."""
        self._settle_all()
        self._dispatched = 0
        self._last_step = last_step
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
        if self._spreads:
            batch = self._spreader(batch) if self._accumulate == 1 else self._all_spread(batch)
        else:
            batch = owned(batch)
        metrics = self._dispatch(batch)
        self._steps += 1
        self._examples += examples_in_step(batch, self._accumulate)
        refusal = self._settle_all(BEHIND)
        if self._is_over or self._is_to_save:
            refusal = self._settle_all() or refusal
        luggage = self._begin_saving()
        return StepReport(self._loss, self._step, not refusal, 0, self._is_over, refusal, metrics, luggage)

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

    @property
    def _is_to_save(self) -> bool:
        """Whether a checkpoint is due, if no step that is under way is refused."""
        return self._saving is not None and self._saving.due(self._step)

    def _dispatch(self, batch: PyTree, words: Any = None, *, real: bool = True) -> PyTree:
        """Has a step computed, as if it were applied; what it comes to is looked at by `_settle`. Gives its metrics."""
        self._values, self._loss, flags, metrics = self._train(self._values, batch, words)
        self._pending.append(Outcome(self._step, self._dispatched, real, flags, self._loss))
        self._step += 1
        self._dispatched += 1
        return metrics

    def _settle_all(self, behind: int = 0) -> str:
        """Looks at what became of the steps, but for so many; returns why one was refused."""
        refusal = ""
        while len(self._pending) > behind:
            outcome = self._pending.popleft()
            refusal = self._settle(outcome, self._flags_of(outcome)) or refusal
            self._seen_loss = outcome.loss
        return refusal

    def _flags_of(self, outcome: Outcome) -> list[float]:
        """What came of a step; waits until it is computed."""
        flags: list[float] = np.asarray(outcome.flags).tolist()
        return flags

    def _settle(self, outcome: Outcome, flags: Sequence[float]) -> str:
        """Why this step was refused; empty if it was not."""
        if flags[0]:
            self._refusals = 0
            return ""
        self._step -= 1
        return self._refused(float(outcome.loss))

    def missing(self) -> int:
        """See `Replica.missing`: what is made here is not lost."""
        return 0

    def pause(self, reason: str = "") -> None:
        """See `Replica.pause`: nobody waits here."""

    def at_work(self) -> tuple[str, ...]:
        """See `Replica.at_work`: there are no others."""
        return ()

    def end(self) -> None:
        """See `Replica.end`: nobody has to be told."""

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:
        """See `Replica.assign`."""
        self._settle_all()
        where = self._shardings
        params, state, optimizer = self._agreed((params, state, optimizer))
        self._values = self._values._replace(
            params=jax.tree.map(_placed, params, where.params),
            state=_placed_all(state, where.state),
            optimizer=jax.tree.map(_placed, optimizer, where.optimizer),
        )

    def steer(self, settings: Mapping[str, float]) -> None:
        """See `Replica.steer`."""
        self._values = self._values._replace(optimizer=steered(self._values.optimizer, settings))

    def optimizer_state(self) -> PyTree:
        """See `Replica.optimizer_state`."""
        return jax.tree.map(np.array, self._values.optimizer)

    def values(self) -> tuple[PyTree, PyTree]:
        """See `Replica.values`."""
        return self._values.params, self._values.state

    def lay_out(self, batch: PyTree) -> PyTree:
        """See `Replica.lay_out`."""
        return spread_evenly(self._mesh, self._axes, batch) if self._spreads and self._central is None else batch

    def fetch(self, outputs: PyTree) -> PyTree:
        """See `Replica.fetch`."""
        return outputs

    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - nobody waits for it
        """See `Replica.busy`."""
        return nullcontext()

    def params(self) -> PyTree:
        """See `Replica.params`."""
        return jax.tree.map(np.array, self._values.params)

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return jax.tree.map(np.array, self._values.state)

    def progress(self) -> Progress | None:
        """See `Replica.progress`."""
        now = time.monotonic()
        rate, examples_rate = self._rate.at(now, self._step), self._examples_rate.at(now, self._examples)
        loss = None if self._seen_loss is None else float(self._seen_loss)  # of a step that nobody waits for
        row = WorkerRow(self._task, "live", rate, 0.0, loss)
        return Progress(self._step, self._last_step, rate, loss, (row,), examples_rate, self._checkpoint)

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """See `Replica.lease`."""
        with self._ledgers_lock:
            return self._ledgers.lease(0, request)

    def close(self, failure: str = "") -> None:
        """See `Replica.close`: there is nothing to leave."""

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
        return copied(without_keys((self._values.params, self._values.state, self._values.optimizer)))

    def _contents(self) -> Contents:
        variables = self._variables
        held = [
            Held(path, variable.shape, (Slice(variable, 0, rows_of(variable), 0),))
            for path, variable in zip(variables.paths, variables.trained, strict=True)
        ]
        state = contents_of_state(jax.eval_shape(without_keys, self._values.optimizer), held)
        assert state is not None  # every leaf that belongs to a variable belongs to one alone
        return (*contents_of_variables(variables), *state)

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
        contents, values = self._contents(), self._values
        kept = (values.params, values.state, values.optimizer)
        if not source.optimizer:
            contents, kept = contents[: len(self._variables.entries)], (values.params, values.state, ())
        leaves, tree = jax.tree.flatten(without_keys(kept))
        checkpoint.require([piece for pieces in contents for piece in pieces], params_only=not source.optimizer)
        found = [buffer_of(checkpoint, pieces) for pieces in contents]
        luggage = dict(source.luggage(checkpoint))
        placed = [_placed(value.reshape(leaf.shape), leaf.sharding) for value, leaf in zip(found, leaves, strict=True)]
        params, state, optimizer = with_keys(jax.tree.unflatten(tree, placed), key_kinds(kept))
        self._values = values._replace(params=params, state=state)
        if source.optimizer:
            self._values = self._values._replace(optimizer=optimizer)
        self._restored, self._step = checkpoint, checkpoint.global_step
        self._ledgers.restore(checkpoint.manifest.sources, workers=1)
        self._take_luggage(luggage.get(0), str(checkpoint.path))

    def _take_luggage(self, data: bytes | None, sender: str) -> None:
        if data is None:
            return
        self._luggage = Luggage.from_bytes(data, sender)
        self._steps = self._luggage.steps
        if self._luggage.carry:
            carry = self._luggage.unpack(jax.tree.map(np.asarray, self._values.carry))
            self._values = self._values._replace(carry=_placed_all(carry, self._shardings.carry))

    def _refused(self, loss: float) -> str:
        self._refusals += 1
        refusal = f"refused a gradient that is not finite (after global step {self._step}, loss {loss:g})"
        if self._refusals == 1 and self.is_chief:
            self._say(f"{refusal}; the params are as they were, training goes on")
        if self._refusals >= MOST_REFUSALS:
            raise NonFiniteGradient(
                f"{self._refusals} gradients in a row were not finite; the last: {refusal}. "
                "Look at the data and the loss, or lower the learning rate."
            )
        return refusal


def scalars_of(state: PyTree) -> dict[str, Any]:
    """The numbers of an optimizer's state by their paths, in order."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {path_name(path): leaf for path, leaf in leaves if leaf.shape == ()}


def _as_told(state: PyTree, which: jax.Array, value: jax.Array) -> PyTree:
    """An optimizer's state with another value for its scalar `which`, from 1; for none where that is 0; traceable."""
    numbers = {name: number for number, name in enumerate(scalars_of(state), 1)}

    def told(path: Any, leaf: Any) -> Any:
        number = numbers.get(path_name(path))
        return leaf if number is None else jnp.where(which == number, value.astype(leaf.dtype), leaf)

    return jax.tree_util.tree_map_with_path(told, state)


def steered(state: PyTree, settings: Mapping[str, float]) -> PyTree:
    """An optimizer's state, as its own arrays or what can replace them, with these numbers in place of its own.

    Raises:
      ModelError: it has no such scalar.
    """
    check_settings(settings, scalars_of(state))

    def set_(path: Any, leaf: Any) -> Any:
        value = settings.get(path_name(path))
        return leaf if value is None else _placed(np.asarray(value, leaf.dtype), leaf.sharding)

    return jax.tree_util.tree_map_with_path(set_, state)


def _placed(value: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array that every process has, where it belongs; each process takes its parts."""
    value = np.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def _placed_all(tree: PyTree, sharding: jax.sharding.Sharding) -> PyTree:
    return jax.tree.map(lambda leaf: _placed(leaf, sharding), tree)
