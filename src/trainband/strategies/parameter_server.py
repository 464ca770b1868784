"""ParameterServer: workers compute gradients, ps tasks hold the variables and make the updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import ClusterError, ModelError, NonFiniteGradient, PeerError
from trainband.ps.checkpointing import JobSaving, RestoreFrom
from trainband.ps.client import Exchange, JobClient
from trainband.ps.description import Plan
from trainband.ps.layout import narrow
from trainband.ps.placement import GreedyBytes, Placement, PlacementPolicy, Slice, rows_of
from trainband.ps.program import Optimizer
from trainband.ps.rules import Async, Sync, UpdateRule
from trainband.ps.server import Server
from trainband.ps.statistics import CheckpointStatus, PsStatus
from trainband.ps.variables import PyTree, Variables
from trainband.strategies.base import MOST_REFUSALS, Progress, Replica, StepReport, WorkerRow
from trainband.strategies.description import Description, described_on_ps
from trainband.strategies.devices import choose_device, on_device, placer, take_card
from trainband.strategies.gradient import Carry, GradientFunction, all_finite
from trainband.strategies.luggage import Luggage
from trainband.strategies.mirrored import Mirrored
from trainband.strategies.model import Model, examples_in_step
from trainband.strategies.one_device import OneDevice
from trainband.strategies.scope import Scoped
from trainband.strategies.sharding import DATA, on_mesh
from trainband.strategies.spreading import Spreader
from trainband.wire.messages import UNLIMITED
from trainband.wire.network import Network
from trainband.wire.patience import Say, say_on_stderr
from trainband.wire.transport import Timeouts, Transport

AHEAD = 4
"""Updates by each worker, by which a checkpoint is ordered ahead: some milliseconds."""


class ParameterServer(Scoped):
    """Trains on a cluster of ps and workers.

    Args:
      cluster: the cluster and which task of it this process is, as `trainband.cluster.resolve()` gives it.
        `None`: this process stands alone and trains by itself.
      update: how pushes become updates.
      placement: which ps holds what.
      replicas: 1: each shard of the variables has a standby on another ps, which has every acknowledged update and
        takes over when its ps dies. Needs two ps at least.
      stall_s: seconds without a push after which a worker that lives is waited for no more, until its next push.
        `None`: it is named in the log and in `trainband status`, and waited for.
      overlap: compute the next gradient while a push and its answer travel. Hides the exchange, for one more step of
        staleness. Not with `Sync`, whose every gradient is computed from the newest params.
      wire_dtype: send gradients in this narrower dtype, such as `bfloat16`; a ps widens them again at once.
      device: what a worker computes on: `cpu`, `gpu`, `gpu:1`, ...; by default an accelerator if JAX has
        one, each worker of a host its own. A ps computes on the CPU always.
      local: `Mirrored(...)`: each worker splits its batch over several devices of its own, and their gradients are
        averaged before they are sent. Without `devices`, those are all that the worker sees.
      strict: refuse to compute on the CPU where another device was asked for that is not there.
      transport: how bytes travel; by default Arrow Flight, with shared memory between tasks of one machine.
      timeouts: how long to wait for what.
      say: where lines for people go.

    Raises:
      ClusterError: the cluster has no ps.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        update: UpdateRule | None = None,
        placement: PlacementPolicy | None = None,
        replicas: int = 0,
        stall_s: float | None = None,
        overlap: bool = False,
        wire_dtype: str | None = None,
        device: str | None = None,
        local: Mirrored | None = None,
        strict: bool = False,
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._cluster = cluster
        self._update = update or Async()
        self._placement = placement or GreedyBytes()
        self._replicas = replicas
        self._stall_s = stall_s or 0.0
        self._overlap = overlap
        self._wire_dtype = _checked_wire_dtype(wire_dtype)
        self._device = device
        self._local = local
        self._begun: ParameterServerReplica | None = None
        self._strict = strict
        self._transport = transport or Network()
        self._timeouts = timeouts or Timeouts()
        self._say = say
        if local is not None and (not isinstance(local, Mirrored) or local.central_storage or device is not None):
            raise ClusterError(
                "ParameterServer: local must be a Mirrored() without central_storage (the params are on the ps), and "
                "its own devices= says which; leave device out."
            )
        if cluster is None:
            return
        if not cluster.spec.ps:
            raise ClusterError(f"ParameterServer needs at least one ps, but the cluster has none: {cluster.spec}.")
        if not cluster.spec.workers:
            raise ClusterError(f"ParameterServer needs at least one worker, but the cluster has none: {cluster.spec}.")
        if replicas not in (0, 1):
            raise ClusterError(f"ParameterServer: replicas must be 0 or 1 standby for each shard, got {replicas}.")
        if replicas and len(cluster.spec.ps) < 2:
            raise ClusterError(
                f"ParameterServer: replicas=1 keeps the standby of each shard on another ps, but the cluster has one: "
                f"{cluster.spec}. Use two ps or more."
            )
        if replicas and isinstance(self._update, Async) and self._update.delay_compensation:
            raise ClusterError(
                "ParameterServer: replicas=1 cannot go with delay_compensation, which depends on what each worker was "
                "sent; leave one of them out."
            )
        if stall_s is not None and not stall_s > 0:
            raise ClusterError(f"ParameterServer: stall_s must be > 0 seconds, got {stall_s}.")
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
        # Both take effect only before JAX starts its backends, so this comes first in a program.
        # Handing each small computation to another thread costs 0.05 ms; a worker and a ps wait for it anyway.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        if cluster.is_ps:
            # A ps must not take memory on a card that workers compute on.
            jax.config.update("jax_platforms", "cpu")
        elif (local is None or (local.takes_all and cluster.shares_its_host)) and (
            taken := take_card(cluster.device_index, wanted=device)
        ):
            say(f"{cluster.task} {taken}")

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

    @property
    def cluster(self) -> Cluster | None:
        """See `Strategy.cluster`."""
        return self._cluster

    @property
    def is_chief(self) -> bool:
        """See `Strategy.is_chief`."""
        return self._cluster is None or self._cluster.is_chief

    @property
    def num_replicas(self) -> int:
        """See `Strategy.num_replicas`."""
        workers = 1 if self._cluster is None else len(self._cluster.spec.workers)
        return workers * (1 if self._local is None else self._local.num_replicas)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """See `Strategy.mesh_axes`."""
        return (DATA,)

    @property
    def gradients_per_update(self) -> int:
        """See `Strategy.gradients_per_update`."""
        rule = dict(self._update.settings())
        if self._cluster is None or rule["name"] != "sync":
            return 1
        return int(rule["aggregate"] or len(self._cluster.spec.workers) - int(rule["backups"] or 0))

    def global_batch(self, batch: PyTree) -> PyTree:
        """See `Strategy.global_batch`: no worker has more than its own."""
        return int(batch) * self.num_replicas if isinstance(batch, Integral) else batch

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        """See `Strategy.describe`."""
        variables = Variables.of(params)
        names = ["this process"]
        placement = Placement(tuple(Slice(one, 0, rows_of(one), 0) for one in variables.entries), 1)
        if self._cluster is not None:
            names = [str(task) for task in self._cluster.spec.ps]
            placement = Plan.of(
                variables, optimizer or optax.sgd(0.0), self._placement, self._update, len(names)
            ).layout.placement
        description = described_on_ps(variables, placement, names, params, optimizer)
        if self.is_chief:
            print(description)
        return description

    def start(self, model: Model, restore: RestoreFrom | None = None) -> Replica:
        """See `Strategy.start`."""
        if self._cluster is None:
            alone = self._local or OneDevice(self._device, strict=self._strict, say=self._say)
            return alone.start(model, restore)
        if not self._cluster.task.trains:
            raise ClusterError(
                f"{self._cluster.task} takes no part in the training; Trainer.fit with checkpoint_dir= and validation= "
                "has it evaluate the checkpoints."
            )
        task = str(self._cluster.task)
        if self._local is not None:
            mesh = self._local.mesh()
        else:
            device = choose_device(self._device, self._cluster.device_index, task, self._say, strict=self._strict)
            mesh = Mesh(np.array([device]), (DATA,))
        spreader = Spreader(mesh, (DATA,), self._local.remainder if self._local is not None else "refuse", task)
        plan = Plan.of(
            model.variables(),
            model.optimizer,
            self._placement,
            self._update,
            len(self._cluster.spec.ps),
            self._wire_dtype,
            model.state_merge,
            self._replicas,
            self._stall_s,
        )
        if self._begun is not None and not self._begun.has_left:
            raise ClusterError(
                f"{task}: another Trainer of this script takes part in the job already, and the parameter servers hold "
                "the variables of one. Let one Trainer do all, or give the other a cluster of its own."
            )
        client = JobClient(self._cluster, plan, transport=self._transport, timeouts=self._timeouts, say=self._say)
        self._begun = ParameterServerReplica(
            model, self._cluster, plan, client, restore, mesh, spreader, overlap=self._overlap, say=self._say
        )
        return self._begun


