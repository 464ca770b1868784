"""Shard replicas: who holds a shard, and how its standby keeps up.

`failover.py`, `arbiter.py` and `record_log.py` make pure decisions about the replica in `shard_replica.py`;
`replicator/` carries them out, with a thread and sockets.
"""
