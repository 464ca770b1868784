"""The objects that a job is made of: Kubernetes knows each of their fields, and each pod finds out who it is."""

from __future__ import annotations

import base64
import socket
import threading
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client

from trainband.cli.main import cli
from trainband.cluster import Task, resolve
from trainband.cluster.resolvers.metrics import MetricsAddress, resolve_metrics
from trainband.errors import YourError
from trainband.launch.kubernetes.await_ps import await_ps
from trainband.launch.kubernetes.manifest import Kind, KubernetesJob, Object, job_name, objects
from trainband.launch.kubernetes.pod_template import CONTAINER, INDEX_ANNOTATION, Resources

SIZES = {"ps": 2, "worker": 2, "evaluator": 1}
JOBSET_FIELDS = {"network", "failurePolicy", "replicatedJobs", "ttlSecondsAfterFinished"}
"""kubernetes-sigs/jobset at 08dfbdf, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml, with which the whole
manifest was compared."""


def job_of(kind: Kind = "jobset", **changes: Any) -> KubernetesJob:
    """A job that uses whatever there is."""
    settings: dict[str, Any] = {
        "name": "digits",
        "image": "registry/train:1",
        "command": ["train.py", "--steps", "10"],
        "sizes": SIZES,
        "kind": kind,
        "namespace": "team",
        "restarts": 3,
        "ps": Resources(memory="2Gi"),
        "workers": Resources(cpu="4", memory="16Gi", gpus=1),
        "checkpoints": "20Gi",
        "storage_class": "nfs",
        "tls_secret": "certs",
        "files": {"secret": b"x" * 32},
        "service_account": "trainer",
        "pull_secret": "registry",
        "finished_s": 3600,
    }
    return KubernetesJob(**{**settings, **changes})


def job_specs(found: list[Object]) -> dict[str, Object]:
    """The specs of the Jobs, which a JobSet has within it, by the names of our jobs."""
    specs = {one["metadata"]["labels"]["trainband-job"]: one["spec"] for one in found if one["kind"] == "Job"}
    for jobset in (one for one in found if one["kind"] == "JobSet"):
        specs |= {one["name"]: one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]}
    return specs


def task_container(spec: Object) -> Object:
    """Of a Job's pods, the container of the task."""
    (found,) = [one for one in spec["template"]["spec"]["containers"] if one["name"] == CONTAINER]
    assert isinstance(found, dict)
    return found


def known_to_kubernetes(model: str, content: Object) -> bool:
    """Whether the official client, which is made from the schema of the API, knows every field; it drops others."""
    read = getattr(client, model).from_dict(content)
    written: object = client.ApiClient().sanitize_for_serialization(read)  # type: ignore[no-untyped-call]
    return written == content


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_kubernetes_knows_every_field(kind: Kind) -> None:
    found = objects(job_of(kind))
    for one in found:
        assert one["metadata"]["namespace"] == "team"
        if one["kind"] != "JobSet":
            assert known_to_kubernetes(f"V1{one['kind']}", one)
    for spec in job_specs(found).values():
        assert known_to_kubernetes("V1JobSpec", spec)
        assert not known_to_kubernetes("V1JobSpec", {**spec, "backOffLimit": 1}), "this test would see a wrong field"
    if kind == "jobset":
        assert found[-1]["spec"].keys() == JOBSET_FIELDS
        assert [one["kind"] for one in found] == ["PersistentVolumeClaim", "Secret", "JobSet"]


@pytest.mark.parametrize(
    ("kind", "ps", "worker"),
    [("jobset", "digits-ps-0-1.digits:2222", "digits-worker-0-1.digits:2222"), ("job", "digits-ps-1.digits:2222", "")],
)
def test_each_pod_finds_out_who_it_is(kind: Kind, ps: str, worker: str) -> None:
    for name, spec in job_specs(objects(job_of(kind))).items():
        env = task_container(spec)["env"]
        assert env[0]["name"] == "TRAINBAND_INDEX"
        assert INDEX_ANNOTATION in env[0]["valueFrom"]["fieldRef"]["fieldPath"]
        variables = {one["name"]: one.get("value", "") for one in env}
        for index in range(SIZES[name]):  # as the kubelet does for `$(TRAINBAND_INDEX)`
            config = variables["TF_CONFIG"].replace("$(TRAINBAND_INDEX)", str(index))
            found = resolve({**variables, "TF_CONFIG": config})
            assert found is not None
            assert found.task == Task(name, index)
            assert found.spec.task_address("ps", 1) == ps
            assert not worker or found.spec.task_address("worker", 1) == worker
        assert variables["TRAINBAND_SECRET_FILE"] == "/etc/trainband/job/secret"
        assert variables["TRAINBAND_TLS"] == "/etc/trainband/tls"
        assert variables["TRAINBAND_CHECKPOINT_DIR"] == "/checkpoints"


