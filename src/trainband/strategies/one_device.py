"""OneDevice: the strategy of one process and one device."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.errors import NonFiniteGradient, TrainbandError
from trainband.ps.dependence import apply_updates
from trainband.ps.statistics import Rate
from trainband.ps.variables import PyTree
from trainband.strategies.base import MOST_REFUSALS, Progress, StepReport, WorkerRow
from trainband.strategies.devices import choose_device, on_device
from trainband.strategies.gradient import Carry, GradientFunction
from trainband.strategies.model import Model
from trainband.wire.patience import Say, say_on_stderr


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

    def start(self, model: Model) -> OneDeviceReplica:
        """See `Strategy.start`."""
        return OneDeviceReplica(model, choose_device(self._device, 0, "this process", self._say), self._say)

    def serve(self) -> str:
        """See `Strategy.serve`."""
        raise TrainbandError("OneDevice has no parameter servers to serve.")


class OneDeviceReplica:
    """See `Replica`. A step that is not finite changes nothing, as on a ps."""

    task = "local"
    is_chief = True

    def __init__(self, model: Model, device: jax.Device, say: Say) -> None:
        model.variables()  # refuses params that no strategy could train
        self._device = device
        self._say = say
        self._refusals = 0
        self._step = 0
        self._last_step: int | None = 0
        self._rate = Rate()
        self._loss: Any = None
        with on_device(device):
            self._params = jax.jit(model.first_params)()
            self._model_state = jax.jit(model.first_state)()
            self._state = jax.jit(model.optimizer.init)(self._params)
            gradient_of = GradientFunction(model, 0)
            self._carry = jax.jit(gradient_of.first_carry)(self._params)

        @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
        def train(params: PyTree, state: PyTree, model_state: PyTree, carry: Carry, batch: PyTree) -> Any:
            loss, gradient, new_model_state, carry = gradient_of(params, model_state, carry, batch)
            updates, new_state = model.optimizer.update(gradient, state, params)
            new_params = apply_updates(params, updates)
            finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)]).all()
            new, old = (new_params, new_state, new_model_state), (params, state, model_state)
            kept = jax.tree.map(partial(jnp.where, finite), new, old)
            return *kept, carry, loss, finite

        self._train = train

    @property
    def global_step(self) -> int:
        """See `Replica.global_step`."""
        return self._step

    def begin(self, steps: int | None) -> bool:
        """See `Replica.begin`."""
        self._last_step = None if steps is None else self._step + steps
        return steps is None or steps > 0

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          NonFiniteGradient: the gradients of 100 steps in a row were not finite.
        """
        with on_device(self._device):
            self._params, self._state, self._model_state, self._carry, self._loss, finite = self._train(
                self._params, self._state, self._model_state, self._carry, batch
            )
        refusal = "" if finite else self._refused(float(self._loss))
        if finite:
            self._step += 1
            self._refusals = 0
        done = self._last_step is not None and self._step >= self._last_step
        return StepReport(self._loss, self._step, applied=not refusal, staleness=0, done=done, refusal=refusal)

    def pause(self) -> None:
        """See `Replica.pause`: nobody waits here."""

    def params(self) -> PyTree:
        """See `Replica.params`."""
        return jax.tree.map(np.array, self._params)

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return jax.tree.map(np.array, self._model_state)

    def progress(self) -> Progress | None:
        """See `Replica.progress`."""
        rate = self._rate.at(time.monotonic(), self._step)
        loss = None if self._loss is None else float(self._loss)
        row = WorkerRow(self.task, "live", rate, 0.0, loss)
        return Progress(self._step, self._last_step, rate, loss, (row,))

    def close(self, failure: str = "") -> None:
        """See `Replica.close`: there is nothing to leave."""

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
