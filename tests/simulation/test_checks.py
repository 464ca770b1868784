"""The checks: small histories by hand, each with one broken promise, beside one that is whole."""

from __future__ import annotations

import pytest

from tests.simulation.checks import (
    checkpoints,
    liveness,
    pieces,
    rules,
    steering,
    updates,
    violations,
    waiting,
    worker_state,
)
from tests.simulation.history import (
    Acknowledged,
    Applied,
    Arrived,
    Begun,
    Committed,
    Data,
    Ended,
    Final,
    Found,
    Heard,
    In,
    Kept,
    Leased,
    Looked,
    Out,
    Promoted,
    PushKey,
    Record,
    Refusal,
    Released,
    Reported,
    Restored,
    Steered,
    Terms,
    Trained,
    Waits,
)
from trainband.errors import RefusalCode

A1, A2, B1 = PushKey(0, "a", 1), PushKey(0, "a", 2), PushKey(1, "b", 1)
NOBODY: frozenset[int] = frozenset()
SAVED = Committed(8.0, "worker:0", 1, (1,), False)


def terms(rule: str = "async", *, updates: int = 2, staleness: int = 0, several: bool = False) -> Terms:
    return Terms(rule, staleness, several, updates, 4.0, frozenset({0, 1}))


def applied(version: int, *update: PushKey, replica: str = "") -> Applied:
    return Applied(version, 0, replica, version, update)


def final(*value: tuple[PushKey, ...]) -> Final:
    return Final(9.0, 0, len(value), value, (), NOBODY, NOBODY)


def acknowledged(push: PushKey) -> Acknowledged:
    return Acknowledged(8.0, 0, push, True, 1)


def arrived(push: PushKey, version: int = 0) -> Arrived:
    return Arrived(0.5, 0, push, version)


def promises(history: list[Record], of: Terms) -> list[str]:
    return sorted({violation.promise for violation in violations(history, of)})


BEGIN: list[Record] = [Restored(0.0, 0, 0), In(0.1, 0, 0, "a"), In(0.1, 0, 1, "b"), Heard(0.1, 0, 0), Heard(0.1, 0, 1)]
WHOLE: list[Record] = [*BEGIN, arrived(A1), applied(1, A1), arrived(B1), applied(2, B1), acknowledged(B1)]


def test_a_whole_history() -> None:
    assert promises([*WHOLE, final((A1,), (B1,)), Ended(9.0, ())], terms()) == []


