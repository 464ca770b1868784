"""Finding out which cluster this process belongs to: one platform a file.

A resolver is a pure function that gives the cluster, `None` where its platform is not at hand, and a
`ClusterError` where the platform is there but half-set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import arguments, slurm, tf_config
from trainband.cluster.resolvers.arguments import Hosts as Hosts


def resolve(
    environ: Mapping[str, str] | None = None,
    *,
    ps_hosts: Hosts = None,
    worker_hosts: Hosts = None,
    chief_hosts: Hosts = None,
    job_name: str | None = None,
    task_index: int | str | None = None,
) -> Cluster | None:
    """The cluster of this process: from the arguments, else from `TF_CONFIG`, else from Slurm's step, else `None`.

    `None`: it stands alone. `TF_CONFIG` goes before what a platform says, because somebody has written it on purpose.

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
    return config if config is not None or tf_config.VARIABLE in found else slurm.resolve(found)
