"""What every update rule is: a pure state machine.

Events go in, instructions come out. A rule knows no threads, no clock and no socket: the service (a thin
shell) calls `advance`, does what the instructions say, in their order, and goes on with the new state.
A rule names a push by the worker's number and the push's own number; the gradient stays with the service.
Workers are numbered by their place in the cluster, so that an order by number is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trainband.ps.rules.ledger import Ledger

Setting = str | int | float | bool | None

ENOUGH = "the job has made all the updates that were asked for"
REPLAYED = "this push was dealt with before"
LATE = "its step was made without it"


class Join(NamedTuple):
    """A worker has joined; it counts from its first push."""

    worker: int


class Leave(NamedTuple):
    """A worker has left or its lease has ended: nobody may wait for it from now on."""

    worker: int


class Push(NamedTuple):
    """A worker's finite gradient has arrived, computed from params of this version."""

    worker: int
    sequence: int
    version: int
    examples: int


class Begin(NamedTuple):
    """Updates are wanted until the shard's version is `last_version`; if it is by now, nobody waits any more."""

    last_version: int


Event = Join | Leave | Push | Begin


class Apply(NamedTuple):
    """Make one update from the mean of these pushes: (worker, sequence) each, added up in this order.

    The optimizer's update is multiplied by `scale`. The version is then one higher.
    """

    pushes: tuple[tuple[int, int], ...]
    scale: float = 1.0


class Drop(NamedTuple):
    """The push changes nothing, for this reason."""

    worker: int
    sequence: int
    reason: str


class Reply(NamedTuple):
    """Send this worker the params as they now are, as the answer to its push with this sequence."""

    worker: int
    sequence: int
    staleness: int


Instruction = Apply | Drop | Reply


class RuleError(Exception):
    """An event that no honest worker sends, such as a push from a version that never was."""


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
