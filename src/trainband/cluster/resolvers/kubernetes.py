"""The pods of an indexed Job, a StatefulSet or a JobSet of Kubernetes as a cluster.

Kubernetes tells a pod its own name and index, but neither the number of the others nor the service through which they
are found. `TRAINBAND_TASKS` gives the number and makes such a pod a task. Manifests of `trainband kubernetes manifest`
do not need it: there `TF_CONFIG` is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.ranks import cluster_of, number, port_of
from trainband.cluster.resolvers.slurm import PS
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import JOBS, Task
from trainband.errors import ClusterError

TASKS = "TRAINBAND_TASKS"
"""How many pods are tasks: `3` of one Job, or of a JobSet, by the names of its replicated jobs, `ps=1,worker=2`."""
SERVICE = "TRAINBAND_SERVICE"
"""The headless service through which the pods find one another: the `subdomain` of the pods."""

_INDEX, _HOST = "JOB_COMPLETION_INDEX", "HOSTNAME"
_OF_A_JOBSET = re.compile(rf"(?P<set>.+)-(?P<job>{'|'.join(JOBS)})-(?P<number>\d+)-(?P<pod>\d+)")
_OF_A_JOB = re.compile(r"(?P<name>.+)-(?P<pod>\d+)")


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the pods that `TRAINBAND_TASKS` counts; `None` if it is not set.

    The pods of a Job or StatefulSet are at `NAME-INDEX.SERVICE`; the first `TRAINBAND_PS` are ps, and the others
    workers. Those of a JobSet are at `JOBSET-JOB-0-INDEX.SERVICE`: its replicated jobs have the names of the cluster's
    jobs, and its service has the JobSet's name unless `TRAINBAND_SERVICE` is set. All listen on `TRAINBAND_PORT`, or
    2222.

    Raises:
      ClusterError: a variable is missing or invalid; the message says what to add to the manifest.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode and
    https://github.com/kubernetes-sigs/jobset at 08dfbdf, pkg/util/placement/placement.go, `GenPodName`.
    """
    tasks = environ.get(TASKS, "").strip()
    if not tasks:
        if environ.get(_INDEX) and (environ.get(PS) or environ.get(SERVICE)):
            name = PS if environ.get(PS) else SERVICE
            raise ClusterError(
                f"{name} is set in a pod of an indexed Job, but {TASKS} is not; set it to the Job's completions."
            )
        return None
    host = environ.get(_HOST, "").partition(".")[0]
    if not host:
        raise ClusterError(f"{TASKS} is set, but {_HOST} is not; set it to the name of the pod.")
    return _of_a_jobset(environ, tasks, host) if "=" in tasks else _of_a_job(environ, tasks, host)


def _of_a_job(environ: Mapping[str, str], tasks: str, host: str) -> Cluster:
    size = number(tasks, TASKS)
    found = _OF_A_JOB.fullmatch(host)
    index = environ.get(_INDEX, "")
    if found is None or (index and index != found["pod"]):
        raise ClusterError(
            f"{TASKS} = {tasks}, but the pod's {_HOST}, {host!r}, does not end in its index; give the Job "
            "completionMode: Indexed and no hostNetwork, use a StatefulSet, or set TF_CONFIG."
        )
    service = environ.get(SERVICE, "")
    if not service:
        raise ClusterError(
            f"{SERVICE} is not set; add a headless service (clusterIP: None, publishNotReadyAddresses: true), give the "
            f"pods subdomain: SERVICE, and set {SERVICE} to its name."
        )
    port = port_of(environ)
    addresses = [f"{found['name']}-{place}.{service}:{port}" for place in range(size)]
    return cluster_of(addresses, int(found["pod"]), environ, f"Kubernetes ({TASKS} = {size})")


def _of_a_jobset(environ: Mapping[str, str], tasks: str, host: str) -> Cluster:
    sizes = _read_sizes(tasks)
    found = _OF_A_JOBSET.fullmatch(host)
    if found is None or found["job"] not in sizes:
        raise ClusterError(
            f"{TASKS} = {tasks!r}, but the pod's {_HOST}, {host!r}, is not from a JobSet with replicated jobs of these "
            "names (JOBSET-JOB-0-INDEX)."
        )
    if found["number"] != "0":
        raise ClusterError(
            f"{host} is in job {found['number']} of several named {found['job']}; write replicas: 1, and set "
            "parallelism and completions to the number of tasks."
        )
    service, port = environ.get(SERVICE) or found["set"], port_of(environ)
    jobs = {
        job: [f"{found['set']}-{job}-0-{place}.{service}:{port}" for place in range(size)]
        for job, size in sizes.items()
    }
    return Cluster(spec=ClusterSpec(jobs, field=f"{TASKS}: {{job}}"), task=Task(found["job"], int(found["pod"])))


def _read_sizes(tasks: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in tasks.split(","):
        job, _, size = (piece.strip() for piece in part.partition("="))
        if job not in JOBS or job in sizes:
            raise ClusterError(
                f"{TASKS} = {tasks!r}: {job!r} is not a job, or is listed twice; the jobs are {', '.join(JOBS)}."
            )
        sizes[job] = number(size, f"{TASKS}: {job}")
    return {job: size for job, size in sizes.items() if size}
