"""No acknowledged update is lost, none is made twice, and there are exactly as many as were asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tests.simulation.checks.failover import forgetful
from tests.simulation.history import (
    Acknowledged,
    Applied,
    Arrived,
    Begun,
    Dropped,
    Ended,
    Final,
    Promoted,
    PushKey,
    Record,
    Restored,
    Terms,
    Update,
    Violation,
)
from trainband.wire.messages.calls import UNLIMITED

LOST = "acknowledged update lost"
DENIED = "applied, and its worker was told that it is not"
TWICE = "push applied twice"
COUNT = "version is not the number of updates"
NUMBER = "not as many updates as asked for"
KEPT = "gradient kept for nothing"


def lost_or_doubled(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks each shard for itself."""
    ended = not any(isinstance(record, Ended) and record.unfinished for record in history)
    lost = forgetful(history)
    shards = sorted({record.shard for record in history if isinstance(record, Final | Applied | Restored)})
    for shard in shards:
        of_it = [record for record in history if getattr(record, "shard", None) == shard]
        yield from _Shard(shard, terms, ended, lost).check(of_it)


class _Shard:
    """One shard's value, as its history says that it must be."""

    def __init__(self, shard: int, terms: Terms, ended: bool, lost: Collection[tuple[float, int]]) -> None:
        """Begins with nothing.

        Args:
          shard: its number.
          terms: of the job.
          ended: whether the job has; one that has not is short of updates, and keeps what it waits with.
          lost: see `forgetful`.
        """
        self._forgetful = lost
        self._shard = shard
        self._terms = terms
        self._ended = ended
        self._value: list[Update] = []
        self._behind = 0
        """How many updates its version is ahead: of a checkpoint, each shard resumes from the global step."""
        self._in_value: dict[PushKey, int] = {}
        self._holder: str | None = None
        self._life = 0
        self._arrived_in: dict[PushKey, int] = {}
        self._dropped: set[PushKey] = set()
        self._acknowledged: dict[PushKey, Acknowledged] = {}
        self._denied: dict[PushKey, Acknowledged] = {}
        self._last_version: int | None = None

    def check(self, history: Sequence[Record]) -> Iterator[Violation]:
        for record in history:
            match record:
                case Applied():
                    yield from self._applied(record)
                case Restored(version=version, replica=replica, value=value):
                    self._life += 1
                    self._holder = replica
                    self._cut(version)
                    if value is not None:
                        self._set(value, version)
                case Promoted():
                    yield from self._promoted(record)
                case Arrived(push=push):
                    self._arrived_in.setdefault(push, self._life)
                case Dropped(push=push):
                    self._dropped.add(push)
                case Begun(last_version=last_version, replica=replica) if replica == self._holder:
                    self._last_version = last_version
                case Acknowledged(push=push, applied=True):
                    self._acknowledged[push] = record
                case Acknowledged(push=push) if self._arrived_in.get(push) == self._life:
                    self._denied[push] = record
                case Final():
                    yield from self._final(record)

    def _applied(self, record: Applied) -> Iterator[Violation]:
        if record.replica != self._holder:
            # A standby follows. One that does not know yet that it is succeeded may do so, if nobody ever hears of it.
            return
        self._value.append(record.update)
        if record.version != len(self._value) + self._behind:
            text = f"ps:{self._shard} says {record.version} after {len(self._value) + self._behind} updates"
            yield Violation(record.at, COUNT, text)
        for push in record.update:
            if push in self._in_value:
                text = f"{push} made update {self._in_value[push]} and {record.version} of ps:{self._shard}"
                yield Violation(record.at, TWICE, text)
            self._in_value[push] = record.version

    def _promoted(self, record: Promoted) -> Iterator[Violation]:
        if (record.at, record.shard) in self._forgetful:
            self._life += 1
            if record.value is not None:
                self._set(record.value, record.version)
        elif record.value is not None and list(record.value) != self._value[: record.version - self._behind]:
            text = f"{record.replica} takes shard {self._shard} over with other updates than were made"
            yield Violation(record.at, COUNT, text)
        self._cut(record.version)
        self._holder = record.replica

    def _cut(self, version: int) -> None:
        kept = version - self._behind
        for update in self._value[kept:]:
            for push in update:
                self._in_value.pop(push, None)
        del self._value[kept:]

    def _set(self, value: tuple[Update, ...], version: int) -> None:
        self._value = list(value)
        self._behind = version - len(value)
        self._in_value = {push: number for number, update in enumerate(value, 1) for push in update}

    def _final(self, final: Final) -> Iterator[Violation]:
        if list(final.value) != self._value:
            text = f"ps:{self._shard} holds {len(final.value)} updates, its history has {len(self._value)}"
            yield Violation(final.at, COUNT, text)
        pushes = {push for update in final.value for push in update}
        for push, acknowledged in self._acknowledged.items():
            # What came to an earlier life of a ps without a standby may be lost with it.
            waits = push in final.held and not self._ended
            if push not in pushes and not waits and self._arrived_in.get(push) == self._life:
                why = ": it was dropped" if push in self._dropped else ""
                text = f"{push}, applied as ps:{self._shard} said, is in no update{why}"
                yield Violation(acknowledged.at, LOST, text)
        for push, denied in self._denied.items():
            if push in pushes:
                yield Violation(denied.at, DENIED, f"{push} is in an update of ps:{self._shard}")
        wanted = self._last_version if self._terms.updates is None else self._terms.updates
        is_asked = wanted is not None and wanted < UNLIMITED
        if self._ended and is_asked and final.version != wanted:
            text = f"ps:{self._shard} has made {final.version} updates of {wanted}"
            yield Violation(final.at, NUMBER, text)
        for push in final.held:
            if push in pushes:
                yield Violation(final.at, KEPT, f"ps:{self._shard} keeps the gradient of {push}, which is applied")
