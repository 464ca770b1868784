"""PodTemplate: the pod of one task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.errors import YourError
from trainband.runtime.metrics_server import PATH

RUN_LABEL, TASK_LABEL = "trainband-run", "trainband-job"
"""Labels of pods and Jobs: the run they belong to, and their job within it."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
CONTAINER = "task"
AWAIT_PS = "await-ps"
FILES, TLS, CHECKPOINTS = "/etc/trainband/job", "/etc/trainband/tls", "/checkpoints"
"""Paths, in the pods, of the job's files, the certificates, and the checkpoints."""
SECRET = "secret"
"""The key, and thus the file name, of the job's secret."""

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
_PS_LEAVES_S = 15
"""For how long a ps that was asked to end serves workers that are saving; see `Server.join`."""


def is_quantity(text: str) -> bool:
    """Whether it is a Kubernetes quantity, such as `20Gi` or `500m`."""
    return _QUANTITY.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """The resource requests and limits of a pod.

    Attributes:
      cpu: cores, such as `4` or `500m`; empty for no request. A request only: a limit would throttle a step.
      memory: such as `16Gi`; empty for no request. Also the limit.
      gpus: NVIDIA GPUs.

    Raises:
      YourError: a value is not a quantity.
    """

    cpu: str = ""
    memory: str = ""
    gpus: int = 0

    def __post_init__(self) -> None:
        for name in ("cpu", "memory"):
            value = getattr(self, name)
            if value and not is_quantity(value):
                raise YourError(f"{name} = {value!r} is not a Kubernetes quantity; write for example 4, 500m or 16Gi.")
        if self.gpus < 0:
            raise YourError(f"gpus must be 0 or more, got {self.gpus}.")

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The `resources` of a container."""
        requests = {name: value for name, value in (("cpu", self.cpu), ("memory", self.memory)) if value}
        limits = {"memory": self.memory} if self.memory else {}
        if self.gpus:
            limits["nvidia.com/gpu"] = str(self.gpus)
        return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


NO_RESOURCES = Resources()


@dataclass(frozen=True, kw_only=True, slots=True)
class MountedSecret:
    """A Secret in the file system of the pods.

    Attributes:
      volume: the name of the volume.
      secret: the name of the Secret.
      path: where it is mounted.
      by_index: the keys that the pod of each index gets; empty if all pods get all of it. Kubernetes then updates
        the pods when the Secret changes; a pod with a subset keeps what it started with.
      optional: whether keys may be missing.
    """

    volume: str
    secret: str
    path: str
    by_index: Sequence[Sequence[str]] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PodTemplate:
    """The common template of the pods of a job.

    Attributes:
      command: what a task runs with Python.
      resources: what a task requests.
      environment: its variables, of which `TF_CONFIG` names `$(TRAINBAND_INDEX)`.
      port: on which it listens.
      metrics_port: on which it serves its metrics; 0 for none.
      grace_s: seconds between SIGTERM and SIGKILL.
      claim: the name of the volume claim for the checkpoints; empty for none.
      secrets: the Secrets to mount.
      image, fs_group, service_account, pull_secret: see `KubernetesJob`.
    """

    image: str
    command: Sequence[str]
    resources: Resources
    environment: Mapping[str, str]
    port: int
    metrics_port: int
    grace_s: int
    claim: str
    secrets: Sequence[MountedSecret]
    fs_group: int
    service_account: str
    pull_secret: str

    @property
    def annotations(self) -> dict[str, str]:
        """Returns a pod's annotations, through which a Prometheus that uses them finds its metrics.

        Source: https://github.com/prometheus/prometheus/blob/main/documentation/examples/prometheus-kubernetes.yml
        """
        if not self.metrics_port:
            return {}
        names = ("scrape", "true"), ("port", str(self.metrics_port)), ("path", PATH)
        return {f"prometheus.io/{name}": value for name, value in names}

    def pod(self, *, serves: bool, awaited: Sequence[str]) -> dict[str, Any]:
        """Returns the `spec` of a pod.

        Args:
          serves: whether the task is a ps: Kubernetes watches its port, and it ends after those that train.
          awaited: addresses of ps that must answer before the task starts.
        """
        spec: dict[str, Any] = {
            "restartPolicy": "Never",  # the Job makes a new pod, on another node if this one is bad
            "terminationGracePeriodSeconds": self.grace_s,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }
        if self.service_account:
            spec["serviceAccountName"] = self.service_account
        if self.pull_secret:
            spec["imagePullSecrets"] = [{"name": self.pull_secret}]
        if self.fs_group:
            spec["securityContext"] = {"fsGroup": self.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
        if awaited:
            spec["initContainers"] = [self._await_ps(awaited)]
        spec["containers"] = [self._container(serves)]
        if volumes := self._volumes():
            spec["volumes"] = volumes
        return spec

    def _await_ps(self, awaited: Sequence[str]) -> dict[str, Any]:
        """Waits until the names of the ps are known and their ports are open, so that no task gives up on them."""
        container: dict[str, Any] = {
            "name": AWAIT_PS,
            "image": self.image,
            "command": ["python", "-m", "trainband.launch.kubernetes.await_ps", *awaited],
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        # A quota requires these of every container; Kubernetes counts the larger of the two, not the sum.
        if resources := Resources(cpu=self.resources.cpu, memory=self.resources.memory).as_dict():
            container["resources"] = resources
        return container

    def _container(self, serves: bool) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": self.image,
            "command": ["python", *self.command],
            "env": self._env(),
            "ports": self._ports(),
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        if resources := self.resources.as_dict():
            container["resources"] = resources
        if serves:
            probe = {"tcpSocket": {"port": self.port}}
            container["startupProbe"] = {**probe, "periodSeconds": 2, "failureThreshold": 150}
            container["readinessProbe"] = {**probe, "periodSeconds": 10}
            container["livenessProbe"] = {**probe, "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 6}
            # Kubernetes ends workers and ps at the same time, but the workers still save: this delays the ps.
            delay_s = max(0, min(20, self.grace_s - 2 * _PS_LEAVES_S))
            if delay_s:
                command = ["python", "-c", f"import time; time.sleep({delay_s})"]
                container["lifecycle"] = {"preStop": {"exec": {"command": command}}}
        if mounts := self._mounts():
            container["volumeMounts"] = mounts
        return container

    def _ports(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"name": "trainband", "containerPort": self.port}]
        return [*found, {"name": "metrics", "containerPort": self.metrics_port}] if self.metrics_port else found

    def _env(self) -> list[dict[str, Any]]:
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}
        found: list[dict[str, Any]] = [{"name": "TRAINBAND_INDEX", "valueFrom": source}]  # before its uses
        return found + [{"name": name, "value": value} for name, value in self.environment.items()]

    def _volumes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in self.secrets:
            # 0440: a world-readable secret is refused. The group is fsGroup.
            source: dict[str, Any] = {"secretName": one.secret, "defaultMode": 0o440}
            if one.by_index:
                source["items"] = [
                    {"key": key, "path": f"{index}/{key}"} for index, keys in enumerate(one.by_index) for key in keys
                ]
            if one.optional:
                source["optional"] = True
            found.append({"name": one.volume, "secret": source})
        if self.claim:
            found.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.claim}})
        return found

    def _mounts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in self.secrets:
            mount = {"name": one.volume, "mountPath": one.path, "readOnly": True}
            found.append({**mount, "subPathExpr": "$(TRAINBAND_INDEX)"} if one.by_index else mount)
        if self.claim:
            found.append({"name": "checkpoints", "mountPath": CHECKPOINTS})
        return found
