"""The data sources that a job's workers share, kept by ps:0: which worker reads which piece."""

from __future__ import annotations

from collections.abc import Mapping

from trainband.data.leases import LeaseAnswer, LeaseRequest, PieceLedger
from trainband.errors import DataError
from trainband.wire.limits import LIMITS


class SharedSources:
    """The ledgers of all sources, by name. Not thread-safe: the caller holds the lock of the service."""

    def __init__(self) -> None:
        self._ledgers: dict[str, PieceLedger] = {}

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        """Returns the answer of the source's ledger; the first request for a source opens it.

        Raises:
          DataError: the source was opened with other settings, or there are too many; nothing changes.
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
        """Reassigns the pieces of a worker that has left."""
        for ledger in self._ledgers.values():
            ledger.release(worker)

    def release_reserved(self, worker: int) -> bool:
        """Reassigns the pieces that are only reserved for a worker; returns whether there were any."""
        released = [ledger.release_reserved(worker) for ledger in self._ledgers.values()]
        return any(released)

    def holders(self) -> set[int]:
        """The workers that hold pieces or have some reserved."""
        return {worker for ledger in self._ledgers.values() for worker in ledger.holders()}

    def record(self) -> dict[str, str]:
        """Returns every ledger as text, for a checkpoint."""
        return {name: ledger.record() for name, ledger in self._ledgers.items()}

    def copy(self) -> dict[str, bytes]:
        """Returns every ledger as it is, for a standby."""
        return {name: ledger.copy() for name, ledger in self._ledgers.items()}

    def replace_ledgers(self, copies: Mapping[str, bytes]) -> None:
        """Replaces all ledgers by a copy. Raises `DataError` if it is invalid; then nothing changes."""
        self._ledgers = {name: PieceLedger.from_copy(data) for name, data in copies.items()}

    def restore(self, records: Mapping[str, str], workers: int) -> None:
        """Resumes from a checkpoint's records; pieces of workers that the cluster does not have are free.

        Raises:
          DataError: a record is invalid; nothing changes.
        """
        restored = {name: PieceLedger.from_record(record) for name, record in records.items()}
        for ledger in restored.values():
            ledger.release_all_but(range(workers))
        self._ledgers.update(restored)
