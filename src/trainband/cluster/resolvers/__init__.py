"""Finding out which cluster this process belongs to: one platform a file.

A resolver is a pure function that gives the cluster, `None` where its platform is not at hand, and a
`ClusterError` where the platform is there but half-set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import arguments, kubeflow, kubernetes, mpi, slurm, tf_config
from trainband.cluster.resolvers.arguments import Hosts as Hosts
from trainband.errors import ClusterError
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import say_on_stderr

Resolver: TypeAlias = Callable[[Mapping[str, str]], Cluster | None]

PLATFORMS: tuple[tuple[str, Resolver], ...] = (
    # what messages call it, its resolver
    ("mpirun", mpi.resolve),
    ("Slurm", slurm.resolve),
    ("Kubeflow Trainer", kubeflow.resolve),
    ("Kubernetes", kubernetes.resolve),
)
"""In the order in which they are asked: whatever starts processes within another platform comes before that one."""

_said: set[str] = set()


def resolve(
    environ: Mapping[str, str] | None = None,
    *,
    ps_hosts: Hosts = None,
    worker_hosts: Hosts = None,
    chief_hosts: Hosts = None,
    job_name: str | None = None,
    task_index: int | str | None = None,
) -> Cluster | None:
    """The cluster of this process: from the arguments, else from `TF_CONFIG`, else from a platform, else `None`.

    `None`: it stands alone. `TF_CONFIG` goes before what a platform says, because somebody has written it on purpose.
    The platforms are asked in the order of `PLATFORMS`. A line on stderr says which one has given the cluster and, if
    another one would have given one too, that it was not asked.

    Args:
      environ: the environment to look in; `os.environ` when `None`.
      ps_hosts, worker_hosts, chief_hosts, job_name, task_index: see `arguments.resolve`.

    Raises:
      ClusterError: a source is half-set or contradicts itself; the message names the field.
    """
    given = arguments.resolve(
        ps_hosts=ps_hosts,
        worker_hosts=worker_hosts,
        chief_hosts=chief_hosts,
        job_name=job_name,
        task_index=task_index,
    )
    if given is not None:
        return given
    found = os.environ if environ is None else environ
    config = tf_config.resolve(found)
    if config is not None:
        _log(config, tf_config.VARIABLE)
    if config is not None or tf_config.VARIABLE in found:
        return config
    for place, (name, platform) in enumerate(PLATFORMS):
        cluster = platform(found)
        if cluster is not None:
            others = [other for other, resolver in PLATFORMS[place + 1 :] if _applies(resolver, found)]
            _say(cluster, name, others)
            return cluster
    return None


def _applies(resolver: Resolver, environ: Mapping[str, str]) -> bool:
    """Whether a platform that is not asked is at hand, too, if only half-set."""
    try:
        return resolver(environ) is not None
    except ClusterError:
        return True


def _log(cluster: Cluster, source: str) -> None:
    size = len(list(cluster.spec.tasks()))
    task_logger(__name__, str(cluster.task)).info("%s says that this is one of %d tasks", source, size)


def _say(cluster: Cluster, platform: str, others: Sequence[str]) -> None:
    """Says, once, where the cluster comes from."""
    size = len(list(cluster.spec.tasks()))
    text = f"this is {cluster.task} of a cluster of {size} tasks, as {platform} says"
    if others:
        text += (
            f"; {' and '.join(others)} would describe a cluster too, but {platform} goes first, because it is what has "
            "started this process. Set TF_CONFIG to decide otherwise"
        )
    if text not in _said:
        _said.add(text)
        say_on_stderr(f"{text}.")
