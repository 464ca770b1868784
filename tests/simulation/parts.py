"""The real pure parts of trainband that a simulation runs; a planted bug is one of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainband.ps.members import Members
from trainband.ps.rules.base import RuleState, UpdateRule
from trainband.ps.sources import SharedSources
from trainband.ps.succession import Arbiter, Succession


def start_rule(rule: UpdateRule, version: int, workers: int) -> RuleState:
    """The rule as a shard starts it."""
    return rule.start(version, workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Where a simulated ps gets its parts from.

    Attributes:
      members: the book of members, from a lease in seconds and the planned tasks.
      sources: the shared data.
      start: a rule's state.
      asks_incarnation: whether a control call of a worker says which life of it speaks.
      keeps_replays: whether a gradient that is sent again is kept beside the first, even if that was applied.
      plans_anew: whether a ps that alone comes back waits for all planned workers again.
      succession: the book of a seat, from the shard and the number of its ps.
      arbiter: what a worker remembers of its grants.
      frees_pieces: whether it gives to others what was reserved for a worker that does not come back with it.
      takes_all: whether a standby takes over only when it has done all that was sent to it.
      resolves_circles: whether it lets workers go on that wait for one another over several ps.
    """

    members: Callable[[float, Sequence[str]], Members] = Members
    sources: Callable[[], SharedSources] = SharedSources
    start: Callable[[UpdateRule, int, int], RuleState] = start_rule
    succession: Callable[[int, int], Succession] = Succession
    arbiter: Callable[[], Arbiter] = Arbiter
    asks_incarnation: bool = True
    keeps_replays: bool = False
    plans_anew: bool = False
    frees_pieces: bool = True
    takes_all: bool = True
    resolves_circles: bool = True


REAL = Parts()
