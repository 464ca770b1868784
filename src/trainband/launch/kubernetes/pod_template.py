"""PodTemplate: the pod of one task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.errors import YourError
from trainband.runtime.metrics_server import PATH

RUN_LABEL, TASK_LABEL = "trainband-run", "trainband-job"
"""Labels of pods and Jobs: which run they belong to, and which of its jobs they are tasks of."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
CONTAINER = "task"
AWAIT_PS = "await-ps"
FILES, TLS, CHECKPOINTS = "/etc/trainband/job", "/etc/trainband/tls", "/checkpoints"
"""Where the pods have the files of the job, the certificates, and the checkpoints."""
SECRET = "secret"
"""The key, and thus the name of the file, of the job's secret."""

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
_PS_LEAVES_S = 15
"""For how long a ps that is asked to end serves workers that save; see `Server.join`."""


def is_quantity(text: str) -> bool:
    """Whether it is a number as Kubernetes writes quantities, such as `20Gi` or `500m`."""
    return _QUANTITY.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What a pod asks for, and may use at most.

    Attributes:
      cpu: cores, such as `4` or `500m`; empty for no request. A request only: a limit would throttle a step.
      memory: such as `16Gi`; empty for no request. Also the limit.
      gpus: NVIDIA GPUs.

    Raises:
      YourError: it is no quantity.
    """

    cpu: str = ""
    memory: str = ""
    gpus: int = 0

    def __post_init__(self) -> None:
        for name in ("cpu", "memory"):
            value = getattr(self, name)
            if value and not is_quantity(value):
                raise YourError(f"{name} = {value!r} is no quantity of Kubernetes: write 4, 500m or 16Gi, for example.")
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
class PodTemplate:
    """What the pods of a job's tasks have in common.

    Attributes:
      command: what a task runs, with Python before it.
      resources: what a task asks for.
      environment: its variables, of which `TF_CONFIG` names `$(TRAINBAND_INDEX)`.
      port: at which it listens.
      metrics_port: at which it serves its metrics; 0 for none.
      grace_s: seconds between SIGTERM and SIGKILL.
      claim, secret, tls_secret: the names of what is mounted; empty for none.
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
    secret: str
    tls_secret: str
    fs_group: int
    service_account: str
    pull_secret: str

    @property
    def annotations(self) -> dict[str, str]:
        """Those of a pod, by which Prometheus finds its metrics where it is set up to look for them.

        Source: https://github.com/prometheus/prometheus/blob/main/documentation/examples/prometheus-kubernetes.yml
        """
        if not self.metrics_port:
            return {}
        names = ("scrape", "true"), ("port", str(self.metrics_port)), ("path", PATH)
        return {f"prometheus.io/{name}": value for name, value in names}

    def pod(self, *, serves: bool, awaited: Sequence[str]) -> dict[str, Any]:
        """The `spec` of a pod.

        Args:
          serves: whether the task is a ps: Kubernetes watches its port, and it ends after those that train.
          awaited: addresses of ps that must answer before the task starts.
        """
        spec: dict[str, Any] = {
            "restartPolicy": "Never",  # the Job makes a new pod, on another node where this one is bad
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
        # What a quota wants to see of every container; Kubernetes takes the larger of the two and not the sum.
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
            # Workers and ps are told to end at the same time, and the workers still save: the ps is told later.
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
        found: list[dict[str, Any]] = [{"name": "TRAINBAND_INDEX", "valueFrom": source}]  # before what refers to it
        return found + [{"name": name, "value": value} for name, value in self.environment.items()]

    def _volumes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, secret in (("job", self.secret), ("tls", self.tls_secret)):
            if secret:
                # 0440: a secret that everybody can read is refused. The group is fsGroup.
                found.append({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}})
        if self.claim:
            found.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.claim}})
        return found

    def _mounts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, secret, path in (("job", self.secret, FILES), ("tls", self.tls_secret, TLS)):
            if secret:
                found.append({"name": name, "mountPath": path, "readOnly": True})
        if self.claim:
            found.append({"name": "checkpoints", "mountPath": CHECKPOINTS})
        return found
