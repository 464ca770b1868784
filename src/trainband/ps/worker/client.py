"""A worker's side of the parameter servers: joining the job, and one exchange with all of them per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.cluster import Cluster
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import (
    CheckpointError,
    DeadlineExceeded,
    ModelMismatch,
    PeerError,
    RefusalCode,
    Refused,
    StreamClosed,
    Unreachable,
)
from trainband.ps.description import Plan
from trainband.ps.statistics import PsStatus
from trainband.ps.worker.bootstrapper import Bootstrapper, FirstValues
from trainband.ps.worker.checkpointing import ANY, JobSaving, Overtaken, Record, RestoreFrom
from trainband.ps.worker.cluster_view import ClusterView, has_nothing
from trainband.ps.worker.heartbeater import Heartbeater
from trainband.ps.worker.shard_link import Blocks, Link
from trainband.runtime import SYSTEM, Runtime, Thread
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire import messages as m
from trainband.wire.codec import decode, decode_any, encode
from trainband.wire.replication import Vote, VoteRequest
from trainband.wire.transport import Connection, Stream, Timeouts, Transport

POLL_S = 0.05
"""Between two questions to a ps that is not ready yet."""

SILENT_BEATS = 2
"""Heartbeats without an answer after which

- a ps is not asked for whom it waits, for its successor may answer soon, and the others are asked more often;
- a ps was away, or the network: TCP tries an old connection again only after as long a time as the network was away, so
  a stream that is still silent half a heartbeat after the ps answers again is opened anew.
