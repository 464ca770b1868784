"""Definition: the chief's definition of a shard, and the update program compiled for it."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.cluster import ClusterSpec
from trainband.model.contents import leaf_of_number
from trainband.model.layout import JobLayout
from trainband.ps.description import placement_of
from trainband.ps.program.compiled_program import Program
from trainband.ps.rules.base import RuleState
from trainband.ps.rules.registry import rule_of
from trainband.ps.shard.shard import Shard
from trainband.ps.shard.shard_tables import ShardTables
from trainband.ps.tables.description import table_of
from trainband.wire.messages import calls as m


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one shard.

    Attributes:
      define: the chief's message.
      layout: of all shards of the job.
      program: compiled from `define`.
    """

    define: m.Define
    layout: JobLayout
    program: Program

    @classmethod
    def of(cls, define: m.Define, program: Program) -> Definition:
        """Makes one from the chief's message and its compiled program."""
        return cls(define, JobLayout.of(placement_of(define.description)), program)

    @property
    def description(self) -> m.Description:
        """The settings that all tasks of the job share."""
        return self.define.description

    def new_shard(self) -> Shard:
        """A shard without values."""
        number, description = self.define.ps, self.description
        tables = [table_of(record) for record in description.tables]
        return Shard(self.layout.shards[number], self.program, ShardTables(tables, (number, description.ps_count)))

    def new_rule(self, version: int, workers: int) -> RuleState:
        """The update rule at a version; it waits for this many workers that have not joined."""
        return rule_of(self.description.rule).start(version, workers)

    @property
    def delay_compensation(self) -> float:
        """See `Async`; 0 for none."""
        return float(self.description.rule.get("delay_compensation") or 0.0)

    def state_worker(self, spec: ClusterSpec) -> int | None:
        """The only worker whose model state counts; `None` if the mean of all does or there is no state."""
        has_state = any(not variable.trained for variable in self.description.variables)
        return spec.workers.index(spec.chief) if has_state and self.description.state_merge == "chief" else None

    def learning_rate(self, shard: Shard) -> float | None:
        """The optimizer state's, if it is a number there. Called under the lock, between two updates."""
        leaf = leaf_of_number(self.define.state, "learning_rate")
        return None if leaf is None else shard.number(leaf)
