"""Alone: what a replica answers where no others take part in the training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Alone:
    """The part of `Replica` that is about others."""

    @property
    def is_chief(self) -> bool:
        """See `Replica.is_chief`."""
        return True

    @property
    def job(self) -> str:
        """See `Replica.job`."""
        return ""

    @property
    def trainings(self) -> tuple[int, ...]:
        """See `Replica.trainings`: this job is as old as this replica."""
        return ()

    @property
    def in_parts(self) -> bool:
        """See `Replica.in_parts`: this process can ask for all of them."""
        return False

    @property
    def unused(self) -> int:
        """See `Replica.unused`: there are none."""
        return 0

    def missing(self) -> int:
        """See `Replica.missing`: what is made here is not lost."""
        return 0

    def hasten(self) -> None:
        """See `Replica.hasten`: where others are needed, they are needed for every step, and have `Timeouts`."""

    def at_work(self) -> tuple[str, ...]:
        """See `Replica.at_work`: there are no others."""
        return ()

    def gather(self, work: Callable[[], object]) -> bool:
        """See `Replica.gather`: nobody has to give anything."""
        work()
        return False

    def end(self) -> None:
        """See `Replica.end`: nobody has to be told."""

    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - nobody waits for it
        """See `Replica.busy`."""
        return nullcontext()

    def close(self, failure: str = "") -> None:
        """See `Replica.close`: there is nothing to leave."""
