"""StepProgram: the computation of a call on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.model.analysis.mean_over_examples import why_not_mean_of_examples
from trainband.model.batch import BatchStack, examples_in
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Model
from trainband.model.optimizer import apply_updates, updates_of
from trainband.model.variables import PyTree
from trainband.spmd.gradient import Carry, GradientFunction, all_finite, mean_of
from trainband.spmd.gradient_all_reduce import Compute, by_compiler, each_by_itself
from trainband.spmd.sharding import is_on_cpu
from trainband.spmd.train_state import TrainState, with_setting

CONTROL_FLAGS = 4
"""Numbers that each process sends all others in each step, see `ControlFlags`."""


class StepFlags(NamedTuple):
    """The outcome of one step.

    Attributes:
      finite: whether the gradient was.
      loss: of the batch.
      ends, saves, setting, value: the sum of all processes' control flags, see `ControlFlags`.
      goes_on: whether the training was not yet over, by `TrainState.left`.
    """

    finite: float
    loss: float
    ends: float
    saves: float
    setting: float
    value: float
    goes_on: float = 1.0


class StepProgram:
    """One step, or several one after the other, as a program for the devices of a mesh.

    Both take the values, the batch (or a tuple of them) and the control flags of all processes, if there are several.
    Both return the values afterwards, the flags of each step, the loss of each if there are several, and loss and
    metrics of the last one before the end.

    Args:
      model: what is trained.
      mesh: the devices.
      axes: the mesh axes that a batch is split over, into `parts` parts.
      where: a sharding for each leaf of the values.
      central: the CPU, if it keeps and updates the params, which are sent to the devices for each step.
    """

    def __init__(
        self, model: Model, mesh: Mesh, axes: tuple[str, ...], parts: int, where: TrainState, central: jax.Device | None
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._axes = axes
        self._parts = parts
        self._where = where
        self.on_cpu = is_on_cpu(mesh)
        """Whether the devices are CPUs."""
        # On the CPU a branch costs nothing, and choosing between old and new values 0.14 ms of a step of 1.1 ms
        # (784-100-10, Adam, two cores). On an accelerator a branch would wait for the host.
        self._branches = central is not None or self.on_cpu
        self.whole = all(leaf.is_fully_replicated for leaf in jax.tree.leaves(where))
        """Whether every device has all values."""
        self._apart: bool | None = None
        self._gradient_of = GradientFunction(model, 0, self._split)
        self.step = self._jitted(self._train) if central is None else self._train_centrally(central)
        """One step."""
        self.steps = self._jitted(self._train_on_several)
        """Several; not with `central`."""

    def first_carry(self, params: PyTree) -> Carry:
        """See `GradientFunction.first_carry`."""
        return self._gradient_of.first_carry(params)

    def _split(self, compute: Compute) -> Compute:
        """How the gradient's computation is split over the devices; the batch comes with the processes' control."""
        split = by_compiler(compute)
        if self._parts == 1 or self._mesh.size != self._parts or not self.whole:
            return split
        alone = each_by_itself(compute, self._mesh, self._axes, flat=self.on_cpu)

        def chosen(params: PyTree, state: PyTree, batch: PyTree, key: Any) -> Any:
            parts = batch[0] if self._model.accumulate > 1 else batch[:1]
            apart = all(part.rows is None and self._is_mean(params, part.batch, key) for part in parts)
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
            sizes = examples // self._parts, examples
            reason = why_not_mean_of_examples(values, (params, key), batch, sizes) if model.init_state is None else ""
            self._apart = model.init_state is None and not reason
        return self._apart

    def _gradient(self, values: TrainState, batch: PyTree, control: Any) -> Any:
        """(gradient, the other values after it, loss, metrics, the sum of all control); traceable."""
        control = jnp.zeros((self._mesh.size, CONTROL_FLAGS), jnp.float32) if control is None else control
        step = self._gradient_of(values.params, values.state, values.carry, (batch, control))
        metrics, control = step.metrics
        return step.gradient, values._replace(state=step.state, carry=step.carry), step.loss, metrics, control

    def _updated(
        self, values: TrainState, gradient: PyTree, new: TrainState, loss: jax.Array, control: Any
    ) -> tuple[TrainState, jax.Array]:
        """(the values after a step, its flags); traceable."""
        if values.ended is not None:
            values = values._replace(optimizer=with_setting(values.optimizer, control[2], control[3]))
        applies = finite = all_finite(gradient)
        flags = [finite[None].astype(jnp.float32), loss[None], control]
        ended, left, carry = None, None, new.carry
        conditions = []
        if values.ended is not None:
            ended = values.ended + control[0]
            conditions.append(ended == 0)
        if values.left is not None:
            conditions.append(values.left > 0)
            flags.append(conditions[-1][None].astype(jnp.float32))
        if conditions:
            goes_on = reduce(jnp.logical_and, conditions)
            applies = finite & goes_on
            carry = jax.tree.map(partial(jnp.where, goes_on), carry, values.carry)
        if values.left is not None:
            left = values.left - applies

        def update() -> tuple[PyTree, PyTree, PyTree]:
            optimizer = self._model.optimizer
            updates, state = updates_of(optimizer, mean_of(gradient), values.optimizer, values.params)
            return apply_updates(values.params, updates), state, new.state

        old = (values.params, values.optimizer, values.state)
        if self._branches:
            kept = jax.lax.cond(applies, update, lambda: old)
        else:
            kept = jax.tree.map(partial(jnp.where, applies), update(), old)
        params, optimizer, state = kept
        return TrainState(params, optimizer, state, carry, ended, left), jnp.concatenate(flags)

    def _train(self, values: TrainState, batch: PyTree, control: Any) -> Any:
        gradient, new, loss, metrics, control = self._gradient(values, batch, control)
        after, flags = self._updated(values, gradient, new, loss, control)
        return after, flags, None, loss, metrics

    def _train_on_several(self, values: TrainState, batches: BatchStack | tuple[PyTree, ...], control: Any) -> Any:
        pick = None
        if isinstance(batches, BatchStack):
            given = batches.batch
        elif self.on_cpu:  # choosing costs less than a copy of all, which is fast on an accelerator
            given = jnp.arange(len(batches))
            pick = [partial(lambda one: one, one) for one in batches]
        else:
            given = jax.tree.map(lambda *parts: jnp.stack(parts), *batches)

        def one(values: TrainState, of_step: Any) -> Any:
            batch, control = of_step
            batch = batch if pick is None else jax.lax.switch(batch, pick)
            after, flags, _, loss, metrics = self._train(values, batch, control)
            ended = jnp.bool(False) if after.ended is None else after.ended > 0
            counts = ~ended if values.left is None else ~ended & (values.left > 0)
            return after, (counts, flags, loss, metrics)

        after, (counts, flags, losses, metrics) = jax.lax.scan(one, values, (given, control))
        last = jnp.maximum(counts.sum() - 1, 0)
        loss, metrics = jax.tree.map(lambda leaf: leaf[last], (losses, metrics))
        return after, flags, losses, loss, metrics

    def _jitted(self, train: Callable[..., Any]) -> Callable[..., Any]:
        everywhere = self._where.carry
        where = (self._where, everywhere, everywhere, everywhere, everywhere)
        return jax.jit(on_mesh(train, self._mesh), out_shardings=where, donate_argnums=self._donated)

    def _train_centrally(self, central: jax.Device) -> Callable[..., Any]:
        everywhere = NamedSharding(self._mesh, PartitionSpec())
        gradient_of = jax.jit(on_mesh(self._gradient, self._mesh))
        updated = jax.jit(self._updated, donate_argnums=self._donated)

        def train(values: TrainState, batch: PyTree, control: Any) -> Any:
            used = jax.device_put(values._replace(optimizer=()), everywhere)
            gradient, new, loss, metrics, control = gradient_of(used, batch, control)
            parts = (gradient, TrainState((), (), new.state, new.carry, None), loss, control)
            after, flags = updated(values, *jax.device_put(parts, central))
            return after, flags, None, loss, metrics

        return train

    @property
    def _donated(self) -> tuple[int, ...]:
        return (0,) if self._model.donate else ()
