"""ShardModel: what a ps has of one shard: its model, its values, and the training that it is in.

Not thread-safe: the service holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.errors import ProtocolError, RefusalCode, Refused
from trainband.model.contents import leaf_of_number
from trainband.model.layout import JobLayout, ShardLayout
from trainband.ps.description import placement_of
from trainband.ps.membership.members import Members
from trainband.ps.replication.failover import Failover
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.registry import rule_of
from trainband.ps.server.allowed_directories import AllowedDirectories
from trainband.ps.server.program import Program
from trainband.ps.server.saver import ShardSaver
from trainband.ps.server.shard import Shard
from trainband.ps.server.sources import SharedSources
from trainband.ps.server.updater import Updater
from trainband.ps.statistics import CheckpointStatus
from trainband.runtime import Lock, Runtime
from trainband.wire import messages as m
from trainband.wire.fields import GUESTS

Blocks = Sequence[NDArray[Any]]


class ShardModel:
    """One shard, on a ps that holds it or follows the one that does.

    Args:
      failover: says which of the two this is.
      cluster: and which of its tasks this ps is.
      members: who is in the job, as this ps knows.
      lock: the service's.
      directories: where checkpoints may be.
      runtime: this task's.
    """

    def __init__(
        self,
        failover: Failover,
        cluster: Cluster,
        members: Members,
        lock: Lock,
        directories: AllowedDirectories,
        runtime: Runtime,
    ) -> None:
        self.number = failover.shard
        self.name = f"shard {self.number}"
        """For messages."""
        self.define: m.Define | None = None
        self.job = ""
        """Which job this is."""
        self.layout: JobLayout | None = None
        self.program: Program | None = None
        self.updater: Updater | None = None
        self.saver: ShardSaver | None = None
        """Saves and restores, where the model is defined."""
        self.sources = SharedSources()
        self.checkpoint: CheckpointStatus | None = None
        self.fit = 0
        self.trainings: tuple[int, ...] = ()
        self.last_version = 0
        self._learning_rate: int | None = None
        """Which leaf of the optimizer's state it is, if any."""
        self._failover = failover
        self._cluster = cluster
        self._task = str(cluster.task)
        self._members = members
        self._lock = lock
        self._directories = directories
        self._runtime = runtime

    @property
    def shard(self) -> Shard | None:
        """The values, where the model is defined."""
        return self.updater.shard if self.updater is not None else None

    @property
    def description(self) -> m.Description | None:
        """The model, where it is defined."""
        return self.define.description if self.define is not None else None

    @property
    def version(self) -> int:
        """How many updates the shard has applied."""
        return self.shard.version if self.shard is not None else 0

    @property
    def complete(self) -> bool:
        """Whether all updates that were asked for are made."""
        return self.fit > 0 and self.shard is not None and self.version >= self.last_version

    def require_updater(self) -> Updater:
        """The shard with its rule. Raises `Refused` where no model is defined."""
        if self.updater is None:
            raise Refused(
                f"{self._task} has no model yet: it waits for the chief to define one.", RefusalCode.NOT_READY
            )
        return self.updater

    def require_primary(self) -> Updater:
        """As `require_updater`, where this ps holds the shard."""
        self.require_held()
        return self.require_updater()

    def require_held(self) -> None:
        """Raises `Refused` where there are values, and another ps has them."""
        if self._failover.lineage and not self._failover.holds:
            raise Refused(f"{self._task} does not hold {self.name} (any more).", RefusalCode.MOVED)

    def require_saver(self) -> ShardSaver:
        """As `saver`. Raises `Refused` where no model is defined."""
        self.require_primary()
        assert self.saver is not None
        return self.saver

    def require_new_saver(self) -> ShardSaver:
        """That of a shard which has no values yet, too."""
        self.require_updater()
        assert self.saver is not None
        return self.saver

    def install(self, define: m.Define, program: Program) -> None:
        """Begins with a model that has no values yet."""
        description = define.description
        layout = JobLayout.of(placement_of(description))
        shard = Shard(layout.shards[define.ps], program)
        compensation = float(description.rule.get("delay_compensation") or 0.0)
        workers = self._cluster.spec.workers
        chief = workers.index(self._cluster.spec.chief)
        has_state = any(not variable.trained for variable in description.variables)
        state_of = chief if has_state and description.state_merge == "chief" else None
        rule = rule_of(description.rule).start(0, 0 if define.alone else len(workers))
        self.define, self.layout, self.program = define, layout, program
        self.job = define.job
        self._learning_rate = leaf_of_number(define.state, "learning_rate")
        if description.standbys:
            self._failover.other = self._other(len(layout.shards))
        if self.updater is not None:
            self.updater.free_all()
        self.updater = Updater(shard, rule, compensation, state_of, self._runtime)
        self.saver = ShardSaver(
            shard,
            define.state,
            (define.ps, len(layout.shards)),
            self._lock,
            directories=self._directories,
            runtime=self._runtime,
            seen=self._seen_pushes if define.ps == 0 else dict,
            sources=self.sources.record,
        )
        self.updater.after_update = self.saver.after_update
        self.tell_rule()

    @property
    def learning_rate(self) -> float | None:
        """That of the optimizer's state, where it is a number there. Called under the lock, between two updates."""
        leaf, updater = self._learning_rate, self.updater
        return None if leaf is None or updater is None else updater.shard.number(leaf)

    @staticmethod
    def shard_of(define: m.Define, program: Program) -> Shard:
        """A shard of this model without values."""
        return Shard(JobLayout.of(placement_of(define.description)).shards[define.ps], program)

    def _other(self, count: int) -> int:
        """The ps with the other replica: each shard's standby is on the ps after its own."""
        after = (self.number + 1) % count
        return after if self._failover.me == self.number else self.number

    def tell_rule(self) -> None:
        """Tells a rule that begins who is in the job. One that has come and gone already is waited for by nobody."""
        updater = self.require_updater()
        for known in self._members:
            counts = known.live and not known.paused
            updater.advance(JoinEvent(known.number) if counts else LeaveEvent(known.number))

    def _seen_pushes(self) -> dict[int, int]:
        """How many pushes of each worker in the job have become what they will: those of a step under way have not."""
        updater = self.require_updater()
        seen = updater.rule.ledger.seen
        return {
            member.number: seen.get(member.number, 0) - updater.held_of(member.number)
            for member in self._members.live()
            if member.number < GUESTS
        }

    def gradient_from_wire(self, layout: ShardLayout, body: Sequence[NDArray[np.uint8]]) -> Blocks:
        """The blocks of a gradient that the primary has sent. Raises `ProtocolError` for one of another size."""
        gradient = layout.from_wire(body)
        if gradient is None:
            raise ProtocolError(f"the primary of {self.name} sent a gradient of another size than it defined.")
        return gradient

    def clear(self) -> None:
        """Gives up the values and the training: the next to define or to teach it begins afresh."""
        if self.updater is not None:
            self.updater.free_all()
        self.updater = self.saver = None
        self.sources.take_over({})
        self.fit, self.last_version, self.trainings = 0, 0, ()
