"""Planted bugs: the shipped code with one fault each, to show that the checks find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

from msgspec import structs

from tests.simulation.checks import (
    checkpoints,
    failover,
    liveness,
    pieces,
    rules,
    steering,
    updates,
    waiting,
    worker_state,
)
from tests.simulation.faults import CHIEF, Break, Crash, Pause, Terminate, Trouble
from tests.simulation.network import CALM, Weather
from tests.simulation.run import Outcome, Plant, run_scenario
from tests.simulation.scenario import STANDBYS, STANDBYS_ANY, Scenario
from trainband.job.shared_sources import SharedSources
from trainband.ps.membership.members import Members
from trainband.ps.replication.arbiter import Arbiter
from trainband.ps.replication.failover import Failover, Role
from trainband.ps.replication.record_log import RecordLog
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules import Async, Bounded, Sync
from trainband.ps.rules.asynchronous import AsyncState
from trainband.ps.rules.base import Join, Leave
from trainband.ps.rules.ledger import Ledger
from trainband.ps.rules.synchronous import SyncState
from trainband.ps.service.membership_calls import MembershipCalls
from trainband.ps.service.reserved_pieces import ReservedPieces
from trainband.ps.service.stall_detector import StallDetector
from trainband.ps.shard.saver import ShardSaver
from trainband.ps.shard.updater import Updater
from trainband.train.duties import Duties
from trainband.wire.messages import replication as r


def patched(*patches: tuple[type, str, Callable[[Any], Any]]) -> Plant:
    """A bug: of each method, what is made of the original."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, make in patches:
                stack.enter_context(mock.patch.object(owner, name, make(owner.__dict__[name])))
            yield

    return plant


def instead(replacement: Callable[..., Any]) -> Callable[[Any], Any]:
    """Not the original."""
    return lambda _: replacement


def forgets_pushes(original: Any) -> Any:
    """On a join, the rule forgets which pushes it has seen of this worker."""

    def advance(self: AsyncState, event: Any) -> Any:
        state, instructions = original(self, event)
        if isinstance(event, Join):
            seen = {worker: sequence for worker, sequence in state.ledger.seen.items() if worker != event.worker}
            state = replace(state, ledger=Ledger(state.ledger.workers, seen))
        return state, instructions

    return advance


def denies(original: Any) -> Any:
    """A push that is sent again is said to have been dropped, even if it is in an update."""

    def known(self: Ledger, push: Any) -> Any:
        return original(self, push)._replace(applied=False)

    return known


def counts_the_left(original: Any) -> Any:
    """Sync goes on counting a worker that has left."""

    def advance(self: SyncState, event: Any) -> Any:
        state, instructions = original(self, event)
        if isinstance(event, Leave):
            state = replace(state, counted=state.counted | {event.worker})
        return state, instructions

    return advance


def generous(original: Any) -> Any:
    """The ledger takes back a piece whose holder lives, and hands it out again."""

    def lease(self: SharedSources, worker: int, request: Any) -> Any:
        if worker > 0:
            self.release(worker - 1)
        return original(self, worker, request)

    return lease


def any_incarnation(original: Any) -> Any:
    """A process that was replaced leaves late, and takes its successor along."""

    def leave(self: MembershipCalls, replica: Any, leave: Any, caller: Any) -> Any:
        present = self._members.get(leave.worker).incarnation
        return original(self, replica, structs.replace(leave, incarnation=present), caller)

    return leave


def holds_replays(original: Any) -> Any:
    """A gradient that is sent again is kept beside the first, even if that was applied."""

    def instructions_for(self: Updater, event: Any, gradient: Any) -> Any:
        instructions = original(self, event, gradient)
        from trainband.ps.shard.updater import _Held

        self._held.setdefault((event.worker, event.sequence), _Held(gradient, event.examples, event.version))
        return instructions

    return instructions_for


def plans_anew(original: Any) -> Any:
    """A ps that alone comes back waits for all planned workers again."""
    return lambda self, adopt: original(self, structs.replace(adopt, alone=False))


def hasty(original: Any) -> Any:
    """A primary acknowledges before its standby has it."""

    def settled(self: Failover, number: int) -> bool:
        original(self, number)
        return True

    return settled


def unfenced(original: Any) -> Any:
    """A replica takes records of any term, whatever it is."""

    def receive(self: Failover, lineage: str, epoch: int, first: int, records: Any, sender: str = "") -> Any:
        if self.role is Role.PRIMARY:
            self.role = Role.STANDBY
        return original(self, lineage, max(epoch, self.term.number), first, records, sender)

    return receive


def bereaved(self: RecordLog) -> None:
    """A primary forgets to wait where its standby is lost: it is given up, with nobody asked."""
    self.follower = None


