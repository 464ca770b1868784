"""The Kubernetes objects of a job: a JobSet or plain Jobs, and what their pods need."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trainband.cluster.certificate_files import AUTHORITY, REVOKED
from trainband.cluster.resolvers import checkpoint_dirs, tf_config
from trainband.cluster.resolvers.credentials import SECRET_FILE, TLS_DIRECTORY
from trainband.cluster.resolvers.metrics import HOST as METRICS_HOST
from trainband.cluster.resolvers.metrics import PORT as METRICS_PORT
from trainband.cluster.spec import ClusterSpec
from trainband.errors import YourError
from trainband.launch.kubernetes.pod_template import (
    CHECKPOINTS,
    FILES,
    NO_RESOURCES,
    RUN_LABEL,
    SECRET,
    TASK_LABEL,
    TLS,
    MountedSecret,
    PodTemplate,
    Resources,
    is_quantity,
)

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object, as its API accepts it."""
Kind: TypeAlias = Literal["jobset", "job"]

JOBSET_API = "jobset.x-k8s.io/v1alpha2"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ANY_ADDRESS = "0.0.0.0"
_ORDER = ("ps", "chief", "worker", "evaluator")
_AUTHORITY = (f"{AUTHORITY}.pem", REVOKED)
_LONGEST_NAME = 40
"""So that the names of pods, such as NAME-evaluator-0-0-x7k2p, have at most 63 characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesJob:
    """A job for Kubernetes.

    Attributes:
      name: of the job and its objects.
      image: the container image, with Python, trainband and the program's dependencies.
      command: what each task runs with Python.
      sizes: how many tasks each job has.
      kind: `jobset` for one JobSet, whose controller must be installed in the cluster; `job` for plain Jobs, which
        every cluster has.
      namespace: of the objects; `None` leaves it to the command that applies them.
      restarts: how often Kubernetes restarts each failed task; without ps, in a JobSet, all of them together.
      ps, workers: what each pod requests. A chief and an evaluator request what a worker does.
      checkpoints: the name of a volume claim, or the size of a new one, such as `20Gi`; empty for none.
      storage_class: of a new claim; empty for the cluster's default.
      secret: the name of an existing Secret with the key `secret`; empty if it is in `files` or there is none.
      tls_secret: the name of an existing Secret with the files that `trainband certs` makes; empty for none.
      files: of a new Secret, by name: the job's secret, certificates, a script.
      environment: further variables of every task.
      port: on which every task listens.
      metrics_port: on which every task serves Prometheus metrics to any client that reaches the pod; none when 0. The
        pods have the usual annotations for scraping, `prometheus.io/scrape` and so on.
      grace_s: seconds between SIGTERM and SIGKILL: the current step and a checkpoint must fit.
      fs_group: the group that may read the mounted files, for images whose user is not root; 0 for none.
      service_account: of the pods; empty for the default one.
      pull_secret: the name of a Secret for the image's registry; empty for none.
      finished_s: seconds after which Kubernetes removes a finished job; never when `None`.

    Raises:
      YourError: a name, number or quantity is not valid in Kubernetes.
    """

    name: str
    image: str
    command: Sequence[str]
    sizes: Mapping[str, int]
    kind: Kind = "jobset"
    namespace: str | None = None
    restarts: int = 0
    ps: Resources = NO_RESOURCES
    workers: Resources = NO_RESOURCES
    checkpoints: str = ""
    storage_class: str = ""
    secret: str = ""
    tls_secret: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 2222
    metrics_port: int = 0
    grace_s: int = 120
    fs_group: int = 1000
    service_account: str = ""
    pull_secret: str = ""
    finished_s: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise YourError(
                f"name = {self.name!r}: the name of a job on Kubernetes has lowercase letters, digits and hyphens, "
                f"begins with a letter and has at most {_LONGEST_NAME} characters."
            )
        if not self.image:
            raise YourError("image is missing; name a container image with trainband and your program in it.")
        if self.kind not in ("jobset", "job"):
            raise YourError(f"kind = {self.kind!r}: write jobset, or job for a cluster without JobSet.")
        if not 0 <= self.metrics_port <= 65535 or self.metrics_port == self.port:
            raise YourError(
                f"metrics_port = {self.metrics_port}: give a port from 1 to 65535 other than {self.port}, on which "
                "the tasks listen, or 0 for no metrics."
            )
        if self.grace_s < 1:
            raise YourError(f"grace_s must be 1 or more, got {self.grace_s}.")

    @property
    def spec(self) -> ClusterSpec:
        """The tasks and their addresses, which are names in the job's headless service."""
        middle = "-0" if self.kind == "jobset" else ""
        return ClusterSpec(
            {
                job: [f"{self.name}-{job}{middle}-{index}.{self.name}:{self.port}" for index in range(size)]
                for job, size in self.sizes.items()
                if size
            }
        )

    @property
    def makes_claim(self) -> bool:
        """Whether a volume claim for the checkpoints belongs to the objects."""
        return is_quantity(self.checkpoints)

    @property
    def claim(self) -> str:
        """The name of the volume claim for the checkpoints; empty for none."""
        return f"{self.name}-checkpoints" if self.makes_claim else self.checkpoints


