"""What each rule promises of its updates and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.checks.lines import Lines
from tests.simulation.history import (
    Applied,
    Arrived,
    Begun,
    In,
    Out,
    PushKey,
    Record,
    Refusal,
    Released,
    Restored,
    Terms,
    Violation,
)
from trainband.errors import RefusalCode

AHEAD = "too far ahead"
SEVERAL = "several gradients of one worker"
ORDER = "sum in another order"
STALE = "gradient from old params in a synchronous update"
HONEST = "honest worker refused"

REPLACED = (RefusalCode.REPLACED, RefusalCode.NAME_TAKEN, RefusalCode.UNKNOWN_WORKER, RefusalCode.OTHER_JOB)
"""Why a worker may be refused: it has been replaced, or would replace one that lives."""

FROM_LOST = "a push claims params of version"
"""Why it may be if a shard has lost updates that it knew of."""


def broken_rules(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks Sync's updates, Bounded's answers, and that no honest worker is refused."""
    has_lost = bool(forgetful(history))
    for record in history:
        if isinstance(record, Refusal) and not (record.code in REPLACED or (has_lost and FROM_LOST in record.text)):
            yield Violation(record.at, HONEST, f"{record.task}: {record.text}")
    if terms.rule == "sync":
        yield from _sync(history, terms)
    elif terms.rule == "bounded":
        yield from _bounded(history, terms)


def _sync(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    versions: dict[tuple[int, PushKey], int] = {}
    for record in history:
        if isinstance(record, Arrived):
            versions[record.shard, record.push] = record.version
        elif isinstance(record, Applied):
            where = f"update {record.version} of ps:{record.shard}"
            workers = [push.worker for push in record.update]
            if len(set(workers)) < len(workers) and not terms.several:
                yield Violation(record.at, SEVERAL, f"{where} is made of the gradients of {workers}")
            if workers != sorted(workers):
                yield Violation(record.at, ORDER, f"{where} adds up the workers {workers}")
            for push in record.update:
                version = versions.get((record.shard, push), record.version - 1)
                if version != record.version - 1:
                    yield Violation(record.at, STALE, f"{where} has {push}, computed from version {version}")


class _Clocks:
    """The clocks of one shard's workers, counted from its history alone."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.version = 0
        self.last_version = 0


def _bounded(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    replicas = Lines(_Clocks)
    for record in history:
        replicas.start_install(record)
        if not isinstance(record, Restored | Begun | In | Out | Applied | Released):
            continue
        clocks = replicas[record]
        match record:
            case Restored(version=version):
                clocks.of, clocks.version, clocks.last_version = {}, version, version
            case Begun(last_version=last_version):
                clocks.last_version = last_version
            case Out(worker=worker):
                clocks.of.pop(worker, None)
            case Applied(version=version, update=update):
                clocks.version = version
                for push in update:
                    slowest = min(clocks.of.values(), default=1)
                    clocks.of[push.worker] = clocks.of[push.worker] + 1 if push.worker in clocks.of else slowest
            case Released(worker=worker):
                clock = clocks.of.get(worker, 0)
                ahead = clock - min(clocks.of.values(), default=clock)
                if ahead > terms.staleness and clocks.version < clocks.last_version:
                    text = f"ps:{record.shard} lets worker number {worker} go on {ahead} clocks ahead: {clocks.of}"
                    yield Violation(record.at, AHEAD, text)