def forgetful(original: Any) -> Any:
    """An arbiter forgets what it has granted."""

    def grants(self: Arbiter, vote_request: Any) -> Any:
        self._granted.clear()
        return original(self, vote_request)

    return grants


def unconditional(original: Any) -> Any:
    """An arbiter does not look at the condition of a vote request."""
    return lambda self, vote_request: original(self, structs.replace(vote_request, unless_after=0))


def follows_without(kind: type) -> Callable[[Any], Any]:
    """A standby leaves a kind of record out."""

    def make(original: Any) -> Any:
        def apply(self: ShardReplica, record: Any, blocks: Any) -> Any:
            follows = self.failover.role in (Role.LEARNER, Role.STANDBY)
            return None if follows and isinstance(record, kind) else original(self, record, blocks)

        return apply

    return make


def of_other_versions(original: Any) -> Any:
    """A ps writes its part of a checkpoint without waiting for the version that was ordered."""
    return lambda self, order: original(self, structs.replace(order, at=0))


def never_hands_over(original: Any) -> Any:
    """Nobody takes over the duties of a chief that is gone."""

    def poll(self: Duties, replica: Any) -> Any:
        cluster = self._job.cluster
        if replica.is_chief and cluster is not None and not cluster.is_chief:
            self._job.had_duties = False
            return False
        return original(self, replica)

    return poll


def nothing(self: Any, *args: Any) -> None:
    """It is not done."""


def _job(**settings: Any) -> Scenario:
    """A small job, with what these settings say of it."""
    usual: dict[str, Any] = {
        "rule": Async(),
        "workers": 2,
        "shards": 2,
        "updates": 40,
        "source": None,
        "batch": 1,
        "step_s": (0.5, 0.5),
        "checkpoint_every": 1,
    }
    return Scenario(**{**usual, **settings})


def _loses_worker_and_ps(seed: int) -> Scenario:
    """A ps comes back, alone, into a job that one of the planned workers has left for good."""
    faults = (Crash(4.0, "worker:1", None), Crash(12.0, "ps:1", 1.0))
    return _job(seed=seed, rule=Sync(), step_s=(1.0, 1.0), trouble=Trouble(30.0, CALM, faults))


def _loses_worker_state_and_ps(seed: int) -> Scenario:
    """A worker leaves its state, and comes back when another ps holds it."""
    faults = (Terminate(6.0, "worker:1"), Crash(6.0 + 0.1 * (seed % 20), "ps:0", 5.0))
    return _job(seed=seed, standbys=1, trouble=Trouble(30.0, CALM, faults))


def _orders_come_late(seed: int) -> Scenario:
    """An order for a checkpoint reaches one ps before an update, and another after it."""
    quick = (0.1, 0.1, 0.1)
    trouble = Trouble(30.0, Weather(slow=0.3), ())
    return _job(seed=2 * seed, rule=Sync(), workers=3, updates=60, step_s=quick, trouble=trouble)


def _loses_chief(seed: int) -> Scenario:
    """The chief does not come back."""
    trouble = Trouble(30.0, CALM, (Crash(4.0, "worker:0", None),))
    return _job(seed=seed, updates=60, step_s=(1.0, 1.0), trouble=trouble)


def _is_replaced(seed: int) -> Scenario:
    """A worker is stopped until another process has its place, and then leaves."""
    faults = (Pause(6.0 + 0.05 * seed, "worker:1", 6.0, successor=True),)
    return _job(seed=seed, updates=80, trouble=Trouble(30.0, CALM, faults))


def _loses_streams(seed: int) -> Scenario:
    """A stream breaks every half second, and what was pushed over it comes again."""
    faults = tuple(Break(3.0 + 0.02 * (seed % 12) + 0.5 * number) for number in range(6))
    trouble = Trouble(12.0, CALM, faults)
    quick = (1.0, 1.0, 0.3, 0.3)
    return _job(
        seed=seed,
        rule=Bounded(staleness=0),
        workers=4,
        shards=1,
        updates=20,
        step_s=quick,
        overlap=True,
        trouble=trouble,
    )


def _loses_chief_and_then_ps(seed: int) -> Scenario:
    """A shard is taken over while workers wait for answers to pushes that are in an update."""
    trouble = Trouble(30.0, CALM, (Crash(3.0, CHIEF, None), Crash(5.0, "ps:1", 3.0)))
    return _job(
        seed=seed,
        rule=Sync(),
        workers=3,
        updates=60,
        step_s=(0.1, 0.1, 0.1),
        checkpoint_every=0,
        standbys=1,
        trouble=trouble,
    )


