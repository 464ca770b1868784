"""What every update rule is: a pure state machine.

Events go in, instructions come out. A rule knows no threads, no clock and no socket: the service (a thin
shell) calls `advance`, does what the instructions say, in their order, and goes on with the new state.
A rule names a push by the worker's number and the push's own number; the gradient stays with the service.
Workers are numbered by their place in the cluster, so that an order by number is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trainband.ps.rules.events import ENOUGH as ENOUGH
from trainband.ps.rules.events import LATE as LATE
from trainband.ps.rules.events import REPLAYED as REPLAYED
from trainband.ps.rules.events import Apply as Apply
from trainband.ps.rules.events import Begin as Begin
from trainband.ps.rules.events import Drop as Drop
from trainband.ps.rules.events import Event as Event
from trainband.ps.rules.events import Instruction as Instruction
from trainband.ps.rules.events import Join as Join
from trainband.ps.rules.events import Known as Known
from trainband.ps.rules.events import Leave as Leave
from trainband.ps.rules.events import Push as Push
from trainband.ps.rules.events import Reply as Reply
from trainband.ps.rules.events import RuleError as RuleError
from trainband.ps.rules.ledger import Ledger

Setting = str | int | float | bool | None


class RuleState(Protocol):
    """One rule's whole memory, immutable."""

    @property
    def version(self) -> int:
        """How many updates the shard has applied."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Who is in the job, and which pushes were seen."""
        ...

    def advance(self, event: Event) -> tuple[RuleState, tuple[Instruction, ...]]:
        """The state after `event`, and what to do about it.

        Raises:
          RuleError: the event cannot be; the state is unchanged.
        """
        ...

    def waiting_for(self) -> frozenset[int]:
        """The workers without whose push somebody does not go on, for telling people."""
        ...

    def share(self, worker: int) -> int:
        """Of how many parts this worker's next step shall be, see `Workload`; 0 where that is left to it."""
        ...


class UpdateRule(Protocol):
    """What a user chooses: the settings from which every shard makes its own `RuleState`."""

    def settings(self) -> Mapping[str, Setting]:
        """The rule as plain values: its `name` and the arguments that make it again."""
        ...

    def check(self, workers: int) -> None:
        """Refuses a cluster of so many workers that the rule could never serve.

        Raises:
          ValueError: why not.
        """
        ...

    def start(self, version: int, workers: int) -> RuleState:
        """The state of a shard that has applied `version` updates, in a job planned for workers 0 to `workers` - 1."""
        ...
