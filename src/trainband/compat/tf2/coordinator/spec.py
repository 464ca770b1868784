"""Which tasks a script's cluster has: of a `ClusterSpec`, of a resolver, or of `TF_CONFIG`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainband.cluster.resolvers import tf_config
from trainband.compat.tf1.sessions.cluster_spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Tasks:
    """The addresses of the workers and of the ps, in the order of their numbers; and which task this one is."""

    workers: tuple[str, ...]
    ps: tuple[str, ...]
    task_type: str | None = None
    task_id: int | None = None


def tasks_of(resolver: Any) -> Tasks:
    """The tasks that a cluster resolver knows; without one, those of `TF_CONFIG`.

    Raises:
      ValueError: the cluster has no ps, or no worker.
    """
    if resolver is None:
        found = tf_config.content() or {}
        task = found.get("task") or {}
        spec, kind, index = ClusterSpec(found.get("cluster") or {}), task.get("type"), task.get("index")
    else:
        spec = ClusterSpec(resolver.cluster_spec())
        kind, index = resolver.task_type, resolver.task_id
    jobs = spec.as_dict()
    for job in ("worker", "ps"):
        if not jobs.get(job):
            raise ValueError(
                f"ParameterServerStrategy needs at least one task of the job {job!r}, but the cluster has "
                f"{jobs or 'no tasks'}: give it a cluster resolver, or set TF_CONFIG."
            )
    return Tasks(_addresses(spec, "worker"), _addresses(spec, "ps"), kind or None, index)


def _addresses(spec: ClusterSpec, job: str) -> tuple[str, ...]:
    return tuple(spec.task_address(job, index) for index in spec.task_indices(job))
