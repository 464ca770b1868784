"""A worker's side of the parameter servers: joining the job, and one exchange with all of them per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.cluster import Cluster
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.joined import note_joined
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import RefusalCode, Refused, StreamClosed
from trainband.ps.description import Plan
from trainband.ps.statistics import PsStatus
from trainband.ps.worker.bootstrapper import Bootstrapper, FirstValues
from trainband.ps.worker.checkpointing import ANY, ME, JobSaving, RestoreFrom
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.exchange import Exchange, Exchanger
from trainband.ps.worker.heartbeats import Heartbeats
from trainband.ps.worker.job_setup import JobSetup
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.resources import WorkerResources
from trainband.ps.worker.reviver import Reviver
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Link
from trainband.ps.worker.shard_requests import ShardRequests
from trainband.ps.worker.steering import Steering
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.logs import task_logger
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.runtime.step_times import StepTimes
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire import messages as m
from trainband.wire.transport import Timeouts, Transport
from trainband.wire.workload import Workload


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
        resources: WorkerResources | None = None,
    ) -> None:
        """Prepares to join.

        `resources`: what this worker uses, for the display; its memory alone when left out.
        """
        incarnation = runtime.token()
        transport = transport.speaking_as(Identity(str(cluster.task), incarnation))
        self._membership = membership = Membership(
            cluster, plan, transport, timeouts, say, runtime, incarnation, resources or WorkerResources(runtime)
        )
        ps = [(i, cluster.spec.address(task)) for i, task in enumerate(cluster.spec.ps)]
        self._links = links = [
            Link(
                shard,
                [ps[(shard + i) % len(ps)] for i in range(1 + membership.standbys)],
                membership.incarnation,
                transport,
                timeouts,
                runtime,
            )
            for shard in range(len(ps))
        ]
        self._log = task_logger(__name__, membership.task)
        self._cluster_view = view = ClusterView(
            membership.incarnation, str(cluster.spec.chief), runtime, timeouts.lease_s
        )
        self._heartbeats = Heartbeats(ps, membership, links, view, revive=lambda: self._reviver.look())
        self._finder = ShardFinder(membership, view, self._heartbeats)
        self._requests = ShardRequests(membership, self._finder)
        self._exchanger = Exchanger(membership, links, view, self._finder, self._heartbeats)
        self._steering = Steering(plan)
        self._reviver = Reviver(membership, links, view, self._finder, self._exchanger, self._steering)
        self._setup = JobSetup(membership, links, view, self._finder, self._exchanger, self._reviver)

    @property
    def chief(self) -> str:
        """The worker that has the chief's duties now."""
        return self._cluster_view.chief

    @property
    def is_chief(self) -> bool:
        """Whether this worker has the chief's duties now."""
        return self.chief == self._membership.task

    @property
    def job(self) -> str:
        """Which job this is: random, the same for all its tasks."""
        return self._membership.job

    @property
    def trainings(self) -> tuple[int, ...]:
        """Where each training of the job that is under way began."""
        return self._membership.trainings

    @property
    def restored(self) -> Checkpoint | None:
        """What the job has begun from, as far as the chief knows."""
        return self._setup.restored

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
        membership, timeouts, find = self._membership, self._membership.timeouts, self._finder.find
        membership.bootstrapper = bootstrapper = Bootstrapper(
            membership.plan, first_values, restore, timeouts=timeouts, say=membership.say, runtime=membership.runtime
        )
        note_joined()
        for link in self._links:
            find(link, until=lambda *_: True, whom=f"{link} to come up")
            if link is self._links[0]:
                # At once: its lease must not end while this worker waits for another ps to come up. Not before: a
                # worker that cannot have the threads leaves the job with that error, and whoever is in it hears of it.
                self._heartbeats.start()
        waiting = membership.waiting(timeouts.start_s)
        if self.is_chief:
            self._setup.try_once(bootstrapper, waiting)
        for link in self._links:
            while not find(
                link,
                until=lambda joined, _: joined.initialised or self.is_chief,
                whom=f"{self.chief} to initialise the variables on {link.name}",
            ).initialised:
                self._setup.try_once(bootstrapper, waiting)  # the chief has died before it could
        if self.is_chief:
            self._setup.await_standbys()
        for link in self._links:
            self._finder.open(link)
        membership.joined = True
        self._heartbeats.join_late_ps()
        return self.pull()

    @property
    def times(self) -> StepTimes:
        """What this worker's steps have spent their time on; the exchange with the ps is noted here, the rest is for
        the caller to note.
        """
        return self._membership.times

    @property
    def resources(self) -> WorkerResources:
        """What this worker uses."""
        return self._membership.resources

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """What a recorder has noted of this worker's steps, with what it knows of the clocks of the ps."""
        return self._heartbeats.recordings.recording(recorder)

    def note_first_batch(self, digest: str) -> None:
        """Has ps:0 compare the batch that this worker begins with with the others'."""
        self._membership.first_batch = self._membership.first_batch or digest

    def shorten_waits(self, request: str) -> None:
        """From now on this worker waits only `PREEMPTED_WAIT_S` for a ps that is away. For a signal handler, too."""
        self._membership.request = request

    def leave(self, failure: str = "") -> None:
        """Leaves the job at every ps and closes. `failure` says why, if something went wrong. Idempotent."""
        membership = self._membership
        if membership.left:
            return
        membership.left = True
        self._log.info("leaves the job%s", f": {failure}" if failure else "")
        self._heartbeats.stop()
        self._reviver.wait()
        self._heartbeats.leave(failure, self._finder.lost if failure else "")
        if membership.standbys and membership.joined and not failure:
            self._heartbeats.hand_over_decisions()
        self._heartbeats.close()
        for link in self._links:
            link.close()

    # --- training

    def begin(self, fit: int, last_version: int, trainings: Sequence[int] = ()) -> None:
        """Chief only: asks every ps for updates until its version is `last_version`, as training number `fit`."""
        membership = self._membership
        membership.last_version, membership.trainings = last_version, tuple(trainings)
        for link in self._links:
            self._requests.ask(link, "begin", m.Begin(ANY, ME, fit, last_version, membership.trainings), m.JobState)

    def finish(self) -> None:
        """Chief only: ends the training where it is."""
        ends = [self._requests.ask(link, "finish", m.Finish(ANY, ME), m.JobState).last_version for link in self._links]
        self._membership.last_version = min(ends)  # for a ps that dies now

    def steer(self, settings: Mapping[str, float]) -> None:
        """Chief only: sets numbers of the optimizer's state on every ps, from the next update on.

        Raises:
          ModelError: the state has no such number.
        """
        self._steering.note(settings, range(len(self._links)))
        for link in self._links:
            for steer in self._steering.of_shard(link.index):
                self._requests.ask(link, "steer", steer, m.JobState)

    def save(self, directory: Path, at: int) -> JobSaving:
        """Chief only: orders a checkpoint of the version `at`, see `JobSaving`."""
        return JobSaving(self._links, directory, at, self._membership.runtime)

    def landed(self, global_step: int, nbytes: int, seconds: float) -> None:
        """Chief only: tells ps:0 of a checkpoint that was committed, for whoever asks for the status."""
        self._links[0].ask("landed", m.Landed(ANY, ME, global_step, nbytes, seconds), m.JobState)

    def leave_worker_state(self, data: bytes, behind: int = 0) -> None:
        """Leaves with ps:0 what this worker must find again if it resumes from so many pushes ago."""
        left = m.LeftWorkerState(ANY, ME, max(0, self._membership.sequence - behind), data)
        self._requests.ask(self._links[0], "worker_state", left, m.JobState)

    def find_worker_state(self) -> bytes:
        """What was left for this worker, in an earlier life or a restored checkpoint; empty where nothing was."""
        question = m.WorkerStateQuestion(ANY, ME)
        return self._requests.ask(self._links[0], "my_worker_state", question, m.WorkerStateAnswer).data

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks for the next piece of a shared data source; may be called from any thread.

        Raises:
          StreamClosed: this worker has left the job, and must not seem to be back.
        """
        if self._membership.left:
            raise StreamClosed(f"{self._membership.task} has left the job.")
        return self._requests.ask(self._links[0], "lease", m.Lease(ANY, ME, request), LeaseAnswer)

    def await_begin(self, fit: int, last_version: int = m.UNLIMITED, trainings: Sequence[int] = ()) -> m.JobState:
        """Waits until the chief has begun training number `fit` on every ps; returns the state of ps:0.

        Should this worker become the chief meanwhile, it begins it itself, with what the one before had begun, or else
        until `last_version`.
        """
        membership = self._membership
        waiting = membership.waiting(membership.timeouts.start_s)
        while True:
            states = self.states()
            if all(state.fit >= fit for state in states):
                membership.fit, membership.last_version = states[0].fit, states[0].last_version
                membership.trainings = states[0].trainings
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
                waiting.extend()  # it lives, and evaluates or saves; that may take its time
            waiting.check(f"{self.chief} to begin the training", "check that it runs")
            membership.pause()

    def pause(self) -> None:
        """Tells every ps that nobody shall wait for this worker's next push: it has no data any more."""
        self._membership.paused = True
        for link in self._links:
            self._requests.ask(link, "pause", m.Pause(ANY, ME), m.JobState)

    def at_work(self) -> tuple[str, ...]:
        """The other workers that still train."""
        at_work = {task for state in self.states() for task in state.at_work}
        return tuple(sorted(at_work - {self._membership.task}))

    def states(self) -> list[m.JobState]:
        """How far every shard is."""
        return [self._requests.ask(link, "state", None, m.JobState) for link in self._links]

    def status(self) -> PsStatus:
        """What ps:0 knows of the job; may be called from any thread."""
        return self._links[0].call("status", None, PsStatus, self._membership.timeouts.call_s)

    def shards(self) -> tuple[tuple[int, str, int, str], ...]:
        """Of each shard its number, the ps that this worker speaks with, its term and lineage; from any thread."""
        return tuple((link.index, link.name, link.term, link.lineage) for link in self._links)

    def pull(self) -> Exchange:
        """The params of every ps as they are now."""
        return self._exchanger.pull()

    def assign(
        self, blocks: Sequence[Sequence[NDArray[Any]]], slices: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Exchange:
        """Gives variables values outside the updates: at once, whatever the rule. Returns the params afterwards.

        Args:
          blocks: for each ps, in the layout of its params.
          slices: for each ps the numbers of those that get these values, and of those that these are added to.
        """
        return self._exchanger.assign(blocks, slices)

    def push(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
        workload: Workload | None = None,
    ) -> Exchange:
        """One exchange: `send`, then `collect`."""
        self.send(gradients, versions, loss=loss, examples=examples, finite=finite, workload=workload)
        return self.collect()

    def send(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
        workload: Workload | None = None,
    ) -> None:
        """Sends each ps its gradient blocks; `collect` gets the answers. Nothing else may come between the two.

        Args:
          gradients: for each ps its blocks, computed from params of `versions`.
          loss: of the batch, for the display.
          examples: in the batch.
          finite: whether every element of the whole gradient is finite.
          workload: what it took to compute, where the rule divides the examples of an update.
        """
        self._exchanger.send(gradients, versions, loss=loss, examples=examples, finite=finite, workload=workload)

    def collect(self) -> Exchange:
        """The answers to what was sent: the params of every ps."""
        return self._exchanger.collect()
