"""ParameterServer: workers compute gradients, ps tasks hold the variables and make the updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from trainband.cluster import Cluster
from trainband.cluster.resolvers.checkpoint_dirs import checkpoint_dirs as checkpoint_dirs_of_environment
from trainband.errors import ClusterError
from trainband.job.checkpoints import RestoreFrom
from trainband.job.engine import Engine
from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.placement import GreedyBytes, Placement, PlacementPolicy, Slice, rows_of
from trainband.model.variables import PyTree, Variables
from trainband.ps.program.check.checker import SHARED
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.ps.server import Server
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import JobSettings, Plan
from trainband.ps.worker.resources import WorkerResources
from trainband.runtime import SYSTEM, limits
from trainband.runtime.overrides import override
from trainband.runtime.system import freeze_loaded_objects
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.compute_devices import ComputeDevices
from trainband.strategies.base import Strategy
from trainband.strategies.description import Description, described_on_ps
from trainband.strategies.devices import choose_device, reserve_gpu
from trainband.strategies.gradient_step import CompiledGradientStep
from trainband.strategies.mirrored import Mirrored
from trainband.strategies.one_device import OneDevice
from trainband.strategies.parameter_server_engine import ParameterServerEngine
from trainband.strategies.portioned_step import PortionedGradientStep
from trainband.strategies.scope import Scoped
from trainband.strategies.uneven_loss import warn_of_uneven_loss
from trainband.strategies.wire_dtype import WireDtype
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts, Transport


class ParameterServer(Scoped, Strategy):
    """Trains on a cluster of ps and workers.

    Args:
      cluster: the cluster and which task of it this process is, as returned by `trainband.cluster.resolve()`.
        `None`: this process trains alone.
      update: how pushes become updates.
      placement: which ps holds what; by default `GreedyBytes()`.
      slice_bytes: a variable larger than this is cut by rows over the ps: short for
        `placement=GreedyBytes(max_slice_bytes=slice_bytes)`.
      standbys: 1: each shard of the variables has a standby on another ps, which has every acknowledged update and
        takes over when its ps dies. Needs at least two ps.
      stall_s: seconds without a push after which a worker that is alive is ignored until its next push.
        `None`: the log and `trainband status` name it, and the others wait for it.
      overlap: compute the next gradient while a push and its answer travel. Hides the exchange, for one more step of
        staleness. Not with `Sync`, where every gradient is computed from the newest params.
      wire_dtype: send gradients, and the params that answer them, in this narrower dtype, such as `jnp.bfloat16`; or a
        `WireDtype` to narrow only one of them. The ps keep and update the params in their own dtype.
      device: the device of a worker: `cpu`, `gpu`, `gpu:1`, ...; by default an accelerator if JAX has
        one, a different one for each worker of a host. A ps always computes on the CPU.
      local: `Mirrored(...)`: each worker splits its batch over several devices of its own, and their gradients are
        averaged before they are sent. Without `devices`, the worker uses all that it sees.
      strict: refuse to compute on the CPU in place of a requested device that does not exist.
      transport: how bytes travel; by default Arrow Flight, with shared memory between tasks of one machine.
      timeouts: how long to wait for what.
      program_limits: the size, memory, work and time that a ps allows the optimizer it receives.
      say: receives lines for people.

    Raises:
      ClusterError: the cluster has no ps, or arguments are invalid or exclude each other.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        update: UpdateRule | None = None,
        placement: PlacementPolicy | None = None,
        slice_bytes: int | None = None,
        standbys: int = 0,
        stall_s: float | None = None,
        overlap: bool = False,
        wire_dtype: DTypeLike | WireDtype | None = None,
        device: str | None = None,
        local: Mirrored | None = None,
        strict: bool = False,
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        program_limits: ProgramLimits | None = None,
        say: Say = say_on_stderr,
    ) -> None:
        self._cluster = cluster
        self._update: UpdateRule = Async() if update is None else _checked_rule(update)
        self._placement = _policy_of(placement, slice_bytes)
        self._standbys = standbys
        self._stall_s = stall_s or 0.0
        self._overlap = overlap
        self._wire = wire_dtype if isinstance(wire_dtype, WireDtype) else WireDtype(push=wire_dtype, pull=wire_dtype)
        self._device = device
        self._local = local
        self._begun: ParameterServerEngine | None = None
        self._strict = strict
        if isinstance(cluster, Cluster) and cluster.is_ps and transport is None:
            SHARED.prepare()  # before the secret is read: a fork would copy it
        self._transport = transport or Network(say=say)
        self._timeouts = timeouts or Timeouts()
        self._program_limits = program_limits
        self._say = say
        _check_local(local, device)
        if cluster is None:
            return
        _check_cluster(cluster)
        _check_standbys(standbys, cluster, self._update)
        if stall_s is not None and not stall_s > 0:
            raise ClusterError(f"ParameterServer: stall_s must be > 0 seconds, got {stall_s}.")
        if overlap:
            _check_overlap(self._update)
        try:
            self._update.check(len(cluster.spec.workers))
        except ValueError as exc:
            raise ClusterError(f"ParameterServer: {exc}") from None
        self._prepare_jax(cluster)

    def _prepare_jax(self, cluster: Cluster) -> None:
        """Applies settings that work only before JAX starts its backends, so call this first in a program."""
        freeze_loaded_objects()
        # Handing each small computation to another thread costs 0.05 ms; a worker and a ps wait for it anyway.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        local = self._local
        if cluster.is_ps:
            # A ps must not take memory on a GPU that workers compute on.
            jax.config.update("jax_platforms", "cpu")
        elif (local is None or (local.uses_all_devices and cluster.shares_its_host)) and (
            taken := reserve_gpu(cluster.device_index, wanted=self._device)
        ):
            self._say(f"{cluster.task} {taken}")

    @property
    @override
    def serves(self) -> bool:
        return self._cluster is not None and self._cluster.is_ps

    @override
    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:
        if self._cluster is None:
            raise ClusterError("ParameterServer.serve: this process runs alone and has no job to serve.")
        with Server(
            self._cluster,
            transport=self._transport,
            timeouts=self._timeouts,
            say=self._say,
            checkpoint_dir=(*checkpoint_dirs, *checkpoint_dirs_of_environment()),
            program_limits=self._program_limits,
        ) as server:
            return server.join()

    @property
    @override
    def cluster(self) -> Cluster | None:
        return self._cluster

    @property
    @override
    def is_chief(self) -> bool:
        return self._cluster is None or self._cluster.is_chief

    @property
    @override
    def has_tables(self) -> bool:
        return self._cluster is not None

    @property
    @override
    def remainder(self) -> str:
        return "pad" if self._local is None else self._local.remainder

    @property
    @override
    def num_replicas(self) -> int:
        workers = 1 if self._cluster is None else len(self._cluster.spec.workers)
        return workers * (1 if self._local is None else self._local.num_replicas)

    @property
    @override
    def mesh_axes(self) -> tuple[str, ...]:
        return (DATA,)

    @property
    @override
    def gradients_per_update(self) -> int:
        rule = dict(self._update.settings())
        if self._cluster is None or rule["name"] != "sync":
            return 1
        return int(rule["aggregate"] or len(self._cluster.spec.workers) - int(rule["backups"] or 0))

    @override
    def global_batch(self, batch: PyTree) -> PyTree:
        """Returns the worker's own batch: it has no other."""
        return int(batch) * self.num_replicas if isinstance(batch, Integral) else batch

    @override
    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
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

    @override
    def start(self, model: Model, restore: RestoreFrom | None = None) -> Engine:
        if self._cluster is None:
            alone = self._local or OneDevice(self._device, strict=self._strict, say=self._say)
            return alone.start(model, restore)
        if not self._cluster.task.trains:
            raise ClusterError(
                f"{self._cluster.task} takes no part in the training; to evaluate the checkpoints on it, pass "
                "checkpoint_dir= and validation= to Trainer.fit."
            )
        task, ps = str(self._cluster.task), len(self._cluster.spec.ps)
        limits.require(task, ps * (1 + self._standbys), f"for {ps} ps")
        mesh = self._mesh_of_worker(self._cluster)
        spreader = BatchSharding(mesh, (DATA,), self.remainder, task, self._say)
        plan = Plan.of(
            model.variables(),
            model.optimizer,
            self._placement,
            self._update,
            ps,
            JobSettings(
                push_dtype=self._wire.push or "",
                pull_dtype=self._wire.pull or "",
                state_merge=model.state_merge,
                standbys=self._standbys,
                stall_s=self._stall_s,
                tables=() if model.tables is None else model.tables.tables,
            ),
        )
        if self._begun is not None and not self._begun.has_left:
            raise ClusterError(
                f"{task}: another Trainer of this script already takes part in the job, and the parameter servers hold "
                "the variables of only one. Use one Trainer, or give the other its own cluster."
            )
        balances = bool(plan.description.rule.get("balance"))
        if model.tables is not None:
            _check_tables(model, self._update, overlap=self._overlap)
        kind_of_step = PortionedGradientStep if balances else CompiledGradientStep
        step = kind_of_step(model, self._cluster, plan, mesh, spreader, partial(self._check_loss, model))
        devices = ComputeDevices(mesh.devices.flat)
        client = JobClient(
            self._cluster,
            plan,
            transport=self._transport,
            timeouts=self._timeouts,
            say=self._say,
            resources=WorkerResources(SYSTEM, devices.description, devices.memory),
            tables=model.tables,
        )
        self._begun = ParameterServerEngine(client, step, restore, overlap=self._overlap)
        return self._begun

    def _check_loss(self, model: Model, batch: PyTree) -> None:
        """If workers' gradients are averaged, warns of a loss for which this changes the result."""
        if self.is_chief and self.gradients_per_update > 1:
            warn_of_uneven_loss(model, batch, self._say)

    def _mesh_of_worker(self, cluster: Cluster) -> Mesh:
        if self._local is not None:
            return self._local.mesh()
        device = choose_device(self._device, cluster.device_index, str(cluster.task), self._say, strict=self._strict)
        return Mesh(np.array([device]), (DATA,))


