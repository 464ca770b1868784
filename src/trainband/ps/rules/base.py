"""What every update rule is: a pure state machine.

Events go in, instructions come out. A rule knows no threads, no clock and no socket: the service (a thin
shell) calls `advance`, does what the instructions say, in their order, and tells the rule what came of it.
A rule names a push by the worker's number and the push's own number; the gradient stays with the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


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
    """Updates are wanted until the shard's version is `last_version`."""

    last_version: int


Event = Join | Leave | Push | Begin


class Apply(NamedTuple):
    """Make one update from these pushes: (worker, sequence) each, in this order. The version is then one higher."""

    pushes: tuple[tuple[int, int], ...]


class Drop(NamedTuple):
    """The push changes nothing, for this reason."""

    worker: int
    sequence: int
    reason: str


class Reply(NamedTuple):
    """Send this worker the params as they now are: its push with this sequence is dealt with."""

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

    def advance(self, event: Event) -> tuple[RuleState, tuple[Instruction, ...]]:
        """The state after `event`, and what to do about it.

        Raises:
          RuleError: the event cannot be; the state is unchanged.
        """
        ...

    def waiting_for(self) -> frozenset[int]:
        """The workers without whose push nothing goes on, for telling people."""
        ...


class UpdateRule(Protocol):
    """What a user chooses: the settings from which every shard makes its own `RuleState`."""

    def settings(self) -> Mapping[str, Any]:
        """The rule as plain values with its `name`, to compare between tasks and to send."""
        ...

    def start(self, version: int, workers: int) -> RuleState:
        """The state of a shard that has applied `version` updates, in a job planned for `workers` workers."""
        ...
