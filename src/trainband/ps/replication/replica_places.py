"""Which ps may hold a shard."""

from __future__ import annotations


def replica_places(shard: int, ps_count: int) -> tuple[int, ...]:
    """The ps that may have a replica of a shard: its own, and the next one, for its standby; none if the job has no
    such shard.
    """
    if not 0 <= shard < ps_count:
        return ()
    return tuple(dict.fromkeys((shard, (shard + 1) % ps_count)))
