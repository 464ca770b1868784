"""Reviver: restores a shard that no ps holds from the last checkpoint while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from trainband.errors import CheckpointError, ModelMismatch, PeerError, ResourceExhausted
from trainband.ps.worker.cluster_view import ClusterView, has_nothing
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_definer import ShardDefiner
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.ps.worker.steering import Steering
from trainband.runtime import Lock, Thread
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode


@dataclass(eq=False)
class Reviver:
    """Restorer of shards. Every worker has one: any may become chief."""

    _membership: Membership
    _links: Sequence[Link]
    _cluster_view: ClusterView
    _finder: ShardFinder
    _exchanger: Exchanger
    _steering: Steering
    _threads: dict[int, Thread] = field(default_factory=dict, init=False)
    """The thread that revives each shard."""
    _starting: Lock = field(init=False)
    """Guards their start: any ps's heartbeats may request one."""

    def __post_init__(self) -> None:
        self._starting = self._membership.runtime.lock()

    def poll(self) -> None:
        """Starts reviving shards that no ps holds; called after each heartbeat's answer."""
        membership, definer = self._membership, self._membership.definer
        if definer is not None and self._cluster_view.is_chief and membership.joined and membership.recovers:
            for link in self._links:
                if self._cluster_view.is_nowhere(link) or self._cluster_view.is_unbegun(
                    link, membership.training.number
                ):
                    self._start(link.index, definer)

    def wait(self) -> None:
        """Waits for revivals, at most as long as a task may take to end."""
        for thread in list(self._threads.values()):
            thread.join(self._membership.timeouts.grace_s)

    def bring_back(self, link: Link, definer: ShardDefiner, begin: m.Begin) -> None:
        """Chief only: restores a ps that joined a running job from the last checkpoint.

        Raises:
          CheckpointError: the job saves none.
        """
        if definer.define(link, self._membership.job, alone=True).initialised:
            return
        if definer.source is None:
            raise CheckpointError(f"{link} has lost its values, and this job saves none that it could resume from.")
        checkpoint = definer.restore([link], None, alone=True)
        if checkpoint is not None:
            origin = f"{checkpoint.path} (its version {checkpoint.global_step:,})"
        else:
            values = definer.first_values()[link.index]
            self._exchanger.initialise(link, values, bootstrapping=link not in self._links)
            origin = "the first values, as there is no checkpoint yet"
        self._steer(link)
        link.ask("begin", begin, m.JobState)
        self._membership.say(f"{link.name} resumes from {origin}")

    def _start(self, shard: int, definer: ShardDefiner) -> None:
        """Uses its own thread: heartbeats must continue, and the main thread may be waiting for a worker that waits for
        this very ps.
        """
        with self._starting:
            thread = self._threads.get(shard)
            if (thread is None or not thread.is_alive()) and shard not in self._finder.unrecoverable:
                work = partial(self._revive, shard, definer)
                thread = self._membership.runtime.thread(work, "trainband-revive")
                try:
                    thread.start()
                except ResourceExhausted as exc:  # for the main thread to raise
                    self._finder.unrecoverable[shard] = exc
                else:
                    self._threads[shard] = thread

    def _revive(self, shard: int, definer: ShardDefiner) -> None:
        """Chief only: restores a shard that no ps holds from the last checkpoint."""
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
            training = membership.training
            last_version = min(training.last_version, self._cluster_view.last_version(training.number))
            begin = m.Begin(ANY, ME, training.number, last_version, training.starts)
            if not joined.initialised:
                if nowhere:  # else another ps got it meanwhile
                    self.bring_back(link, definer, begin)
            elif joined.fit < training.number:  # its chief died before it could begin
                self._steer(link)
                link.ask("begin", begin, m.JobState)
        except (CheckpointError, ModelMismatch) as exc:
            self._finder.unrecoverable[shard] = exc
        except PeerError as exc:  # the next heartbeat tries again
            membership.say(f"shard {shard} could not be restored yet: {exc}")
        finally:
            link.close()

    def _has_nothing(self, shard: int, address: str) -> bool:
        """Whether a ps has nothing of a shard now: it may have become a standby."""
        timeouts = self._membership.timeouts
        connection = self._membership.transport.connect(address, timeouts)
        try:
            state = decode(connection.call("state", timeout_s=timeouts.heartbeat_s), m.JobState, address)
        finally:
            connection.close()
        return has_nothing(state, shard)

    def _steer(self, link: Link) -> None:
        """Sets the scalars of a revived ps, which are the checkpoint's, before any update."""
        for steer in self._steering.of_shard(link.index):
            link.ask("steer", steer, m.JobState)
