"""The data sources that the workers of a job share: who reads which piece. ps:0 keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from trainband.data.leases import LeaseAnswer, LeaseRequest, PieceLedger
from trainband.errors import DataError
from trainband.wire.limits import LIMITS


class SharedSources:
    """The ledgers of all sources, by name. Not thread-safe: the service holds its lock."""

    def __init__(self) -> None:
        self._ledgers: dict[str, PieceLedger] = {}

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        """What the ledger of the source says; the first who asks for a source opens it.

        Raises:
          DataError: the source was opened with other settings, or there are too many; nothing has changed.
        """
        ledger = self._ledgers.get(request.source)
        if ledger is None:
            if len(self._ledgers) >= LIMITS.sources:
                raise DataError(f"a job has at most {LIMITS.sources:,} shared data sources.")
            ledger = PieceLedger(request.settings)
        answer = ledger.lease(worker, request)
        self._ledgers[request.source] = ledger
        return answer

    def release(self, worker: int) -> None:
        """Gives the pieces of a worker that has gone to others."""
        for ledger in self._ledgers.values():
            ledger.release(worker)

    def release_reserved(self, worker: int) -> bool:
        """Gives what is only reserved for a worker to others; whether there was any."""
        released = [ledger.release_reserved(worker) for ledger in self._ledgers.values()]
        return any(released)

    def holders(self) -> set[int]:
        """The workers that hold pieces, or for whom some are reserved."""
        return {worker for ledger in self._ledgers.values() for worker in ledger.holders()}

    def record(self) -> dict[str, str]:
        """Every ledger as text, for a checkpoint."""
        return {name: ledger.record() for name, ledger in self._ledgers.items()}

    def copy(self) -> dict[str, bytes]:
        """Every ledger as it is, for a standby."""
        return {name: ledger.copy() for name, ledger in self._ledgers.items()}

    def take_over(self, copies: Mapping[str, bytes]) -> None:
        """Resumes from a copy, in place of what there was. Raises `DataError` for what is none; nothing has changed."""
        self._ledgers = {name: PieceLedger.from_copy(data) for name, data in copies.items()}

    def restore(self, records: Mapping[str, str], workers: int) -> None:
        """Resumes from what a checkpoint says; pieces of workers that the cluster does not have are free.

        Raises:
          DataError: it is no record; nothing has changed.
        """
        restored = {name: PieceLedger.from_record(record) for name, record in records.items()}
        for ledger in restored.values():
            ledger.release_all_but(range(workers))
        self._ledgers.update(restored)
