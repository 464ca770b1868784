"""ShardRequests: requests about a shard, sent to whichever ps has it."""

from __future__ import annotations

from msgspec import Struct

from trainband.errors import DeadlineExceeded, Refused, StreamClosed, Unreachable
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Link, Record
from trainband.wire.messages import calls as m


class ShardRequests:
    """Control requests that survive the death of a ps. For any thread."""

    def __init__(self, membership: Membership, finder: ShardFinder) -> None:
        self._membership = membership
        self._finder = finder

    def ask(self, link: Link, action: str, record: Struct | None, kind: type[Record]) -> Record:
        """Asks whichever ps has a shard. Repeats the request if needed: all are idempotent."""
        membership, timeouts, clock = self._membership, self._membership.timeouts, self._membership.runtime.clock
        begun_at = clock()
        while True:
            with link.recovering:
                pass  # another thread is looking for it
            connection = link.connection
            try:
                answer = link.call(action, record, kind, timeouts.call_s)
                if not isinstance(answer, m.JobState) or answer.initialised or not membership.recovers:
                    return answer
            except (Unreachable, StreamClosed, DeadlineExceeded) as exc:
                # The standby of a silent ps may be about to take over, or the ps may be waiting for it.
                if not membership.recovers or not membership.joined or begun_at + timeouts.stall_s < clock():
                    raise
                if isinstance(exc, DeadlineExceeded):
                    if membership.request:
                        raise
                    membership.say(f"{link} has not answered ({exc}); {membership.task} retries")
            except Refused as exc:
                if not membership.recovers or not membership.joined or not exc.is_for_another:
                    raise
            with link.recovering:
                if link.connection is connection:  # else another thread has found it
                    self._finder.reconnect(link)
                    self._finder.find_again(link)