def test_a_ps_is_probed_and_ends_after_the_workers_that_save() -> None:
    specs = job_specs(objects(job_of()))
    ps, worker = (specs[name]["template"]["spec"] for name in ("ps", "worker"))
    assert ps["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": 2222}
    (delay,) = ps["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1:]
    assert delay == "import time; time.sleep(20)"
    assert ps["terminationGracePeriodSeconds"] == worker["terminationGracePeriodSeconds"] == 120
    assert "lifecycle" not in worker["containers"][0]
    assert worker["initContainers"][0]["command"][-2:] == ["digits-ps-0-0.digits:2222", "digits-ps-0-1.digits:2222"]
    assert "initContainers" not in ps
    assert worker["containers"][0]["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}
    assert "nvidia.com/gpu" not in str(worker["initContainers"])


def test_who_restarts_what() -> None:
    alone = {"worker": 2}

    def restarts(job: KubernetesJob) -> tuple[int, int]:
        found = objects(job)
        of_all = found[-1]["spec"]["failurePolicy"]["maxRestarts"] if found[-1]["kind"] == "JobSet" else 0
        return of_all, job_specs(found)["worker"]["backoffLimitPerIndex"]

    assert restarts(job_of()) == (0, 3)
    assert restarts(job_of("job")) == (0, 3)
    assert restarts(job_of(sizes=alone)) == (3, 0), "workers without ps fail together"
    assert restarts(job_of("job", sizes=alone)) == (0, 3)


def test_plain_jobs_get_a_headless_service() -> None:
    (service,) = [one for one in objects(job_of("job")) if one["kind"] == "Service"]
    pods = [spec["template"] for spec in job_specs(objects(job_of("job"))).values()]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for pod in pods:
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Digits_1"}, "name = 'Digits_1'"),
        ({"name": "a" * 41}, "at most 40"),
        ({"image": ""}, "image is missing"),
        ({"kind": "deployment"}, "kind = 'deployment'"),
        ({"metrics_port": 2222}, "metrics_port = 2222: give a port from 1 to 65535 other than 2222"),
        ({"metrics_port": 70000}, "metrics_port = 70000"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(YourError, match=message):
        job_of(**changes)
    with pytest.raises(YourError, match="memory = '16 GB' is not a Kubernetes quantity"):
        Resources(memory="16 GB")


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_prometheus_is_asked_to_scrape_pods_with_metrics(kind: Kind) -> None:
    assert all("annotations" not in spec["template"]["metadata"] for spec in job_specs(objects(job_of(kind))).values())
    for spec in job_specs(objects(job_of(kind, metrics_port=9400))).values():
        assert known_to_kubernetes("V1JobSpec", spec)
        assert spec["template"]["metadata"]["annotations"] == {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "9400",
            "prometheus.io/path": "/metrics",
        }
        container = task_container(spec)
        assert {"name": "metrics", "containerPort": 9400} in container["ports"]
        environ = {one["name"]: one.get("value") for one in container["env"]}
        assert resolve_metrics(None, environ) == MetricsAddress("0.0.0.0", 9400)


def test_the_command_writes_yaml() -> None:
    arguments = "kubernetes manifest --image i:1 --kind job --checkpoints claim jobs/My_train.py -- --workers 8"
    done = CliRunner().invoke(cli, arguments.split())
    assert done.exit_code == 0, done.output
    found = list(yaml.safe_load_all(done.stdout))
    assert [one["kind"] for one in found] == ["Secret", "Service", "Job", "Job"]
    assert {one["metadata"]["name"] for one in found} == {f"my-train{end}" for end in ("", "-files", "-ps", "-worker")}
    assert len(base64.b64decode(found[0]["data"]["secret"])) >= 32
    worker = job_specs(found)["worker"]
    assert task_container(worker)["command"] == ["python", "jobs/My_train.py", "--workers", "8"]
    assert "claimName: claim" in done.stdout
    assert "*id" not in done.stdout


@pytest.mark.parametrize(
    ("script", "name"), [("a/My_train.py", "my-train"), ("my.trainer", "trainer"), ("1.py", "trainband")]
)
def test_what_a_job_is_called(script: str, name: str) -> None:
    assert job_name(script) == name


def test_a_task_waits_for_the_ps() -> None:
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    again = threading.Event()

    def sleep(_seconds: float) -> None:
        """Time passes, and the ps comes up."""
        if not again.is_set():
            again.set()
            servers.append(socket.create_server(("127.0.0.1", port)))

    servers: list[socket.socket] = []
    await_ps([f"127.0.0.1:{port}"], heard.append, sleep)
    assert again.is_set()
    servers[0].close()
