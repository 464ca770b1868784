"""The backend `kubernetes`: tasks as pods in a cluster."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainband.cluster.resolvers import checkpoint_dirs, joined
from trainband.cluster.resolvers.credentials import TLS_DIRECTORY
from trainband.cluster.resolvers.metrics import PORT as METRICS_PORT
from trainband.errors import ClusterError, YourError
from trainband.launch.backend import Watcher
from trainband.launch.environment import COMPILATION_CACHE, travelling
from trainband.launch.job_files import JobFiles
from trainband.launch.kubernetes import pod_template
from trainband.launch.kubernetes.api import Api
from trainband.launch.kubernetes.manifest import Kind, KubernetesJob, job_name
from trainband.launch.kubernetes.pod_template import Resources
from trainband.launch.kubernetes.run import KubernetesRun
from trainband.launch.machine import FILES
from trainband.launch.request import JobRequest

_MOST_BYTES = 900_000
"""For all files of a job: a Secret holds 1 MiB."""
_CALL = "import pickle, sys; file = open(sys.argv[1], 'rb'); pickle.load(file); pickle.load(file)()"
"""Calls a function that was pickled elsewhere, and ignores the other machine's module paths."""
_OF_THIS_MACHINE = (checkpoint_dirs.VARIABLE, joined.VARIABLE, COMPILATION_CACHE, METRICS_PORT)
"""Variables that hold for this machine, not for a pod."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubernetes:
    """A Kubernetes cluster that kubectl reaches.

    Attributes:
      image: the container image, with Python, trainband and the program's dependencies.
      kind: `jobset`, or `job` for a cluster without JobSet.
      namespace: where the job runs: the context's when empty.
      context: of the kubeconfig: its current one when empty.
      name: of the job: the script's name and a few letters when empty.
      script: `send` sends the script alone from this machine; `image` uses the one in the image.
      cpu, memory, gpus: what each worker requests, such as 4, 16Gi and 1.
      ps_cpu, ps_memory: what each ps requests.
      checkpoints: a volume claim, mounted at /checkpoints: the name of one, or the size of a new one, such as 20Gi.
      storage_class: of a new claim.
      tls_secret: a Secret with the files that `trainband certs` made.
      service_account, pull_secret: of the pods.
      grace_s: seconds that a task has to end.
      image_s: seconds to wait for an image that cannot be pulled.
      poll_s: seconds between two polls of the pods.
      variables: comma-separated names of environment variables that the tasks get in addition to those of trainband
        and JAX.
    """

    image: str = ""
    kind: Kind = "jobset"
    namespace: str = ""
    context: str = ""
    name: str = ""
    script: Literal["send", "image"] = "send"
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    ps_cpu: str = ""
    ps_memory: str = ""
    checkpoints: str = ""
    storage_class: str = ""
    tls_secret: str = ""
    service_account: str = ""
    pull_secret: str = ""
    grace_s: int = 120
    image_s: float = 180.0
    poll_s: float = 1.0
    variables: str = ""

    def prepare(self, request: JobRequest, watcher: Watcher) -> KubernetesRun:
        if not self.image:
            raise ClusterError("kubernetes needs an image with trainband and your program in it; give -o image=NAME.")
        if self.script not in ("send", "image"):
            raise ClusterError(f"script = {self.script!r}: write send or image.")
        if request.min_workers is not None and request.min_workers < request.workers:
            raise ClusterError(
                "Kubernetes restarts all workers of a job without ps and cannot leave one out; leave out min_workers."
            )
        job = self._job(request)
        api = Api(context=self.context, namespace=self.namespace, kubeconfig=request.environment.get("KUBECONFIG", ""))
        return KubernetesRun(job, api, watcher, poll_s=self.poll_s, image_s=self.image_s)

    def _job(self, request: JobRequest) -> KubernetesJob:
        if self.tls_secret:  # in place of certificates that this machine has
            environ = {name: value for name, value in request.environment.items() if name != TLS_DIRECTORY}
            request = replace(request, environment=environ)
        files = JobFiles(request)
        program = "function" if callable(request.program) else _script_of(request.program)
        name = self.name or f"{job_name(program)}-{secrets.token_hex(2)}"
        command = ["-c", _CALL, *files.command[2:]] if callable(request.program) else list(files.command)
        also = [name for name in self.variables.split(",") if name]
        environment = {
            name: value for name, value in travelling(request.environment, also).items() if name not in _OF_THIS_MACHINE
        }
        if request.threads is not None:
            environment |= {"NPROC": str(request.threads), "PJRT_NPROC": str(request.threads)}
        bare = KubernetesJob(name=name, image=self.image, command=command, sizes=request.sizes, kind=self.kind)
        with contextlib.closing(files):
            tasks = list(bare.spec.tasks())
            hosts = [bare.spec.address(task).rpartition(":")[0] for task in tasks]
            files.make(tasks, hosts, secure=True)
            environment = files.add_to(environment)
            # Of all tasks: in the manifest, each pod mounts its own.
            contents = {path.name: path.read_bytes() for task in tasks for path in _files_in(files.of(task))}
        if self.script == "send" and not callable(request.program):
            command, script = _sent(command)
            contents |= script
        if sum(map(len, contents.values())) > _MOST_BYTES:
            raise YourError(
                f"the files of the job have {sum(map(len, contents.values())):,} bytes, and the limit is "
                f"{_MOST_BYTES:,} bytes; put the program into the image and use -o script=image."
            )
        return KubernetesJob(
            name=name,
            image=self.image,
            command=_in_pod(command),
            sizes=request.sizes,
            kind=self.kind,
            namespace=self.namespace or None,
            restarts=request.restarts.limit,
            ps=Resources(cpu=self.ps_cpu, memory=self.ps_memory),
            workers=Resources(cpu=self.cpu, memory=self.memory, gpus=self.gpus),
            checkpoints=self.checkpoints,
            storage_class=self.storage_class,
            tls_secret=self.tls_secret,
            files=contents,
            metrics_port=_metrics_port(request.environment.get(METRICS_PORT, "")),
            environment=dict(zip(environment, _in_pod(list(environment.values())), strict=True)),
            service_account=self.service_account,
            pull_secret=self.pull_secret,
            grace_s=self.grace_s,
            finished_s=3600,  # in case the launcher is killed and cannot delete it
        )


def _metrics_port(text: str) -> int:
    """Returns the metrics port of all tasks, each of which has its own address; 0 for none."""
    if not text:
        return 0
    port = text.removesuffix("+")
    if not port.isascii() or not port.isdigit() or not int(port):
        raise YourError(f"{METRICS_PORT} = {text!r}: on Kubernetes, give one port for all pods, such as 9400.")
    return int(port)


def _in_pod(texts: list[str]) -> list[str]:
    return [text.replace(FILES, pod_template.FILES) for text in texts]


def _files_in(directory: Path | None) -> Iterator[Path]:
    return (path for path in sorted(directory.iterdir()) if path.is_file()) if directory is not None else iter(())


def _script_of(program: object) -> str:
    """Returns the word that a job is named after: the first that is not a Python option."""
    words = list(program) if isinstance(program, list | tuple) else []
    return next((word for word in words if not word.startswith("-")), "job")


def _sent(command: list[str]) -> tuple[list[str], dict[str, bytes]]:
    """Returns the command with the script's path in a pod, and the script; only the command without one."""
    for place, word in enumerate(command):
        if word == "-m" and command[place + 1 : place + 2] != ["trainband.compat"]:
            return command, {}  # a module, which is in the image
        if word.endswith(".py") or (place == 0 and not word.startswith("-")):
            path = Path(word)
            try:
                content = path.read_bytes()
            except OSError as exc:
                raise YourError(
                    f"the script {word} cannot be read here ({exc.strerror}); if it is in the image, use "
                    "-o script=image."
                ) from None
            name = re.sub(r"[^-._a-zA-Z0-9]", "_", path.name)
            return [*command[:place], f"{FILES}/{name}", *command[place + 1 :]], {name: content}
    return command, {}
