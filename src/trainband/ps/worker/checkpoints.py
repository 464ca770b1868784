"""A worker's side of checkpoints: `WorkerCheckpoints` supplies their content, and `JobSaving` is one that the chief
orders from every ps and polls until all have written their parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from trainband.checkpoint import Checkpoint
from trainband.errors import CheckpointError, RefusalCode, Refused
from trainband.job.checkpoints import WORKER_STATE_S, CheckpointStatus, Overtaken, SavedParts
from trainband.job.engine import Checkpoints
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.job_setup import JobSetup
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.ps.worker.shard_requests import ShardRequests
from trainband.ps.worker.training_control import TrainingControl
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.overrides import override
from trainband.wire.messages import calls as m

AHEAD = 4
"""Updates by each worker that a checkpoint is ordered ahead: some milliseconds."""


class JobSaving:
    """A `Saving` whose parts the ps write."""

    def __init__(self, links: Sequence[Link], directory: Path, at: int, runtime: Runtime = SYSTEM) -> None:
        """Orders it: each ps writes as soon as its version is `at`.

        Raises:
          Refused: a ps is still writing another.
          PeerError: a ps cannot be reached.
        """
        self._links = links
        self._token = runtime.token()
        self._clock = runtime.clock
        self.started_at: float | None = None
        """About when its version was reached."""
        self.waits = True
        """Whether, at the last poll, a ps waited for its version and none was writing."""
        self._written_at: float | None = None
        self._waiting = set(range(len(links)))
        """The shards not known to have begun to write."""
        # ps:0 last: it asks the workers for their state, so the others must know of the order by then.
        order = m.Save(ANY, ME, self._token, str(directory), at)
        self._record_phases([link.ask("save", order, m.SaveState).phase for link in reversed(links)])

    def poll(self) -> SavedParts | None:
        """Returns the parts when all are written, else `None`.

        Raises:
          CheckpointError: a ps could not write its part.
          Overtaken: a ps forgot the order before it began; the order can be repeated.
          PeerError: a ps cannot be reached.
        """
        states = [self._ask(link, worker_state=False) for link in self._links]
        for shard, (link, state) in enumerate(zip(self._links, states, strict=True)):
            if state.phase == m.FORGOTTEN and shard in self._waiting:
                raise Overtaken(f"{link.name} died, or gave up the save, before it began to write its part.")
            if state.phase != m.ARMED:
                self._waiting.discard(shard)
            if state.phase == m.FORGOTTEN:
                raise Refused(f"{link.name} died, or gave up the save, while the checkpoint was written.")
            if state.phase == m.FAILED:
                raise CheckpointError(f"{link.name} could not write its part of the checkpoint: {state.failure}")
        self._record_phases([state.phase for state in states])
        if any(state.phase != m.WRITTEN for state in states):
            return None
        if self._written_at is None:
            self._written_at = self._clock()
        if states[0].awaited and self._clock() - self._written_at < WORKER_STATE_S:
            return None
        first = self._ask(self._links[0], worker_state=True)
        parts = tuple(state.part for state in states if state.part is not None)
        return SavedParts(parts, first.worker_state, first.sources, first.awaited)

    def committed(self, status: CheckpointStatus) -> None:
        """Tells ps:0 of the commit, which shows it in the job's status.

        Raises:
          PeerError: ps:0 is unreachable or knows another chief.
        """
        committed = m.Committed(ANY, ME, status.global_step, status.nbytes, status.seconds)
        self._links[0].ask("committed", committed, m.JobState)

    def _record_phases(self, phases: Collection[str]) -> None:
        self.waits = m.ARMED in phases and m.WRITING not in phases
        if self.started_at is None and any(phase != m.ARMED for phase in phases):
            self.started_at = self._clock()

    def _ask(self, link: Link, *, worker_state: bool) -> m.SaveState:
        try:
            return link.ask("save_state", m.SaveQuestion(ANY, ME, self._token, worker_state), m.SaveState)
        except Refused as exc:
            if exc.code is RefusalCode.MOVED:  # an order does not move with its shard
                return m.SaveState(m.FORGOTTEN)
            raise


class WorkerCheckpoints(Checkpoints):
    """`Checkpoints` of a worker on parameter servers: each ps writes its shard's values."""

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        requests: ShardRequests,
        exchanger: Exchanger,
        training: TrainingControl,
        setup: JobSetup,
    ) -> None:
        self._membership = membership
        self._links = links
        self._requests = requests
        self._exchanger = exchanger
        self._training = training
        self._setup = setup
        rule = membership.plan.description.rule
        self.in_step = rule["name"] == "sync" and not rule["backups"] and rule["aggregate"] is None
        """Whether all workers push before any update is made."""
        self._found: WorkerState | None = None
        # A checkpoint may refer to the step before the last or, with overlap, the one before that.
        self._carries: deque[tuple[int, PyTree]] = deque(maxlen=3)

    @property
    @override
    def restored(self) -> Checkpoint | None:
        return self._setup.restored

    @property
    @override
    def worker_state(self) -> WorkerState | None:
        return self._found

    def find_worker_state(self) -> WorkerState | None:
        """Finds what an earlier process or a restored checkpoint left for this worker; sets `worker_state`."""
        question = m.WorkerStateQuestion(ANY, ME)
        data = self._requests.ask(self._links[0], "my_worker_state", question, m.WorkerStateAnswer).data
        self._found = WorkerState.from_bytes(data, "ps:0") if data else None
        return self._found

    def record_step(self, steps: int, carry: PyTree) -> None:
        """Keeps the carry of this worker's steps after this many steps."""
        self._carries.append((steps, carry))

    @property
    def carry(self) -> PyTree:
        """The newest one that it keeps."""
        return self._carries[-1][1] if self._carries else ()

    @override
    def save(self, directory: Path, at: int | None) -> JobSaving:
        if at is None and not self._exchanger.now.done:
            states = self._training.states()  # others may have trained while this worker evaluated
            newest = max(state.version for state in states)
            # In step, the next update waits for this worker, so all ps hear of it before. Else pick one a little
            # ahead, so that all have heard by then and write the same version.
            ahead = 1 if self.in_step else AHEAD * max(1, len(states[0].live)) if len(self._links) > 1 else 0
            at = min(newest + ahead, states[0].last_version)
        return JobSaving(self._links, directory, at or 0, self._membership.runtime)

    @override
    def store_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        steps, carry = self._carries[max(0, len(self._carries) - 1 - behind)]
        self.send_worker_state(
            WorkerState.pack(self._membership.task, training, steps, position, carry).to_bytes(), behind
        )

    def send_worker_state(self, data: bytes, behind: int = 0) -> None:
        """Leaves with ps:0 what this worker needs to resume from `behind` pushes ago."""
        left = m.LeftWorkerState(ANY, ME, max(0, self._membership.sequence - behind), data)
        self._requests.ask(self._links[0], "worker_state", left, m.JobState)

    @override
    def gather(self, work: Callable[[], object]) -> bool:
        """Others need not contribute."""
        work()
        return False

    @override
    def end(self) -> None:
        """Each worker ends by itself."""
