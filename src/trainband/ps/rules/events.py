"""The events that an update rule takes and the instructions that it returns."""

from __future__ import annotations

from typing import NamedTuple

from trainband.wire.messages.workload import Workload

ALL_UPDATES_MADE = "the job has made all the updates that were asked for"
REPLAYED = "this push was dealt with before"
LATE = "its step was completed without it"


class Join(NamedTuple):
    """A worker has joined; it counts from its first push."""

    worker: int


class Leave(NamedTuple):
    """A worker has left or its lease has expired: stop waiting for it."""

    worker: int


class Push(NamedTuple):
    """A worker's finite gradient has arrived, computed from params of this version."""

    worker: int
    sequence: int
    version: int
    examples: int
    workload: Workload | None = None
    """The work it took to compute, if the rule divides the examples of an update."""


class Begin(NamedTuple):
    """Updates are wanted until the shard's version is `last_version`; if it already is, all waits end."""

    last_version: int


Event = Join | Leave | Push | Begin


class Apply(NamedTuple):
    """Make one update from the mean of these pushes: (worker, sequence) each, summed in this order.

    The optimizer's update is multiplied by `scale`. The version grows by one.
    """

    pushes: tuple[tuple[int, int], ...]
    scale: float = 1.0


class Drop(NamedTuple):
    """The push changes nothing, for this reason."""

    worker: int
    sequence: int
    reason: str


class Known(NamedTuple):
    """The push was dealt with before: it is in an update, or it was dropped. It changes nothing."""

    worker: int
    sequence: int
    applied: bool


class Reply(NamedTuple):
    """Send this worker the current params as the answer to its push with this sequence."""

    worker: int
    sequence: int
    staleness: int


Instruction = Apply | Drop | Known | Reply


class RuleError(Exception):
    """An event that no honest worker sends, such as a push from an unknown version."""
