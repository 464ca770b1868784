"""Shard replicas: who holds a shard, and how its standby keeps up."""