def _check_tables(model: Model, update: UpdateRule, *, overlap: bool) -> None:
    settings = dict(update.settings())
    for has, what in (
        (overlap, "overlap=True"),
        (model.accumulate > 1, "Trainer(accumulate=...)"),
        (settings.get("balance"), "Sync(balance=...)"),
        (settings.get("delay_compensation"), "Async(delay_compensation=...)"),
        (model.worker_transform_has_state, "a worker_transform with a state"),
    ):
        if has:
            raise ClusterError(f"ParameterServer: a model with tables excludes {what}; leave one of them out.")


def _check_local(local: Mirrored | None, device: str | None) -> None:
    if local is not None and (not isinstance(local, Mirrored) or local.central_storage or device is not None):
        raise ClusterError(
            "ParameterServer: local must be a Mirrored() without central_storage (the params are on the ps); select "
            "the devices with its own devices= and leave device out."
        )


def _check_cluster(cluster: Cluster) -> None:
    if not isinstance(cluster, Cluster):
        raise ClusterError(
            f"ParameterServer: cluster must be a Cluster, such as trainband.cluster.resolve() returns, got {cluster!r}."
        )
    if not cluster.spec.ps:
        raise ClusterError(
            f"ParameterServer needs at least one ps, but the cluster has none: {cluster.spec}. Start it with one, "
            "as with trainband run --ps 1 (or TRAINBAND_PS=1 if a platform starts the tasks), or use "
            "MultiWorkerMirrored."
        )
    if not cluster.spec.workers:
        raise ClusterError(f"ParameterServer needs at least one worker, but the cluster has none: {cluster.spec}.")


