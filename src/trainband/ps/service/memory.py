"""Where a ps's memory goes, and whether a shard fits into it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from trainband.model.layout import JobLayout
from trainband.ps.description import placement_of
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.shard.shard import Shard
from trainband.ps.task_state import TaskState
from trainband.runtime import Runtime
from trainband.runtime.available_memory import require_memory
from trainband.runtime.formatting import size
from trainband.runtime.memory import MemoryReader, by_part
from trainband.wire.arena import held_bytes
from trainband.wire.messages import calls as m


class PsMemory:
    """The memory of a ps by part, see `runtime.memory.PARTS`; read only when a status is asked for."""

    def __init__(self, runtime: Runtime, replicas: ShardReplicas) -> None:
        self.process = MemoryReader(runtime.memory, runtime.clock)
        """Reads the whole. Called without the lock."""
        self._replicas = replicas

    def parts(self) -> dict[str, int]:
        """Returns the parts of the last reading; empty if it is unknown. Called under the lock."""
        shards = [replica.shard for replica in self._replicas if replica.shard is not None]
        held = [shard.held_blocks() for shard in shards]
        known = {
            "params": _nbytes(block for one in held for block in one.params) + sum(map(_bytes_of_tables, shards)),
            "state": _nbytes(block for one in held for block in one.state),
            "gradients": _nbytes(block for one in self._replicas for block in _gradients(one)),
            "versions": _nbytes(block for one in held for block in one.versions),
            "buffers": held_bytes() + self.process.last.shared,
        }
        return by_part(self.process.last.total, known)


def _gradients(replica: ShardReplica) -> Iterable[Any]:
    """Gradients that wait for their update or for the standby, in memory of their own and not a transport's."""
    waiting = () if replica.updater is None else replica.updater.held()
    for blocks in (*(gradient for _, gradient in waiting), *replica.failover.log.blocks()):
        yield from (block for block in blocks if block.base is None)


def _bytes_of_tables(shard: Shard) -> int:
    """Memory of the rows of tables, with their state."""
    return sum(found.bytes for _, found in shard.tables.statistics())


def _nbytes(blocks: Iterable[Any]) -> int:
    """Bytes of arrays, each counted once."""
    return sum({id(block): int(block.nbytes) for block in blocks}.values())


def require_room(task: TaskState, define: m.Define) -> None:
    """Refuses a shard that does not fit into this ps's memory, before anything is allocated for it.

    Raises:
      ResourceExhausted: the message has what it needs, what there is, and how many ps of this size would do.
    """
    available = task.runtime.available_memory()
    layouts = JobLayout.of(placement_of(define.description)).shards
    params = layouts[define.ps].nbytes
    state = sum(piece.nbytes for pieces in define.state for piece in pieces)
    needed, whole = params + state + params // 2, sum(layout.nbytes for layout in layouts)
    shards = 2 if define.description.standbys else 1
    advice = "give this ps more memory"
    if available and params:
        enough = math.ceil(shards * needed * whole / params / available)
        advice = (
            f"start at least {enough} ps of this size (--ps {enough})"
            if enough > len(layouts)
            else "the other ps hold less, so slice large variables (placement=)"
        ) + ", or give this ps more memory"
    what = f"params {size(params)}, state of the optimizer {size(state)}, gradients and older versions the rest"
    require_memory(task.name, needed, what, advice, available)
