"""Finding the cluster that this process belongs to: one platform per file.

A resolver is a pure function that returns the cluster, or `None` if its platform is absent, and raises
`ClusterError` if the platform is configured incompletely.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import arguments, kubeflow, kubernetes, mpi, slurm, tf_config
from trainband.cluster.resolvers.arguments import Hosts as Hosts
from trainband.errors import ClusterError
from trainband.runtime.input_errors import exit_by_kind_of_error
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
"""In the order of their use: a platform that starts processes within another one comes before it."""

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
    """Returns the cluster of this process from the arguments, else `TF_CONFIG`, else a platform.

    `None` means a standalone process. `TF_CONFIG` takes precedence over platforms, because it was written on purpose.
    Platforms are tried in the order of `PLATFORMS`. A line on stderr names the one that described the cluster and any
    other that would have.

    Args:
      environ: the environment to read; `os.environ` when `None`.
      ps_hosts, worker_hosts, chief_hosts, job_name, task_index: see `arguments.resolve`.

    Raises:
      ClusterError: a source is incomplete or contradicts itself; the message names the field.
    """
    cluster = _resolved(
        os.environ if environ is None else environ,
        arguments.resolve(
            ps_hosts=ps_hosts,
            worker_hosts=worker_hosts,
            chief_hosts=chief_hosts,
            job_name=job_name,
            task_index=task_index,
        ),
    )
    if cluster is not None:
        exit_by_kind_of_error()  # for the launcher, which may restart this task
    return cluster


def _resolved(found: Mapping[str, str], given: Cluster | None) -> Cluster | None:
    if given is not None:
        return given
    config = tf_config.resolve(found)
    if config is not None:
        _log(config, tf_config.VARIABLE)
    if config is not None or tf_config.VARIABLE in found:
        return config
    for place, (name, platform) in enumerate(PLATFORMS):
        cluster = platform(found)
        if cluster is not None:
            others = [other for other, resolver in PLATFORMS[place + 1 :] if _applies(resolver, found)]
            _report_source(cluster, name, others)
            return cluster
    return None


def exit_by_kind_of_error_in_a_task(environ: Mapping[str, str] | None = None) -> None:
    """Makes a task exit with the code of its kind of error even before its script resolves the cluster."""
    found = os.environ if environ is None else environ
    if any(_applies(resolver, found) for resolver in (tf_config.resolve, *dict(PLATFORMS).values())):
        exit_by_kind_of_error()


def _applies(resolver: Resolver, environ: Mapping[str, str]) -> bool:
    """Whether a platform is present, even if incomplete."""
    try:
        return resolver(environ) is not None
    except ClusterError:
        return True


def _log(cluster: Cluster, source: str) -> None:
    size = len(list(cluster.spec.tasks()))
    task_logger(__name__, str(cluster.task)).info("%s says that this is one of %d tasks", source, size)


def _report_source(cluster: Cluster, platform: str, others: Sequence[str]) -> None:
    """Reports once where the cluster comes from."""
    size = len(list(cluster.spec.tasks()))
    text = f"this is {cluster.task} of a cluster of {size} tasks, as {platform} says"
    if others:
        text += (
            f"; {' and '.join(others)} would describe a cluster too, but {platform} takes precedence because it "
            "started this process. Set TF_CONFIG to override this"
        )
    if text not in _said:
        _said.add(text)
        say_on_stderr(f"{text}.")
