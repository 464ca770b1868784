"""ParameterServer: workers compute gradients, ps tasks hold the variables and make the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.errors import ClusterError, ModelError, NonFiniteGradient, PeerError
from trainband.ps.client import Exchange, JobClient
from trainband.ps.description import Plan
from trainband.ps.layout import narrow
from trainband.ps.placement import GreedyBytes, PlacementPolicy
from trainband.ps.rules import Async, Sync, UpdateRule
from trainband.ps.server import Server
from trainband.ps.statistics import PsStatus
from trainband.ps.variables import PyTree
from trainband.strategies.base import MOST_REFUSALS, Progress, Replica, StepReport, WorkerRow
from trainband.strategies.devices import choose_device, on_device
from trainband.strategies.gradient import Carry, GradientFunction
from trainband.strategies.model import Model, examples_in_step
from trainband.strategies.one_device import OneDevice
from trainband.wire.network import Network
from trainband.wire.patience import Say, say_on_stderr
from trainband.wire.transport import Timeouts, Transport

UNLIMITED = 1 << 62
"""Steps, where no number was asked for."""


class ParameterServer:
    """Trains on a cluster of ps and workers.

    Args:
      cluster: the cluster and which task of it this process is, as `trainband.cluster.resolve()` gives it.
        `None`: this process stands alone and trains by itself.
      update: how pushes become updates.
      placement: which ps holds what.
      overlap: compute the next gradient while a push and its answer travel. Hides the exchange, for one more step of
        staleness. Not with `Sync`, whose every gradient is computed from the newest params.
      wire_dtype: send gradients in this narrower dtype, such as `bfloat16`; a ps widens them again at once.
      device: what a worker computes on: `cpu`, `gpu`, `gpu:1`, ...; by default an accelerator if JAX has
        one, each worker of a host its own. A ps computes on the CPU always.
      transport: how bytes travel; by default Arrow Flight, with shared memory between tasks of one machine.
      timeouts: how long to wait for what.
      say: where lines for people go.

    Raises:
      ClusterError: the cluster has no ps, or this task is an evaluator.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        update: UpdateRule | None = None,
        placement: PlacementPolicy | None = None,
        overlap: bool = False,
        wire_dtype: str | None = None,
        device: str | None = None,
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._cluster = cluster
        self._update = update or Async()
        self._placement = placement or GreedyBytes()
        self._overlap = overlap
        self._wire_dtype = _checked_wire_dtype(wire_dtype)
        self._device = device
        self._transport = transport or Network()
        self._timeouts = timeouts or Timeouts()
        self._say = say
        if cluster is None:
            return
        if not cluster.spec.ps:
            raise ClusterError(f"ParameterServer needs at least one ps, but the cluster has none: {cluster.spec}.")
        if not cluster.spec.workers:
            raise ClusterError(f"ParameterServer needs at least one worker, but the cluster has none: {cluster.spec}.")
        if overlap and isinstance(self._update, Sync):
            raise ClusterError(
                "ParameterServer: overlap=True cannot go with Sync(), which computes every gradient from the newest "
                "params; leave it out, or use Bounded or Async."
            )
        if overlap and isinstance(self._update, Async) and self._update.delay_compensation:
            raise ClusterError(
                "ParameterServer: overlap=True cannot go with delay_compensation, for which a ps keeps only the params "
                "that it sent last; leave one of them out."
            )
        try:
            self._update.check(len(cluster.spec.workers))
        except ValueError as exc:
            raise ClusterError(f"ParameterServer: {exc}") from exc
        if not cluster.is_ps and not cluster.task.trains:
            raise ClusterError(
                f"ParameterServer has no work for {cluster.task}: only ps, worker and chief tasks take part."
            )
        # Both take effect only before JAX starts its backends, so this comes first in a program.
        # Handing each small computation to another thread costs 0.05 ms; a worker and a ps wait for it anyway.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        if cluster.is_ps:
            # A ps must not take memory on a card that workers compute on.
            jax.config.update("jax_platforms", "cpu")

    @property
    def serves(self) -> bool:
        """See `Strategy.serves`."""
        return self._cluster is not None and self._cluster.is_ps

    def serve(self) -> str:
        """See `Strategy.serve`."""
        if self._cluster is None:
            raise ClusterError("ParameterServer.serve: this process stands alone and serves nobody.")
        with Server(self._cluster, transport=self._transport, timeouts=self._timeouts, say=self._say) as server:
            return server.join()

    def start(self, model: Model) -> Replica:
        """See `Strategy.start`."""
        if self._cluster is None:
            return OneDevice(self._device, say=self._say).start(model)
        device = choose_device(self._device, self._cluster.device_index, str(self._cluster.task), self._say)
        plan = Plan.of(
            model.variables(),
            model.optimizer,
            self._placement,
            self._update,
            len(self._cluster.spec.ps),
            self._wire_dtype,
            model.state_merge,
        )
        client = JobClient(self._cluster, plan, transport=self._transport, timeouts=self._timeouts, say=self._say)
        return ParameterServerReplica(model, self._cluster, plan, client, device, self._overlap, self._say)


