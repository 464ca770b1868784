"""The manifests of a server: Kubernetes knows each field, and they agree with what the server offers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kubernetes import client

from trainband.cli.export import export
from trainband.cli.serve import serve
from trainband.launch.kubernetes.manifest import KubernetesJob, objects
from trainband.serve import ServeOptions
from trainband.serve.app import route
from trainband.serve.sources.base import SourceState, SourceStatus
from trainband.serve.statistics import ServerMetrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("base", "follow", "gpu")
OTHERS = {
    # kedacore/keda, apis/keda/v1alpha1/scaledobject_types.go, and its Prometheus scaler
    "ScaledObject": {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "pollingInterval",
        "cooldownPeriod",
        "triggers",
    },
    # prometheus-operator/prometheus-operator, pkg/apis/monitoring/v1/podmonitor_types.go
    "PodMonitor": {"selector", "podMetricsEndpoints"},
}
"""What the kinds that Kubernetes itself does not have are to say; compared with their schemas when it was written."""

Object = dict[str, Any]


def written() -> Iterator[tuple[Path, Object]]:
    """Every object of every file."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name not in ("kustomization.yaml", "prometheus-adapter.yaml"):
            for one in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield path, one


def built(name: str) -> list[Object]:
    """What `kubectl apply -k` sends."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, and it builds kustomizations")
    command = ["kubectl", "kustomize", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def known_to_kubernetes(content: Object) -> bool:
    """Whether the official client, which is made from the schema of the API, knows every field; it drops others."""
    prefix = "V2" if content["apiVersion"] == "autoscaling/v2" else "V1"
    read = getattr(client, prefix + content["kind"]).from_dict(content)
    sent: object = client.ApiClient().sanitize_for_serialization(read)  # type: ignore[no-untyped-call]
    return sent == content


def one_of(kind: str, found: list[Object]) -> Object:
    """The only object of that kind."""
    (only,) = [one for one in found if one["kind"] == kind]
    return only


def check_options(command: click.Command, arguments: list[str]) -> dict[str, str]:
    """Sees that a command knows its options and takes their values; the options by name."""
    known = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    options = {}
    for argument in (one for one in arguments if one.startswith("--")):
        name, _, value = argument.partition("=")
        assert name in known, f"{command.name} has no {name}"
        if not known[name].is_flag:
            known[name].type.convert(value, known[name], None)
        options[name] = value
    return options


@pytest.mark.smoke
def test_kubernetes_knows_every_field() -> None:
    kinds = set()
    for path, one in written():
        kinds.add(one["kind"])
        if one["kind"] in OTHERS:
            assert one["spec"].keys() == OTHERS[one["kind"]], path
        else:
            assert known_to_kubernetes(one), path
    assert kinds == {
        *("PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Job"),
        *("HorizontalPodAutoscaler", "ScaledObject", "PodMonitor"),
    }
    deployment = one_of("Deployment", [one for _, one in written()])
    assert not known_to_kubernetes({**deployment, "spec": {**deployment["spec"], "replica": 1}}), "it would be seen"


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_a_server_is_what_its_image_and_options_say(name: str) -> None:
    found = built(name)
    assert all(known_to_kubernetes(one) for one in found)
    deployment = one_of("Deployment", found)
    labels = deployment["spec"]["selector"]["matchLabels"]
    pod = deployment["spec"]["template"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert one_of("Service", found)["spec"]["selector"] == labels
    assert one_of("PodDisruptionBudget", found)["spec"]["selector"]["matchLabels"] == labels
    assert one_of("NetworkPolicy", found)["spec"]["podSelector"]["matchLabels"] == labels

    (container,) = pod["spec"]["containers"]
    options = check_options(serve, container["args"])
    grace_s = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > float(options["--drain"]) + ServeOptions().grace_s, "requests under way may end"
    for probe, action in (("startupProbe", "ready"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert route(container[probe]["httpGet"]["path"])[0] == action
        assert container[probe]["httpGet"]["port"] == "http"
    readiness = container["readinessProbe"]
    assert float(options["--drain"]) > readiness["periodSeconds"] * readiness["failureThreshold"]
    (port,) = container["ports"]
    assert port == {"name": "http", "containerPort": 8000, "protocol": "TCP"}
    assert one_of("Service", found)["spec"]["ports"][0]["targetPort"] == "http"
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "8000"
    assert route(pod["metadata"]["annotations"]["prometheus.io/path"])[0] == "metrics"

    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert any(container["args"][0].startswith(mount["mountPath"]) for mount in mounts.values())
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "/tmp" in {mount["mountPath"] for mount in mounts.values()}
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    dockerfile = (ROOT / "deploy" / "container" / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in dockerfile


def test_a_server_that_follows_finds_the_job() -> None:
    job = KubernetesJob(
        name="digits",
        image="i:1",
        command=["t.py"],
        sizes={"ps": 1, "worker": 1},
        checkpoints="1Gi",
        files={"secret": b"x"},
    )
    made = {(one["kind"], one["metadata"]["name"]) for one in objects(job)}
    found = built("follow")
    assert made.isdisjoint((one["kind"], one["metadata"]["name"]) for one in found), "the two can live side by side"
    pod = one_of("Deployment", found)["spec"]["template"]["spec"]
    options = check_options(serve, pod["containers"][0]["args"])
    assert options["--follow"] in str(objects(job)), "the address of ps:0"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert ("PersistentVolumeClaim", volumes["checkpoints"]["persistentVolumeClaim"]["claimName"]) in made
    assert ("Secret", volumes["job"]["secret"]["secretName"]) in made
    assert volumes["job"]["secret"]["defaultMode"] == 0o440
    (variable,) = pod["containers"][0]["env"]
    assert {"name": variable["name"], "value": variable["value"]} in _environment(objects(job))
    assert not any(one["kind"] == "PersistentVolumeClaim" for one in found)


def _environment(found: list[Object]) -> list[Object]:
    """Every variable of every container of a job."""
    jobset = one_of("JobSet", found)
    pods = [one["template"]["spec"]["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]]
    return [variable for pod in pods for container in pod["containers"] for variable in container["env"]]


def test_the_export_job_writes_where_the_server_reads() -> None:
    found = [one for _, one in written()]
    pod = one_of("Job", found)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, command, source, out, *_ = container["command"]
    assert (program, command) == ("trainband", export.name)
    check_options(export, container["command"])
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert not mounts["/model"].get("readOnly", False)
    assert source in mounts
    assert out == one_of("Deployment", found)["spec"]["template"]["spec"]["containers"][0]["args"][0]


def test_autoscaling_uses_metrics_that_the_server_has() -> None:
    text = ServerMetrics().text(None, SourceStatus(SourceState.FIXED, ""), name="digits", waiting=0, ready=True)
    gauges = set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
    adapter = yaml.safe_load((FOLDER / "autoscaling" / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]
    series = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert series is not None
    offered = {name for name in gauges if re.fullmatch(series[1], name)}
    found = [one for _, one in written()]
    scaler = one_of("HorizontalPodAutoscaler", found)
    assert {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]} == offered
    (trigger,) = one_of("ScaledObject", found)["spec"]["triggers"]
    assert set(re.findall(r"trainband_\w+", trigger["metadata"]["query"])) <= gauges
    assert 'model="digits"' in text
    target = one_of("Deployment", found)["metadata"]["name"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == target
    assert one_of("ScaledObject", found)["spec"]["scaleTargetRef"]["name"] == target
    (endpoint,) = one_of("PodMonitor", found)["spec"]["podMetricsEndpoints"]
    assert route(endpoint["path"])[0] == "metrics"
    assert endpoint["port"] == "http"
