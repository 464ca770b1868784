"""OneDevice: the strategy of one process and one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DamagedCheckpoint, NonFiniteGradient, TrainbandError
from trainband.ps.checkpointing import RestoreFrom
from trainband.ps.contents import (
    Contents,
    Held,
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
from trainband.ps.variables import PyTree
from trainband.strategies.base import MOST_REFUSALS, Progress, StepReport, WorkerRow
from trainband.strategies.devices import choose_device, on_device, placer
from trainband.strategies.gradient import Carry, GradientFunction, all_finite
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage
from trainband.strategies.model import Model, examples_in_step
from trainband.wire.patience import Say, say_on_stderr

_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


class OneDevice:
    """Trains in this process, on one device.

    Args:
      device: `cpu`, `gpu`, `gpu:1`, ...; by default an accelerator if JAX has one.
      say: where lines for people go.
    """

    def __init__(self, device: str | None = None, *, say: Say = say_on_stderr) -> None:
        self._device = device
        self._say = say

    @property
    def serves(self) -> bool:
        """See `Strategy.serves`."""
        return False

    @property
    def cluster(self) -> None:
        """See `Strategy.cluster`."""
        return

    def start(self, model: Model, restore: RestoreFrom | None = None) -> OneDeviceReplica:
        """See `Strategy.start`."""
        return OneDeviceReplica(model, choose_device(self._device, 0, "this process", self._say), restore, self._say)

    def serve(self) -> str:
        """See `Strategy.serve`."""
        raise TrainbandError("OneDevice has no parameter servers to serve.")


class OneDeviceReplica:
    """See `Replica`. A step that is not finite changes nothing, as on a ps."""

    task = "local"
    is_chief = True
    job = ""

    def __init__(self, model: Model, device: jax.Device, restore: RestoreFrom | None, say: Say) -> None:
        self._variables = model.variables()  # refuses params that no strategy could train
        self._device = device
        self._say = say
        self._refusals = 0
        self._step = 0
        self._last_step: int | None = 0
        self._rate = Rate()
        self._examples_rate = Rate()
        self._loss: Any = None
        self._ledgers_lock = threading.Lock()
        with on_device(device):
            self._params = jax.jit(model.first_params)()
            self._model_state = jax.jit(model.first_state)()
            self._state = jax.jit(model.optimizer.init)(self._params)
            gradient_of = GradientFunction(model, 0)
            self._carry = jax.jit(gradient_of.first_carry)(self._params)
        self._steps = 0
        self._examples = 0
        self._accumulate = model.accumulate
        self._checkpoint: CheckpointStatus | None = None
        self._restored: Checkpoint | None = None
        self._luggage: Luggage | None = None
        self._ledgers = SharedSources()
        self._saving: LocalSaving | None = None
        if restore is not None:
            self._restore(restore)

        @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
        def train(params: PyTree, state: PyTree, model_state: PyTree, carry: Carry, batch: PyTree) -> Any:
            loss, gradient, new_model_state, carry, metrics = gradient_of(params, model_state, carry, batch)
            updates, new_state = model.optimizer.update(gradient, state, params)
            new_params = apply_updates(params, updates)
            finite = all_finite(gradient)
            new, old = (new_params, new_state, new_model_state), (params, state, model_state)
            kept = jax.tree.map(partial(jnp.where, finite), new, old)
            return *kept, carry, loss, finite, metrics

        self._train = train

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
        """See `Replica.place`."""
        return placer(self._device)

    @property
    def trainings(self) -> tuple[int, ...]:
        """See `Replica.trainings`: this job is as old as this replica."""
        return ()

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:  # noqa: ARG002 - nobody asks later
        """See `Replica.begin`."""
        self._last_step = last_step
        return last_step is None or self._step < last_step

    def finish(self) -> None:
        """See `Replica.finish`."""
        self._last_step = self._step

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
            luggage = Luggage.pack(self.task, training, self._steps, position, self._carry)
            saving.luggage = luggage.to_bytes()

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """See `Replica.lease`."""
        with self._ledgers_lock:
            return self._ledgers.lease(0, request)

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          NonFiniteGradient: the gradients of 100 steps in a row were not finite.
        """
        with on_device(self._device):
            self._params, self._state, self._model_state, self._carry, self._loss, finite, metrics = self._train(
                self._params, self._state, self._model_state, self._carry, batch
            )
        self._steps += 1
        self._examples += examples_in_step(batch, self._accumulate)
        refusal = "" if finite else self._refused(float(self._loss))
        if finite:
            self._step += 1
            self._refusals = 0
        done = self._last_step is not None and self._step >= self._last_step
        luggage = 0 if self._begin_saving() else None
        return StepReport(self._loss, self._step, not refusal, 0, done, refusal, metrics, luggage)

    def missing(self) -> int:
        """See `Replica.missing`: what is made here is not lost."""
        return 0

    def pause(self) -> None:
        """See `Replica.pause`: nobody waits here."""

    def at_work(self) -> tuple[str, ...]:
        """See `Replica.at_work`: there are no others."""
        return ()

    def params(self) -> PyTree:
        """See `Replica.params`."""
        return jax.tree.map(np.array, self._params)

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return jax.tree.map(np.array, self._model_state)

    def progress(self) -> Progress | None:
        """See `Replica.progress`."""
        now = time.monotonic()
        rate, examples_rate = self._rate.at(now, self._step), self._examples_rate.at(now, self._examples)
        loss = None if self._loss is None else float(self._loss)
        row = WorkerRow(self.task, "live", rate, 0.0, loss)
        return Progress(self._step, self._last_step, rate, loss, (row,), examples_rate, self._checkpoint)

    def close(self, failure: str = "") -> None:
        """See `Replica.close`: there is nothing to leave."""

    def _begin_saving(self) -> bool:
        """Whether a checkpoint has begun, of things as they now are."""
        saving = self._saving
        if saving is None or saving.begun or self._step < saving.at:
            return False
        with on_device(self._device):
            copies = _copy(without_keys((self._params, self._model_state, self._state)))  # the next step writes there
        with self._ledgers_lock:
            sources = self._ledgers.record()
        saving.begin(self._step, self._contents(), copies, sources)
        return True

    def _contents(self) -> Contents:
        variables = self._variables
        held = [
            Held(path, variable.shape, (Slice(variable, 0, rows_of(variable), 0),))
            for path, variable in zip(variables.paths, variables.trained, strict=True)
        ]
        state = contents_of_state(jax.eval_shape(without_keys, self._state), held)
        assert state is not None  # every leaf that belongs to a variable belongs to one alone
        return (*contents_of_variables(variables), *state)

    def _restore(self, source: RestoreFrom) -> None:
        contents = self._contents()
        kept = (self._params, self._model_state, self._state)
        if not source.optimizer:
            contents, kept = contents[: len(self._variables.entries)], (self._params, self._model_state, ())
        leaves, tree = jax.tree.flatten(without_keys(kept))
        for checkpoint in source.candidates():
            checkpoint.require([piece for pieces in contents for piece in pieces], params_only=not source.optimizer)
            try:
                values = [buffer_of(checkpoint, pieces) for pieces in contents]
                luggage = dict(source.luggage(checkpoint))
            except DamagedCheckpoint as exc:
                self._say(f"{checkpoint.path} is damaged ({exc}); the checkpoint before it is tried")
                continue
            placed = [
                jax.device_put(value.reshape(leaf.shape), leaf.sharding)
                for value, leaf in zip(values, leaves, strict=True)
            ]
            restored = with_keys(jax.tree.unflatten(tree, placed), key_kinds(kept))
            self._params, self._model_state, state = restored
            if source.optimizer:
                self._state = state
            self._restored, self._step = checkpoint, checkpoint.global_step
            self._ledgers.restore(checkpoint.manifest.sources, workers=1)
            if 0 in luggage:
                self._luggage = Luggage.from_bytes(luggage[0], str(checkpoint.path))
                self._steps = self._luggage.steps
                if self._luggage.carry:
                    self._carry = jax.device_put(self._luggage.unpack(self._carry))
            return

    def _refused(self, loss: float) -> str:
        self._refusals += 1
        refusal = f"refused a gradient that is not finite (after global step {self._step}, loss {loss:g})"
        if self._refusals == 1:
            self._say(f"{refusal}; the params are as they were, training goes on")
        if self._refusals >= MOST_REFUSALS:
            raise NonFiniteGradient(
                f"{self._refusals} gradients in a row were not finite; the last: {refusal}. "
                "Look at the data and the loss, or lower the learning rate."
            )
        return refusal