class ParameterServerReplica:
    """See `Replica`: one worker."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        plan: Plan,
        client: JobClient,
        device: jax.Device,
        overlap: bool,
        say: Say,
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._client = client
        self._device = device
        self._say = say
        self._fit = 0
        self._refusals = 0
        self._overlap = overlap
        self._in_flight = False
        self._model_state: PyTree = None
        self._accumulate = model.accumulate
        self._several_ps = len(cluster.spec.ps) > 1

        def first_values() -> Sequence[Sequence[NDArray[Any]]]:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((model.first_params(), model.first_state()))]
            return plan.layout.scatter(leaves, np)

        try:
            self._now: Exchange = client.join(first_values)
        except BaseException as exc:
            client.leave(f"{type(exc).__name__}: {exc}")
            raise

        gradient_of = GradientFunction(model, cluster.training_index if cluster.task in cluster.spec else 0)

        def compute(shards: Any, carry: Carry, batch: PyTree) -> Any:
            params, state = plan.variables.split(plan.layout.gather(shards))
            loss, gradient, state, carry = gradient_of(params, state, carry, batch)
            blocks = plan.layout.scatter(jax.tree.leaves((gradient, state)))
            # A ps checks its own part. With several, all must refuse what one of them would.
            wire_dtype = plan.description.wire_dtype
            blocks = tuple(
                tuple(b.astype(narrow(block, wire_dtype)) for b, block in zip(values, shard.blocks, strict=True))
                for values, shard in zip(blocks, plan.layout.shards, strict=True)
            )
            trained = [
                b
                for values, shard in zip(blocks, plan.layout.shards, strict=True)
                for b, block in zip(values, shard.blocks, strict=True)
                if block.trained
            ]
            finite = all_finite(trained) if self._several_ps else True
            return loss, blocks, finite, carry

        self._compute = jax.jit(compute, donate_argnums=1)
        with on_device(device):
            params, _ = plan.variables.split(plan.layout.gather(self._now.params, np))
            self._carry = jax.jit(gradient_of.first_carry)(jax.tree.map(np.array, params))

    @property
    def task(self) -> str:
        """See `Replica.task`."""
        return str(self._cluster.task)

    @property
    def is_chief(self) -> bool:
        """See `Replica.is_chief`."""
        return self._cluster.is_chief

    @property
    def global_step(self) -> int:
        """See `Replica.global_step`."""
        return self._now.global_step

    def begin(self, steps: int | None) -> bool:
        """See `Replica.begin`."""
        self._drain()
        self._fit += 1
        if self.is_chief:
            self._client.begin(self._fit, UNLIMITED if steps is None else steps)
        state = self._client.await_begin(self._fit)
        self._now = self._client.pull()
        # A worker that came late, in a script that trains several times, finds its early trainings over.
        return state.fit == self._fit and not self._now.done

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          NonFiniteGradient: the ps have refused this worker's gradient 100 times in a row.
        """
        with on_device(self._device):
            loss, gradients, finite, self._carry = self._compute(self._now.params, self._carry, batch)
        arrays = tuple(tuple(np.asarray(block) for block in blocks) for blocks in gradients)
        value = float(loss)
        used = self._now.versions
        answer = self._drain()
        if answer is None or not answer.done:  # what is sent after the last update could only be dropped
            self._client.send(
                arrays, used, loss=value, examples=examples_in_step(batch, self._accumulate), finite=bool(finite)
            )
            self._in_flight = True
        if not self._overlap:
            answer = self._drain()
        if answer is None:  # the first of overlapping steps: nothing is known of it yet
            return StepReport(value, self._now.global_step, applied=False, staleness=0, done=False)
        if answer.refusal:
            self._refused(answer.refusal)
        else:
            self._refusals = 0
        return StepReport(value, answer.global_step, answer.applied, answer.staleness, answer.done, answer.refusal)

    def _drain(self) -> Exchange | None:
        """The answer to the push that is under way, if one is: from now on, its params are the newest."""
        if not self._in_flight:
            return None
        self._in_flight = False
        self._now = self._client.collect()
        return self._now

    def pause(self) -> None:
        """See `Replica.pause`."""
        self._drain()
        self._client.pause()

    def params(self) -> PyTree:
        """See `Replica.params`."""
        self._drain()
        self._now = self._client.pull()
        leaves = self._plan.layout.gather(self._now.params, np)
        params, self._model_state = self._plan.variables.split([np.array(leaf) for leaf in leaves])
        return params

    def model_state(self) -> PyTree:
        """See `Replica.model_state`."""
        return self._model_state

    def progress(self) -> Progress | None:
        """See `Replica.progress`."""
        try:
            return progress_of(self._client.status())
        except PeerError:
            return None

    def close(self, failure: str = "") -> None:
        """See `Replica.close`."""
        self._client.leave(failure)

    def _refused(self, refusal: str) -> None:
        self._refusals += 1
        if self._refusals == 1:
            self._say(f"{self.task}: a ps {refusal}; the params are as they were, training goes on")
        if self._refusals >= MOST_REFUSALS:
            raise NonFiniteGradient(
                f"{self.task}: the ps refused {self._refusals} gradients in a row that were not finite; the last: "
                f"{refusal}. Look at the data and the loss, or lower the learning rate."
            )


def _checked_wire_dtype(wire_dtype: str | None) -> str:
    if wire_dtype is None:
        return ""
    try:
        dtype = jnp.dtype(wire_dtype)
    except TypeError as exc:
        raise ModelError(f"ParameterServer: wire_dtype {wire_dtype!r} is no dtype; use bfloat16 or float16.") from exc
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ModelError(f"ParameterServer: wire_dtype must be a floating-point dtype, got {dtype.name}.")
    return str(dtype.name)


def all_finite(blocks: Any) -> jax.Array:
    """Whether no element of any block is NaN or infinite; traceable."""
    return jnp.all(jnp.stack([jnp.isfinite(block).all() for block in jax.tree.leaves(blocks)]))


def progress_of(status: PsStatus) -> Progress:
    """A ps's status as the display shows it."""
    rows = tuple(WorkerRow(w.task, w.presence, w.rate, w.staleness, w.loss) for w in status.workers)
    limited = 0 < status.last_version < UNLIMITED
    return Progress(status.version, status.last_version if limited else None, status.rate, status.loss, rows)
