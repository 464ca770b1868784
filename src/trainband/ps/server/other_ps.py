"""OtherPs: what the other ps say of the job, asked by a ps that has lost all its workers."""

from __future__ import annotations

from trainband.errors import NobodyListens, PeerError
from trainband.ps.replication.failover import Role
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.task_state import TaskState
from trainband.wire import messages as m
from trainband.wire.codec import decode
from trainband.wire.transport import Transport


class OtherPs:
    """Asks them, one at a time. Used by one thread, without the lock where it does not say otherwise.

    Args:
      task: what all parts of this ps share.
      replicas: of this ps.
      transport: the way to the others; without one, nothing is known of them.
    """

    def __init__(self, task: TaskState, replicas: ShardReplicas, transport: Transport | None) -> None:
        self._task = task
        self._replicas = replicas
        self._transport = transport
        mine = task.cluster.task.index
        self._addresses = {ps: address for ps, address in enumerate(task.ps_addresses()) if ps != mine}
        self._to_ask = list(self._addresses)
        self._asked_at = -task.timeouts.heartbeat_s
        self._states: dict[int, m.JobState] = {}
        self._silent: set[int] = set()
        self._gone_since: dict[int, float] = {}

    def ask_one(self) -> None:
        """Asks the next of them, once a heartbeat at most."""
        timeouts, now = self._task.timeouts, self._task.clock()
        if self._transport is None or not self._to_ask or now - self._asked_at < timeouts.heartbeat_s:
            return
        ps = self._to_ask.pop(0)
        self._to_ask.append(ps)
        connection = self._transport.connect(self._addresses[ps], timeouts)
        try:
            state = decode(connection.call("state", timeout_s=timeouts.heartbeat_s), m.JobState, f"ps:{ps}")
        except NobodyListens:
            since = self._gone_since.get(ps, now)
            self._forget(ps)
            self._gone_since[ps] = since
        except PeerError:
            self._forget(ps)
            self._silent.add(ps)
        else:
            self._forget(ps)
            self._states[ps] = state
        finally:
            connection.close()
            self._asked_at = self._task.clock()

    @property
    def are_silent(self) -> bool:
        """Whether one of them has not answered, though its machine did not say that it is not there: it may be cut off,
        or this ps may be.
        """
        return bool(self._silent)

    def forget(self) -> None:
        """Takes for true no more what they have said: there are workers again."""
        for ps in self._addresses:
            self._forget(ps)

    def _forget(self, ps: int) -> None:
        self._states.pop(ps, None)
        self._silent.discard(ps)
        self._gone_since.pop(ps, None)

    def are_gone(self, for_s: float) -> bool:
        """Whether nobody has listened at any of their addresses for so long."""
        now = self._task.clock()
        gone = [now - self._gone_since[ps] >= for_s for ps in self._addresses if ps in self._gone_since]
        return bool(self._addresses) and len(gone) == len(self._addresses) and all(gone)

    def have_completed(self) -> bool:
        """Whether they have all the updates that this ps lacks, and no worker any more. Called under the lock."""
        over = [state for state in self._states.values() if state.complete and not state.live]
        lacking = {replica.number for replica in self._replicas if not replica.model.complete}
        held = {replica.shard for state in over for replica in state.replicas if replica.role == Role.PRIMARY.value}
        return 0 < len(over) == len(self._states) and lacking <= held
