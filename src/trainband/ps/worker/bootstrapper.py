"""Bootstrapper: how the chief gives shards their model and their values, at the start or when a ps has lost them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.errors import DeadlineExceeded
from trainband.model.contents import contents_of_blocks
from trainband.ps.description import Plan
from trainband.ps.server.program import ShardOptimizer
from trainband.ps.server.programs.limits import LONGEST_S
from trainband.ps.worker.checkpointing import ANY, ME, RestoreFrom, restore_job
from trainband.ps.worker.shard_link import Link
from trainband.runtime import Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.wire import messages as m
from trainband.wire.transport import Timeouts

FirstValues = Callable[[], Sequence[Sequence[NDArray[Any]]]]
"""Makes the first values: each shard's blocks."""


class Bootstrapper:
    """What a chief needs for it; every worker has one, for any may become the chief.

    Args:
      plan: of the job.
      first_values: where there is no checkpoint.
      restore: where values may come from instead; `None` where the job saves none.
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
        """Where values may come from."""
        self._plan = plan
        self._timeouts = timeouts
        self._say = say
        self._runtime = runtime
        self._optimizers: dict[int, ShardOptimizer] = {}

    def define(self, link: Link, job: str, *, alone: bool = False) -> m.Joined:
        """Defines the model of a shard; a ps that knows it keeps it.

        Args:
          link: to the ps.
          job: which one this is.
          alone: whether the ps comes back into a job that is under way.
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
        # A ps checks the program in a process that it gives so long. An answer may also be lost: whoever asks again
        # gets that of the check which is under way.
        waiting = Waiting(self._timeouts.stall_s + LONGEST_S, self._say, self._runtime.clock)
        while True:
            try:
                return link.call("define", define, m.Joined, self._timeouts.stall_s)
            except DeadlineExceeded:
                waiting.check(f"{link} to check the update program", "check that it runs and is not overloaded")

    def restore(self, links: Sequence[Link], at: int | None, *, alone: bool = False) -> Checkpoint | None:
        """Has these ps take their values from a checkpoint, see `restore_job`; `None` where there is none."""
        if self.source is None:
            return None
        contents = [
            buffer
            for ps, layout in enumerate(self._plan.layout.shards)
            for buffer in (*contents_of_blocks(layout), *self._optimizer(ps).state_contents)
        ]
        wanted = [piece for pieces in contents for piece in pieces]
        return restore_job(
            links, wanted, self.source, self._say, self._runtime, self._timeouts.stall_s, at, alone=alone
        )

    def _optimizer(self, ps: int) -> ShardOptimizer:
        """That of one shard; traced once, for defining it and for restoring it."""
        if ps not in self._optimizers:
            self._optimizers[ps] = self._plan.shard_optimizer(ps)
        return self._optimizers[ps]