def objects(job: KubernetesJob) -> list[Object]:
    """Returns all objects of a job in the order of creation: what pods need first, the pods last.

    A JobSet creates its own headless service. Plain Jobs get one. The ps are a Job, too, and not a StatefulSet, which
    would restart a ps after its job is complete.
    """
    found: list[Object] = []
    if job.makes_claim:
        found.append(_claim(job))
    if job.files:
        found.append(_secret(job))
    jobs = {name: _job_spec(job, name) for name in _ORDER if job.sizes.get(name)}
    if job.kind == "jobset":
        found.append(_jobset(job, jobs))
    else:
        found.append(_service(job))
        found += [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job, f"-{name}", name), "spec": spec}
            for name, spec in jobs.items()
        ]
    return found


def _metadata(job: KubernetesJob, suffix: str = "", task_job: str = "") -> Object:
    result: Object = {"name": f"{job.name}{suffix}"}
    if job.namespace:
        result["namespace"] = job.namespace
    result["labels"] = _labels(job, task_job)
    return result


def _labels(job: KubernetesJob, task_job: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "trainband", RUN_LABEL: job.name}
    return {**labels, TASK_LABEL: task_job} if task_job else labels


def _claim(job: KubernetesJob) -> Object:
    spec: Object = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": job.checkpoints}}}
    if job.storage_class:
        spec["storageClassName"] = job.storage_class
    metadata = _metadata(job, "-checkpoints")
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _secret(job: KubernetesJob) -> Object:
    data = {name: base64.b64encode(content).decode() for name, content in job.files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": _metadata(job, "-files"), "data": data}


def _service(job: KubernetesJob) -> Object:
    spec = {
        "clusterIP": "None",  # headless: a name for each pod
        "selector": {RUN_LABEL: job.name},
        "publishNotReadyAddresses": True,  # tasks find one another before their probes have passed
        "ports": [{"name": "trainband", "port": job.port}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job), "spec": spec}


def _jobset(job: KubernetesJob, jobs: Mapping[str, Object]) -> Object:
    together = not job.sizes.get("ps")
    spec: Object = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.restarts if together else 0},
        "replicatedJobs": [
            {"name": name, "replicas": 1, "template": {"metadata": {"labels": _labels(job, name)}, "spec": spec}}
            for name, spec in jobs.items()
        ],
    }
    if job.finished_s is not None:
        spec["ttlSecondsAfterFinished"] = job.finished_s
    return {"apiVersion": JOBSET_API, "kind": "JobSet", "metadata": _metadata(job), "spec": spec}


