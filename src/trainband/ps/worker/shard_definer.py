"""ShardDefiner: how the chief sends shards their model and values, at the start or after a ps lost them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint, Piece
from trainband.errors import CheckpointError, DamagedCheckpoint, DeadlineExceeded, ModelMismatch
from trainband.job.checkpoints import Overtaken, RestoreFrom
from trainband.model.contents import contents_of_blocks
from trainband.ps.program.export import ShardOptimizer
from trainband.ps.program.limits import LONGEST_S
from trainband.ps.tables.saved_rows import saved_tables
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.runtime import Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.wire.messages import calls as m
from trainband.wire.transport import Timeouts

FirstValues = Callable[[], Sequence[Sequence[NDArray[Any]]]]
"""Makes the first values: each shard's blocks."""

POLL_S = 0.02
"""Seconds between polls of a ps that is reading."""


class ShardDefiner:
    """Initialiser of shards. Every worker has one, as any may become the chief.

    Args:
      first_values: if there is no checkpoint.
      restore: source of checkpoints; `None` if the job saves none.
    """

    def __init__(
        self,
        plan: Plan,
        first_values: FirstValues,
        restore: RestoreFrom | None,
        *,
        timeouts: Timeouts,
        say: Say,
        runtime: Runtime,
    ) -> None:
        self.first_values = first_values
        self.source = restore
        """Source of checkpoints."""
        self._plan = plan
        self._timeouts = timeouts
        self._say = say
        self._runtime = runtime
        self._optimizers: dict[int, ShardOptimizer] = {}

    def define(self, link: Link, job: str, *, alone: bool = False) -> m.Joined:
        """Defines the model of a shard unless the ps has one.

        Args:
          alone: whether the ps returns to a job that is under way.
        """
        optimizer = self._optimizer(link.index)
        program = optimizer.export()
        define = m.Define(
            ANY,
            ME,
            link.index,
            self._plan.description,
            program.initialise,
            program.update,
            optimizer.state_contents,
            job,
            alone,
            program.jax,
        )
        # A ps limits its check of the program to this long. If an answer is lost, asking again returns that of the
        # check under way.
        waiting = Waiting(self._timeouts.stall_s + LONGEST_S, self._say, self._runtime.clock)
        while True:
            try:
                return link.call("define", define, m.Joined, self._timeouts.stall_s)
            except DeadlineExceeded:
                waiting.check(f"{link} to check the update program", "check that it runs and is not overloaded")

    def restore(self, links: Sequence[Link], at: int | None, *, alone: bool = False) -> Checkpoint | None:
        """Restores these ps from the first intact checkpoint; returns `None` if there is none.

        Args:
          links: to the ps; ps:0, which keeps the worker state, is the first if it is among them.
          at: the step required if other ps of the job already have values.
          alone: whether these ps return to a job that is under way.

        Raises:
          ModelMismatch: the checkpoint is of another model.
          CheckpointError: a ps cannot read it although it is intact.
          Overtaken: a ps has forgotten it: it restarted, or another worker restored it.
        """
        if self.source is None:
            return None
        for checkpoint in self.source.candidates():
            if at is not None and checkpoint.global_step != at:
                continue
            checkpoint.require(self._wanted(), params_only=not self.source.optimizer)
            self._compare_tables(checkpoint)
            try:
                token = self._read(links, checkpoint, optimizer=self.source.optimizer)
                worker_state = dict(self.source.worker_state(checkpoint))
            except DamagedCheckpoint as exc:
                self._say(f"{checkpoint.path} is damaged ({exc}); trying the one before it")
                continue
            # ps:0 last: when the other workers find it initialised, the others are.
            step, sources = checkpoint.global_step, dict(checkpoint.manifest.sources)
            for link in reversed(links[1:]):
                link.ask("adopt", m.Adopt(ANY, ME, token, step, alone=alone), m.Joined)
            links[0].ask("adopt", m.Adopt(ANY, ME, token, step, worker_state, sources, alone), m.Joined)
            return checkpoint
        return None

    def _wanted(self) -> Iterator[Piece]:
        """Every piece of every shard."""
        for ps, layout in enumerate(self._plan.layout.shards):
            for pieces in (*contents_of_blocks(layout), *self._optimizer(ps).state_contents):
                yield from pieces

    def _compare_tables(self, checkpoint: Checkpoint) -> None:
        """Says which tables start without rows; raises `ModelMismatch` if rows would be lost."""
        saved, mine = saved_tables(checkpoint), {table.name for table in self._plan.description.tables}
        if saved - mine:
            raise ModelMismatch(
                f"{checkpoint.path} has rows of {_names(saved - mine)}, which this model does not have: they would be "
                "lost. Give the model the tables that it was trained with, or start in another directory."
            )
        if mine - saved:
            self._say(f"{_names(mine - saved)} starts without rows: {checkpoint.path} has none")

    def _read(self, links: Sequence[Link], checkpoint: Checkpoint, *, optimizer: bool) -> str:
        """Makes these ps read their parts in parallel; returns the token of the read.

        Raises:
          DamagedCheckpoint: a part of it is.
          CheckpointError, Overtaken: see `restore`.
        """
        token = self._runtime.token()
        for link in links:
            link.ask("restore", m.Restore(ANY, ME, token, str(checkpoint.path), optimizer), m.RestoreState)
        states = [self._await_reading(link, token, checkpoint) for link in links]
        for link, state in zip(links, states, strict=True):
            if state.forgotten:
                raise Overtaken(
                    f"{link.name} died, or got its values from another worker, while reading {checkpoint.path}."
                )
        failed = sorted((state for state in states if state.failure), key=lambda state: not state.damaged)
        if failed:
            if failed[0].damaged:
                raise DamagedCheckpoint(failed[0].failure)
            raise CheckpointError(f"{checkpoint.path} cannot be restored: {failed[0].failure}")
        return token

    def _await_reading(self, link: Link, token: str, checkpoint: Checkpoint) -> m.RestoreState:
        waiting = Waiting(self._timeouts.stall_s, self._say, self._runtime.clock)
        while True:
            try:
                state = link.ask("restore_state", m.RestoreQuestion(ANY, ME, token), m.RestoreState)
                if state.done:
                    return state
                waiting.extend()  # it answers, so it reads
            except DeadlineExceeded:
                pass  # it may be busy
            waiting.check(f"{link.name} to read its part of {checkpoint.path}", "check that it runs")
            self._runtime.sleep(POLL_S)

    def _optimizer(self, ps: int) -> ShardOptimizer:
        """Returns a shard's optimizer; traced once for defining and restoring."""
        if ps not in self._optimizers:
            self._optimizers[ps] = self._plan.shard_optimizer(ps)
        return self._optimizers[ps]


def _names(tables: Iterable[str]) -> str:
    return ", ".join(f"table {name!r}" for name in sorted(tables))
