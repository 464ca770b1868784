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
from trainband.errors import DeadlineExceeded, ProtocolError, Refused, StreamClosed
from trainband.ps.accounts import Account, variable_statuses
from trainband.ps.description import first_difference
from trainband.ps.ending import Verdict, verdict
from trainband.ps.face import rows_of_variable, tensors_of
from trainband.ps.gradients import all_finite, not_finite, widened
from trainband.ps.keeper import Keeper
from trainband.ps.layout import ShardLayout
from trainband.ps.members import Member, Members, Presence
from trainband.ps.program import COMPILER, CompiledProgram, CompileProgram
from trainband.ps.rules.base import ENOUGH, RuleError
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.seat import Seat
from trainband.ps.statistics import CheckpointStatus, PsStatus, Rate, StalenessCounts
from trainband.ps.succession import Role
from trainband.ps.vigil import Vigil
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

    It has a seat of its own shard and, where shards have standbys, one of another.

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
        self._seats: dict[int, Seat] = {}
        self._keepers: dict[int, Keeper] = {}
        self._home = self._seat(cluster.task.index)
        self._vigil = Vigil(self._members, self._accounts, self._seats, self._set_aside, say, runtime.clock)
        self._adopted: dict[int, float] = {}
        self._shutdown_reason = ""
        self._completed_at: float | None = None
        self._last_chief = self._planned_chief
        self._under_way = False
        """Whether somebody has joined who has been in the job before this ps was."""
        self._next_worker = 1 + max((task.index for task in cluster.spec.workers), default=-1)

        self._open_actions: dict[str, tuple[type[Any], Callable[[Seat, Any], Struct]]] = {
            "join": (m.Join, self._join),
            "define": (m.Define, self._define),
            "invite": (m.Invite, self._invite),
            "leave": (m.Leave, self._leave),
            "shutdown": (m.Shutdown, self._shutdown),
        }
        # What only a member may ask, and, where a deed is named, only the chief. Done under the lock.
        saving, restoring = "save a checkpoint", "restore a checkpoint"
        self._actions: dict[str, tuple[type[Any], str, Callable[[Seat, Member, Any], Struct]]] = {
            "heartbeat": (m.Heartbeat, "", self._heartbeat),
            "pause": (m.Pause, "", self._pause),
            "begin": (m.Begin, "begin a training", self._begin),
            "finish": (m.Finish, "end the training", self._finish),
            "steer": (m.Steer, "steer the optimizer", self._steer),
            "grant": (r.Grant, "", self._grant),
            "lease": (m.Lease, "", self._lease),
            "luggage": (m.Luggage, "", self._luggage),
            "my_luggage": (m.LuggageQuestion, "", lambda seat, member, _: _luggage_of(seat, member)),
            "landed": (m.Landed, saving, self._landed),
            "save": (m.Save, saving, self._save),
            "save_state": (m.SaveQuestion, saving, self._save_state),
            "restore": (m.Restore, restoring, lambda seat, _, order: seat.require_new_saver().restore(order)),
            "restore_state": (
                m.RestoreQuestion,
                restoring,
                lambda seat, _, question: seat.require_new_saver().restore_state(question.token),
            ),
            "adopt": (m.Adopt, restoring, self._adopt),
        }

        self._rate = Rate()
        self._examples_rate = Rate()
        self._bytes_in = 0
        self._bytes_out = 0
        self._bytes_saved = 0
        self._non_finite_said = -NOTICE_EVERY_S

    # --- its seats

    def _seat(self, shard: int) -> Seat:
        """The seat of this shard. Made when it is first asked for.

        Raises:
          Refused: this ps has none.
        """
        mine, tasks = self._cluster.task.index, len(self._cluster.spec.ps)
        if shard not in self._seats:
            if shard not in (mine, (mine - 1) % tasks):
                raise Refused(f"{self._task} has no seat of shard {shard}.")
            self._seats[shard] = Seat(
                shard, self._cluster, self._members, self._lock, self._incarnation, self._runtime, self._compile_program
            )
        return self._seats[shard]

    def _keeper(self, seat: Seat) -> Keeper:
        """What keeps a seat in step with the other one. Called under the lock."""
        if seat.number not in self._keepers:
            self._keepers[seat.number] = Keeper(
                seat,
                self._lock,
                connect=self._connect,
                arbiter=self._arbiter,
                names=self._worker_name,
                heard_s=self._heard_s,
                timeouts=self._timeouts,
                say=self._say,
                runtime=self._runtime,
            )
        return self._keepers[seat.number]

    def _keep(self, seat: Seat) -> None:
        """Begins to keep a standby, where the shard is to have one. Called under the lock."""
        has_another = seat.description is not None and seat.description.replicas
        if has_another and self._transport is not None and not self._stopped:
            self._keeper(seat).start()

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
            seat = self._home if not shard.isdecimal() else self._seat(int(shard))
            if name == "state":
                return encode(self._state(seat))
            if name == "vacancy":
                return encode(self._vacancy())
        if name == "status":
            return encode(self.status(seat))
        sender = f"whoever asked {self._task} to {name}"
        if name in self._open_actions:
            kind, open_answer = self._open_actions[name]
            return encode(open_answer(seat, decode(body, kind, sender)))
        if name not in self._actions:
            raise Refused(f"{self._task} knows no action {name!r}; check that both run the same version of trainband.")
        kind, deed, answer = self._actions[name]
        record = decode(body, kind, sender)
        with self._lock:
            member = self._members.get(record.worker)
            if getattr(record, "life", "") not in ("", member.incarnation):
                raise Refused(f"{m.REPLACED} {member.task} in the job.")
            if deed:
                self._require_chief(member, deed)
            self._hear(member)
            answered = answer(seat, member, record)
            position = seat.book.position
        if name in ("begin", "finish", "lease", "luggage", "pause", "steer"):
            try:
                self._settle(seat, position, lambda: False)
            except StreamClosed as exc:  # this ps ends: another one may hold the shard soon
                raise Refused(f"{m.MOVED}{self._task} ends before the standby of {seat.name} has this.") from exc
        return encode(answered)  # without the lock: luggage may be large

    def _settle(self, seat: Seat, position: int, given_up: Callable[[], bool]) -> None:
        """Returns when the standby, if there is one, has everything up to a record."""
        keeper = self._keepers.get(seat.number)
        if keeper is not None:
            keeper.settle(position, lambda: self._stopped or given_up())

    def _join(self, seat: Seat, join: m.Join) -> m.Joined:
        with self._lock:
            if (seat.reigns or seat.is_founded) and join.job and seat.job and join.job != seat.job:
                raise Refused(self._of_another_job(join.task))
            self._expire()  # so that the rule hears of a death before it hears of the heir
            member, news = self._members.join(join.task, join.incarnation, join.host, join.pid, self._clock(), join.job)
            self._accounts.setdefault(member.number, Account())
            if news:
                member.paused = join.paused
                self._came(member)
            try:
                self._compare(seat, join.description, join.task)
            except Refused as exc:
                # It is not in the job: nobody waits for it, and the next process may have its name at once.
                self._members.leave(member, str(exc))
                self._gone(member)
                raise
            self._under_way = self._under_way or bool(join.job)
            return seat.joined(member)

    def _vacancy(self) -> m.Vacancy:
        taken = {member.task for member in self._members}
        worker = next(i for i in count(self._next_worker) if f"worker:{i}" not in taken)
        self._next_worker = worker + 1
        spec = self._cluster.spec
        addresses = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        return m.Vacancy(addresses, worker)

    def _compare(self, seat: Seat, description: m.Description, task: str) -> None:
        if seat.description is None:
            return
        difference = first_difference(seat.description, description, task)
        if difference is not None:
            raise Refused(f"{m.MISMATCH}{task} cannot join this job: {difference}.")

    def _define(self, seat: Seat, define: m.Define) -> m.Joined:
        with self._lock:
            member = self._members.get(define.worker)
            self._require_chief(member, "define the model")
            self._hear(member)
            self._compare(seat, define.description, member.task)
            if seat.engine is not None:
                return seat.joined(member)
        program = seat.compile(define, member.task)
        with self._lock:
            if seat.engine is None:  # else: a repeated call overtook this one
                seat.install(define, program)
                for other in self._members.of_others(define.job) if define.job else ():
                    # Nobody waits for it, and the worker of this job that has its name may come.
                    self._members.leave(other, self._of_another_job(other.task))
                    self._say(other.failure)
                    self._gone(other)
            return seat.joined(member)

    def _of_another_job(self, task: str) -> str:
        return (
            f"{task} belongs to another job than the one that {self._task} serves now: its own has ended; "
            "start it again to join this one."
        )

    def _invite(self, seat: Seat, invite: m.Invite) -> r.SeatState:
        if invite.trainband != VERSION:
            raise Refused(
                f"{self._task} runs trainband {VERSION}, and ps:{invite.seat.seat} runs {invite.trainband}: "
                "run the same version on both, so that they come to the same values."
            )
        with self._lock:
            if seat.number in self._keepers:
                self._keepers[seat.number].await_all_taken()
            if self._home.job not in ("", invite.define.job):
                raise Refused(
                    f"{self._task} serves another job than ps:{invite.seat.seat} does: end the tasks of the older one."
                )
            if seat.book.role is not Role.PRIMARY and seat.book.lineage != invite.seat.lineage:
                seat.book.abdicate()  # what it followed is no more
                seat.forget()
            serves = seat.book.role is not Role.EMPTY
            seat.invited_at = self._clock()
        if not serves:
            if invite.compiler != COMPILER:
                self._say(
                    f"WARNING: {self._task} follows {seat.name} with {COMPILER}, and ps:{invite.seat.seat} has "
                    f"{invite.compiler}: its copy may differ in the last bits; install the same on both if they matter"
                )
            program = seat.compile(invite.define, f"ps:{invite.seat.seat}")
            program.warm_up()  # not when the primary waits
            with self._lock:
                if seat.book.role is Role.EMPTY:
                    seat.install(invite.define, program)
                    self._keep(seat)
        with self._lock:
            return seat.state()

    def _begin(self, seat: Seat, _: Member, begin: m.Begin) -> m.JobState:
        if seat.engine is not None:
            seat.require_primary()
        if not seat.reigns:
            raise Refused(f"{self._task} has no values yet, so training cannot begin.")
        if begin.fit > seat.fit:  # by more than one, if this ps has died and come back
            seat.begin(begin.fit, begin.last_version, begin.trainings)
            for account in self._accounts.values():
                account.pushed_at = self._clock()
        return self._state(seat)

    def _finish(self, seat: Seat, _: Member, __: m.Finish) -> m.JobState:
        version = seat.require_primary().shard.version
        seat.begin(seat.fit, min(seat.last_version, version), seat.trainings)
        return self._state(seat)

    def _steer(self, seat: Seat, _: Member, steer: m.Steer) -> m.JobState:
        seat.steer(steer.leaf, steer.value)
        return self._state(seat)

    def _heartbeat(self, seat: Seat, member: Member, beat: m.Heartbeat) -> m.JobState:
        self._accounts[member.number].blocked_by = beat.blocked_by
        # A ps that holds a shard sees the pushes: these count more than one word, which may be belated.
        sees = any(one.reigns for one in self._seats.values())
        if beat.paused and (member.says_paused or not sees):
            self._set_aside(member)
        elif member.paused and not beat.paused and not sees:
            member.paused = False
            self._came(member)
        member.says_paused = beat.paused
        return self._state(seat)

    def _pause(self, seat: Seat, member: Member, _: m.Pause) -> m.JobState:
        seat.require_held()
        self._set_aside(member)
        seat.free_reserved(member.number)
        return self._state(seat)

    def _set_aside(self, member: Member) -> None:
        """Counts a worker no more until its next push."""
        if not member.paused:
            member.paused = True
            for seat in self._seats.values():
                seat.member_left(member.number, gone=False)

    def _grant(self, seat: Seat, member: Member, grant: r.Grant) -> m.JobState:
        if grant.incarnation == seat.book.reign.arbiter == member.incarnation:
            self._keeper(seat).granted(grant.epoch, grant.yes, member.task)
        return self._state(seat)

    def _leave(self, seat: Seat, leave: m.Leave) -> m.JobState:
        with self._lock:
            member = self._members.get(leave.worker)
            if leave.life not in ("", member.incarnation):
                return self._state(seat)  # its heir stays
            if self._members.leave(member, leave.failure):
                member.heard_at = self._clock()
                self._gone(member)
                if leave.failure:
                    self._say(f"{member.task} left the job: {leave.failure}")
            self._wake.set()
            return self._state(seat)

    # --- checkpoints

    def _save(self, seat: Seat, member: Member, save: m.Save) -> m.SaveState:
        if not seat.require_engine().shard.initialised:
            raise Refused(f"{self._task} has no values yet that it could save.")
        seat.require_saver().save(save)
        return self._save_state(seat, member, m.SaveQuestion(save.worker, save.token, luggage=False))

    def _save_state(self, seat: Seat, _: Member, question: m.SaveQuestion) -> m.SaveState:
        live = {member.number for member in self._members.live()}
        return seat.require_saver().state(question, live, self._members.name)

    def _lease(self, seat: Seat, member: Member, lease: m.Lease) -> LeaseAnswer:
        if not member.live:  # nobody would ever take back what it got
            raise Refused(f"{member.task} has left the job, and gets no more pieces of {lease.request.source!r}.")
        if not seat.reigns:
            raise Refused(f"{m.MOVED}{self._task} has no values of {seat.name}, and so none of its data.")
        return seat.lease(member.number, lease.request)

    def _luggage(self, seat: Seat, _: Member, luggage: m.Luggage) -> m.JobState:
        seat.keep_luggage(luggage)
        return self._state(seat)

    def _landed(self, seat: Seat, _: Member, landed: m.Landed) -> m.JobState:
        seat.checkpoint = CheckpointStatus(landed.global_step, landed.nbytes, landed.seconds)
        return self._state(seat)

    def _adopt(self, seat: Seat, member: Member, adopt: m.Adopt) -> m.Joined:
        self._require_uninvited(seat)
        seat.adopt(adopt)
        self._adopted[seat.number] = self._clock()
        self._keep(seat)
        return seat.joined(member)

    def _require_uninvited(self, seat: Seat) -> None:
        """Refuses values for a shard that another ps holds."""
        if not seat.reigns and self._clock() - seat.invited_at < self._timeouts.lease_s:
            raise Refused(f"{m.MOVED}another ps has the values of {seat.name}.")

    def _shutdown(self, seat: Seat, shutdown: m.Shutdown) -> m.JobState:
        with self._lock:
            self._shutdown_reason = shutdown.reason or "asked to"
            self._wake.set()
            return self._state(seat)

    def _state(self, seat: Seat) -> m.JobState:
        live = self._members.live()
        return m.JobState(
            version=seat.version,
            last_version=seat.last_version,
            fit=seat.fit,
            initialised=seat.reigns,
            live=tuple(member.task for member in live),
            waiting_for=seat.waiting_for(),
            at_work=tuple(member.task for member in self._members.at_work()),
            chief=self._chief(),
            trainings=seat.trainings,
            seats=tuple(one.state() for one in self._seats.values()),
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
        raise Refused(f"{member.task} may not {deed}: {m.CHIEF_ONLY}, which is {chief}.")

    def _hear(self, member: Member) -> None:
        if self._members.get(member.number) is not member:
            raise Refused(f"{m.REPLACED} {member.task} in the job.")
        if self._members.heard(member, self._clock()):
            self._say(f"{member.task} is back")
            self._came(member)

    def _came(self, member: Member) -> None:
        """The rules count a worker from now on, or know that it has come if it has paused."""
        for seat in self._seats.values():
            if member.paused:
                seat.member_left(member.number, gone=False)
            else:
                seat.member_joined(member.number)

    def _gone(self, member: Member) -> None:
        """Nobody waits for this worker any more, and what it had leased goes to others."""
        for seat in self._seats.values():
            seat.member_left(member.number, gone=True)
        for keeper in self._keepers.values():
            keeper.changed()

    # --- training streams

    def stream(self, stream: Stream) -> None:
        """See `Handler.stream`: serves one worker, or the primary of another seat, for as long as it lives."""
        member: Member | None = None
        founding = False
        try:
            opened = self._opened(stream)
            if isinstance(opened, r.Lead):
                with self._lock:
                    keeper = self._keeper(self._seat(opened.shard))
                keeper.follow(stream, opened, lambda: self._stopped)
                return
            if opened is None:
                return
            member, seat, founding = opened
            while not self._stopped:
                frame = stream.receive(self._timeouts.heartbeat_s)
                if frame is None:
                    continue
                message: m.Upward = decode_any(frame.header, m.Upward, member.task)
                if isinstance(message, m.Push):
                    self._push(stream, seat, member, message, frame.body)
                elif isinstance(message, m.Pull):
                    self._send_params(stream, seat, member, m.APPLIED, 0, "")
                elif isinstance(message, m.Initialise):
                    self._initialise(seat, member, frame.body)
                    self._send_params(stream, seat, member, m.APPLIED, 0, "")
                else:
                    raise ProtocolError(f"{member.task} opened its stream twice.")
        except (Refused, ProtocolError, RuleError) as exc:
            self._fail(stream, exc)
        except (StreamClosed, DeadlineExceeded):
            pass  # the worker's end is gone: what that means for the job is decided below
        finally:
            stream.close()
            if member is not None and not founding:
                self._closed(member)

    def _opened(self, stream: Stream) -> tuple[Member, Seat, bool] | r.Lead | None:
        """Who has opened a stream, and whether for first values only; `None` where this ps ends first."""
        patience = Waiting(self._timeouts.connect_s, self._say, self._clock)
        while not self._stopped:
            frame = stream.receive(self._timeouts.heartbeat_s)
            if frame is not None:
                message: m.Upward | r.Lead = decode_any(frame.header, m.Upward | r.Lead, stream.peer)
                if isinstance(message, r.Lead):
                    return message
                if not isinstance(message, m.Open):
                    raise ProtocolError(f"{stream.peer} did not say who it is before anything else.")
                with self._lock:
                    member = self._members.get(message.worker)
                    if member.incarnation != message.incarnation:
                        raise Refused(f"worker number {message.worker} is another process; join again.")
                    seat = self._home if message.shard < 0 else self._seat(message.shard)
                    member.streams += not message.founding
                    self._accounts[member.number].transport = stream.transport
                    self._hear(member)
                return member, seat, message.founding
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
            stream.send(encode(m.Failure(str(exc))))
        except (StreamClosed, DeadlineExceeded):
            return

    def _initialise(self, seat: Seat, member: Member, body: Sequence[NDArray[np.uint8]]) -> None:
        with self._lock:
            self._require_chief(member, "initialise the variables")
            shard = seat.require_engine().shard
            if shard.initialised:
                return
            self._require_uninvited(seat)
            blocks = shard.layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} sent first values of another size than it defined.")
            seat.initialise(blocks)
            self._keep(seat)

    def _push(
        self, stream: Stream, seat: Seat, member: Member, push: m.Push, body: Sequence[NDArray[np.uint8]]
    ) -> None:
        seat.require_held()
        engine = seat.engine
        if engine is None or not engine.shard.initialised:
            raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (it has no values yet).")
        layout = engine.shard.layout
        wire_dtype = seat.description.wire_dtype if seat.description else ""
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
            seat.require_primary()
            self._members.pushed(member)
            member.says_paused = False
            if member.paused:
                member.paused = False
                self._came(member)
            account.note_push(self._clock(), push.examples)
            arrived = sum(raw.nbytes for raw in body)
            self._bytes_in += arrived
            self._bytes_saved += layout.nbytes - arrived
            late = 0 < push.fit < seat.fit  # the training that it belongs to is over
            if late:
                account.dropped += 1
            elif not finite:
                account.refused += 1
                detail = self._non_finite(member, push, layout, gradient, account.refused)
            else:
                account.loss = push.loss
                event = PushEvent(member.number, push.sequence, push.version, push.examples)
                pending = seat.push(event, gradient)
        if late:
            self._send_params(stream, seat, member, m.DROPPED, 0, ENOUGH, over=True)
            return
        if not finite:
            self._send_params(stream, seat, member, m.NON_FINITE, 0, detail)
            return
        while not pending.answered.wait(WAIT_S):
            if self._stopped or not stream.alive:
                raise StreamClosed(f"{member.task} has gone while its push waited for others.")
        if pending.outcome == m.APPLIED:
            account.note_update(pending.staleness)
        else:
            account.dropped += 1
        self._send_params(stream, seat, member, pending.outcome, pending.staleness, pending.detail)

    def _send_params(
        self,
        stream: Stream,
        seat: Seat,
        member: Member,
        outcome: int,
        staleness: int,
        detail: str,
        *,
        over: bool = False,
    ) -> None:
        with self._lock:
            engine = seat.require_primary()
            shard = engine.shard
            version, position = shard.acquire(), seat.book.position
            self._bytes_out += shard.layout.nbytes
            engine.remember(member.number, version)
            done = over or (seat.fit > 0 and version.number >= seat.last_version)
            luggage = seat.saver.wanted(member.number) if seat.saver is not None else 0
        try:
            # Whatever is in these params, the standby has too.
            self._settle(seat, position, lambda: not stream.alive)
            stream.send(encode(m.Params(version.number, outcome, staleness, done, detail, luggage)), version.arrays())
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

    def status(self, seat: Seat | None = None) -> PsStatus:
        """A frozen picture of this ps with one of its seats and, through it, of the job.

        `seat`: that of its own shard if left out, or, where another ps holds that, one that it does hold.
        """
        with self._lock:
            if seat is None or (seat is self._home and not seat.reigns):
                seat = next((one for one in (self._home, *self._seats.values()) if one.reigns), self._home)
            engine, shard, layout = seat.engine, seat.shard, seat.layout
            now = self._clock()
            version = seat.version
            stalled = self._vigil.stalled()
            workers = tuple(
                self._accounts[member.number].status(
                    member, now, stalled[member.number].silent_s if member.number in stalled else 0.0
                )
                for member in self._members
            )
            losses = [w.loss for w in workers if w.loss is not None and w.presence == Presence.LIVE.value]
            staleness = engine.staleness if engine else StalenessCounts()
            ps = [str(task) for task in self._cluster.spec.ps]
            return PsStatus(
                task=self._task,
                address=self._cluster.address,
                incarnation=self._incarnation,
                rule=seat.description.rule if seat.description else {},
                initialised=seat.reigns,
                version=version,
                last_version=seat.last_version,
                ended=self._stopped,
                uptime_s=now - self._born,
                rate=self._rate.at(now, version),
                staleness_median=staleness.quantile(0.5),
                staleness_p99=staleness.quantile(0.99),
                staleness_max=staleness.maximum(),
                examples_applied=engine.examples_applied if engine else 0,
                examples_rate=self._examples_rate.at(now, engine.examples_applied if engine else 0),
                examples_dropped=engine.examples_dropped if engine else 0,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                bytes_saved=self._bytes_saved,
                shard_bytes=shard.layout.nbytes if shard else 0,
                loss=sum(losses) / len(losses) if losses else None,
                waiting_for=seat.waiting_for(),
                workers=workers,
                checkpoint=seat.checkpoint,
                variables=variable_statuses(layout.placement, ps) if layout else (),
                chief=self._chief(),
                seats=tuple(one.state() for one in self._seats.values()),
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
                    self._vigil.see_to_stalled(description.stall_s if description is not None else 0.0)
                    self._vigil.see_to_circles()
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
            for keeper in list(self._keepers.values()):
                keeper.stop(self._timeouts.grace_s)
            for seat in self._seats.values():
                if seat.saver is not None:
                    seat.saver.close(self._timeouts.grace_s)

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
        engine = self._home.engine
        self._rate.at(now, self._home.version)
        self._examples_rate.at(now, engine.examples_applied if engine else 0)
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
            seat, live = self._seats[number], self._members.live()
            if seat.reigns:
                seat.free_pieces({member.number for member in live})
                for paused in (member.number for member in live if member.paused):
                    seat.free_reserved(paused)

    def _complete(self) -> bool:
        held = [seat for seat in self._seats.values() if seat.book.role in (Role.PRIMARY, Role.STANDBY)]
        return bool(held) and all(seat.complete for seat in held)

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
            unlimited=any(seat.fit > 0 and seat.last_version >= m.UNLIMITED for seat in self._seats.values()),
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


def _luggage_of(seat: Seat, member: Member) -> m.LuggageAnswer:
    return seat.require_saver().luggage_of(member.number)
