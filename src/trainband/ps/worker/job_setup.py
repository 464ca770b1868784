"""JobSetup: how the chief gives a job that begins its model and its first values."""

from __future__ import annotations

from collections.abc import Sequence

from trainband.checkpoint import Checkpoint
from trainband.errors import CheckpointError, DeadlineExceeded, RefusalCode, Refused, StreamClosed
from trainband.ps.worker.bootstrapper import Bootstrapper
from trainband.ps.worker.checkpointing import ANY, ME, Overtaken
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.reviver import Reviver
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Link
from trainband.runtime.waiting import Waiting
from trainband.wire import messages as m


class JobSetup:
    """The chief's; every worker has one, for any may become the chief.

    Args:
      membership: of this worker.
      links: to every shard.
      cluster_view: what is known of every ps.
      finder: joins the ps.
      exchanger: sends the first values.
      reviver: brings back what a job under way has lost.
    """

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        finder: ShardFinder,
        exchanger: Exchanger,
        reviver: Reviver,
    ) -> None:
        self.restored: Checkpoint | None = None
        """What the job has begun from, as far as the chief knows."""
        self._membership = membership
        self._links = links
        self._cluster_view = cluster_view
        self._finder = finder
        self._exchanger = exchanger
        self._reviver = reviver

    def try_once(self, bootstrapper: Bootstrapper, waiting: Waiting) -> None:
        """Sets the job up; where another chief was faster, or a ps knows of another, what is left is seen again."""
        membership = self._membership
        job = membership.job
        try:
            self._set_up(bootstrapper)
        except Refused as exc:
            membership.job = job  # not one that this worker has made up
            if not isinstance(exc, Overtaken) and exc.code is not RefusalCode.NOT_CHIEF:
                raise
            waiting.check(f"all ps to know who is the chief ({exc})", "check that they reach every worker")
            membership.pause()

    def await_standbys(self) -> None:
        """So that nothing of the training can be lost with one ps."""
        membership, timeouts = self._membership, self._membership.timeouts
        for link in self._links if membership.standbys else ():
            waiting = membership.waiting(timeouts.stall_s)
            other = next(ps for ps, _ in link.places if ps != link.ps)
            while not self._finder.find(link, lambda joined, _: joined.initialised, f"{link} to come back").protected:
                if self._cluster_view.silent_s(other) > timeouts.lease_s:
                    membership.say(f"WARNING: shard {link.index} has no standby yet: ps:{other} does not answer")
                    break  # the job goes on without it until it is there
                try:
                    waiting.check(f"ps:{other} to become the standby of shard {link.index}", "")
                except DeadlineExceeded:
                    missing = f"shard {link.index} has no standby yet: ps:{other} does not follow {link.name}"
                    membership.say(f"WARNING: {missing}")
                    break
                membership.pause()

    def _set_up(self, bootstrapper: Bootstrapper) -> None:
        membership = self._membership
        new = []
        for link in self._links:
            joined = self._finder.find(
                link,
                until=lambda joined, nobody: joined.initialised or nobody,
                whom=f"a ps that has the values of shard {link.index}",
            )
            if not joined.initialised:
                new.append(link)
        if not new:
            return
        membership.job = membership.job or membership.runtime.token()
        for link in new:
            if link.at:
                link.at = 0
                link.reconnect()
        others = self._states_of_the_others(new)
        begun = max(others, key=lambda state: state.fit, default=None)
        if begun is not None and begun.fit > 0:
            for link in new:
                begin = m.Begin(ANY, ME, begun.fit, begun.last_version, begun.trainings)
                self._reviver.bring_back(link, bootstrapper, begin)
            return
        for link in new:
            if bootstrapper.define(link, membership.job).job != membership.job:
                raise Overtaken(f"{link} has got the values of another job meanwhile")
        if bootstrapper.source is not None:
            # Where some have values already, a chief has died between them.
            at = max((state.version for state in others), default=None)
            self.restored = bootstrapper.restore(new, at)
            if self.restored is None and at:
                names = ", ".join(link.name for link in new)
                raise CheckpointError(
                    f"{names} has no values, while other ps are at step {at:,}, of which there is no checkpoint; "
                    "end every task of the job and start it again: it resumes from its newest checkpoint."
                )
        if self.restored is not None:
            return
        values = bootstrapper.first_values()
        for link in new:
            try:
                self._exchanger.initialise(link, values[link.index])
            except StreamClosed as exc:  # whether it has them must be seen
                link.reconnect()
                raise Overtaken(f"the first values may not have come to {link}: {exc}") from exc

    def _states_of_the_others(self, new: Sequence[Link]) -> list[m.JobState]:
        """Of the ps that have values."""
        call_s = self._membership.timeouts.call_s
        return [link.call("state", None, m.JobState, call_s) for link in self._links if link not in new]
