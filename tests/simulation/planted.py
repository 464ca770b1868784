"""Planted bugs: real parts with one fault each, to show that the checks find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from msgspec import structs

from tests.simulation.checks import liveness, pieces, rules, succession, updates, waiting
from tests.simulation.parts import Parts
from tests.simulation.scenario import STANDBYS, STANDBYS_ANY
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.ps.members import Member, Members
from trainband.ps.rules import Bounded
from trainband.ps.rules.base import Event, Instruction, Join, Leave, RuleState, UpdateRule
from trainband.ps.rules.ledger import Ledger
from trainband.ps.rules.synchronous import SyncState
from trainband.ps.sources import SharedSources
from trainband.ps.succession import Arbiter, Role, Succession
from trainband.wire.replication import Petition


class NeverExpires(Members):
    """Members that forget the lease."""

    def expired(self, now: float) -> list[Member]:  # noqa: ARG002 - as the real one
        """Nobody ever."""
        return []


class GenerousSources(SharedSources):
    """Sources that take back a piece whose holder lives, and hand it out again."""

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        """As if the worker before this one had gone."""
        if worker > 0:
            self.release(worker - 1)
        return super().lease(worker, request)


class _Wrapped:
    """A rule's state with a fault; see `RuleState`."""

    def __init__(self, state: RuleState) -> None:
        self.state = state

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def ledger(self) -> Ledger:
        return self.state.ledger

    def waiting_for(self) -> frozenset[int]:
        return self.state.waiting_for()

    def advance(self, event: Event) -> tuple[RuleState, tuple[Instruction, ...]]:
        state, instructions = self.state.advance(event)
        return cast(RuleState, type(self)(self.after(event, state))), instructions

    def after(self, event: Event, state: RuleState) -> RuleState:
        """Where the fault is: the state after an event."""
        raise NotImplementedError


class ForgetsPushes(_Wrapped):
    """On a join it forgets which pushes it has seen of this worker."""

    def after(self, event: Event, state: RuleState) -> RuleState:
        """The ledger loses a line."""
        if not isinstance(event, Join):
            return state
        seen = {worker: sequence for worker, sequence in state.ledger.seen.items() if worker != event.worker}
        ledger = Ledger(state.ledger.workers, seen)
        return replace(state, ledger=ledger)  # type: ignore[type-var]


class CountsTheLeft(_Wrapped):
    """Sync goes on counting a worker that has left."""

    def after(self, event: Event, state: RuleState) -> RuleState:
        """The worker is waited for."""
        if not isinstance(event, Leave) or not isinstance(state, SyncState):
            return state
        return replace(state, counted=state.counted | {event.worker})


def forgets_pushes(rule: UpdateRule, version: int, workers: int) -> RuleState:
    """See `ForgetsPushes`."""
    return cast(RuleState, ForgetsPushes(rule.start(version, workers)))


def counts_the_left(rule: UpdateRule, version: int, workers: int) -> RuleState:
    """See `CountsTheLeft`."""
    return cast(RuleState, CountsTheLeft(rule.start(version, workers)))


def one_clock_more(rule: UpdateRule, version: int, workers: int) -> RuleState:
    """Bounded lets workers go one clock too far."""
    assert isinstance(rule, Bounded)
    return Bounded(staleness=rule.staleness + 1).start(version, workers)


class Hasty(Succession):
    """A primary that acknowledges before its standby has it."""

    def settled(self, number: int) -> bool:
        """At once."""
        super().settled(number)
        return True


class Unfenced(Succession):
    """A seat that takes records of any epoch, whatever it is."""

    def take(self, lineage: str, epoch: int, first: int, records: Sequence[Any], sender: str = "") -> int:
        """As if it were the sender's standby."""
        if self.role is Role.PRIMARY:
            self.role = Role.STANDBY
        return super().take(lineage, max(epoch, self.reign.epoch), first, records, sender)


class Bereaved(Succession):
    """A primary that forgets to wait where its standby is lost."""

    def lost(self) -> None:
        """The standby is given up, with nobody asked."""
        self.pupil = None


class NextEpoch(Succession):
    """A seat that asks for an epoch which the other may have begun by naming another arbiter."""

    def ask(self) -> None:
        """For the next one."""
        if self.reign.arbiter and not self._arbiter_changes:
            self.petition = self.reign.epoch + 1


class TakesInDoubt(Succession):
    """A primary that goes on taking what changes the shard after it has handed that over."""

    @property
    def holds(self) -> bool:
        """As if nothing had been handed over."""
        return self.role is Role.PRIMARY


class Everybodys(Arbiter):
    """An arbiter that grants everything."""

    def grants(self, petition: Petition) -> bool:  # noqa: ARG002 - as the real one
        """Yes."""
        return True


class Forgetful(Arbiter):
    """An arbiter that forgets what it has granted."""

    def grants(self, petition: Petition) -> bool:
        """As if nothing had been granted before."""
        self._granted.clear()
        return super().grants(petition)


class Unconditional(Arbiter):
    """An arbiter that does not look at the condition of a petition."""

    def grants(self, petition: Petition) -> bool:
        """As if there were none."""
        return super().grants(structs.replace(petition, unless_after=0))


class Planted(NamedTuple):
    """A bug.

    Attributes:
      parts: with it.
      rule: under which it is looked for.
      finds: a promise that the checks must find broken.
      first: the seed from which it is looked for: a rare one shows late.
    """

    parts: Parts
    rule: str
    finds: str
    first: int = 0


PLANTED: Mapping[str, Planted] = {
    "forget-lease": Planted(Parts(members=NeverExpires), "sync", waiting.SILENT),
    "forget-lease-ends": Planted(Parts(members=NeverExpires), "sync", liveness.STUCK),
    "forget-pushes": Planted(Parts(start=forgets_pushes), "async", updates.TWICE),
    "piece-again": Planted(Parts(sources=GenerousSources), "async", pieces.SHARED),
    "one-clock-more": Planted(Parts(start=one_clock_more), "bounded", rules.AHEAD),
    "count-the-left": Planted(Parts(start=counts_the_left), "sync", waiting.LEFT),
    # A belated goodbye of a process that was replaced must not end its heir.
    "any-life": Planted(Parts(asks_incarnation=False), "async", rules.HONEST),
    "keep-replays": Planted(Parts(keeps_replays=True), "bounded", updates.KEPT, first=600),
    # A ps that comes back must not wait for who was planned at the beginning.
    "plan-anew": Planted(Parts(plans_anew=True), "sync", liveness.STUCK),
    "circles": Planted(Parts(resolves_circles=False), "sync", liveness.CIRCLE),
    # Of the two seats of a shard.
    "hasty": Planted(Parts(succession=Hasty), STANDBYS, updates.LOST),
    "unfenced": Planted(Parts(succession=Unfenced), STANDBYS_ANY, succession.TWO),
    "bereaved": Planted(Parts(succession=Bereaved), STANDBYS, succession.TWO),
    "next-epoch": Planted(Parts(succession=NextEpoch), STANDBYS_ANY, succession.FAILED, first=7100),
    "takes-in-doubt": Planted(Parts(succession=TakesInDoubt), STANDBYS_ANY, succession.FAILED),
    "grants-all": Planted(Parts(arbiter=Everybodys), STANDBYS, succession.TWO),
    "forgets-grants": Planted(Parts(arbiter=Forgetful), STANDBYS, succession.TWO),
    # Of two that share memory: what was sent and not read yet is the standby's too.
    "leaves-unread": Planted(Parts(takes_all=False), STANDBYS, updates.LOST, first=400),
}
"""Every planted bug by its name."""
