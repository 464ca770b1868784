"""JobSetup: how the chief sets up a new job's model and first values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainband.checkpoint import Checkpoint
from trainband.errors import CheckpointError, DeadlineExceeded, RefusalCode, Refused, StreamClosed
from trainband.job.checkpoints import Overtaken
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.exchange import Exchanger
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.reviver import Reviver
from trainband.ps.worker.shard_definer import ShardDefiner
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import ANY, ME, Link
from trainband.runtime.waiting import Waiting
from trainband.wire.messages import calls as m


@dataclass(eq=False)
class JobSetup:
    """Setup by the chief. Every worker has one: any may become chief."""

    _membership: Membership
    _links: Sequence[Link]
    _cluster_view: ClusterView
    _finder: ShardFinder
    _exchanger: Exchanger
    _reviver: Reviver
    restored: Checkpoint | None = field(default=None, init=False)
    """The checkpoint that the chief restored."""

    def try_once(self, definer: ShardDefiner, waiting: Waiting) -> None:
        """Sets the job up; if another chief was faster, or a ps knows another, returns for the caller to retry."""
        membership = self._membership
        job = membership.job
        try:
            self._set_up(definer)
        except Refused as exc:
            membership.job = job  # not one this worker made up
            if not isinstance(exc, Overtaken) and exc.code is not RefusalCode.NOT_CHIEF:
                raise
            waiting.check(f"all ps to agree on the chief ({exc})", "check that they reach every worker")
            membership.pause()

    def await_standbys(self) -> None:
        """Waits for standbys, so that one ps can be lost safely."""
        membership, timeouts = self._membership, self._membership.timeouts
        for link in self._links if membership.standbys else ():
            waiting = membership.waiting(timeouts.stall_s)
            other = next(ps for ps, _ in link.places if ps != link.ps)
            while not self._finder.find(link, lambda joined, _: joined.initialised, f"{link} to come back").protected:
                if self._cluster_view.silent_s(other) > timeouts.lease_s:
                    membership.say(f"WARNING: shard {link.index} has no standby yet: ps:{other} does not answer")
                    break  # the job runs without it until it is there
                try:
                    waiting.check(f"ps:{other} to become the standby of shard {link.index}", "")
                except DeadlineExceeded:
                    missing = f"shard {link.index} has no standby yet: ps:{other} does not follow {link.name}"
                    membership.say(f"WARNING: {missing}")
                    break
                membership.pause()

    def _set_up(self, definer: ShardDefiner) -> None:
        membership = self._membership
        new = []
        for link in self._links:
            joined = self._finder.find(
                link,
                until=lambda joined, nobody: joined.initialised or nobody,
                awaited=f"a ps with the values of shard {link.index}",
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
                self._reviver.bring_back(link, definer, begin)
            return
        for link in new:
            if definer.define(link, membership.job).job != membership.job:
                raise Overtaken(f"{link} meanwhile got the values of another job.")
        if definer.source is not None:
            # If some already have values, a chief died midway.
            at = max((state.version for state in others), default=None)
            self.restored = definer.restore(new, at)
            if self.restored is None and at:
                names = ", ".join(link.name for link in new)
                raise CheckpointError(
                    f"{names} has no values, the other ps are at global step {at:,}, which has no checkpoint; "
                    "end every task and restart the job: it resumes from its newest checkpoint."
                )
        if self.restored is not None:
            return
        values = definer.first_values()
        for link in new:
            try:
                self._exchanger.initialise(link, values[link.index])
            except StreamClosed as exc:  # it may or may not have them
                link.reconnect()
                raise Overtaken(f"the first values may not have reached {link}: {exc}") from exc

    def _states_of_the_others(self, new: Sequence[Link]) -> list[m.JobState]:
        """Asks the ps with values."""
        call_s = self._membership.timeouts.call_s
        return [link.call("state", None, m.JobState, call_s) for link in self._links if link not in new]
