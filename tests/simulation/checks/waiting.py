"""Nobody waits for a worker that has left, or whose lease has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.checks.lines import Lines
from tests.simulation.history import Heard, In, Looked, Out, Record, Restored, Taught, Terms, Violation, Waits

LEFT = "waits for one that has left"
SILENT = "waits for one whose lease has ended"


class _Members:
    """Who is in the job, as one life of a shard was told."""

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.came: set[int] = set()
        self.heard: dict[int, float] = {}
        self.waits: frozenset[int] = frozenset()


def vain_waits(history: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Checks each shard whenever it says for whom somebody waits there."""
    replicas = Lines(_Members)
    for record in history:
        replicas.start_install(record)
        if isinstance(record, Taught):
            replicas[record].heard = {}  # of whom this ps hears it knows itself
        if not isinstance(record, Restored | In | Out | Heard | Waits | Looked):
            continue
        members = replicas[record]
        match record:
            case Restored():
                replicas[record] = _Members()
                replicas[record].heard = members.heard
            case In(worker=worker):
                members.inside.add(worker)
                members.came.add(worker)
            case Out(worker=worker):
                members.inside.discard(worker)
                members.came.add(worker)
            case Heard(worker=worker, at=at):
                members.heard[worker] = at
            case Waits(workers=workers) | Looked(workers=workers):
                for worker in sorted(workers):
                    planned = worker in terms.planned and worker not in members.came
                    if worker not in members.inside and not planned:
                        text = f"ps:{record.shard} waits for worker number {worker}"
                        yield Violation(record.at, LEFT, text)
                    silent_s = record.at - members.heard.get(worker, record.at)
                    if isinstance(record, Looked) and not planned and silent_s >= terms.lease_s:
                        text = f"ps:{record.shard} waits for worker number {worker}, silent for {silent_s:.2f} s"
                        yield Violation(record.at, SILENT, text)
