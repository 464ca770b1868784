"""WorkerPeers: a worker's calls to the other tasks of its job, apart from training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import PeerError, StreamClosed
from trainband.job.engine import Peers
from trainband.job.reports import Progress, ShardRow, progress_of
from trainband.job.statistics import PsStatus
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.recordings import Recordings
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.ps.worker.shard_requests import ShardRequests
from trainband.ps.worker.training_control import TrainingControl
from trainband.runtime.overrides import override
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.wire.messages import calls as m


class WorkerPeers(Peers):
    """`Peers` of a worker on parameter servers."""

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        requests: ShardRequests,
        cluster_view: ClusterView,
        training: TrainingControl,
        recordings: Recordings,
    ) -> None:
        self.task = membership.task
        self._membership = membership
        self._links = links
        self._requests = requests
        self._cluster_view = cluster_view
        self._training = training
        self._recordings = recordings

    @property
    @override
    def is_chief(self) -> bool:
        return self._cluster_view.is_chief

    @property
    @override
    def job(self) -> str:
        return self._membership.job

    @override
    def at_work(self) -> tuple[str, ...]:
        return tuple(sorted({task for state in self._training.states() for task in state.at_work} - {self.task}))

    @override
    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - no one waits
        return nullcontext()

    @override
    def shorten_waits(self, request: str) -> None:
        self._membership.request = request

    @override
    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Like `Peers.lease`.

        Raises:
          StreamClosed: this worker has left the job and must not seem to return.
        """
        if self._membership.left:
            raise StreamClosed(f"{self.task} has left the job.")
        return self._requests.ask(self._links[0], "lease", m.Lease(ANY, ME, request), LeaseAnswer)

    @override
    def recording(self, recorder: StepRecorder) -> StepRecording:
        return self._recordings.recording(recorder)

    @override
    def progress(self) -> Progress | None:
        try:
            progress = progress_of(self.status())
        except PeerError:
            return None
        return replace(
            progress, shards=tuple(ShardRow(one.index, one.name, one.term, one.lineage) for one in self._links)
        )

    def status(self) -> PsStatus:
        """Returns ps:0's view of the job. Callable from any thread."""
        return self._links[0].call("status", None, PsStatus, self._membership.timeouts.call_s)