class ParameterServerReplica:
    """See `Replica`: one worker."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        plan: Plan,
        client: JobClient,
        restore: RestoreFrom | None,
        mesh: Mesh,
        spreader: Spreader,
        *,
        overlap: bool,
        say: Say,
    ) -> None:
        self.has_left = False
        """Whether this worker takes no part in the job any more."""
        self._cluster = cluster
        self._plan = plan
        self._client = client
        self._device = mesh.devices.flat[0]
        self._spreader = spreader if mesh.size > 1 else None
        self._say = say
        self._fit = 0
        self._refusals = 0
        self._all_refused = 0
        self._overlap = overlap
        self._in_flight = False
        self._model_state: PyTree = None
        self._luggage: Luggage | None = None
        self._steps = 0
        self._accumulate = model.accumulate
        self._several_ps = len(cluster.spec.ps) > 1
        rule = plan.description.rule
        self._in_step = rule["name"] == "sync" and not rule["backups"] and rule["aggregate"] is None
        # A checkpoint may speak of the step before the last, or with overlap of the one before that.
        self._carries: deque[tuple[int, Carry]] = deque(maxlen=3)

        def first_values() -> Sequence[Sequence[NDArray[Any]]]:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((model.first_params(), model.first_state()))]
            return plan.layout.scatter(leaves, np)

        gradient_of = GradientFunction(model, cluster.training_index)

        def compute(shards: Any, carry: Carry, batch: PyTree) -> Any:
            params, state = plan.variables.split(plan.layout.gather(shards))
            loss, gradient, state, carry, metrics = gradient_of(params, state, carry, batch)
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
            return loss, blocks, finite, carry, metrics

        self._compute = jax.jit(on_mesh(compute, mesh))
        try:
            self._now: Exchange = client.join(first_values, restore)
            with on_device(self._device):
                params, _ = plan.variables.split(plan.layout.gather(self._now.params, np))
                self._carry: Carry = jax.jit(gradient_of.first_carry)(jax.tree.map(np.array, params))
                data = client.find_luggage()
                if data:
                    self._luggage = Luggage.from_bytes(data, "ps:0")
                    self._steps = self._luggage.steps
                    if self._luggage.carry:
                        self._carry = jax.device_put(self._luggage.unpack(self._carry))
                self._carries.append((self._steps, self._carry))
        except BaseException as exc:
            client.leave(f"{type(exc).__name__}: {exc}")
            raise

    @property
    def task(self) -> str:
        """See `Replica.task`."""
        return str(self._cluster.task)

    @property
    def is_chief(self) -> bool:
        """See `Replica.is_chief`."""
        return self._client.is_chief

    @property
    def job(self) -> str:
        """See `Replica.job`."""
        return self._client.job

    @property
    def global_step(self) -> int:
        """See `Replica.global_step`."""
        return self._now.global_step

    @property
    def restored(self) -> Checkpoint | None:
        """See `Replica.restored`."""
        return self._client.restored

    @property
    def luggage(self) -> Luggage | None:
        """See `Replica.luggage`."""
        return self._luggage

    @property
    def steps_per_execution(self) -> int:
        """See `Replica.steps_per_execution`: each step is an exchange."""
        return 1

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """See `Replica.place`."""
        return self._spreader or placer(self._device)

    @property
    def trainings(self) -> tuple[int, ...]:
        """See `Replica.trainings`."""
        return self._client.trainings

    @property
    def in_parts(self) -> bool:
        """See `Replica.in_parts`: this process can ask for all of them."""
        return False

    @property
    def unused(self) -> int:
        """See `Replica.unused`: there are none."""
        return 0

    def take_known(self) -> Sequence[tuple[int, float]]:
        """See `Replica.take_known`: each report says it all."""
        return ()

    @property
    def refused(self) -> int:
        """See `Replica.refused`."""
        return self._all_refused

    def begin(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        """See `Replica.begin`."""
        self._drain()
        self._all_refused = 0
        self._fit += 1
        state = self._client.await_begin(self._fit, UNLIMITED if last_step is None else last_step, trainings)
        self._now = self._client.pull()
        # A worker that came late, in a script that trains several times, finds its early trainings over.
        return state.fit == self._fit and not self._now.done

    def finish(self) -> None:
        """See `Replica.finish`."""
        self._client.finish()

    def save(self, directory: Path, at: int | None) -> JobSaving:
        """See `Replica.save`."""
        if at is None and not self._now.done:
            states = self._client.states()  # this worker may have evaluated for long, while others went on
            newest = max(state.version for state in states)
            # In step, the next update waits for this worker, so all ps hear of it before. Else it is one that is a
            # little ahead, by which all will have heard: each ps is then at the same version.
            ahead = 1 if self._in_step else AHEAD * max(1, len(states[0].live)) if self._several_ps else 0
            at = min(newest + ahead, states[0].last_version)
        return self._client.save(directory, at or 0)

    def landed(self, checkpoint: CheckpointStatus) -> None:
        """See `Replica.landed`."""
        self._client.landed(checkpoint.global_step, checkpoint.nbytes, checkpoint.seconds)

    def leave_luggage(self, training: int, position: str, behind: int = 0) -> None:
        """See `Replica.leave_luggage`."""
        steps, carry = self._carries[max(0, len(self._carries) - 1 - behind)]
        luggage = Luggage.pack(self.task, training, steps, position, carry)
        self._client.leave_luggage(luggage.to_bytes(), behind)

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """See `Replica.lease`."""
        return self._client.lease(request)

    def step(self, batch: PyTree) -> StepReport:
        """See `Replica.step`.

        Raises:
          NonFiniteGradient: the ps have refused this worker's gradient 100 times in a row.
        """
        if self._spreader is not None:
            batch = self._spreader(batch) if self._accumulate == 1 else tuple(map(self._spreader, batch))
        with on_device(self._device):
            loss, gradients, finite, self._carry, metrics = self._compute(self._now.params, self._carry, batch)
        self._steps += 1
        self._carries.append((self._steps, self._carry))
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
            return StepReport(value, self._now.global_step, applied=False, staleness=0, done=False, metrics=metrics)
        if answer.refusal:
            self._refused(answer.refusal)
        else:
            self._refusals = 0
        return StepReport(
            value,
            answer.global_step,
            answer.applied,
            answer.staleness,
            answer.done,
            answer.refusal,
            metrics,
            # With overlap the answer is that to the step before.
            None if answer.luggage is None else answer.luggage + self._overlap,
        )

    def _drain(self) -> Exchange | None:
        """The answer to the push that is under way, if one is: from now on, its params are the newest."""
        if not self._in_flight:
            return None
        self._in_flight = False
        self._now = self._client.collect()
        return self._now

    def missing(self) -> int:
        """See `Replica.missing`."""
        limited = [state for state in self._client.states() if state.last_version < UNLIMITED]
        return max((state.last_version - state.version for state in limited), default=0)

    def pause(self, reason: str = "") -> str:  # noqa: ARG002 - the others go on
        """See `Replica.pause`."""
        self._drain()
        self._client.pause()
        return ""

    def hasten(self) -> None:
        """See `Replica.hasten`."""
        self._client.hasten()

    def settle(self) -> None:
        """See `Replica.settle`: a step that is hoped for does not count here, only what a ps has told of."""

    def at_work(self) -> tuple[str, ...]:
        """See `Replica.at_work`."""
        return self._client.at_work()

    def gather(self, work: Callable[[], object]) -> bool:
        """See `Replica.gather`: nobody has to give anything."""
        work()
        return False

    def end(self) -> None:
        """See `Replica.end`: each worker ends by itself."""

    def assign(self, params: PyTree, state: PyTree, optimizer: PyTree) -> None:  # noqa: ARG002 - it never is
        """See `Replica.assign`."""
        raise ClusterError(f"{self.task}: the values are those of the job on the ps, and only training changes them.")

    def steer(self, settings: Mapping[str, float]) -> None:
        """See `Replica.steer`."""
        self._drain()
        self._client.steer(settings)

    def optimizer_state(self) -> PyTree:
        """See `Replica.optimizer_state`: it is on the ps."""
        return None

    def computed(
        self,
        function: Callable[[PyTree, PyTree, PyTree], PyTree],
        batches: Iterable[PyTree],
        what: str,  # noqa: ARG002 - nobody else does it
    ) -> Iterator[tuple[PyTree, PyTree]]:
        """See `Replica.computed`."""
        params = self.params()
        return ((batch, function(params, self._model_state, batch)) for batch in batches)

    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - nobody waits for it
        """See `Replica.busy`."""
        return nullcontext()

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
        self.has_left = True
        self._client.leave(failure)

    def _refused(self, refusal: str) -> None:
        self._refusals += 1
        self._all_refused += 1
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


def progress_of(status: PsStatus) -> Progress:
    """A ps's status as the display shows it."""
    rows = tuple(WorkerRow(w.task, w.presence, w.rate, w.staleness, w.loss) for w in status.workers)
    limited = 0 < status.last_version < UNLIMITED
    return Progress(
        status.version,
        status.last_version if limited else None,
        status.rate,
        status.loss,
        rows,
        status.examples_rate,
        status.checkpoint,
    )
