"""The parameter service: the threaded shell around a shard, its rule and its members.

The transport calls `stream` in one thread for each worker and `call` in others; `run` is the task's main
thread. Everything that changes is changed under one lock, and nothing is sent while it is held.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.cluster.resolvers.checkpoint_dirs import checkpoint_dirs as checkpoint_dirs_of_environment
from trainband.errors import RefusalCode, Refused, TrainbandError
from trainband.ps.membership.members import Members
from trainband.ps.membership.stall_detector import StallDetector
from trainband.ps.server.allowed_directories import AllowedDirectories
from trainband.ps.server.checkpoint_calls import CheckpointCalls
from trainband.ps.server.control import Control
from trainband.ps.server.flight_interface import rows_of_variable, tensors_of
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.lifecycle import Lifecycle
from trainband.ps.server.member_calls import MemberCalls
from trainband.ps.server.open_calls import OpenCalls
from trainband.ps.server.other_ps import OtherPs
from trainband.ps.server.program import CompiledProgram, CompileProgram
from trainband.ps.server.readers import Readers
from trainband.ps.server.recording_orders import RecordingOrders
from trainband.ps.server.reserved_pieces import ReservedPieces
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter, Traffic
from trainband.ps.server.streams import Streams
from trainband.ps.server.task_state import TaskState
from trainband.ps.statistics import PsStatus
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.formatting import printable
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire.limits import LIMITS
from trainband.wire.transport import ANYBODY, Caller, Stream, Tensor, Timeouts, Transport

TOLD = (RefusalCode.OTHER_MODEL, RefusalCode.OTHER_VERSION)
"""Why a worker cannot join whom the others may wait for: whoever looks at the ps reads it."""


class ParameterService:
    """One ps task of a job. A `Handler` for any transport.

    It has a replica of its own shard and, where shards have standbys, one of another.

    Args:
      cluster: and which of its ps this is.
      timeouts: how long to wait for what.
      say: where lines for people go.
      checkpoint_dirs: see `Server`.
      incarnation: random, one for each life of the process.
      transport: the way to the other ps; without one, no shard has a standby.
      runtime: its clock and threads.
      compile_program: makes what runs an update program.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeouts: Timeouts,
        say: Say = say_on_stderr,
        checkpoint_dirs: Sequence[str | os.PathLike[str]] | None = None,
        incarnation: str = "",
        transport: Transport | None = None,
        runtime: Runtime = SYSTEM,
        compile_program: CompileProgram = CompiledProgram,
    ) -> None:
        directories = AllowedDirectories(
            checkpoint_dirs_of_environment() if checkpoint_dirs is None else checkpoint_dirs, str(cluster.task)
        )
        task = self.task = TaskState(cluster, timeouts, say, directories, incarnation, runtime)
        members = Members(timeouts.lease_s, [str(worker) for worker in cluster.spec.workers], timeouts.heartbeat_s)
        replicas = self.replicas = ShardReplicas(task, members, transport, compile_program)
        membership = self.membership = JobMembership(task, members, replicas)
        self.stall_detector = StallDetector(
            members, membership.accounts, replicas.by_shard, membership.set_aside, say, runtime.clock
        )
        self.reserved_pieces = ReservedPieces(task, members, replicas)
        traffic, recordings = Traffic(), RecordingOrders(task, membership)
        self._status = StatusReporter(task, membership, replicas, self.stall_detector, traffic, recordings)
        readers = Readers(task, replicas)
        self.lifecycle = Lifecycle(
            task,
            membership,
            replicas,
            self.stall_detector,
            self.reserved_pieces,
            self._status,
            OtherPs(task, replicas, transport),
            readers,
        )
        self.streams = Streams(task, membership, replicas, traffic, readers)
        self._control = Control(
            task,
            membership,
            replicas,
            self._status,
            OpenCalls(task, membership, replicas, self.lifecycle, self._status),
            MemberCalls(task, membership, replicas, self._status, recordings),
            CheckpointCalls(task, members, replicas, self.reserved_pieces, self._status),
            recordings,
        )

    @property
    def cut_short(self) -> bool:
        """Whether it ended because it was dismissed, and not with its job."""
        return self.lifecycle.cut_short

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """See `Handler.call`."""
        try:
            return self._control.call(action, body, caller)
        except TrainbandError as exc:
            who = str(caller.identity.name) if caller.identity is not None else "whoever asked"
            is_new = self.task.refusals.note(who, action, exc)
            if is_new and isinstance(exc, Refused) and exc.code in TOLD:
                self.task.say(f"refused: {printable(str(exc), LIMITS.failure_length)}")
            raise

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """See `Handler.stream`."""
        self.streams.serve(stream, caller)

    def tensors(self) -> Sequence[Tensor]:
        """See `Handler.tensors`."""
        with self.task.lock:
            layout = self.replicas.home.model.layout
            return tensors_of(layout.placement, self.task.ps_addresses()) if layout is not None else ()

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        """See `Handler.read`."""
        with self.task.lock:
            shard = self.replicas.home.model.require_primary().shard
        return rows_of_variable(shard, self.task.lock, self.task.name, name)

    def status(self) -> PsStatus:
        """A frozen picture of this ps and, through it, of the job."""
        return self._status.ps_status()

    def position(self) -> dict[str, int]:
        """The version of the shard that this ps is named after, and its term, for the log. Takes no lock."""
        home = self.replicas.home
        return {"global_step": home.version, "term": home.failover.term.number}

    def run(self) -> str:
        """Serves until the job ends; returns why it did, in words.

        Raises:
          CheckpointError: values were lost, and no worker can give them back.
          DeadlineExceeded: every worker was lost before the job was complete, and none came back.
        """
        return self.lifecycle.run()

    def dismiss(self) -> None:
        """Has `run` end when no worker is left, and in `DISMISSED_S` at the latest. For a signal handler, too."""
        self.lifecycle.dismiss()

    def stop(self) -> None:
        """Lets every stream end. Idempotent."""
        self.lifecycle.stop()