def _check_standbys(standbys: int, cluster: Cluster, update: UpdateRule) -> None:
    if standbys not in (0, 1):
        raise ClusterError(f"ParameterServer: standbys must be 0 or 1 for each shard, got {standbys}.")
    if standbys and len(cluster.spec.ps) < 2:
        raise ClusterError(
            f"ParameterServer: standbys=1 keeps the standby of each shard on another ps, but the cluster has only one: "
            f"{cluster.spec}. Use at least two ps."
        )
    if standbys and isinstance(update, Async) and update.delay_compensation:
        raise ClusterError(
            "ParameterServer: standbys=1 excludes delay_compensation, which depends on what each worker was sent; "
            "leave one of them out."
        )


def _check_overlap(update: UpdateRule) -> None:
    if isinstance(update, Sync):
        raise ClusterError(
            "ParameterServer: overlap=True excludes Sync(), which computes every gradient from the newest "
            "params; leave it out, or use Bounded or Async."
        )
    if isinstance(update, Async) and update.delay_compensation:
        raise ClusterError(
            "ParameterServer: overlap=True excludes delay_compensation, for which a ps keeps only the params that it "
            "sent last; leave one of them out."
        )


def _policy_of(placement: PlacementPolicy | None, slice_bytes: int | None) -> PlacementPolicy:
    if slice_bytes is None:
        return placement or GreedyBytes()
    if placement is not None:
        raise ClusterError(
            "ParameterServer: slice_bytes excludes placement; give the policy its own max_slice_bytes and leave "
            "slice_bytes out."
        )
    if type(slice_bytes) is not int or slice_bytes < 1:
        raise ClusterError(f"ParameterServer: slice_bytes must be an int, at least 1 byte, got {slice_bytes!r}.")
    return GreedyBytes(max_slice_bytes=slice_bytes)


def _checked_rule(update: Any) -> UpdateRule:
    if isinstance(update, type):
        call = f"{update.__name__}(staleness=4)" if update is Bounded else f"{update.__name__}()"
        raise ClusterError(f"ParameterServer: update must be an update rule, got the class; write update={call}.")
    if not all(callable(getattr(update, name, None)) for name in ("settings", "check", "start")):
        raise ClusterError(f"ParameterServer: update must be an update rule, such as Sync(), got {update!r}.")
    rule: UpdateRule = update
    return rule
