"""OtherPs: asks the other ps about the job when this ps has lost all its workers."""

from __future__ import annotations

from trainband.errors import NobodyListens, PeerError
from trainband.ps.replication.failover import Role
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.task_state import TaskState
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode
from trainband.wire.transport import Transport


class OtherPs:
    """Reports of the other ps, asked one at a time. For one thread, without the lock unless noted.

    Args:
      transport: to the others; without one, they are not asked.
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
        """Asks the next ps, at most once per heartbeat."""
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
        """Whether a ps did not answer and its machine did not refuse the connection: one of them may be cut off."""
        return bool(self._silent)

    def forget(self) -> None:
        """Discards the other ps' reports because workers have returned."""
        for ps in self._addresses:
            self._forget(ps)

    def _forget(self, ps: int) -> None:
        self._states.pop(ps, None)
        self._silent.discard(ps)
        self._gone_since.pop(ps, None)

    def are_gone(self, for_s: float) -> bool:
        """Whether no ps has listened at any of their addresses for `for_s`."""
        now = self._task.clock()
        gone = [now - self._gone_since[ps] >= for_s for ps in self._addresses if ps in self._gone_since]
        return bool(self._addresses) and len(gone) == len(self._addresses) and all(gone)

    def have_completed(self) -> bool:
        """Whether they have all the updates that this ps lacks, and no workers left. Called under the lock."""
        over = [state for state in self._states.values() if state.complete and not state.live]
        lacking = {replica.number for replica in self._replicas if not replica.complete}
        held = {replica.shard for state in over for replica in state.replicas if replica.role == Role.PRIMARY.value}
        return 0 < len(over) == len(self._states) and lacking <= held