"""

MOST_LEASES = 3
"""How long a worker that leaves waits for another to decide in its place."""

AT_ONCE_BYTES = 4 << 20
"""A push to several ps that is larger than this goes to all of them at the same time, from a thread for each: a ps that
is slow to take its part must not keep the others from theirs. Below it, a send does not wait for anybody."""


HASTE_S = 5.0
"""How long a worker that is asked to leave waits for a ps that is away."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came back from all ps.

    Attributes:
      params: for each ps its blocks. BORROWED: the next exchange or pull overwrites them.
      versions: of each shard; the first is the global step.
      staleness: of the update that the push became, the largest over the ps; 0 where it became none.
      applied: whether every ps made an update of the push.
      restarted: whether a ps has lost updates that this worker knew of: what was computed from them is of no use.
      done: whether every ps has made all the updates that were asked for.
      refusal: why a ps refused the gradient as not finite; empty if none did.
      worker state: where a checkpoint waits for this worker's worker state: how many of its pushes came after it.
    """

    params: tuple[Blocks, ...]
    versions: tuple[int, ...]
    staleness: int
    applied: bool
    restarted: bool
    done: bool
    refusal: str
    worker_state: int | None

    @property
    def global_step(self) -> int:
        """The version of ps:0."""
        return self.versions[0]


class JobClient:
    """One worker's membership of a job. Use from one thread; others, its own, send the heartbeats."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        *,
        transport: Transport,
        timeouts: Timeouts,
        say: Say = say_on_stderr,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._cluster = cluster
        self._task = str(cluster.task)
        self._plan = plan
        self._transport = transport
        self._timeouts = timeouts
        self._say = say
        self._runtime = runtime
        self._clock = runtime.clock
        self._incarnation = runtime.token()
        self._sequence = 0
        self._fit = 0
        self._joined = False
        """Whether this worker has been in the job: from then on, a ps that is gone may come back."""
        self._settings: dict[str, float] = {}
        self._leaves: dict[tuple[int, str], int] = {}
        """Of each shard, which leaf of the optimizer's state a number is that was set."""
        ps = [(i, cluster.spec.address(task)) for i, task in enumerate(cluster.spec.ps)]
        self._standbys = plan.description.standbys
        self._links = [
            Link(
                shard,
                [ps[(shard + i) % len(ps)] for i in range(1 + self._standbys)],
                self._incarnation,
                transport,
                timeouts,
                runtime,
            )
            for shard in range(len(ps))
        ]
        self._blocked_by: tuple[str, ...] = ()
        self._hurried = False
        self._hastened = False
        self._paused = False
        self._heartbeaters = [
            Heartbeater(
                i,
                address,
                self._incarnation,
                transport,
                timeouts,
                runtime,
                blocked_by=lambda: self._blocked_by,
                paused=lambda: self._paused,
                hurries=self._is_in_trouble,
                join=self._join_at,
                heard=self._heard,
            )
            for i, address in ps
        ]
        self._bootstrapper: Bootstrapper | None = None
        self._cluster_view = ClusterView(self._incarnation, str(cluster.spec.chief), runtime)
        self._last_version = m.UNLIMITED
        self._reviving: dict[int, Thread] = {}
        self._starting = runtime.lock()
        """Of these threads: each ps's heartbeats may see that one is wanted."""
        self._hopeless: dict[int, PeerError | CheckpointError | ModelMismatch] = {}
        self.restored: Checkpoint | None = None
        """What the job has begun from, as far as the chief knows."""
        self.trainings: tuple[int, ...] = ()
        """Where each training of the job that is under way began."""
        self.job = ""
        """Which job this is: random, the same for all its tasks."""
        self._left = False

    @property
    def chief(self) -> str:
        """The worker that has the chief's duties now."""
        return self._cluster_view.chief

    @property
    def is_chief(self) -> bool:
        """Whether this worker has the chief's duties now."""
        return self.chief == self._task

    # --- coming and going

    def join(self, first_values: FirstValues, restore: RestoreFrom | None = None) -> Exchange:
        """Joins every ps and pulls the params; the chief defines and initialises or restores each shard that is new.

        Args:
          first_values: called on the chief only, when some shard has no values: each shard's blocks.
          restore: used on the chief only, when some shard has no values: where they may come from instead.

        Raises:
          CheckpointError: there is a checkpoint that cannot be restored.
          ModelMismatch: the model or optimizer is not the chief's.
          Refused: another process holds this task's name.
          Unreachable, DeadlineExceeded: a ps, or the chief, has not come up in `Timeouts.start_s`.
        """
        self._bootstrapper = bootstrapper = Bootstrapper(
            self._plan, first_values, restore, timeouts=self._timeouts, say=self._say, runtime=self._runtime
        )
        # Before the first: its lease must not end while this worker waits for another ps to come up.
        for heartbeater in self._heartbeaters:
            heartbeater.start()
        for link in self._links:
            self._find(link, until=lambda *_: True, whom=f"{link} to come up")
        patience = Waiting(self._timeouts.start_s, self._say, self._clock)
        if self.is_chief:
            self._try_to_set_up(bootstrapper, patience)
        for link in self._links:
            while not self._find(
                link,
                until=lambda joined, _: joined.initialised or self.is_chief,
                whom=f"{self.chief} to initialise the variables on {link.name}",
            ).initialised:
                self._try_to_set_up(bootstrapper, patience)  # the chief has died before it could
        if self.is_chief:
            self._await_standbys()
        for link in self._links:
            self._open(link)
        self._joined = True
        for heartbeater in self._heartbeaters:
            heartbeater.knocks = True
        return self.pull()

    def hasten(self) -> None:
        """From now on this worker waits no longer than `HASTE_S` for a ps that is away. For a signal handler, too."""
        self._hastened = True

    def leave(self, failure: str = "") -> None:
        """Says goodbye to every ps and closes. `failure` says why, if something went wrong. Idempotent."""
        if self._left:
            return
        self._left = True
        for heartbeater in self._heartbeaters:
            heartbeater.stop()
        for heartbeater in self._heartbeaters:
            heartbeater.wait()
        for thread in list(self._reviving.values()):
            thread.join(self._timeouts.grace_s)
        # One that was asked to leave may come back: the job is not over by that, though nobody else be at work.
        why = failure or (PREEMPTED if self._hastened else "")
        for heartbeater in self._heartbeaters:
            try:
                heartbeater.leave(why)
            except PeerError as exc:
                # One that fails has said enough; a ps that is new does not miss it.
                is_unknown = isinstance(exc, Refused) and exc.code is RefusalCode.UNKNOWN_WORKER
                if not (failure or is_unknown):
                    self._say(f"could not say goodbye to {heartbeater}: {exc}")
        if self._standbys and self._joined and not failure:
            self._fail_back()
        for heartbeater in self._heartbeaters:
            heartbeater.close()
        for link in self._links:
            link.close()

    def _fail_back(self) -> None:
        """Stays until another worker decides in its place who holds a shard: a ps may die as it leaves."""
        most_s = HASTE_S if self._hastened else MOST_LEASES * self._timeouts.lease_s
        patience = Waiting(most_s, self._say, self._clock)
        try:
            while True:
                for heartbeater in self._heartbeaters:
                    patience.check("another worker to be asked who holds a shard", "look at the ps")
                    self._listen(heartbeater)
                if not self._cluster_view.decides():
                    return
                self._runtime.sleep(POLL_S)
        except DeadlineExceeded as exc:
            self._say(f"{self._task} leaves, though no other worker can be asked who holds a shard: {exc}")

    def _listen(self, heartbeater: Heartbeater) -> None:
        """Hears a ps after the goodbye, and decides what it asks."""
        try:
            state = heartbeater.look() if heartbeater.worker >= 0 else None
        except DeadlineExceeded:
            return  # it may be silent for a moment only
        except PeerError:
            state = None
        for vote_request in self._cluster_view.note(heartbeater.ps, state, begun=True):
            self._decide(heartbeater.ps, vote_request)

    def _find(self, link: Link, until: Callable[[m.Joined, bool], bool], whom: str) -> m.Joined:
        """Joins whichever ps has the shard.

        Args:
          until: of an answer, and whether no ps that may have the shard has it: whether that will do.
          whom: who is waited for.
        """
        patience = Waiting(self._timeouts.start_s, self._say, self._clock)
        without: set[int] = set()
        pause_s = POLL_S / 8  # where a shard has moved, the other ps may be about to hear of it
        with link.recovering:
            while True:
                try:
                    joined = self._join_once(link)
                    (without.add if joined.empty else without.discard)(link.ps)
                    if not link.life:
                        link.life = joined.life
                    self._sequence = max(self._sequence, joined.last_sequence)
                    if link.index == 0 and joined.trainings:
                        self.trainings = joined.trainings
                    if until(joined, len(without) == len(link.places)):
                        return joined
                    self._bear(patience, whom, "check that it runs, or raise Timeouts.start_s")
                except (Unreachable, StreamClosed) as exc:
                    without.discard(link.ps)
                    advice = "check that it runs and that its address is right, or raise Timeouts.start_s"
                    try:
                        self._bear(patience, whom, advice)
                    except DeadlineExceeded as late:
                        raise Unreachable(str(late)) from exc
                except DeadlineExceeded:
                    without.discard(link.ps)
                    self._bear(patience, whom, "check that it runs and is not overloaded, or raise Timeouts.start_s")
                except Refused as exc:
                    if exc.code is RefusalCode.OTHER_MODEL:
                        raise ModelMismatch(str(exc)) from exc
                    # Where this process takes the place of one that has died, a ps may not know of that yet.
                    if exc.code is not RefusalCode.NAME_TAKEN or patience.waited_s > self._timeouts.lease_s:
                        raise
                    patience.check(f"{link} to see that the process which had the place of {self._task} is gone", "")
                if len(link.places) > 1:
                    link.move()
                self._runtime.sleep(pause_s)
                pause_s = min(POLL_S, 2 * pause_s)

    def _bear(self, patience: Waiting, whom: str, advice: str) -> None:
        """As `Waiting.check`, of a ps that is away."""
        if self._hastened and patience.waited_s > HASTE_S:
            raise DeadlineExceeded(f"waited {patience.waited_s:.1f} s for {whom}.")
        patience.check(whom, advice)

    def _join_once(self, link: Link) -> m.Joined:
        # A ps that may be dead is not waited for long where another may have the shard.
        patience_s = self._timeouts.connect_s if len(link.places) == 1 else self._timeouts.heartbeat_s
        joined = link.call("join", self._application(), m.Joined, patience_s)
        link.worker, link.term = joined.worker, joined.term
        self._cluster_view.heard(link.ps)
        self._heartbeaters[link.ps].worker = joined.worker
        if joined.initialised:
            self.job = self.job or joined.job
        return joined

    def _join_at(self, connection: Connection) -> int:
        """Joins the ps at the other end; returns this worker's number there."""
        answer = connection.call("join", encode(self._application()), timeout_s=self._timeouts.connect_s)
        return decode(answer, m.Joined, connection.address).worker

    def _application(self) -> m.Join:
        runtime, plan = self._runtime, self._plan.description
        return m.Join(self._task, self._incarnation, runtime.host, runtime.pid, plan, self.job, self._paused)

    def _try_to_set_up(self, bootstrapper: Bootstrapper, patience: Waiting) -> None:
        """As `_set_up`; where another chief was faster, or a ps knows of another, what is left must be seen again."""
        job = self.job
        try:
            self._set_up(bootstrapper)
        except Refused as exc:
            self.job = job  # not one that this worker has made up
            if not isinstance(exc, Overtaken) and exc.code is not RefusalCode.NOT_CHIEF:
                raise
            patience.check(f"all ps to know who is the chief ({exc})", "check that they reach every worker")
            self._runtime.sleep(POLL_S)

    def _set_up(self, bootstrapper: Bootstrapper) -> None:
        new = []
        for link in self._links:
            joined = self._find(
                link,
                until=lambda joined, nobody: joined.initialised or nobody,
                whom=f"a ps that has the values of shard {link.index}",
            )
            if not joined.initialised:
                new.append(link)
        if not new:
            return
        self.job = self.job or self._runtime.token()
        for link in new:
            if link.at:
                link.at = 0
                link.reconnect()
        others = self._states_of_the_others(new)
        begun = max(others, key=lambda state: state.fit, default=None)
        if begun is not None and begun.fit > 0:
            for link in new:
                self._bring_back(link, bootstrapper, m.Begin(ANY, begun.fit, begun.last_version, begun.trainings))
            return
        for link in new:
            self.job = bootstrapper.define(link, self.job).job or self.job  # that of a chief which has died on the way
        if bootstrapper.source is not None:
            # Where some have values already, a chief has died between them.
            at = max((state.version for state in others), default=None)
            self.restored = bootstrapper.restore(new, at)
            if self.restored is None and at:
                names = ", ".join(link.name for link in new)
                raise CheckpointError(
                    f"{names} has no values, while other ps are at step {at:,}, of which there is no checkpoint; "
                    "end every task of the job and start it again: it goes on from its newest checkpoint."
                )
        if self.restored is not None:
            return
        values = bootstrapper.first_values()
        for link in new:
            try:
                self._open(link).send(encode(m.Initialise()), values[link.index])
                self._answer(link, "its answer to the first values")
            except StreamClosed as exc:  # whether it has them must be seen
                link.reconnect()
                raise Overtaken(f"the first values may not have come to {link}: {exc}") from exc

    def _await_standbys(self) -> None:
        """So that nothing of the training can be lost with one ps."""
        for link in self._links if self._standbys else ():
            patience = Waiting(self._timeouts.stall_s, self._say, self._clock)
            other = next(ps for ps, _ in link.places if ps != link.ps)
            while not self._find(link, lambda joined, _: joined.initialised, f"{link} to come back").protected:
                if self._cluster_view.silent_s(other) > self._timeouts.lease_s:
                    self._say(f"WARNING: shard {link.index} has no standby yet: ps:{other} does not answer")
                    break  # the job goes on without it until it is there
                try:
                    patience.check(f"ps:{other} to become the standby of shard {link.index}", "")
                except DeadlineExceeded:
                    self._say(f"WARNING: shard {link.index} has no standby yet: ps:{other} does not follow {link.name}")
                    break
                self._runtime.sleep(POLL_S)

    def _states_of_the_others(self, new: Sequence[Link]) -> list[m.JobState]:
        """Of the ps that have values."""
        return [link.call("state", None, m.JobState, self._timeouts.call_s) for link in self._links if link not in new]

    def _open(self, link: Link, *, bootstrapping: bool = False) -> Stream:
        if link.stream is None:
            link.stream = link.connection.open_stream(timeout_s=self._timeouts.connect_s)
            link.stream.send(encode(m.Open(link.worker, self._incarnation, link.index, bootstrapping)))
        return link.stream

    # --- training

    def begin(self, fit: int, last_version: int, trainings: Sequence[int] = ()) -> None:
        """Chief only: asks every ps for updates until its version is `last_version`, as training number `fit`."""
        self._last_version, self.trainings = last_version, tuple(trainings)
        for link in self._links:
            self._ask(link, "begin", m.Begin(ANY, fit, last_version, self.trainings), m.JobState)

    def finish(self) -> None:
        """Chief only: ends the training where it is."""
        ends = [self._ask(link, "finish", m.Finish(ANY), m.JobState).last_version for link in self._links]
        self._last_version = min(ends)  # for a ps that dies now

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: sets numbers of the optimizer's state on every ps, from the next update on.

        Raises:
          ModelError: the state has no such number.
        """
        for name in settings:
            for link in self._links:
                if (link.index, name) not in self._leaves:
                    self._leaves[link.index, name] = self._plan.number_of_state(link.index, name)
        self._settings = {**self._settings, **settings}
        for link in self._links:
            for steer in self._steers(link.index):
                self._ask(link, "steer", steer, m.JobState)

    def _steers(self, shard: int) -> list[m.Steer]:
        """What this worker has set, for one shard."""
        return [m.Steer(ANY, self._leaves[shard, name], value) for name, value in self._settings.items()]

    def save(self, directory: Path, at: int) -> JobSaving:
        """Chief only: orders a checkpoint of the version `at`, see `JobSaving`."""
        return JobSaving(self._links, directory, at, self._runtime)

    def landed(self, global_step: int, nbytes: int, seconds: float) -> None:
        """Chief only: tells ps:0 of a checkpoint that was committed, for whoever asks for the status."""
        self._links[0].ask("landed", m.Landed(ANY, global_step, nbytes, seconds), m.JobState)

    def leave_worker_state(self, data: bytes, behind: int = 0) -> None:
        """Leaves with ps:0 what this worker must find again if it goes on from so many pushes ago."""
        self._ask(self._links[0], "worker_state", m.LeftWorkerState(ANY, self._sequence - behind, data), m.JobState)

    def find_worker_state(self) -> bytes:
        """What was left for this worker, in an earlier life or a restored checkpoint; empty where nothing was."""
        return self._ask(self._links[0], "my_worker_state", m.WorkerStateQuestion(ANY), m.WorkerStateAnswer).data

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks for the next piece of a shared data source; may be called from any thread."""
        return self._ask(self._links[0], "lease", m.Lease(ANY, request), LeaseAnswer)

    def await_begin(self, fit: int, last_version: int = m.UNLIMITED, trainings: Sequence[int] = ()) -> m.JobState:
        """Waits until the chief has begun training number `fit` on every ps; returns the state of ps:0.

        Should this worker become the chief meanwhile, it begins it itself, with what the one before had begun, or else
        until `last_version`.
        """
        patience = Waiting(self._timeouts.start_s, self._say, self._clock)
        while True:
            states = self.states()
            if all(state.fit >= fit for state in states):
                self._fit, self._last_version = states[0].fit, states[0].last_version
                self.trainings = states[0].trainings
                return states[0]
            if self.is_chief:
                begun = max(states, key=lambda state: state.fit)
                if begun.fit >= fit:
                    last_version, trainings = begun.last_version, begun.trainings
                try:
                    self.begin(max(fit, begun.fit), last_version, trainings)
                    continue
                except Refused as exc:
                    if exc.code is not RefusalCode.NOT_CHIEF:
                        raise  # else it has yet to hear of the other's death, or that one is back
            if all(self.chief in state.live for state in states):
                patience.extend()  # it lives, and evaluates or saves; that may take its time
            patience.check(f"{self.chief} to begin the training", "check that it runs")
            self._runtime.sleep(POLL_S)

    def pause(self) -> None:
        """Tells every ps that nobody shall wait for this worker's next push: it has no data any more."""
        self._paused = True
        for link in self._links:
            self._ask(link, "pause", m.Pause(ANY), m.JobState)

    def at_work(self) -> tuple[str, ...]:
        """The other workers that still train."""
        return tuple(sorted({task for state in self.states() for task in state.at_work if task != self._task}))

    def states(self) -> list[m.JobState]:
        """How far every shard is."""
        return [self._ask(link, "state", None, m.JobState) for link in self._links]

    @property
    def _recovers(self) -> bool:
        """Whether a ps that is gone is waited for."""
        return self._standbys > 0 or (self._bootstrapper is not None and self._bootstrapper.source is not None)

    def _ask(self, link: Link, action: str, record: Struct | None, kind: type[Record]) -> Record:
        """One request about a shard, to whichever ps has it. All of them may be repeated."""
        begun_at = self._clock()
        while True:
            with link.recovering:
                pass  # another thread is looking for it
            connection = link.connection
            try:
                answer = link.call(action, record, kind, self._timeouts.call_s)
                if not isinstance(answer, m.JobState) or answer.initialised or not self._recovers:
                    return answer
            except (Unreachable, StreamClosed, DeadlineExceeded) as exc:
                # A ps that is silent may be one whose standby is about to take over, or one that waits for its own.
                if not self._recovers or not self._joined or begun_at + self._timeouts.stall_s < self._clock():
                    raise
                if isinstance(exc, DeadlineExceeded):
                    if self._hastened:
                        raise
                    self._say(f"{link} has not answered ({exc}) {self._task} asks again")
            except Refused as exc:
                if not self._recovers or not self._joined or not exc.is_for_another:
                    raise
            with link.recovering:
                if link.connection is connection:  # else another thread has found it
                    self._turn(link)
                    self._find(link, self._is_ready(link), f"{link} to come back with its values")

    def status(self) -> PsStatus:
        """What ps:0 knows of the job; may be called from any thread."""
        return self._links[0].call("status", None, PsStatus, self._timeouts.call_s)

    def pull(self) -> Exchange:
        """The params of every ps as they are now."""
        header = encode(m.Pull())
        for link in self._links:
            self._send_one(link, header, ())
        return self._collect("the params")

    def push(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
    ) -> Exchange:
        """One exchange: `send`, then `collect`."""
        self.send(gradients, versions, loss=loss, examples=examples, finite=finite)
        return self.collect()

    def send(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
    ) -> None:
        """Sends each ps its gradient blocks; `collect` gets the answers. Nothing else may come between the two.

        Args:
          gradients: for each ps its blocks, computed from params of `versions`.
          loss: of the batch, for the display.
          examples: in the batch.
          finite: whether every element of the whole gradient is finite.
        """
        self._sequence, self._paused = self._sequence + 1, False
        shares = list(zip(self._links, gradients, versions, strict=True))
        headers = [encode(m.Push(self._sequence, v, examples, loss, finite, self._fit)) for v in versions]
        if len(shares) == 1 or sum(block.nbytes for blocks in gradients for block in blocks) < AT_ONCE_BYTES:
            for (link, blocks, _), header in zip(shares, headers, strict=True):
                self._send_one(link, header, blocks)
            return
        sends = [
            partial(self._send_one, link, header, blocks)
            for (link, blocks, _), header in zip(shares, headers, strict=True)
        ]
        self._runtime.run_all(sends, "trainband-send")

    def _send_one(self, link: Link, header: bytes, blocks: Sequence[NDArray[Any]]) -> None:
        if link.stream is None and not (self._joined and self._recovers):
            self._stream(link)  # which raises
        link.request = header, blocks
        try:
            self._stream(link).send(header, blocks)
        except StreamClosed as exc:
            link.broken = exc  # `_receive` sees to it, when the others have got theirs

    def collect(self) -> Exchange:
        """The answers to what was sent: the params of every ps."""
        return self._collect("the answer to a push")

    def _collect(self, what: str) -> Exchange:
        params, versions = [], []
        staleness, applied, restarted, done, refusal, worker_state = 0, True, False, True, "", None
        for link in self._links:
            life = link.life
            answer, blocks = self._receive(link, what)
            restarted = restarted or link.life != life
            params.append(blocks)
            versions.append(answer.version)
            staleness = max(staleness, answer.staleness)
            applied = applied and answer.outcome == m.APPLIED
            done = done and answer.done
            if answer.outcome == m.NON_FINITE:
                refusal = answer.detail
            if answer.worker_state:
                worker_state = self._sequence - answer.worker_state
        return Exchange(tuple(params), tuple(versions), staleness, applied, restarted, done, refusal, worker_state)

    def _receive(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        """The answer to the last request. Where the job has checkpoints, a ps that has gone is waited for."""
        died = False
        while True:
            try:
                answer, blocks = self._answer(link, what)
                return (structs.replace(answer, outcome=m.DROPPED) if died else answer), blocks
            except StreamClosed as exc:
                if not self._recovers:
                    raise _lost(link, exc) from exc
                moved = isinstance(exc, _Moved)
                if not moved:
                    self._say(f"lost {link} ({exc}) {self._task} goes on when it is back")
            self._hurry(True)
            died = self._is_back(link, moved=moved) or died
            self._hurry(False)

    def _answer(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        if link.broken is not None:
            raise link.broken
        stream = self._stream(link)
        frame = stream.receive(self._timeouts.heartbeat_s)
        if frame is None:
            self._hurry(self._standbys > 0)
            patience = Waiting(self._timeouts.stall_s, self._say, self._clock)
            advice = "check that it is not overloaded or stopped, or raise Timeouts.stall_s"
            while frame is None:
                if self._cluster_view.is_superseded(link):
                    raise StreamClosed(f"another ps holds shard {link.index} now.")
                whom = self._whom(link, what, patience)
                if self._cluster_view.silent_s(link.ps) > HASTE_S:
                    self._bear(patience, whom, advice)
                else:
                    patience.check(whom, advice)
                frame = stream.receive(self._timeouts.heartbeat_s)
            self._blocked_by = ()
            self._hurry(False)
        link.suspected_at, link.cut = None, False
        answer: m.Downward = decode_any(frame.header, m.Downward, str(link))
        if isinstance(answer, m.Failure):
            refused = Refused(f"{link} refused: {answer.message}", answer.code)
            if self._recovers and refused.is_for_another:
                raise (_Moved if answer.code is RefusalCode.MOVED else StreamClosed)(answer.message)
            raise refused
        return answer, link.blocks(self._plan, frame.body)

    def _is_back(self, link: Link, *, moved: bool) -> bool:
        """Waits for a ps that is gone, and sends the last request again; returns whether it had died meanwhile.

        A ps that still lives knows a push that it has dealt with by its number. One that has died has the values of
        the last checkpoint and could not place the push: it is asked for its params, and the push is lost there.

        `moved`: the ps has said that another one holds the shard.
        """
        self._blocked_by = ()
        before = link.ps
        with link.recovering:
            if moved and self._cluster_view.holder(link) == link.at:
                link.move()
            else:
                self._turn(link)
            joined = self._find(link, self._is_ready(link), f"{link} to come back with its values")
        died = joined.life != link.life
        if died:
            link.life = joined.life
            link.request = encode(m.Pull()), ()
        try:
            self._open(link).send(*link.request)
        except (StreamClosed, Unreachable, DeadlineExceeded) as exc:
            link.broken = StreamClosed(str(exc))
        else:
            news = "is back" if link.ps == before else f"has shard {link.index} now"
            self._say(f"{link} {news}" + (", with the values of the last checkpoint" if died else ""))
        return died

    def _is_ready(self, link: Link) -> Callable[[m.Joined, bool], bool]:
        """Whether a ps that was joined again has what this worker needs to go on."""

        def ready(joined: m.Joined, nobody: bool) -> bool:  # noqa: ARG001 - see `_find`
            if link.index in self._hopeless:
                raise self._hopeless[link.index]
            return joined.initialised and joined.fit >= self._fit

        return ready

    def _turn(self, link: Link) -> None:
        """Connects anew, with the ps that has the shard as far as is known."""
        link.at = self._cluster_view.holder(link)
        link.reconnect()

    def _revive(self, shard: int, bootstrapper: Bootstrapper) -> None:
        """Chief only: gives a shard that nobody has any more its part of the last checkpoint."""
        used = self._links[shard]
        nowhere = self._cluster_view.is_nowhere(used)
        place = used.places[0 if nowhere else self._cluster_view.holder(used)]
        link = Link(shard, [place], self._incarnation, self._transport, self._timeouts, self._runtime)
        try:
            if nowhere and not all(self._has_nothing(shard, address) for _, address in used.places):
                return
            joined = self._join_once(link)
            last_version = min(self._last_version, self._cluster_view.last_version(self._fit))
            begin = m.Begin(ANY, self._fit, last_version, self.trainings)
            if not joined.initialised:
                if nowhere:  # else another has it since this was begun
                    self._bring_back(link, bootstrapper, begin)
            elif joined.fit < self._fit:  # its chief has died before it could say so
                self._steer_anew(link)
                link.ask("begin", begin, m.JobState)
        except (CheckpointError, ModelMismatch) as exc:
            self._hopeless[shard] = exc
        except PeerError as exc:
            self._say(f"shard {shard} could not be given its values yet: {exc}")  # the next heartbeat tries again
        finally:
            link.close()

    def _has_nothing(self, shard: int, address: str) -> bool:
        """Whether a ps says so now of a shard: it may be a standby since it was heard."""
        connection = self._transport.connect(address, self._timeouts)
        try:
            state = decode(connection.call("state", timeout_s=self._timeouts.heartbeat_s), m.JobState, address)
        finally:
            connection.close()
        return has_nothing(state, shard)

    def _bring_back(self, link: Link, bootstrapper: Bootstrapper, begin: m.Begin) -> None:
        """Chief only: gives a ps that has come into a job under way its part of the last checkpoint.

        Raises:
          CheckpointError: there can be none.
        """
        if bootstrapper.define(link, self.job, alone=True).initialised:
            return
        if bootstrapper.source is None:
            raise CheckpointError(f"{link} has lost its values, and this job saves none that it could go on from.")
        checkpoint = bootstrapper.restore([link], None, alone=True)
        if checkpoint is not None:
            origin = f"{checkpoint.path} (its version {checkpoint.global_step:,})"
        else:
            self._open(link, bootstrapping=link not in self._links).send(
                encode(m.Initialise()), bootstrapper.first_values()[link.index]
            )
            self._answer(link, "its answer to the first values")
            origin = "the first values, for there is no checkpoint yet"
        self._steer_anew(link)
        link.ask("begin", begin, m.JobState)
        self._say(f"{link.name} goes on from {origin}")

    def _steer_anew(self, link: Link) -> None:
        """Before a revived ps makes any update: its numbers are those of the checkpoint."""
        for steer in self._steers(link.index):
            link.ask("steer", steer, m.JobState)

    def _whom(self, link: Link, what: str, patience: Waiting) -> str:
        """For whom this worker waits: the ps, or other workers for whom the ps waits; those may take their time."""
        if len(link.places) > 1 and self._is_silent(link):
            self._blocked_by = ()
            return f"{link} to send {what}"  # to ask it would only keep this worker from going on with its successor
        try:
            state = link.call("state", None, m.JobState, self._timeouts.heartbeat_s)
        except PeerError:
            return f"{link} to send {what}"
        standbys = [task for task in state.waiting_for if task.startswith("ps:")]
        if standbys:
            self._blocked_by = ()
            return f"{link}, which waits for its standby {', '.join(standbys)}, to send {what}"
        others = [task for task in state.waiting_for if task != self._task]
        self._blocked_by = tuple(others)
        if not others:
            return f"{link} to send {what}"
        patience.extend()
        return f"the gradients of {', '.join(others)}, as {link.name} does"

    def _stream(self, link: Link) -> Stream:
        if link.stream is None:
            raise StreamClosed(f"{self._task} has no stream to {link}: it has not joined the job, or has left it.")
        return link.stream

    # --- what the heartbeats bring

    def _hurry(self, on: bool) -> None:
        self._hurried = on
        for heartbeater in self._heartbeaters if on else ():
            heartbeater.wake()

    def _is_in_trouble(self) -> bool:
        """Whether this worker waits for a ps, or is about to: a stream hears nothing of one that is silent."""
        successors = self._joined and self._standbys > 0
        silent = successors and any(map(self._is_silent, self._links))
        return self._hurried or silent or any(map(self._may_be_lost, self._links))

    def _is_silent(self, link: Link) -> bool:
        return self._cluster_view.silent_s(link.ps) > SILENT_BEATS * self._timeouts.heartbeat_s

    def _may_be_lost(self, link: Link) -> bool:
        """Whether somebody waits on a stream that was there when the network was away, and hears nothing."""
        stream = link.stream
        if stream is None or link.suspected_at is None or link.cut:
            return False
        return stream.silent_s > self._timeouts.heartbeat_s / 2

    def _heard(self, ps: int, state: m.JobState | None) -> None:
        """An answer to a heartbeat; called by each ps's own thread."""
        if self._left:
            return
        if state is not None:
            self._look_for_lost_streams(ps, was_away=self._cluster_view.unanswered(ps) >= SILENT_BEATS)
        for vote_request in self._cluster_view.note(ps, state, begun=self._fit > 0):
            self._decide(ps, vote_request)
        for link in self._links if self._standbys else ():
            stream = link.stream
            if stream is not None and self._cluster_view.is_superseded(link):
                stream.interrupt()  # whoever waits there waits in vain
        if self._bootstrapper is not None and self.is_chief and self._joined and self._recovers:
            for link in self._links:
                if self._cluster_view.is_nowhere(link) or self._cluster_view.is_unbegun(link, self._fit):
                    self._start_reviving(link.index, self._bootstrapper)

    def _look_for_lost_streams(self, ps: int, *, was_away: bool) -> None:
        """Has streams opened anew on which a worker waits for a ps that answers otherwise; each once in an outage."""
        timeouts = self._timeouts
        for link in self._links if self._joined and self._recovers else ():
            stream = link.stream
            if link.ps != ps or stream is None:
                continue
            if was_away:
                link.suspected_at, link.cut = self._clock(), False
                continue
            since, most_s = link.suspected_at, timeouts.stall_s / 2
            # A ps that goes on mostly gives a sign of life every half heartbeat. Where one comes later, the stream is
            # opened anew in vain, once.
            if since is not None and self._clock() - since > timeouts.heartbeat_s / 2:
                most_s = timeouts.heartbeat_s
            if stream.silent_s > most_s and not link.cut:
                link.cut = True
                stream.interrupt()

    def _decide(self, ps: int, vote_request: VoteRequest) -> None:
        heartbeater = self._heartbeaters[ps]
        vote = Vote(heartbeater.worker, self._incarnation, vote_request.term, self._cluster_view.grants(vote_request))
        try:
            heartbeater.tell(f"vote/{vote_request.shard}", encode(vote))
        except PeerError as exc:
            self._say(f"could not tell {heartbeater} who holds shard {vote_request.shard}: {exc}")  # it will ask again

    def _start_reviving(self, shard: int, bootstrapper: Bootstrapper) -> None:
        """In a thread of its own: every ps must hear this worker's heart meanwhile."""
        with self._starting:
            thread = self._reviving.get(shard)
            if (thread is None or not thread.is_alive()) and shard not in self._hopeless:
                work = partial(self._revive, shard, bootstrapper)
                self._reviving[shard] = thread = self._runtime.thread(work, "trainband-revive")
                thread.start()


class _Moved(StreamClosed):
    """The ps has said that another one holds the shard."""


def _lost(link: Link, exc: StreamClosed) -> StreamClosed:
    """The error for a stream that has ended: which task that was, and what to do."""
    return StreamClosed(
        f"{link.name} is not there any more: {exc} See what {link.name} printed last, and start the job again."
    )
