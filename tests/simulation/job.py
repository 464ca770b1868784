"""What simulated tasks run: the shipped `Server` and `Trainer`, with cheap stand-ins for what computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

from tests.simulation.values import NUMBER, Values, key_of
from trainband.checkpoint.manifest import Piece
from trainband.cluster import Cluster
from trainband.data import SharedBatches, shared
from trainband.data.pieces import SourceSettings
from trainband.job.checkpoints import RestoreFrom
from trainband.model.contents import Contents
from trainband.model.layout import JobLayout
from trainband.model.placement import Placement, Slice
from trainband.model.variables import Variables
from trainband.model.worker_state import WorkerState
from trainband.ps.program.update_program import UpdateProgram
from trainband.ps.rules import UpdateRule
from trainband.ps.tables.description import record_of
from trainband.ps.tables.sharding import shard_of
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_link import Blocks
from trainband.rows import Constant, Sgd, Table
from trainband.runtime import Runtime
from trainband.strategies.gradient_step import Computed
from trainband.strategies.parameter_server_engine import ParameterServerEngine
from trainband.wire.messages.description import Description, SliceRecord, VariableRecord
from trainband.wire.transport import Timeouts, Transport

TIMEOUTS = Timeouts(connect_s=2.0, call_s=2.0, stall_s=20.0, heartbeat_s=1.0, lease_s=4.0, start_s=100.0, grace_s=1.0)
"""How long simulated tasks wait, in simulated seconds."""


class _StateOfOneNumber:
    """A `ps.program.export.ShardOptimizer` whose state is one number; there is nothing to trace."""

    state_contents: Contents = ((Piece(f"optimizer/{NUMBER}", (), "float32", 0, 1),),)

    def export(self) -> UpdateProgram:
        return UpdateProgram(b"", b"")


class CheapPlan(Plan):
    """A plan whose optimizer takes no time to trace."""

    def shard_optimizer(self, ps: int) -> Any:
        del ps
        return _StateOfOneNumber()


@cache
def variables_of(shards: int) -> tuple[Variables, JobLayout]:
    """One variable of one number for each shard."""
    variables = Variables.of({f"v{i}": np.zeros(1, np.float32) for i in range(shards)})
    slices = tuple(Slice(variable, 0, 1, i) for i, variable in enumerate(variables.entries))
    return variables, JobLayout.of(Placement(slices, shards))


TABLE = record_of(Table("pushes", dim=1, optimizer=Sgd(1.0), initializer=Constant()))
"""A table of the pushes that were applied: each has a row of its own."""
IDS = 1000


def row_of(push: int, shard: int, shards: int) -> int:
    """The id of a push's row on a shard, to which it belongs; `id // IDS` is the push."""
    ids = np.arange(push * IDS, push * IDS + IDS, dtype=np.uint64)
    return int(ids[shard_of(ids, shards) == shard][0])


def plan_of(shards: int, rule: UpdateRule, standbys: int, *, table: bool) -> CheapPlan:
    """What all tasks of the job agree on."""
    variables, layout = variables_of(shards)
    description = Description(
        variables=tuple(VariableRecord(v.name, v.shape, v.dtype, v.trained) for v in variables.entries),
        slices=tuple(SliceRecord(i, 0, 1, i) for i in range(shards)),
        ps_count=shards,
        rule=dict(rule.settings()),
        update_text="",
        jax_version="",
        standbys=standbys,
        tables=(TABLE,) if table else (),
    )
    return CheapPlan(variables, layout, description, optax.identity(), None)


class SimulatedStep:
    """See `trainband.strategies.gradient_step.GradientStep`: takes time, and names the push that it is for."""

    place = None

    def __init__(
        self, client: JobClient, values: Values, runtime: Runtime, dice: random.Random, most_s: float, bad: float
    ) -> None:
        self._client = client
        self._values = values
        self._runtime = runtime
        self._dice = dice
        self._most_s = most_s
        self._bad = bad

    def first_values(self) -> Sequence[Sequence[NDArray[Any]]]:
        return [[np.zeros(1, np.float32)] for _ in self._client._links]  # noqa: SLF001

    def first_carry(self, shards: Sequence[Blocks]) -> Any:
        del shards
        return ((), ())

    def carry_of(self, worker_state: WorkerState, carry: Any) -> Any:
        del worker_state
        return carry

    def compile(self, shards: Sequence[Blocks], carry: Any, batch: Any) -> None:
        pass

    def __call__(self, shards: Sequence[Blocks], carry: Any, batch: Any) -> Computed:
        self._runtime.sleep(self._dice.uniform(0.2, 1.0) * self._most_s)
        client = self._client
        if any(np.isnan(blocks[0]).any() for blocks in shards):
            raise AssertionError("the params were written over while this worker computed from them")
        key = key_of(client._links[0].worker, client.membership.incarnation, client.membership.sequence + 1)  # noqa: SLF001
        gradient = [[np.array([self._values.gradient(key)], np.float32)] for _ in shards]
        finite = self._dice.random() >= self._bad
        if not finite:
            self._dice.choice(gradient)[0][0] = np.nan
        if client.membership.plan.description.tables:
            number = int(self._values.gradient(key))
            gradient = [
                [*blocks, np.array([row_of(number, shard, len(shards))], np.uint64), np.ones((1, 1), np.float32)]
                for shard, blocks in enumerate(gradient)
            ]
        return Computed(1.0, gradient, finite or len(shards) == 1, carry, {}, len(batch))


@dataclass(kw_only=True)
class SimulatedStrategy:
    """See `trainband.strategies.base.Strategy`: `ParameterServer` with a simulated step."""

    cluster: Cluster
    plan: CheapPlan
    transport: Transport
    runtime: Runtime
    say: Callable[[str], None]
    step: Callable[[JobClient], SimulatedStep]
    overlap: bool
    serves: bool = False
    num_replicas: int = 1
    mesh_axes: tuple[str, ...] = ("data",)
    gradients_per_update: int = 1

    @property
    def is_chief(self) -> bool:
        return self.cluster.is_chief

    def start(self, model: Any, restore: RestoreFrom | None = None) -> ParameterServerEngine:
        del model
        client = JobClient(
            self.cluster, self.plan, transport=self.transport, timeouts=TIMEOUTS, say=self.say, runtime=self.runtime
        )
        step = self.step(client)
        return ParameterServerEngine(client, step, restore, overlap=self.overlap)


class Endless:
    """Batches that do not matter."""

    def __init__(self, batch: int) -> None:
        self._batch = np.zeros(batch, np.int64)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        while True:
            yield self._batch


def shared_batches(settings: SourceSettings, batch: int) -> SharedBatches:
    """The data that the workers share; an example is its number."""
    return shared(
        settings.examples,
        batch_size=batch,
        load=np.asarray,
        piece=settings.piece,
        epochs=settings.epochs,
        shuffle=False,
    )
