"""The parameter service: the threaded shell around a shard, its rule and its members.

The transport calls `stream` in one thread for each worker and `call` in others; `run` is the task's main
thread. Everything that changes is changed under one lock, and nothing is sent while it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer
from trainband.errors import DeadlineExceeded, ProtocolError, RefusalCode, Refused, StreamClosed
from trainband.model.layout import ShardLayout
from trainband.ps.description import first_difference
from trainband.ps.membership.accounts import Account, variable_statuses
from trainband.ps.membership.job_end import Verdict, verdict
from trainband.ps.membership.members import Member, Members, Presence
from trainband.ps.membership.stall_detector import StallDetector
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator import Replicator
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.rules.base import ENOUGH, RuleError
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.server.flight_interface import rows_of_variable, tensors_of
from trainband.ps.server.gradients import all_finite, not_finite, widened
from trainband.ps.server.program import COMPILER, CompiledProgram, CompileProgram
from trainband.ps.statistics import CheckpointStatus, PsStatus, Rate, StalenessCounts
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.waiting import NOTICE_EVERY_S, Say, Waiting, say_on_stderr
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire import replication as r
from trainband.wire.codec import decode, decode_any, encode
from trainband.wire.transport import Connection, Stream, Tensor, Timeouts, Transport

WAIT_S = 0.2
"""Between two looks whether a worker still lives whose push waits for others."""

TICK_S = 0.2
"""Between two looks at the leases."""
DISMISSED_S = 15.0
"""How long a ps that was asked to end serves workers that have not left. Whoever asks may kill after 20 s or 30."""


class ParameterService:
    """One ps task of a job. A `Handler` for any transport.

    It has a replica of its own shard and, where shards have standbys, one of another.

    Args:
      cluster: and which of its ps this is.
      timeouts: how long to wait for what.
      say: where lines for people go.
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
        incarnation: str = "",
        transport: Transport | None = None,
        runtime: Runtime = SYSTEM,
        compile_program: CompileProgram = CompiledProgram,
    ) -> None:
        self._cluster = cluster
        self._task = str(cluster.task)
        self._timeouts = timeouts
        self._say = say
        self._runtime = runtime
        self._compile_program = compile_program
        self._clock = runtime.clock
        self._incarnation = incarnation
        self._transport = transport
        self._host = runtime.host
        self._born = runtime.clock()

        self._lock = runtime.lock()
        self._wake = runtime.event()
        self._stopped = False
        self._dismissed = False
        self._dismissed_at: float | None = None
        self.cut_short = False
        """Whether it ended because it was dismissed, and not with its job."""
        self._planned = [str(task) for task in cluster.spec.workers]
        self._planned_chief = str(cluster.spec.chief)
        self._members = Members(timeouts.lease_s, self._planned, timeouts.heartbeat_s)
        self._accounts: dict[int, Account] = {}
        self._replicas: dict[int, ShardReplica] = {}
        self._replicators: dict[int, Replicator] = {}
        self._home = self._replica(cluster.task.index)
        self._stall_detector = StallDetector(
            self._members, self._accounts, self._replicas, self._set_aside, say, runtime.clock
        )
        self._adopted: dict[int, float] = {}
        self._shutdown_reason = ""
        self._completed_at: float | None = None
        self._last_chief = self._planned_chief
        self._under_way = False
        """Whether somebody has joined who has been in the job before this ps was."""
        self._next_worker = 1 + max((task.index for task in cluster.spec.workers), default=-1)

        self._open_actions: dict[str, tuple[type[Any], Callable[[ShardReplica, Any], Struct]]] = {
            "join": (m.Join, self._join),
            "define": (m.Define, self._define),
            "invite": (m.Invite, self._invite),
            "leave": (m.Leave, self._leave),
            "shutdown": (m.Shutdown, self._shutdown),
        }
        # What only a member may ask, and, where a deed is named, only the chief. Done under the lock.
        saving, restoring = "save a checkpoint", "restore a checkpoint"
        self._actions: dict[str, tuple[type[Any], str, Callable[[ShardReplica, Member, Any], Struct]]] = {
            "heartbeat": (m.Heartbeat, "", self._heartbeat),
            "pause": (m.Pause, "", self._pause),
            "begin": (m.Begin, "begin a training", self._begin),
            "finish": (m.Finish, "end the training", self._finish),
            "steer": (m.Steer, "steer the optimizer", self._steer),
            "vote": (r.Vote, "", self._vote),
            "lease": (m.Lease, "", self._lease),
            "worker_state": (m.LeftWorkerState, "", self._worker_state),
            "my_worker_state": (
                m.WorkerStateQuestion,
                "",
                lambda replica, member, _: _worker_state_of(replica, member),
            ),
            "landed": (m.Landed, saving, self._landed),
            "save": (m.Save, saving, self._save),
            "save_state": (m.SaveQuestion, saving, self._save_state),
            "restore": (m.Restore, restoring, lambda replica, _, order: replica.require_new_saver().restore(order)),
            "restore_state": (
                m.RestoreQuestion,
                restoring,
                lambda replica, _, question: replica.require_new_saver().restore_state(question.token),
            ),
            "adopt": (m.Adopt, restoring, self._adopt),
        }

        self._rate = Rate()
        self._examples_rate = Rate()
        self._bytes_in = 0
        self._bytes_out = 0
        self._bytes_saved = 0
        self._non_finite_said = -NOTICE_EVERY_S

    # --- its replicas

    def _replica(self, shard: int) -> ShardReplica:
        """The replica of this shard. Made when it is first asked for.

        Raises:
          Refused: this ps has none.
        """
        mine, tasks = self._cluster.task.index, len(self._cluster.spec.ps)
        if shard not in self._replicas:
            if shard not in (mine, (mine - 1) % tasks):
                raise Refused(f"{self._task} has no replica of shard {shard}.")
            self._replicas[shard] = ShardReplica(
                shard, self._cluster, self._members, self._lock, self._incarnation, self._runtime, self._compile_program
            )
        return self._replicas[shard]

    def _replicator(self, replica: ShardReplica) -> Replicator:
        """What keeps a replica in step with the other one. Called under the lock."""
        if replica.number not in self._replicators:
            self._replicators[replica.number] = Replicator(
                replica,
                self._lock,
                connect=self._connect,
                arbiter=self._arbiter,
                names=self._worker_name,
                heard_s=self._heard_s,
                timeouts=self._timeouts,
                say=self._say,
                runtime=self._runtime,
            )
        return self._replicators[replica.number]

    def _replicate(self, replica: ShardReplica) -> None:
        """Begins to keep a standby, where the shard is to have one. Called under the lock."""
        has_another = replica.description is not None and replica.description.standbys
        if has_another and self._transport is not None and not self._stopped:
            self._replicator(replica).start()

    def _connect(self, ps: int, timeouts: Timeouts) -> Connection:
        assert self._transport is not None
        return self._transport.connect(self._ps_addresses()[ps], timeouts)

    def _arbiter(self, present: str, other_host: str) -> str:
        """Which worker should decide who succeeds: the present one while it lives, else one on a third machine."""
        found = self._members.of(present)
        if found is not None and found.live:
            return present
        live = sorted(self._members.live(), key=lambda member: member.number)
        elsewhere = [member for member in live if member.host not in (self._host, other_host)]
        return next((member.incarnation for member in (*elsewhere, *live)), present)

    def _heard_s(self, incarnation: str) -> float:
        """Seconds since a worker was heard; without end, if it is none of the job."""
        found = self._members.of(incarnation)
        return self._clock() - found.heard_at if found is not None else float("inf")

    def _worker_name(self, incarnation: str) -> str:
        found = self._members.of(incarnation)
        return found.task if found is not None else "a worker"

    # --- control

    def call(self, action: str, body: bytes) -> bytes:
        """See `Handler.call`."""
        name, _, shard = action.partition("/")
        with self._lock:
            replica = self._home if not shard.isdecimal() else self._replica(int(shard))
            if name == "state":
                return encode(self._state(replica))
            if name == "vacancy":
                return encode(self._vacancy())
        if name == "status":
            return encode(self.status(replica))
        sender = f"whoever asked {self._task} to {name}"
        if name in self._open_actions:
            kind, open_answer = self._open_actions[name]
            return encode(open_answer(replica, decode(body, kind, sender)))
        if name not in self._actions:
            raise Refused(f"{self._task} knows no action {name!r}; check that both run the same version of trainband.")
        kind, deed, answer = self._actions[name]
        record = decode(body, kind, sender)
        with self._lock:
            member = self._members.get(record.worker)
            if getattr(record, "life", "") not in ("", member.incarnation):
                raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
            if deed:
                self._require_chief(member, deed)
            self._hear(member)
            answered = answer(replica, member, record)
            position = replica.failover.position
        if name in ("begin", "finish", "lease", "worker_state", "pause", "steer"):
            try:
                self._settle(replica, position, lambda: False)
            except StreamClosed as exc:  # this ps ends: another one may hold the shard soon
                raise Refused(
                    f"{self._task} ends before the standby of {replica.name} has this.", RefusalCode.MOVED
                ) from exc
        return encode(answered)  # without the lock: worker state may be large

    def _settle(self, replica: ShardReplica, position: int, given_up: Callable[[], bool]) -> None:
        """Returns when the standby, if there is one, has everything up to a record."""
        replicator = self._replicators.get(replica.number)
        if replicator is not None:
            replicator.settle(position, lambda: self._stopped or given_up())

    def _join(self, replica: ShardReplica, join: m.Join) -> m.Joined:
        with self._lock:
            if (
                (replica.is_primary or replica.is_bootstrapping)
                and join.job
                and replica.job
                and join.job != replica.job
            ):
                raise Refused(self._of_another_job(join.task), RefusalCode.OTHER_JOB)
            self._expire()  # so that the rule hears of a death before it hears of the successor
            member, news = self._members.join(join.task, join.incarnation, join.host, join.pid, self._clock(), join.job)
            self._accounts.setdefault(member.number, Account())
            if news:
                member.paused = join.paused
                self._came(member)
            try:
                self._compare(replica, join.description, join.task)
            except Refused as exc:
                # It is not in the job: nobody waits for it, and the next process may have its name at once.
                self._members.leave(member, str(exc))
                self._gone(member)
                raise
            self._under_way = self._under_way or bool(join.job)
            return replica.joined(member)

    def _vacancy(self) -> m.Vacancy:
        taken = {member.task for member in self._members}
        worker = next(i for i in count(self._next_worker) if f"worker:{i}" not in taken)
        self._next_worker = worker + 1
        spec = self._cluster.spec
        addresses = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        return m.Vacancy(addresses, worker)

    def _compare(self, replica: ShardReplica, description: m.Description, task: str) -> None:
        if replica.description is None:
            return
        difference = first_difference(replica.description, description, task)
        if difference is not None:
            raise Refused(f"{task} cannot join this job: {difference}.", RefusalCode.OTHER_MODEL)

    def _define(self, replica: ShardReplica, define: m.Define) -> m.Joined:
        with self._lock:
            member = self._members.get(define.worker)
            self._require_chief(member, "define the model")
            self._hear(member)
            self._compare(replica, define.description, member.task)
            if replica.updater is not None:
                return replica.joined(member)
        program = replica.compile(define, member.task)
        with self._lock:
            if replica.updater is None:  # else: a repeated call overtook this one
                replica.install(define, program)
                for other in self._members.of_others(define.job) if define.job else ():
                    # Nobody waits for it, and the worker of this job that has its name may come.
                    self._members.leave(other, self._of_another_job(other.task))
                    self._say(other.failure)
                    self._gone(other)
            return replica.joined(member)

    def _of_another_job(self, task: str) -> str:
        return (
            f"{task} belongs to another job than the one that {self._task} serves now: its own has ended; "
            "start it again to join this one."
        )

    def _invite(self, replica: ShardReplica, invite: m.Invite) -> r.ReplicaState:
        if invite.trainband != VERSION:
            raise Refused(
                f"{self._task} runs trainband {VERSION}, and ps:{invite.replica.ps} runs {invite.trainband}: "
                "run the same version on both, so that they come to the same values."
            )
        with self._lock:
            if replica.number in self._replicators:
                self._replicators[replica.number].await_all_taken()
            if self._home.job not in ("", invite.define.job):
                raise Refused(
                    f"{self._task} serves another job than ps:{invite.replica.ps} does: end the tasks of the older one."
                )
            if replica.failover.role is not Role.PRIMARY and replica.failover.lineage != invite.replica.lineage:
                replica.failover.step_down()  # what it followed is no more
                replica.forget()
            serves = replica.failover.role is not Role.EMPTY
            replica.invited_at = self._clock()
        if not serves:
            if invite.compiler != COMPILER:
                self._say(
                    f"WARNING: {self._task} follows {replica.name} with {COMPILER}, and ps:{invite.replica.ps} has "
                    f"{invite.compiler}: its copy may differ in the last bits; install the same on both if they matter"
                )
            program = replica.compile(invite.define, f"ps:{invite.replica.ps}")
            program.warm_up()  # not when the primary waits
            with self._lock:
                if replica.failover.role is Role.EMPTY:
                    replica.install(invite.define, program)
                    self._replicate(replica)
        with self._lock:
            return replica.state()

    def _begin(self, replica: ShardReplica, _: Member, begin: m.Begin) -> m.JobState:
        if replica.updater is not None:
            replica.require_primary()
        if not replica.is_primary:
            raise Refused(f"{self._task} has no values yet, so training cannot begin.", RefusalCode.NOT_READY)
        if begin.fit > replica.fit:  # by more than one, if this ps has died and come back
            replica.begin(begin.fit, begin.last_version, begin.trainings)
            for account in self._accounts.values():
                account.pushed_at = self._clock()
        return self._state(replica)

    def _finish(self, replica: ShardReplica, _: Member, __: m.Finish) -> m.JobState:
        version = replica.require_primary().shard.version
        replica.begin(replica.fit, min(replica.last_version, version), replica.trainings)
        return self._state(replica)

    def _steer(self, replica: ShardReplica, _: Member, steer: m.Steer) -> m.JobState:
        replica.steer(steer.leaf, steer.value)
        return self._state(replica)

    def _heartbeat(self, replica: ShardReplica, member: Member, beat: m.Heartbeat) -> m.JobState:
        self._accounts[member.number].blocked_by = beat.blocked_by
        # A ps that holds a shard sees the pushes: these count more than one word, which may be belated.
        sees = any(one.is_primary for one in self._replicas.values())
        if beat.paused and (member.says_paused or not sees):
            self._set_aside(member)
        elif member.paused and not beat.paused and not sees:
            member.paused = False
            self._came(member)
        member.says_paused = beat.paused
        return self._state(replica)

    def _pause(self, replica: ShardReplica, member: Member, _: m.Pause) -> m.JobState:
        replica.require_held()
        self._set_aside(member)
        replica.free_reserved(member.number)
        return self._state(replica)

    def _set_aside(self, member: Member) -> None:
        """Counts a worker no more until its next push."""
        if not member.paused:
            member.paused = True
            for replica in self._replicas.values():
                replica.member_left(member.number, gone=False)

    def _vote(self, replica: ShardReplica, member: Member, vote: r.Vote) -> m.JobState:
        if vote.incarnation == replica.failover.term.arbiter == member.incarnation:
            self._replicator(replica).granted(vote.term, vote.yes, member.task)
        return self._state(replica)

    def _leave(self, replica: ShardReplica, leave: m.Leave) -> m.JobState:
        with self._lock:
            member = self._members.get(leave.worker)
            if leave.life not in ("", member.incarnation):
                return self._state(replica)  # its successor stays
            if self._members.leave(member, leave.failure):
                member.heard_at = self._clock()
                self._gone(member)
                if leave.failure:
                    self._say(f"{member.task} left the job: {leave.failure}")
            self._wake.set()
            return self._state(replica)

    # --- checkpoints

    def _save(self, replica: ShardReplica, member: Member, save: m.Save) -> m.SaveState:
        if not replica.require_updater().shard.initialised:
            raise Refused(f"{self._task} has no values yet that it could save.", RefusalCode.NOT_READY)
        replica.require_saver().save(save)
        return self._save_state(replica, member, m.SaveQuestion(save.worker, save.token, worker_state=False))

    def _save_state(self, replica: ShardReplica, _: Member, question: m.SaveQuestion) -> m.SaveState:
        live = {member.number for member in self._members.live()}
        return replica.require_saver().state(question, live, self._members.name)

    def _lease(self, replica: ShardReplica, member: Member, lease: m.Lease) -> LeaseAnswer:
        if not member.live:  # nobody would ever take back what it got
            raise Refused(f"{member.task} has left the job, and gets no more pieces of {lease.request.source!r}.")
        if not replica.is_primary:
            raise Refused(f"{self._task} does not hold {replica.name}, and so none of its data.", RefusalCode.MOVED)
        return replica.lease(member.number, lease.request)

    def _worker_state(self, replica: ShardReplica, _: Member, worker_state: m.LeftWorkerState) -> m.JobState:
        replica.keep_worker_state(worker_state)
        return self._state(replica)

    def _landed(self, replica: ShardReplica, _: Member, landed: m.Landed) -> m.JobState:
        replica.checkpoint = CheckpointStatus(landed.global_step, landed.nbytes, landed.seconds)
        return self._state(replica)

    def _adopt(self, replica: ShardReplica, member: Member, adopt: m.Adopt) -> m.Joined:
        self._require_uninvited(replica)
        replica.adopt(adopt)
        self._adopted[replica.number] = self._clock()
        self._replicate(replica)
        return replica.joined(member)

    def _require_uninvited(self, replica: ShardReplica) -> None:
        """Refuses values for a shard that another ps holds."""
        if not replica.is_primary and self._clock() - replica.invited_at < self._timeouts.lease_s:
            raise Refused(f"another ps has the values of {replica.name}.", RefusalCode.MOVED)

    def _shutdown(self, replica: ShardReplica, shutdown: m.Shutdown) -> m.JobState:
        with self._lock:
            self._shutdown_reason = shutdown.reason or "asked to"
            self._wake.set()
            return self._state(replica)

    def _state(self, replica: ShardReplica) -> m.JobState:
        live = self._members.live()
        return m.JobState(
            version=replica.version,
            last_version=replica.last_version,
            fit=replica.fit,
            initialised=replica.is_primary,
            live=tuple(member.task for member in live),
            waiting_for=replica.waiting_for(),
            at_work=tuple(member.task for member in self._members.at_work()),
            chief=self._chief(),
            trainings=replica.trainings,
            replicas=tuple(one.state() for one in self._replicas.values()),
        )

    def _chief(self) -> str:
        """Who has the chief's duties: the lowest live worker, once the cluster's chief has come and gone.

        To a ps that has come into a job under way, a chief that it has never seen is gone.
        """
        planned = self._planned_chief
        unknown = self._under_way and all(member.task != planned for member in self._members)
        if not (self._members.has_gone(planned) or unknown):
            self._last_chief = planned
        elif not (self._complete() and self._members.has_left(self._last_chief)):  # else its duties are done
            live = sorted(self._members.live(), key=lambda member: member.number)
            self._last_chief = live[0].task if live else planned
        return self._last_chief

    def _require_chief(self, member: Member, deed: str) -> None:
        chief, planned = self._chief(), self._planned_chief
        if member.task in (chief, planned):
            return
        live = sorted(self._members.live(), key=lambda one: one.number)
        if chief == planned and live and live[0] is member:
            return  # a chief that has died before it came here, as the other ps have told this one
        raise Refused(f"{member.task} may not {deed}: only the chief may, which is {chief}.", RefusalCode.NOT_CHIEF)

    def _hear(self, member: Member) -> None:
        if self._members.get(member.number) is not member:
            raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
        if self._members.heard(member, self._clock()):
            self._say(f"{member.task} is back")
            self._came(member)

    def _came(self, member: Member) -> None:
        """The rules count a worker from now on, or know that it has come if it has paused."""
        for replica in self._replicas.values():
            if member.paused:
                replica.member_left(member.number, gone=False)
            else:
                replica.member_joined(member.number)

    def _gone(self, member: Member) -> None:
        """Nobody waits for this worker any more, and what it had leased goes to others."""
        for replica in self._replicas.values():
            replica.member_left(member.number, gone=True)
        for replicator in self._replicators.values():
            replicator.changed()

    # --- training streams

    def stream(self, stream: Stream) -> None:
        """See `Handler.stream`: serves one worker, or the primary of another replica, for as long as it lives."""
        member: Member | None = None
        bootstrapping = False
        try:
            opened = self._opened(stream)
            if isinstance(opened, r.ReplicationHello):
                with self._lock:
                    replicator = self._replicator(self._replica(opened.shard))
                replicator.follow(stream, opened, lambda: self._stopped)
                return
            if opened is None:
                return
            member, replica, bootstrapping = opened
            while not self._stopped:
                frame = stream.receive(self._timeouts.heartbeat_s)
                if frame is None:
                    continue
                message: m.Upward = decode_any(frame.header, m.Upward, member.task)
                if isinstance(message, m.Push):
                    self._push(stream, replica, member, message, frame.body)
                elif isinstance(message, m.Pull):
                    self._send_params(stream, replica, member, m.APPLIED, 0, "")
                elif isinstance(message, m.Initialise):
                    self._initialise(replica, member, frame.body)
                    self._send_params(stream, replica, member, m.APPLIED, 0, "")
                else:
                    raise ProtocolError(f"{member.task} opened its stream twice.")
        except (Refused, ProtocolError, RuleError) as exc:
            self._fail(stream, exc)
        except (StreamClosed, DeadlineExceeded):
            pass  # the worker's end is gone: what that means for the job is decided below
        finally:
            stream.close()
            if member is not None and not bootstrapping:
                self._closed(member)

    def _opened(self, stream: Stream) -> tuple[Member, ShardReplica, bool] | r.ReplicationHello | None:
        """Who has opened a stream, and whether for first values only; `None` where this ps ends first."""
        patience = Waiting(self._timeouts.connect_s, self._say, self._clock)
        while not self._stopped:
            frame = stream.receive(self._timeouts.heartbeat_s)
            if frame is not None:
                message: m.Upward | r.ReplicationHello = decode_any(
                    frame.header, m.Upward | r.ReplicationHello, stream.peer
                )
                if isinstance(message, r.ReplicationHello):
                    return message
                if not isinstance(message, m.Open):
                    raise ProtocolError(f"{stream.peer} did not say who it is before anything else.")
                with self._lock:
                    member = self._members.get(message.worker)
                    if member.incarnation != message.incarnation:
                        raise Refused(
                            f"worker number {message.worker} is another process now.", RefusalCode.UNKNOWN_WORKER
                        )
                    replica = self._home if message.shard < 0 else self._replica(message.shard)
                    member.streams += not message.bootstrapping
                    self._accounts[member.number].transport = stream.transport
                    self._hear(member)
                return member, replica, message.bootstrapping
            patience.check(f"the first word of {stream.peer}", "it opened a stream and says nothing")
        return None

    def _closed(self, member: Member) -> None:
        """A stream of `member` has ended. Without a goodbye it is lost at once; its heartbeat may bring it back."""
        with self._lock:
            member.streams -= 1
            if member.streams == 0 and not self._stopped and self._members.lose(member):
                self._say(f"{member.task} is gone: its stream broke off")
                self._gone(member)
            self._wake.set()

    def _fail(self, stream: Stream, exc: Exception) -> None:
        self._say(f"refused {stream.peer}: {exc}")
        try:
            stream.send(encode(m.Failure(str(exc), exc.code if isinstance(exc, Refused) else RefusalCode.OTHER)))
        except (StreamClosed, DeadlineExceeded):
            return

    def _initialise(self, replica: ShardReplica, member: Member, body: Sequence[NDArray[np.uint8]]) -> None:
        with self._lock:
            self._require_chief(member, "initialise the variables")
            shard = replica.require_updater().shard
            if shard.initialised:
                return
            self._require_uninvited(replica)
            blocks = shard.layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} sent first values of another size than it defined.")
            replica.initialise(blocks)
            self._replicate(replica)

    def _push(
        self, stream: Stream, replica: ShardReplica, member: Member, push: m.Push, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        replica.require_held()
        updater = replica.updater
        if updater is None or not updater.shard.initialised:
            raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (it has no values yet).")
        layout = updater.shard.layout
        wire_dtype = replica.description.wire_dtype if replica.description else ""
        gradient = layout.from_wire(body, wire_dtype)
        if gradient is None:
            raise ProtocolError(
                f"{member.task} pushed a gradient that does not fit this shard (other sizes than were defined)."
            )
        if wire_dtype:
            gradient = widened(gradient, [block.dtype for block in layout.blocks])
        finite = push.finite and all_finite([g for g, b in zip(gradient, layout.blocks, strict=True) if b.trained])
        account = self._accounts[member.number]
        with self._lock:
            self._hear(member)
            replica.require_primary()
            self._members.pushed(member)
            member.says_paused = False
            if member.paused:
                member.paused = False
                self._came(member)
            account.note_push(self._clock(), push.examples)
            arrived = sum(raw.nbytes for raw in body)
            self._bytes_in += arrived
            self._bytes_saved += layout.nbytes - arrived
            late = 0 < push.fit < replica.fit  # the training that it belongs to is over
            if late:
                account.dropped += 1
            elif not finite:
                account.refused += 1
                detail = self._non_finite(member, push, layout, gradient, account.refused)
            else:
                account.loss = push.loss
                event = PushEvent(member.number, push.sequence, push.version, push.examples)
                pending = replica.push(event, gradient)
        if late:
            self._send_params(stream, replica, member, m.DROPPED, 0, ENOUGH, over=True)
            return
        if not finite:
            self._send_params(stream, replica, member, m.NON_FINITE, 0, detail)
            return
        while not pending.answered.wait(WAIT_S):
            if self._stopped or not stream.alive:
                raise StreamClosed(f"{member.task} has gone while its push waited for others.")
        if pending.outcome == m.APPLIED:
            account.note_update(pending.staleness)
        else:
            account.dropped += 1
        self._send_params(stream, replica, member, pending.outcome, pending.staleness, pending.detail)

    def _send_params(
        self,
        stream: Stream,
        replica: ShardReplica,
        member: Member,
        outcome: int,
        staleness: int,
        detail: str,
        *,
        over: bool = False,
    ) -> None:
        with self._lock:
            updater = replica.require_primary()
            shard = updater.shard
            version, position = shard.acquire(), replica.failover.position
            self._bytes_out += shard.layout.nbytes
            updater.remember(member.number, version)
            done = over or (replica.fit > 0 and version.number >= replica.last_version)
            worker_state = replica.saver.wanted(member.number) if replica.saver is not None else 0
        try:
            # Whatever is in these params, the standby has too.
            self._settle(replica, position, lambda: not stream.alive)
            stream.send(
                encode(m.Params(version.number, outcome, staleness, done, detail, worker_state)), version.arrays()
            )
        finally:
            with self._lock:
                shard.release(version)

    def _non_finite(
        self, member: Member, push: m.Push, layout: ShardLayout, gradient: Sequence[NDArray[Any]], count: int
    ) -> str:
        bad = not_finite(layout, gradient)
        text = (
            f"refused a gradient of {member.task} that is not finite"
            f" (push {push.sequence}, computed from version {push.version}, loss {push.loss:g}"
            + (f", in {', '.join(bad[:3])}" if bad else "")
            + f"; {count} so far)"
        )
        if self._clock() - self._non_finite_said >= NOTICE_EVERY_S:
            self._non_finite_said = self._clock()
            self._say(text)
        return text

    # --- the public face

    def tensors(self) -> Sequence[Tensor]:
        """See `Handler.tensors`."""
        with self._lock:
            layout = self._home.layout
            return tensors_of(layout.placement, self._ps_addresses()) if layout is not None else ()

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        """See `Handler.read`."""
        with self._lock:
            shard = self._home.require_primary().shard
        return rows_of_variable(shard, self._lock, self._task, name)

    def write(self, name: str, values: NDArray[np.generic]) -> None:  # noqa: ARG002 - the seam has it, this task refuses
        """See `Handler.write`."""
        raise Refused(f"{self._task} does not let {name!r} be assigned from outside: only the chief's own stream may.")

    def status(self, replica: ShardReplica | None = None) -> PsStatus:
        """A frozen picture of this ps with one of its replicas and, through it, of the job.

        `replica`: that of its own shard if left out, or, where another ps holds that, one that it does hold.
        """
        with self._lock:
            if replica is None or (replica is self._home and not replica.is_primary):
                replica = next((one for one in (self._home, *self._replicas.values()) if one.is_primary), self._home)
            updater, shard, layout = replica.updater, replica.shard, replica.layout
            now = self._clock()
            version = replica.version
            stalled = self._stall_detector.stalled()
            workers = tuple(
                self._accounts[member.number].status(
                    member, now, stalled[member.number].silent_s if member.number in stalled else 0.0
                )
                for member in self._members
            )
            losses = [w.loss for w in workers if w.loss is not None and w.presence == Presence.LIVE.value]
            staleness = updater.staleness if updater else StalenessCounts()
            ps = [str(task) for task in self._cluster.spec.ps]
            return PsStatus(
                task=self._task,
                address=self._cluster.address,
                incarnation=self._incarnation,
                rule=replica.description.rule if replica.description else {},
                initialised=replica.is_primary,
                version=version,
                last_version=replica.last_version,
                ended=self._stopped,
                uptime_s=now - self._born,
                rate=self._rate.at(now, version),
                staleness_median=staleness.quantile(0.5),
                staleness_p99=staleness.quantile(0.99),
                staleness_max=staleness.maximum(),
                examples_applied=updater.examples_applied if updater else 0,
                examples_rate=self._examples_rate.at(now, updater.examples_applied if updater else 0),
                examples_dropped=updater.examples_dropped if updater else 0,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                bytes_saved=self._bytes_saved,
                shard_bytes=shard.layout.nbytes if shard else 0,
                loss=sum(losses) / len(losses) if losses else None,
                waiting_for=replica.waiting_for(),
                workers=workers,
                checkpoint=replica.checkpoint,
                variables=variable_statuses(layout.placement, ps) if layout else (),
                chief=self._chief(),
                replicas=tuple(one.state() for one in self._replicas.values()),
            )

    def _ps_addresses(self) -> list[str]:
        return [self._cluster.spec.address(task) for task in self._cluster.spec.ps]

    # --- the life of the task

    def run(self) -> str:
        """Serves until the job ends; returns why it did, in words.

        Raises:
          DeadlineExceeded: every worker was lost before the job was complete, and none came back.
        """
        patience: Waiting | None = None
        reason = ""
        try:
            while True:
                with self._lock:
                    self._expire()
                    description = self._home.description
                    self._stall_detector.handle_stalled(description.stall_s if description is not None else 0.0)
                    self._stall_detector.break_deadlocks()
                    self._free_pieces()
                    self._sample()
                    now = self._verdict()
                if now.ended:
                    return now.ended
                if now.waiting_for:
                    if patience is None or reason != now.waiting_for:
                        patience, reason = Waiting(now.timeout_s, self._say, self._clock), now.waiting_for
                    try:
                        patience.check(reason, "start the workers again, or look at why they ended")
                    except DeadlineExceeded:
                        if self._complete():
                            return "the job is complete"
                        raise
                else:
                    patience = None
                self._wake.wait(TICK_S)
                self._wake.clear()
        finally:
            self.stop()
            for replicator in list(self._replicators.values()):
                replicator.stop(self._timeouts.grace_s)
            for replica in self._replicas.values():
                if replica.saver is not None:
                    replica.saver.close(self._timeouts.grace_s)

    def dismiss(self) -> None:
        """Has `run` end when no worker is left, and in `DISMISSED_S` at the latest. For a signal handler, too."""
        self._dismissed = True  # `run` looks at it now and then

    def stop(self) -> None:
        """Lets every stream end. Idempotent."""
        with self._lock:
            self._stopped = True
            self._wake.set()

    def _sample(self) -> None:
        """Keeps the rates fresh, so that whoever asks once gets an answer about the last seconds."""
        now = self._clock()
        updater = self._home.updater
        self._rate.at(now, self._home.version)
        self._examples_rate.at(now, updater.examples_applied if updater else 0)
        for account in self._accounts.values():
            account.rate.at(now, account.pushes)

    def _expire(self) -> None:
        for member in self._members.expired(self._clock()):
            self._members.lose(member)
            self._say(f"{member.task} is gone: not heard for {self._timeouts.lease_s:g} s")
            self._gone(member)

    def _free_pieces(self) -> None:
        """What a checkpoint has reserved for workers goes to others, if they have not come back within a lease."""
        for number, since in list(self._adopted.items()):
            if self._clock() - since < self._timeouts.lease_s:
                continue
            del self._adopted[number]
            replica, live = self._replicas[number], self._members.live()
            if replica.is_primary:
                replica.free_pieces({member.number for member in live})
                for paused in (member.number for member in live if member.paused):
                    replica.free_reserved(paused)

    def _complete(self) -> bool:
        held = [replica for replica in self._replicas.values() if replica.failover.role in (Role.PRIMARY, Role.STANDBY)]
        return bool(held) and all(replica.complete for replica in held)

    def _verdict(self) -> Verdict:
        if self._shutdown_reason:
            return Verdict(ended=f"shut down: {self._shutdown_reason}")
        if self._stopped:
            return Verdict(ended="its server was shut down")
        now = self._clock()
        if not self._complete():
            self._completed_at = None
        elif self._completed_at is None:
            self._completed_at = now
        found = verdict(
            list(self._members),
            self._planned,
            self._planned_chief,
            completed_at=self._completed_at,
            unlimited=any(
                replica.fit > 0 and replica.last_version >= m.UNLIMITED for replica in self._replicas.values()
            ),
            start_s=self._timeouts.start_s,
            now=now,
        )
        if not self._dismissed:
            return found
        if not found.ended:
            if self._serves_yet(now):
                return found
            found = Verdict(ended=PREEMPTED)
        self.cut_short = not self._complete()
        return found

    def _serves_yet(self, now: float) -> bool:
        """Whether, though this ps was dismissed, workers are there that may have something to finish."""
        live = ", ".join(sorted(member.task for member in self._members.live()))
        if self._dismissed_at is None:
            self._dismissed_at = now
            if live:
                self._say(f"{self._task}: {PREEMPTED}; for {DISMISSED_S:g} s at most it serves {live} until they leave")
        return bool(live) and now - self._dismissed_at < DISMISSED_S


def _worker_state_of(replica: ShardReplica, member: Member) -> m.WorkerStateAnswer:
    return replica.require_saver().worker_state_of(member.number)