CASES: dict[str, tuple[list[Record], Terms, list[str]]] = {
    "an acknowledged update is lost": ([*WHOLE, final((A1,), (A2,))], terms(), [updates.LOST, updates.COUNT]),
    "an update is denied": (
        [*WHOLE, Acknowledged(8.0, 0, A1, False, 2), final((A1,), (B1,))],
        terms(),
        [updates.DENIED],
    ),
    "a push makes two updates": (
        [*BEGIN, applied(1, A1), applied(2, A1), final((A1,), (A1,))],
        terms(),
        [updates.TWICE],
    ),
    "a version is left out": ([*BEGIN, applied(1, A1), applied(3, B1), final((A1,), (B1,))], terms(), [updates.COUNT]),
    "an update is missing": ([*BEGIN, applied(1, A1), final((A1,))], terms(), [updates.NUMBER]),
    "a ps without a standby may lose what it had since its checkpoint": (
        [*WHOLE, SAVED, Restored(8.5, 0, 1), applied(2, A2), final((A1,), (A2,))],
        terms(),
        [],
    ),
    "a standby that takes over may not": (
        [*WHOLE, Promoted(8.5, 0, 2, 1, "b"), applied(2, A2, replica="b"), final((A1,), (A2,))],
        terms(),
        [updates.LOST],
    ),
    "what a fenced primary still does is nothing, if nobody hears of it": (
        [
            *BEGIN,
            applied(1, A1),
            Promoted(2.0, 0, 2, 1, "b"),
            applied(2, A2),
            applied(2, B1, replica="b"),
            final((A1,), (B1,)),
        ],
        terms(),
        [],
    ),
    "one that hears too late that it was handed the shard holds nothing": (
        [
            *(*BEGIN, applied(1, A1), Promoted(2.0, 0, 4, 1, "b"), applied(2, B1, replica="b")),
            *(Promoted(3.0, 0, 3, 1, "c"), applied(2, A2, replica="c"), final((A1,), (B1,))),
        ],
        terms(),
        [],
    ),
    "but not if it acknowledges that": (
        [
            *BEGIN,
            *(applied(1, A1), Promoted(2.0, 0, 2, 1, "b"), arrived(A2), applied(2, A2), acknowledged(A2)),
            *(applied(2, B1, replica="b"), final((A1,), (B1,))),
        ],
        terms(),
        [updates.LOST],
    ),
    "one that nobody made the primary": (
        [*BEGIN, applied(1, A1, replica="b"), final((A1,))],
        terms(updates=1),
        [updates.COUNT],
    ),
    "a gradient is kept": (
        [*BEGIN, applied(1, A1), Final(9.0, 0, 1, ((A1,),), (A1,), NOBODY, NOBODY)],
        terms(updates=1),
        [updates.KEPT],
    ),
    "two gradients of one worker": (
        [*BEGIN, applied(1, A1, A2), final((A1, A2))],
        terms("sync", updates=1),
        [rules.SEVERAL],
    ),
    "which aggregate allows": (
        [*BEGIN, applied(1, A1, A2), final((A1, A2))],
        terms("sync", updates=1, several=True),
        [],
    ),
    "a sum in the order of arrival": (
        [*BEGIN, applied(1, B1, A1), final((B1, A1))],
        terms("sync", updates=1),
        [rules.ORDER],
    ),
    "a stale gradient": (
        [*BEGIN, arrived(A1), arrived(B1), applied(1, A1), applied(2, B1), final((A1,), (B1,))],
        terms("sync"),
        [rules.STALE],
    ),
    "a clock too many": (
        [*BEGIN, Begun(0.2, 0, 9), applied(1, A1), applied(2, B1), applied(3, A2), Released(3.0, 0, 0, 2)],
        terms("bounded"),
        [rules.AHEAD],
    ),
    "a clock that the bound allows": (
        [*BEGIN, Begun(0.2, 0, 9), applied(1, A1), applied(2, B1), applied(3, A2), Released(3.0, 0, 0, 2)],
        terms("bounded", staleness=1),
        [],
    ),
    "a shard resumes from what no checkpoint has": (
        [*WHOLE, Restored(8.5, 0, 1), applied(2, A2), final((A1,), (A2,))],
        terms(),
        [checkpoints.UNKNOWN],
    ),
    "a checkpoint of two moments": (
        [Committed(8.0, "worker:0", 1, (1, 2), False)],
        Terms("sync", 0, False, None, 4.0, frozenset({0, 1}), in_step=True),
        [checkpoints.APART],
    ),
    "a job that ends without its checkpoint": (
        [SAVED, Ended(9.0, (), ("worker:0",))],
        Terms("async", 0, False, None, 4.0, frozenset({0, 1}), saves=True),
        [checkpoints.LAST],
    ),
    "a chief that is not succeeded": (
        [
            In(0.0, 0, 0, "a"),
            In(0.0, 0, 1, "b"),
            Out(3.0, 0, 0, "lost"),
            Out(8.0, 0, 1, "left"),
            Ended(9.0, (), ("worker:1",)),
        ],
        Terms("async", 0, False, None, 4.0, frozenset({0, 1}), saves=True),
        [checkpoints.LAST],
    ),
    "a chief that is lost with the end": (
        [
            In(0.0, 0, 0, "a"),
            In(0.0, 0, 1, "b"),
            Out(3.0, 0, 0, "lost"),
            Out(3.5, 0, 1, "left"),
            Ended(9.0, (), ("worker:1",)),
        ],
        Terms("async", 0, False, None, 4.0, frozenset({0, 1}), saves=True),
        [],
    ),
    "a number that was set is forgotten": (
        [
            *WHOLE,
            Steered(2.0, 0, 5.0, 1),
            Final(9.0, 0, 2, ((A1,), (B1,)), (), NOBODY, NOBODY, numbers=(1.0, 1.0)),
        ],
        terms(),
        [steering.LOST],
    ),
    "a number that was set is kept": (
        [
            *WHOLE,
            Steered(2.0, 0, 5.0, 1),
            Final(9.0, 0, 2, ((A1,), (B1,)), (), NOBODY, NOBODY, numbers=(1.0, 5.0)),
        ],
        terms(),
        [],
    ),
    "a worker finds older state than it has left": (
        [Kept(1.0, "worker:1", "b", 1, b"1"), Kept(2.0, "worker:1", "b", 2, b"2"), Found(3.0, "worker:1", "c", b"1")],
        terms(),
        [worker_state.LOST],
    ),
    "an honest worker is refused": ([Refusal(1.0, "worker:0", "not in the job")], terms(), [rules.HONEST]),
    "a replaced one may be": ([Refusal(1.0, "worker:0", "", RefusalCode.NAME_TAKEN)], terms(), []),
    "one that has left is waited for": (
        [*BEGIN, Out(1.0, 0, 1, "left"), Waits(1.1, 0, frozenset({1}))],
        terms("sync"),
        [waiting.LEFT],
    ),
    "one that has never come may be": ([Restored(0.0, 0, 0), Waits(1.1, 0, frozenset({1}))], terms("sync"), []),
    "a lease has ended": ([*BEGIN, Looked(4.2, 0, frozenset({1}))], terms("sync"), [waiting.SILENT]),
    "a lease has not ended": ([*BEGIN, Looked(4.0, 0, frozenset({1}))], terms("sync"), []),
    "a piece with two": (
        [Leased(1.0, 0, "a", (0, 0), 0, 2), Leased(1.1, 1, "b", (0, 0), 0, 2)],
        terms(),
        [pieces.SHARED],
    ),
    "after its holder has gone": (
        [Leased(1.0, 0, "a", (0, 0), 0, 2), Out(1.1, 0, 0, "lost"), Leased(1.2, 1, "b", (0, 0), 0, 2)],
        terms(),
        [],
    ),
    "a piece done twice": (
        [Reported(1.0, 0, "a", (0, 0)), Reported(1.1, 1, "b", (0, 0))],
        terms(),
        [pieces.AGAIN],
    ),
    "a piece never done": ([Data(9.0, {(0, 0): (0, 2)}), Ended(9.0, ())], terms(), [pieces.NEVER]),
    "examples twice": (
        [
            *(Trained(1.0, 0, "a", (0, 0), 0, 2), Trained(1.1, 0, "a", (0, 0), 1, 2), Reported(1.2, 0, "a", (0, 0))),
            *(Data(9.0, {(0, 0): (0, 2)}), Ended(9.0, ())),
        ],
        terms(),
        [pieces.EXAMPLES],
    ),
    "a job that does not end": ([Ended(9.0, ("worker:0",))], terms(), [liveness.STUCK]),
    "a deadlock over two ps": (
        [
            Final(9.0, 0, 0, (), (), frozenset({0}), frozenset({1})),
            Final(9.0, 1, 0, (), (), frozenset({1}), frozenset({0})),
            Ended(9.0, ("worker:0", "worker:1")),
        ],
        terms(),
        [liveness.DEADLOCK],
    ),
    "a worker that waits for itself": (
        [Final(9.0, 0, 0, (), (), frozenset({0}), frozenset({0})), Ended(9.0, ("worker:0",))],
        terms(),
        [liveness.STUCK],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_history(name: str) -> None:
    history, of, expected = CASES[name]
    assert promises(history, of) == sorted(expected)
