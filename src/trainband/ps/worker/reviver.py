"""Reviver: gives a shard that no ps has any more its part of the last checkpoint, while the job goes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trainband.errors import CheckpointError, ModelMismatch, PeerError, ResourceExhausted
from trainband.ps.worker.bootstrapper import Bootstrapper
from trainband.ps.worker.checkpointing import ANY, ME
from trainband.ps.worker.cluster_view import ClusterView, has_nothing
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Link
from trainband.ps.worker.steering import Steering
from trainband.runtime import Thread
from trainband.wire import messages as m
from trainband.wire.codec import decode


class Reviver:
    """The chief's; every worker has one, for any may become the chief.

    Args:
      membership: of this worker.
      links: to every shard.
      cluster_view: what is known of every ps.
      finder: joins the ps.
      exchanger: sends the first values, where there is no checkpoint yet.
      steering: which numbers of the optimizer's state were set.
    """

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        finder: ShardFinder,
        exchanger: Exchanger,
        steering: Steering,
    ) -> None:
        self._membership = membership
        self._links = links
        self._cluster_view = cluster_view
        self._finder = finder
        self._exchanger = exchanger
        self._steering = steering
        self._threads: dict[int, Thread] = {}
        """Of each shard that was revived."""
        self._starting = membership.runtime.lock()
        """Of these threads: each ps's heartbeats may see that one is wanted."""

    def look(self) -> None:
        """Begins to revive whatever shards are nowhere; called after each heartbeat's answer."""
        membership, bootstrapper = self._membership, self._membership.bootstrapper
        is_chief = self._cluster_view.chief == membership.task
        if bootstrapper is not None and is_chief and membership.joined and membership.recovers:
            for link in self._links:
                if self._cluster_view.is_nowhere(link) or self._cluster_view.is_unbegun(link, membership.fit):
                    self._start(link.index, bootstrapper)

    def wait(self) -> None:
        """Returns when nothing is being revived, or a task's end may not take longer."""
        for thread in list(self._threads.values()):
            thread.join(self._membership.timeouts.grace_s)

    def bring_back(self, link: Link, bootstrapper: Bootstrapper, begin: m.Begin) -> None:
        """Chief only: gives a ps that has come into a job under way its part of the last checkpoint.

        Raises:
          CheckpointError: there can be none.
        """
        if bootstrapper.define(link, self._membership.job, alone=True).initialised:
            return
        if bootstrapper.source is None:
            raise CheckpointError(f"{link} has lost its values, and this job saves none that it could resume from.")
        checkpoint = bootstrapper.restore([link], None, alone=True)
        if checkpoint is not None:
            origin = f"{checkpoint.path} (its version {checkpoint.global_step:,})"
        else:
            values = bootstrapper.first_values()[link.index]
            self._exchanger.initialise(link, values, bootstrapping=link not in self._links)
            origin = "the first values, for there is no checkpoint yet"
        self._steer(link)
        link.ask("begin", begin, m.JobState)
        self._membership.say(f"{link.name} resumes from {origin}")

    def _start(self, shard: int, bootstrapper: Bootstrapper) -> None:
        """In a thread of its own: every ps must hear this worker's heart meanwhile."""
        with self._starting:
            thread = self._threads.get(shard)
            if (thread is None or not thread.is_alive()) and shard not in self._finder.unrecoverable:
                work = partial(self._revive, shard, bootstrapper)
                thread = self._membership.runtime.thread(work, "trainband-revive")
                try:
                    thread.start()
                except ResourceExhausted as exc:  # for the main thread: this one has others to hear
                    self._finder.unrecoverable[shard] = exc
                else:
                    self._threads[shard] = thread

    def _revive(self, shard: int, bootstrapper: Bootstrapper) -> None:
        """Chief only: gives a shard that nobody has any more its part of the last checkpoint."""
        membership, used = self._membership, self._links[shard]
        nowhere = self._cluster_view.is_nowhere(used)
        place = used.places[0 if nowhere else self._cluster_view.holder(used)]
        link = Link(
            shard, [place], membership.incarnation, membership.transport, membership.timeouts, membership.runtime
        )
        try:
            if nowhere and not all(self._has_nothing(shard, address) for _, address in used.places):
                return
            joined = self._finder.join_once(link)
            last_version = min(membership.last_version, self._cluster_view.last_version(membership.fit))
            begin = m.Begin(ANY, ME, membership.fit, last_version, membership.trainings)
            if not joined.initialised:
                if nowhere:  # else another has it since this was begun
                    self.bring_back(link, bootstrapper, begin)
            elif joined.fit < membership.fit:  # its chief has died before it could say so
                self._steer(link)
                link.ask("begin", begin, m.JobState)
        except (CheckpointError, ModelMismatch) as exc:
            self._finder.unrecoverable[shard] = exc
        except PeerError as exc:  # the next heartbeat tries again
            membership.say(f"shard {shard} could not be given its values yet: {exc}")
        finally:
            link.close()

    def _has_nothing(self, shard: int, address: str) -> bool:
        """Whether a ps says so now of a shard: it may be a standby since it was heard."""
        timeouts = self._membership.timeouts
        connection = self._membership.transport.connect(address, timeouts)
        try:
            state = decode(connection.call("state", timeout_s=timeouts.heartbeat_s), m.JobState, address)
        finally:
            connection.close()
        return has_nothing(state, shard)

    def _steer(self, link: Link) -> None:
        """Before a revived ps makes any update: its numbers are those of the checkpoint."""
        for steer in self._steering.of_shard(link.index):
            link.ask("steer", steer, m.JobState)
