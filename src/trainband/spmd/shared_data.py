"""SharedData: the data sources that are dealt out piece by piece if one process is the whole job."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from trainband.checkpoint import Checkpoint
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DataError
from trainband.job.shared_sources import SharedSources
from trainband.spmd.process_group import Group


class SharedData:
    """The ledgers of a job's shared data sources. Thread-safe.

    Args:
      group: the processes of the job.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._ledgers = SharedSources()
        self._lock = threading.Lock()

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Leases the next piece of a source.

        Raises:
          DataError: several processes compute in lockstep, so they need their own batches.
        """
        if self._group.count > 1:
            raise DataError(
                f"{self._group.task}: trainband.data.shared deals pieces out to workers that run at their own speeds. "
                "Workers that compute in lockstep, as under MultiWorkerMirrored, need equally many batches: give each "
                "its part, trainband.data.Batches(*arrays, batch_size=..., shard=(cluster.training_index, "
                f"{self._group.count})), with cluster = trainband.cluster.resolve()."
            )
        with self._lock:
            return self._ledgers.lease(0, request)

    def record(self) -> Mapping[str, str]:
        """Every ledger as text, for a checkpoint."""
        with self._lock:
            return self._ledgers.record()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resumes from a checkpoint's record."""
        with self._lock:
            self._ledgers.restore(checkpoint.manifest.sources, workers=1)
