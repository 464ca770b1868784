"""The parameter service: the threaded shell around a shard, its rule and its members.

The transport calls `stream` in one thread per worker and `call` in others; `run` is the task's main thread. One
lock guards all mutable state, and nothing is sent while it is held.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.cluster.resolvers.checkpoint_dirs import checkpoint_dirs as checkpoint_dirs_of_environment
from trainband.errors import RefusalCode, Refused, TrainbandError
from trainband.job.statistics import PsStatus
from trainband.ps.membership.members import Members
from trainband.ps.program.compiled_program import CompiledProgram, CompileProgram
from trainband.ps.service.calls import make_calls
from trainband.ps.service.checkpoint_calls import CheckpointCalls
from trainband.ps.service.control import Control
from trainband.ps.service.flight_interface import rows_of_variable, tensors_of
from trainband.ps.service.job_calls import JobCalls
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.lifecycle import Lifecycle
from trainband.ps.service.membership_calls import MembershipCalls
from trainband.ps.service.memory import PsMemory
from trainband.ps.service.other_ps import OtherPs
from trainband.ps.service.readers import Readers
from trainband.ps.service.recording_orders import RecordingOrders
from trainband.ps.service.replica_calls import ReplicaCalls
from trainband.ps.service.reserved_pieces import ReservedPieces
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.stall_detector import StallDetector
from trainband.ps.service.status import StatusReporter, Traffic
from trainband.ps.service.streams import Streams
from trainband.ps.service.training_calls import TrainingCalls
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.ps.task_state import TaskState
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.formatting import printable
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire.limits import LIMITS
from trainband.wire.transport import ANYBODY, Caller, Stream, Tensor, Timeouts, Transport

TOLD = (RefusalCode.OTHER_MODEL, RefusalCode.OTHER_VERSION)
"""Shown in the ps status when a worker that others may be waiting for is refused."""


class ParameterService:
    """One ps task of a job. A `Handler` for any transport.

    It has a replica of its own shard and, if shards have standbys, of another.

    Args:
      checkpoint_dirs: see `Server`.
      incarnation: random, new for each process.
      transport: to the other ps; without one, no shard has a standby.
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
            members,
            membership.accounts,
            replicas.by_shard,
            membership.set_aside,
            membership.moved_s,
            say,
            runtime.clock,
        )
        self.reserved_pieces = ReservedPieces(task, members, replicas)
        traffic, recordings = Traffic(), RecordingOrders(task, membership)
        memory = PsMemory(runtime, replicas)
        self._status = StatusReporter(task, membership, replicas, self.stall_detector, traffic, recordings, memory)
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
        calls = make_calls(
            JobCalls(self._status, recordings, self.lifecycle),
            MembershipCalls(task, membership, replicas, self._status),
            TrainingCalls(task, membership, self._status),
            CheckpointCalls(task, members, replicas, self.reserved_pieces, self._status),
            ReplicaCalls(task, replicas, self._status),
        )
        self.control = Control(task, membership, replicas, calls)

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        try:
            return self.control.call(action, body, caller)
        except TrainbandError as exc:
            who = str(caller.identity.name) if caller.identity is not None else "unknown caller"
            is_new = self.task.refusals.record(who, action, exc)
            if is_new and isinstance(exc, Refused) and exc.code in TOLD:
                self.task.say(f"refused: {printable(str(exc), LIMITS.failure_length)}")
            raise

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        self.streams.serve(stream, caller)

    def tensors(self) -> Sequence[Tensor]:
        with self.task.lock:
            found = self.replicas.home.definition
            return tensors_of(found.layout.placement, self.task.ps_addresses()) if found is not None else ()

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        with self.task.lock:
            shard = self.replicas.home.require_primary()
        return rows_of_variable(shard, self.task.lock, self.task.name, name)

    def status(self) -> PsStatus:
        """Returns a snapshot of this ps and, through it, the job."""
        return self._status.ps_status()

    def position(self) -> dict[str, int]:
        """Returns the version and term of this ps's own shard, for the log. Takes no lock."""
        home = self.replicas.home
        return {"global_step": home.version, "term": home.failover.term.number}