def _job_spec(job: KubernetesJob, name: str) -> Object:
    """Returns one job of the cluster as an indexed Job: a pod for each task."""
    size = job.sizes[name]
    has_ps = bool(job.sizes.get("ps"))
    # The workers of a job without ps fail together, and a JobSet restarts them together.
    restarts = job.restarts if has_ps or job.kind == "job" else 0
    spec: Object = {
        "completionMode": "Indexed",
        "completions": size,
        "parallelism": size,
        "backoffLimitPerIndex": restarts,
        "maxFailedIndexes": 0,
    }
    if has_ps:  # a pod whose node is drained or reclaimed has not failed
        rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [rule]}
    if job.finished_s is not None and job.kind == "job":
        spec["ttlSecondsAfterFinished"] = job.finished_s
    template = PodTemplate(
        image=job.image,
        command=job.command,
        resources=job.ps if name == "ps" else job.workers,
        environment=_environment(job, name),
        port=job.port,
        metrics_port=job.metrics_port,
        grace_s=job.grace_s,
        claim=job.claim,
        secrets=_secrets(job, name),
        fs_group=job.fs_group,
        service_account=job.service_account,
        pull_secret=job.pull_secret,
    )
    awaited = [] if name == "ps" else [job.spec.address(task) for task in job.spec.ps]
    pod = template.pod(serves=name == "ps", awaited=awaited)
    if job.kind == "job":  # a JobSet sets it itself
        pod["subdomain"] = job.name
    metadata: Object = {"labels": _labels(job, name)}
    if annotations := template.annotations:
        metadata["annotations"] = annotations
    spec["template"] = {"metadata": metadata, "spec": pod}
    return spec


def _secrets(job: KubernetesJob, name: str) -> list[MountedSecret]:
    """Returns the Secrets that the pods of a job mount. No task gets another task's key."""
    found: list[MountedSecret] = []
    indices = range(job.sizes[name])
    if job.files:
        by_index = [_keys_of(name, index, job.files) for index in indices] if any(map(_is_of_a_pair, job.files)) else ()
        found.append(MountedSecret(volume="job", secret=f"{job.name}-files", path=FILES, by_index=by_index))
    elif job.secret:
        found.append(MountedSecret(volume="job", secret=job.secret, path=FILES))
    if job.tls_secret:  # its keys are unknown here: those of the task, and of all tasks of its job
        expected = [[*_AUTHORITY, *_pair(f"{name}-{index}"), *_pair(name)] for index in indices]
        mounted = MountedSecret(volume="tls", secret=job.tls_secret, path=TLS, by_index=expected, optional=True)
        found.append(mounted)
    return found


def _keys_of(name: str, index: int, files: Collection[str]) -> list[str]:
    """Returns the files that a task gets: all except the certificates and keys of others."""
    own = _pair(f"{name}-{index}") if f"{name}-{index}.key" in files else _pair(name)
    return [file for file in files if file in own or not _is_of_a_pair(file)]


def _is_of_a_pair(file: str) -> bool:
    return file.endswith((".pem", ".key")) and file not in _AUTHORITY


def _pair(owner: str) -> tuple[str, str]:
    return f"{owner}.pem", f"{owner}.key"


def _environment(job: KubernetesJob, name: str) -> dict[str, str]:
    """Returns the variables of a job's tasks. Kubernetes fills in the index in `TF_CONFIG`."""
    index = "@index@"
    config = json.dumps({"cluster": job.spec.as_dict(), "task": {"type": name, "index": index}})
    found = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1"}
    if name in ("ps", "evaluator"):  # they leave the GPUs to training tasks
        found["JAX_PLATFORMS"] = "cpu"
    if job.claim:
        found[checkpoint_dirs.VARIABLE] = CHECKPOINTS
    if job.secret or SECRET in job.files:
        found[SECRET_FILE] = f"{FILES}/{SECRET}"
    if job.tls_secret:
        found[TLS_DIRECTORY] = TLS
    if job.metrics_port:
        found |= {METRICS_PORT: str(job.metrics_port), METRICS_HOST: _ANY_ADDRESS}
    return {**found, **job.environment, tf_config.VARIABLE: config.replace(f'"{index}"', "$(TRAINBAND_INDEX)")}


def job_name(script: str) -> str:
    """Returns the name of a job that runs a script: `my-train` for `jobs/my_train.py`."""
    stem = Path(script.removesuffix(".py")).name.rpartition(".")[2]
    letters = "".join(one if one.isascii() and one.isalnum() else "-" for one in stem.lower())
    return letters.strip("-0123456789")[:30].rstrip("-") or "trainband"
