"""The parameter service: the threaded shell around a shard, its rule and its members.

The transport calls `stream` in one thread for each worker and `call` in others; `run` is the task's main
thread. Everything that changes is changed under one lock, and nothing is sent while it is held.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer
from trainband.errors import DeadlineExceeded, ProtocolError, Refused, StreamClosed
from trainband.ps.accounts import Account, variable_statuses
from trainband.ps.description import first_difference, placement_of
from trainband.ps.engine import Engine
from trainband.ps.face import rows_of_variable, tensors_of
from trainband.ps.layout import JobLayout, ShardLayout
from trainband.ps.members import Member, Members, Presence
from trainband.ps.program import CompiledProgram, UpdateProgram
from trainband.ps.rules.base import ENOUGH, Event, RuleError
from trainband.ps.rules.base import Begin as BeginEvent
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.rules.registry import rule_of
from trainband.ps.saver import ShardSaver
from trainband.ps.shard import Shard, all_finite, not_finite, widened
from trainband.ps.sources import SharedSources
from trainband.ps.statistics import CheckpointStatus, PsStatus, Rate, StalenessCounts
from trainband.wire import messages as m
from trainband.wire.codec import decode, decode_any, encode
from trainband.wire.patience import EVERY_S, Patience, Say, say_on_stderr
from trainband.wire.transport import Clock, Stream, Tensor, Timeouts

WAIT_S = 0.2
"""Between two looks whether a worker still lives whose push waits for others."""

TICK_S = 0.2
"""Between two looks at the leases."""

LINGER_S = 30.0
"""How long a finished job waits for workers of the cluster that have never come: one that starts slowly should find
the job finished, not gone."""


class ParameterService:
    """One ps task of a job. A `Handler` for any transport."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeouts: Timeouts,
        say: Say = say_on_stderr,
        clock: Clock = time.monotonic,
        incarnation: str = "",
    ) -> None:
        self._cluster = cluster
        self._task = str(cluster.task)
        self._timeouts = timeouts
        self._say = say
        self._clock = clock
        self._incarnation = incarnation
        self._born = clock()

        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._members = Members(timeouts.lease_s, [str(task) for task in cluster.spec.workers])
        self._accounts: dict[int, Account] = {}
        self._description: m.Description | None = None
        self._layout: JobLayout | None = None
        self._engine: Engine | None = None
        self._saver: ShardSaver | None = None
        self._sources = SharedSources()
        self._checkpoint: CheckpointStatus | None = None
        self._fit = 0
        self._trainings: tuple[int, ...] = ()
        self._last_version = 0
        self._shutdown_reason = ""
        self._next_worker = 1 + max((task.index for task in cluster.spec.workers), default=-1)

        self._open_actions: dict[str, tuple[type[Any], Callable[[Any], Struct]]] = {
            "join": (m.Join, self._join),
            "define": (m.Define, self._define),
            "leave": (m.Leave, self._leave),
            "shutdown": (m.Shutdown, self._shutdown),
        }
        # What only a member may ask, and, where a deed is named, only the chief. Done under the lock.
        saving, restoring = "save a checkpoint", "restore a checkpoint"
        self._actions: dict[str, tuple[type[Any], str, Callable[[Member, Any], Struct]]] = {
            "heartbeat": (m.Heartbeat, "", lambda *_: self._state()),
            "pause": (m.Pause, "", self._pause),
            "begin": (m.Begin, "begin a training", self._begin),
            "finish": (m.Finish, "end the training", self._finish),
            "lease": (m.Lease, "", self._lease),
            "luggage": (m.Luggage, "", self._luggage),
            "my_luggage": (m.LuggageQuestion, "", lambda member, _: self._require_saver().luggage_of(member.number)),
            "landed": (m.Landed, saving, self._landed),
            "save": (m.Save, saving, self._save),
            "save_state": (m.SaveQuestion, saving, self._save_state),
            "restore": (m.Restore, restoring, lambda _, restore: self._require_saver().restore(restore)),
            "restore_state": (m.RestoreQuestion, restoring, lambda _, q: self._require_saver().restore_state(q.token)),
            "adopt": (m.Adopt, restoring, self._adopt),
        }

        self._rate = Rate()
        self._examples_rate = Rate()
        self._bytes_in = 0
        self._bytes_out = 0
        self._bytes_saved = 0
        self._non_finite_said = -EVERY_S

    @property
    def _shard(self) -> Shard | None:
        return self._engine.shard if self._engine is not None else None

    # --- control

    def call(self, action: str, body: bytes) -> bytes:
        """See `Handler.call`."""
        if action == "status":
            return encode(self.status())
        if action == "state":
            with self._lock:
                return encode(self._state())
        if action == "vacancy":
            with self._lock:
                return encode(self._vacancy())
        sender = f"whoever asked {self._task} to {action}"
        if action in self._open_actions:
            kind, open_answer = self._open_actions[action]
            return encode(open_answer(decode(body, kind, sender)))
        if action not in self._actions:
            raise Refused(
                f"{self._task} knows no action {action!r}; check that both run the same version of trainband."
            )
        kind, deed, answer = self._actions[action]
        record = decode(body, kind, sender)
        with self._lock:
            member = self._members.get(record.worker)
            if deed:
                self._require_chief(member, deed)
            self._hear(member)
            answered = answer(member, record)
        return encode(answered)  # without the lock: luggage may be large

    def _join(self, join: m.Join) -> m.Joined:
        with self._lock:
            self._expire()  # so that the rule hears of a death before it hears of the heir
            member, news = self._members.join(join.task, join.incarnation, join.host, join.pid, self._clock())
            self._accounts.setdefault(member.number, Account())
            if news:
                self._advance(JoinEvent(member.number))
            try:
                self._compare(join.description, join.task)
            except Refused as exc:
                # It is not in the job: nobody waits for it, and the next process may have its name at once.
                self._members.leave(member, str(exc))
                self._gone(member)
                raise
            return self._joined(member)

    def _vacancy(self) -> m.Vacancy:
        worker, self._next_worker = self._next_worker, self._next_worker + 1
        spec = self._cluster.spec
        addresses = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        return m.Vacancy(addresses, worker)

    def _joined(self, member: Member) -> m.Joined:
        return m.Joined(
            worker=member.number,
            lease_s=self._timeouts.lease_s,
            defined=self._shard is not None,
            initialised=self._shard is not None and self._shard.initialised,
            last_sequence=self._engine.rule.ledger.seen.get(member.number, 0) if self._engine else 0,
            trainings=self._trainings,
            life=self._incarnation,
            fit=self._fit,
        )

    def _compare(self, description: m.Description, task: str) -> None:
        if self._description is None:
            return
        difference = first_difference(self._description, description, task)
        if difference is not None:
            raise Refused(f"{m.MISMATCH}{task} cannot join this job: {difference}.")

    def _define(self, define: m.Define) -> m.Joined:
        with self._lock:
            member = self._members.get(define.worker)
            self._require_chief(member, "define the model")
            self._hear(member)
            self._compare(define.description, member.task)
            if self._shard is not None:
                return self._joined(member)
        layout = JobLayout.of(placement_of(define.description))
        if not 0 <= define.ps < len(layout.shards):
            raise Refused(f"the definition has {len(layout.shards)} ps, but calls this one number {define.ps}.")
        trained = [block.trained for block in layout.shards[define.ps].blocks]
        program = CompiledProgram(UpdateProgram(define.initialise, define.update), member.task, trained)
        _check_contents(define, program.state_shapes)
        rule = rule_of(define.description.rule)
        with self._lock:
            if self._shard is None:  # else: a repeated call overtook this one
                self._description, self._layout = define.description, layout
                shard = Shard(layout.shards[define.ps], program)
                compensation = float(define.description.rule.get("delay_compensation") or 0.0)
                workers = self._cluster.spec.workers
                chief = workers.index(self._cluster.spec.chief)
                has_state = any(not variable.trained for variable in define.description.variables)
                state_of = chief if has_state and define.description.state_merge == "chief" else None
                self._engine = Engine(shard, rule.start(0, len(workers)), compensation, state_of)
                self._saver = ShardSaver(
                    shard,
                    define.state,
                    (define.ps, len(layout.shards)),
                    self._lock,
                    seen=self._seen_pushes if define.ps == 0 else dict,
                    sources=self._sources.record,
                )
                self._engine.after_update = self._saver.after_update
                self._tell_rule()
            return self._joined(member)

    def _tell_rule(self) -> None:
        """Tells a rule that begins who is in the job. One that has come and gone already is waited for by nobody."""
        for known in self._members:
            self._advance(JoinEvent(known.number) if known.live else LeaveEvent(known.number))

    def _seen_pushes(self) -> dict[int, int]:
        """How many pushes of each worker in the job have become what they will: those of a step under way have not."""
        engine = self._require_engine()
        seen = engine.rule.ledger.seen
        return {
            member.number: seen.get(member.number, 0) - engine.held_of(member.number) for member in self._members.live()
        }

    def _begin(self, _: Member, begin: m.Begin) -> m.JobState:
        if self._shard is None or not self._shard.initialised:
            raise Refused(f"{self._task} has no values yet, so training cannot begin.")
        if begin.fit > self._fit:  # by more than one, if this ps has died and come back
            self._fit = begin.fit
            self._last_version = begin.last_version
            self._trainings = begin.trainings
            self._advance(BeginEvent(self._last_version))
        return self._state()

    def _finish(self, _: Member, __: m.Finish) -> m.JobState:
        self._last_version = min(self._last_version, self._require_shard().version)
        self._advance(BeginEvent(self._last_version))
        return self._state()

    def _pause(self, member: Member, _: m.Pause) -> m.JobState:
        if not member.paused:
            member.paused = True
            self._advance(LeaveEvent(member.number))
        return self._state()

    def _leave(self, leave: m.Leave) -> m.JobState:
        with self._lock:
            member = self._members.get(leave.worker)
            if self._members.leave(member, leave.failure):
                self._gone(member)
                if leave.failure:
                    self._say(f"{member.task} left the job: {leave.failure}")
            self._wake.set()
            return self._state()

    # --- checkpoints

    def _save(self, member: Member, save: m.Save) -> m.SaveState:
        if not self._require_shard().initialised:
            raise Refused(f"{self._task} has no values yet that it could save.")
        self._require_saver().save(save)
        return self._save_state(member, m.SaveQuestion(save.worker, save.token, luggage=False))

    def _save_state(self, _: Member, question: m.SaveQuestion) -> m.SaveState:
        live = {member.number for member in self._members.live()}
        return self._require_saver().state(question, live, self._members.name)

    def _lease(self, member: Member, lease: m.Lease) -> LeaseAnswer:
        if not member.live:  # nobody would ever take back what it got
            raise Refused(f"{member.task} has left the job, and gets no more pieces of {lease.request.source!r}.")
        return self._sources.lease(member.number, lease.request)

    def _luggage(self, _: Member, luggage: m.Luggage) -> m.JobState:
        self._require_saver().keep(luggage)
        return self._state()

    def _landed(self, _: Member, landed: m.Landed) -> m.JobState:
        self._checkpoint = CheckpointStatus(landed.global_step, landed.nbytes, landed.seconds)
        return self._state()

    def _adopt(self, member: Member, adopt: m.Adopt) -> m.Joined:
        engine = self._require_engine()
        if not engine.shard.initialised:
            workers = len(self._cluster.spec.workers)
            self._require_saver().adopt(adopt)
            self._sources.restore(adopt.sources, workers)
            assert self._description is not None
            engine.rule = rule_of(self._description.rule).start(adopt.version, workers)
            self._tell_rule()
        return self._joined(member)

    def _require_saver(self) -> ShardSaver:
        self._require_engine()
        assert self._saver is not None
        return self._saver

    def _shutdown(self, shutdown: m.Shutdown) -> m.JobState:
        with self._lock:
            self._shutdown_reason = shutdown.reason or "asked to"
            self._wake.set()
            return self._state()

    def _state(self) -> m.JobState:
        shard = self._shard
        return m.JobState(
            version=shard.version if shard else 0,
            last_version=self._last_version,
            fit=self._fit,
            initialised=shard is not None and shard.initialised,
            live=tuple(member.task for member in self._members.live()),
            waiting_for=self._waiting_for(),
            at_work=tuple(member.task for member in self._members.live() if not member.paused),
        )

    def _waiting_for(self) -> tuple[str, ...]:
        if self._engine is None:
            return ()
        return tuple(self._members.name(number) for number in sorted(self._engine.rule.waiting_for()))

    def _require_chief(self, member: Member, deed: str) -> None:
        chief = str(self._cluster.spec.chief)
        if member.task != chief:
            raise Refused(f"{member.task} may not {deed}: only the chief may, which is {chief}.")

    def _hear(self, member: Member) -> None:
        if self._members.get(member.number) is not member:
            raise Refused(f"another process has taken the place of {member.task} in the job.")
        if self._members.heard(member, self._clock()):
            self._say(f"{member.task} is back")
            self._advance(JoinEvent(member.number))

    # --- training streams

    def stream(self, stream: Stream) -> None:
        """See `Handler.stream`: serves one worker for as long as it lives."""
        member: Member | None = None
        try:
            member = self._opened(stream)
            while member is not None and not self._stopped:
                frame = stream.receive(self._timeouts.heartbeat_s)
                if frame is None:
                    continue
                message: m.Upward = decode_any(frame.header, m.Upward, member.task)
                if isinstance(message, m.Push):
                    self._push(stream, member, message, frame.body)
                elif isinstance(message, m.Pull):
                    self._send_params(stream, member, m.APPLIED, 0, "")
                elif isinstance(message, m.Initialise):
                    self._initialise(member, frame.body)
                    self._send_params(stream, member, m.APPLIED, 0, "")
                else:
                    raise ProtocolError(f"{member.task} opened its stream twice.")
        except (Refused, ProtocolError, RuleError) as exc:
            self._fail(stream, exc)
        except (StreamClosed, DeadlineExceeded):
            pass  # the worker's end is gone: what that means for the job is decided below
        finally:
            stream.close()
            if member is not None:
                self._closed(member)

    def _opened(self, stream: Stream) -> Member | None:
        patience = Patience(self._timeouts.connect_s, self._say, self._clock)
        while not self._stopped:
            frame = stream.receive(self._timeouts.heartbeat_s)
            if frame is not None:
                message: m.Upward = decode_any(frame.header, m.Upward, stream.peer)
                if not isinstance(message, m.Open):
                    raise ProtocolError(f"{stream.peer} did not say who it is before anything else.")
                with self._lock:
                    member = self._members.get(message.worker)
                    if member.incarnation != message.incarnation:
                        raise Refused(f"worker number {message.worker} is another process; join again.")
                    member.streams += 1
                    self._accounts[member.number].transport = stream.transport
                    self._hear(member)
                return member
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

    def _initialise(self, member: Member, body: Sequence[NDArray[np.uint8]]) -> None:
        with self._lock:
            self._require_chief(member, "initialise the variables")
            shard = self._require_shard()
            if shard.initialised:
                return
            blocks = shard.layout.from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{member.task} sent first values of another size than it defined.")
            shard.initialise(blocks)
            self._require_saver().forget_reading()

    def _push(self, stream: Stream, member: Member, push: m.Push, body: Sequence[NDArray[np.uint8]]) -> None:
        engine = self._engine
        if engine is None or not engine.shard.initialised:
            raise ProtocolError(f"{member.task} pushed a gradient that does not fit this shard (it has no values yet).")
        layout = engine.shard.layout
        wire_dtype = self._description.wire_dtype if self._description else ""
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
            if member.paused:
                member.paused = False
                self._advance(JoinEvent(member.number))
            account.pushes += 1
            account.examples += push.examples
            arrived = sum(raw.nbytes for raw in body)
            self._bytes_in += arrived
            self._bytes_saved += layout.nbytes - arrived
            late = 0 < push.fit < self._fit  # the training that it belongs to is over
            if late:
                account.dropped += 1
            elif not finite:
                account.refused += 1
                detail = self._non_finite(member, push, layout, gradient, account.refused)
            else:
                account.loss = push.loss
                pending = engine.push(PushEvent(member.number, push.sequence, push.version, push.examples), gradient)
        if late:
            self._send_params(stream, member, m.DROPPED, 0, ENOUGH, over=True)
            return
        if not finite:
            self._send_params(stream, member, m.NON_FINITE, 0, detail)
            return
        while not pending.answered.wait(WAIT_S):
            if self._stopped or not stream.alive:
                raise StreamClosed(f"{member.task} has gone while its push waited for others.")
        if pending.outcome == m.APPLIED:
            account.note_update(pending.staleness)
        else:
            account.dropped += 1
        self._send_params(stream, member, pending.outcome, pending.staleness, pending.detail)

    def _gone(self, member: Member) -> None:
        """Nobody waits for this worker any more, and what it had leased goes to others."""
        self._sources.release(member.number)
        self._advance(LeaveEvent(member.number))

    def _advance(self, event: Event) -> None:
        if self._engine is not None:
            self._engine.advance(event)

    def _send_params(
        self, stream: Stream, member: Member, outcome: int, staleness: int, detail: str, *, over: bool = False
    ) -> None:
        with self._lock:
            shard = self._require_shard()
            version = shard.acquire()
            self._bytes_out += shard.layout.nbytes
            self._require_engine().remember(member.number, version)
            done = over or (self._fit > 0 and version.number >= self._last_version)
            luggage = self._saver.wanted(member.number) if self._saver is not None else 0
        try:
            stream.send(encode(m.Params(version.number, outcome, staleness, done, detail, luggage)), version.arrays())
        finally:
            with self._lock:
                shard.release(version)

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise Refused(f"{self._task} has no model yet: it waits for the chief to define one.")
        return self._engine

    def _require_shard(self) -> Shard:
        return self._require_engine().shard

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
        if self._clock() - self._non_finite_said >= EVERY_S:
            self._non_finite_said = self._clock()
            self._say(text)
        return text

    # --- the public face

    def tensors(self) -> Sequence[Tensor]:
        """See `Handler.tensors`."""
        with self._lock:
            return tensors_of(self._layout.placement, self._ps_addresses()) if self._layout is not None else ()

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        """See `Handler.read`."""
        with self._lock:
            shard = self._require_shard()
        return rows_of_variable(shard, self._lock, self._task, name)

    def write(self, name: str, values: NDArray[np.generic]) -> None:  # noqa: ARG002 - the seam has it, this task refuses
        """See `Handler.write`."""
        raise Refused(f"{self._task} does not let {name!r} be assigned from outside: only the chief's own stream may.")

    def status(self) -> PsStatus:
        """A frozen picture of this ps and, through it, of the job."""
        with self._lock:
            now = self._clock()
            version = self._shard.version if self._shard else 0
            workers = tuple(self._accounts[member.number].status(member, now) for member in self._members)
            losses = [w.loss for w in workers if w.loss is not None and w.presence == Presence.LIVE.value]
            staleness = self._engine.staleness if self._engine else StalenessCounts()
            ps = [str(task) for task in self._cluster.spec.ps]
            return PsStatus(
                task=self._task,
                address=self._cluster.address,
                incarnation=self._incarnation,
                rule=self._description.rule if self._description else {},
                initialised=self._shard is not None and self._shard.initialised,
                version=version,
                last_version=self._last_version,
                ended=self._stopped,
                uptime_s=now - self._born,
                rate=self._rate.at(now, version),
                staleness_median=staleness.quantile(0.5),
                staleness_p99=staleness.quantile(0.99),
                staleness_max=staleness.maximum(),
                examples_applied=self._engine.examples_applied if self._engine else 0,
                examples_rate=self._examples_rate.at(now, self._engine.examples_applied if self._engine else 0),
                examples_dropped=self._engine.examples_dropped if self._engine else 0,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                bytes_saved=self._bytes_saved,
                shard_bytes=self._shard.layout.nbytes if self._shard else 0,
                loss=sum(losses) / len(losses) if losses else None,
                waiting_for=self._waiting_for(),
                workers=workers,
                checkpoint=self._checkpoint,
                variables=variable_statuses(self._layout.placement, ps) if self._layout else (),
            )

    def _ps_addresses(self) -> list[str]:
        return [self._cluster.spec.address(task) for task in self._cluster.spec.ps]

    # --- the life of the task

    def run(self) -> str:
        """Serves until the job ends; returns why it did, in words.

        Raises:
          DeadlineExceeded: every worker was lost before the job was complete, and none came back.
        """
        patience: Patience | None = None
        reason = ""
        try:
            while True:
                with self._lock:
                    self._expire()
                    self._sample()
                    ended, waiting, timeout_s = self._verdict()
                if ended:
                    return ended
                if waiting:
                    if patience is None or reason != waiting:
                        patience, reason = Patience(timeout_s, self._say, self._clock), waiting
                    try:
                        patience.check(waiting, "start the workers again, or look at why they ended")
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
            if self._saver is not None:
                self._saver.close(self._timeouts.grace_s)

    def stop(self) -> None:
        """Lets every stream end. Idempotent."""
        with self._lock:
            self._stopped = True
            self._wake.set()

    def _sample(self) -> None:
        """Keeps the rates fresh, so that whoever asks once gets an answer about the last seconds."""
        now = self._clock()
        self._rate.at(now, self._shard.version if self._shard else 0)
        self._examples_rate.at(now, self._engine.examples_applied if self._engine else 0)
        for account in self._accounts.values():
            account.rate.at(now, account.pushes)

    def _expire(self) -> None:
        for member in self._members.expired(self._clock()):
            self._members.lose(member)
            self._say(f"{member.task} is gone: not heard for {self._timeouts.lease_s:g} s")
            self._gone(member)

    def _complete(self) -> bool:
        return self._fit > 0 and self._shard is not None and self._shard.version >= self._last_version

    def _verdict(self) -> tuple[str, str, float | None]:
        """(why the job has ended, or ""; whom this ps waits for with nobody at work, or ""; seconds at most)."""
        if self._shutdown_reason:
            return f"shut down: {self._shutdown_reason}", "", None
        members = list(self._members)
        if not members:
            return "", "the first worker to join", None
        if any(member.live for member in members):
            return "", "", None
        came = {member.task for member in members}
        missing = [str(task) for task in self._cluster.spec.workers if str(task) not in came]
        chief = str(self._cluster.spec.chief)
        if self._complete():
            # The chief, if it comes back, has a last checkpoint to save.
            late = missing + [one.task for one in members if one.task == chief and one.presence is Presence.LOST]
            if late:
                return "", f"{', '.join(late)} to look in at the end of the job", LINGER_S
            return "the job is complete", "", None
        gone = [member.task for member in members if member.presence is not Presence.LEFT]
        if not gone and not missing:
            return "every worker has left", "", None
        unlimited = self._fit > 0 and self._last_version >= m.UNLIMITED
        if unlimited and any(member.task == chief and member.presence is Presence.LEFT for member in members):
            return f"{chief} has ended the training, and nobody else is at work", "", None
        return (
            "",
            f"a worker to come back, now that nobody is left ({', '.join(gone + missing)})",
            self._timeouts.start_s,
        )


def _check_contents(define: m.Define, state_shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuses a description of the optimizer state that does not fit its program."""
    sizes = [sum(piece.size for piece in pieces) for pieces in define.state]
    if sizes != [math.prod(shape) for shape in state_shapes]:
        raise Refused("the definition says of the optimizer state other sizes than its program has.")
