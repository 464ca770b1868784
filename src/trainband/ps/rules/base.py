"""The interface of every update rule: a pure state machine.

Events go in, instructions come out. A rule has no threads, clock or sockets: the service (a thin shell) calls
`advance`, follows the instructions in order and keeps the new state.
A rule identifies a push by the worker's number and the push's own number; the gradient stays with the service.
Workers are numbered by their place in the cluster, so that their order is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trainband.ps.rules.events import ALL_UPDATES_MADE as ALL_UPDATES_MADE
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
    """The whole state of one rule. Immutable."""

    @property
    def version(self) -> int:
        """How many updates the shard has applied."""
        ...

    @property
    def ledger(self) -> Ledger:
        """The workers in the job and the pushes seen."""
        ...

    def advance(self, event: Event) -> tuple[RuleState, tuple[Instruction, ...]]:
        """The state after `event`, and what to do about it.

        Raises:
          RuleError: the event is impossible; the state is unchanged.
        """
        ...

    def waiting_for(self) -> frozenset[int]:
        """The workers that others are waiting for, to report to people."""
        ...

    def share(self, worker: int) -> int:
        """How many parts (see `Workload`) this worker's next step should have; 0 if the worker decides."""
        ...


class UpdateRule(Protocol):
    """A user's choice: the settings from which every shard makes its own `RuleState`."""

    def settings(self) -> Mapping[str, Setting]:
        """The rule as plain values: its `name` and its constructor's arguments."""
        ...

    def check(self, workers: int) -> None:  # noqa: ARG002 - by default, a rule suits any number
        """Checks that the rule can serve a cluster of this many workers.

        Raises:
          ValueError: it cannot.
        """
        return

    def start(self, version: int, workers: int) -> RuleState:
        """The state of a shard that has applied `version` updates, in a job planned for workers 0 to `workers` - 1."""
        ...
