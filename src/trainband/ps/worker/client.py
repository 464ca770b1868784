"""A worker's side of the parameter servers: joining, training and leaving."""

from __future__ import annotations

from trainband.cluster import Cluster
from trainband.cluster.resolvers.joined import report_joined
from trainband.job.checkpoints import RestoreFrom
from trainband.model.tables import Tables
from trainband.ps.worker.checkpoints import WorkerCheckpoints
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.exchange import Exchange, Exchanger
from trainband.ps.worker.heartbeats import Heartbeats
from trainband.ps.worker.job_setup import JobSetup
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.memory import WorkerHoldings, require_room
from trainband.ps.worker.peers import WorkerPeers
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.resources import WorkerResources
from trainband.ps.worker.reviver import Reviver
from trainband.ps.worker.shard_definer import FirstValues, ShardDefiner
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Link
from trainband.ps.worker.shard_requests import ShardRequests
from trainband.ps.worker.steering import Steering
from trainband.ps.worker.table_rows import TableRows
from trainband.ps.worker.training_control import TrainingControl
from trainband.ps.worker.urgency import Urgency
from trainband.ps.worker.values import WorkerValues
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.wire.transport import Timeouts, Transport


class JobClient:
    """One worker's client of a job. Use from one thread; its own threads send the heartbeats."""

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
        tables: Tables | None = None,
    ) -> None:
        """Prepares to join.

        `resources`: this worker's usage, for display; by default its memory only. `tables`: the model's.
        """
        self.membership = membership = Membership(
            cluster, plan, transport, timeouts, say, runtime, resources or WorkerResources(runtime)
        )
        ps = [(i, cluster.spec.address(task)) for i, task in enumerate(cluster.spec.ps)]
        self._links = links = [
            Link(
                shard,
                [ps[(shard + i) % len(ps)] for i in range(1 + membership.standbys)],
                membership.incarnation,
                membership.transport,
                timeouts,
                runtime,
            )
            for shard in range(len(ps))
        ]
        self._log = task_logger(__name__, membership.task)
        self._cluster_view = view = ClusterView(
            membership.identity, str(cluster.spec.chief), runtime, timeouts.lease_s, len(ps)
        )
        urgency = Urgency(membership, links, view)
        self._finder = finder = ShardFinder(membership, view)
        requests = ShardRequests(membership, finder)
        self.exchanger = exchanger = Exchanger(membership, links, view, finder, urgency)
        steering = Steering(plan)
        self._reviver = reviver = Reviver(membership, links, view, finder, exchanger, steering)
        self._heartbeats = heartbeats = Heartbeats(ps, membership, links, view, urgency, reviver)
        self._setup = setup = JobSetup(membership, links, view, finder, exchanger, reviver)
        self.training = training = TrainingControl(membership, links, requests, view, steering)
        self.tables = TableRows(tables, exchanger, len(ps), runtime.lock()) if tables else None
        """Looks up rows; `None` for a model without tables."""
        self.values = WorkerValues(membership, exchanger, training, self.tables)
        self.checkpoints = checkpoints = WorkerCheckpoints(membership, links, requests, exchanger, training, setup)
        membership.resources.held = WorkerHoldings(links, lambda: checkpoints.carry)
        self.peers = WorkerPeers(membership, links, requests, view, training, heartbeats.recordings)

    def join(self, first_values: FirstValues, restore: RestoreFrom | None = None) -> Exchange:
        """Joins every ps and pulls the params; the chief defines and initialises or restores each new shard.

        Args:
          first_values: called on the chief only, when some shard has no values: each shard's blocks.
          restore: used on the chief only, when some shard has no values: source of checkpoints.

        Raises:
          ResourceExhausted: this worker has too little memory for the model.
          CheckpointError: a checkpoint exists but cannot be restored.
          ModelMismatch: the model or optimizer is not the chief's.
          Refused: another process holds this task's name.
          Unreachable, DeadlineExceeded: a ps or the chief did not come up in `Timeouts.start_s`.
        """
        membership, view, find = self.membership, self._cluster_view, self._finder.find
        timeouts = membership.timeouts
        membership.definer = definer = ShardDefiner(
            membership.plan, first_values, restore, timeouts=timeouts, say=membership.say, runtime=membership.runtime
        )
        params = sum(layout.nbytes for layout in membership.plan.layout.shards)
        require_room(membership.task, params, membership.runtime.available_memory())
        report_joined()
        for link in self._links:
            find(link, until=lambda *_: True, awaited=f"{link} to come up")
            if link is self._links[0]:
                # At once: the lease must not expire while this worker waits for another ps. Not earlier: a worker
                # that cannot start threads leaves the job with that error, which a ps must be there to hear.
                self._heartbeats.start()
        waiting = membership.waiting(timeouts.start_s)
        if view.is_chief:
            self._setup.try_once(definer, waiting)
        for link in self._links:
            while not find(
                link,
                until=lambda joined, _: joined.initialised or view.is_chief,
                awaited=f"{view.chief} to initialise the variables on {link.name}",
            ).initialised:
                self._setup.try_once(definer, waiting)  # the chief died before it could
        if view.is_chief:
            self._setup.await_standbys()
        for link in self._links:
            self._finder.open(link)
        membership.joined = True
        self._heartbeats.join_late_ps()
        return self.exchanger.pull()

    def leave(self, failure: str = "") -> None:
        """Leaves the job at every ps and closes. `failure`: the reason if something failed. Idempotent."""
        membership = self.membership
        if membership.left:
            return
        membership.left = True
        self._log.info("leaves the job%s", f": {failure}" if failure else "")
        self._heartbeats.stop()
        self._reviver.wait()
        self._heartbeats.leave(failure, self._finder.lost if failure else "")
        if membership.standbys and membership.joined and not failure:
            self._heartbeats.wait_for_another_arbiter()
        self._heartbeats.close()
        for link in self._links:
            link.close()