def _loses_many_streams(seed: int) -> Scenario:
    """Streams break all the time, so that pushes come to each ps in another order."""
    trouble = Trouble(30.0, Weather(broken_stream=0.3, slow=0.3), ())
    return _job(seed=seed, rule=Sync(), workers=3, updates=60, step_s=(0.3, 0.3, 0.3), trouble=trouble)


class Planted(NamedTuple):
    """A bug.

    Attributes:
      plant: puts it there.
      rule: under which it is looked for.
      finds: a promise that the checks must find broken.
      first: the seed from which it is looked for: one that shows it, so that the others need not be tried.
      scenario: of a seed, where it is looked for in jobs that have what it takes, instead of under `rule`.
    """

    plant: Plant
    rule: str
    finds: str
    first: int = 0
    scenario: Callable[[int], Scenario] | None = None

    def outcome(self, seed: int) -> Outcome:
        """What becomes of a seed with the bug."""
        scenario = self.scenario(seed) if self.scenario is not None else Scenario.of(seed, self.rule)
        return run_scenario(scenario, self.plant)


PLANTED: Mapping[str, Planted] = {
    "forget-lease": Planted(patched((Members, "expired", instead(lambda *_: []))), "sync", waiting.SILENT, 8),
    "forget-lease-ends": Planted(patched((Members, "expired", instead(lambda *_: []))), "sync", liveness.STUCK, 259),
    "forget-pushes": Planted(patched((AsyncState, "advance", forgets_pushes)), "async", updates.TWICE, 18),
    "deny": Planted(patched((Ledger, "known", denies)), "sync", updates.DENIED, scenario=_loses_chief_and_then_ps),
    "piece-again": Planted(patched((SharedSources, "lease", generous)), "async", pieces.SHARED),
    "one-clock-more": Planted(
        patched(
            (
                Bounded,
                "start",
                lambda original: lambda self, *args: original(replace(self, staleness=self.staleness + 1), *args),
            )
        ),
        "bounded",
        rules.AHEAD,
    ),
    "count-the-left": Planted(patched((SyncState, "advance", counts_the_left)), "sync", waiting.LEFT),
    "any-incarnation": Planted(
        patched((MembershipCalls, "leave", any_incarnation)), "async", rules.HONEST, scenario=_is_replaced
    ),
    "keep-replays": Planted(
        patched((Updater, "_instructions_for", holds_replays)), "bounded", updates.KEPT, scenario=_loses_streams
    ),
    # A ps that comes back must not wait for who was planned at the beginning.
    "plan-anew": Planted(
        patched((ShardReplica, "adopt", plans_anew)), "sync", liveness.STUCK, scenario=_loses_worker_and_ps
    ),
    "deadlocks": Planted(
        patched((StallDetector, "break_deadlocks", instead(nothing))),
        "sync",
        liveness.DEADLOCK,
        first=52,
        scenario=_loses_many_streams,
    ),
    # Of the two replicas of a shard.
    "hasty": Planted(patched((Failover, "settled", hasty)), STANDBYS, updates.LOST, 13),
    "unfenced": Planted(patched((Failover, "receive", unfenced)), STANDBYS_ANY, failover.TWO, 25),
    "bereaved": Planted(patched((RecordLog, "lost", instead(bereaved))), STANDBYS, failover.TWO, 18),
    "takes-in-doubt": Planted(
        patched((Failover, "holds", instead(property(lambda self: self.role is Role.PRIMARY)))),  # type: ignore[arg-type]
        STANDBYS_ANY,
        failover.FAILED,
        205,
    ),
    "grants-all": Planted(patched((Arbiter, "grants", instead(lambda *_: True))), STANDBYS, failover.TWO, 5),
    "forgets-grants": Planted(patched((Arbiter, "grants", forgetful)), STANDBYS, failover.TWO, 5),
    # What else a standby has to follow.
    "steers-alone": Planted(patched((ShardReplica, "_apply", follows_without(r.Steered))), STANDBYS, steering.LOST),
    "forgets-worker-state": Planted(
        patched((ShardReplica, "_apply", follows_without(r.Kept))),
        STANDBYS,
        worker_state.LOST,
        scenario=_loses_worker_state_and_ps,
    ),
    # Of checkpoints and of whoever orders them.
    "saves-at-once": Planted(
        patched((ShardSaver, "save", of_other_versions)), "sync", checkpoints.APART, scenario=_orders_come_late
    ),
    "keeps-duties": Planted(
        patched((Duties, "poll", never_hands_over)), "async", checkpoints.LAST, scenario=_loses_chief
    ),
}
"""Every planted bug by its name."""

UNCONDITIONAL = patched((Arbiter, "grants", unconditional))
NEVER_FREES = patched((ReservedPieces, "free", instead(nothing)))
