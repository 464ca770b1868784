"""Jobs on Kubernetes, with the real client and a stand-in for the cluster, see `tests.kubernetes_cluster`."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.kubernetes_cluster import FakeCluster, FakePod, live, secret_files, serving

from trainband.cli.main import cli
from trainband.cluster import Task
from trainband.cluster.resolvers.metrics import PORT
from trainband.errors import ClusterError, TrainbandError, Unreachable, YourError
from trainband.launch.backend import Watcher
from trainband.launch.backends.kubernetes import Kubernetes
from trainband.launch.kubernetes import api as api_module
from trainband.launch.kubernetes.run import KubernetesRun
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest
from trainband.runtime.logs import event

CLAIM = ("PersistentVolumeClaim", "digits-checkpoints")
NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
QUOTA = "exceeded quota: team-quota, requested: requests.cpu=4, used: requests.cpu=8, limited: requests.cpu=10"
"""As the quota's controller writes it, by reports of users."""


class Heard:
    """What a run says, for a test to wait for."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.notes: list[str] = []
        self.react: Callable[[str], None] = lambda _: None

    def watcher(self) -> Watcher:
        """One that keeps everything."""
        return Watcher(line=lambda task, stream, text: self.line(str(task), stream, text), report=self.report)

    def line(self, task: str, stream: str, text: str) -> None:
        """A line of a task."""
        self.lines.append((task, stream, text))
        self.react(text)

    def report(self, text: str) -> None:
        """A sentence of the launcher's."""
        self.notes.append(text)
        self.react(text)


def request_of(environment: dict[str, str], *, restarts: int = 0, **settings: Any) -> JobRequest:
    """A job of one ps and two workers that runs a module."""
    settings = {"program": ["-m", "train"], "ps": 1, "workers": 2, **settings}
    return JobRequest(environment=environment, restarts=Restarts(limit=restarts), **settings)


@contextmanager
def prepared(
    cluster: FakeCluster, tmp_path: Path, *, options: dict[str, Any] | None = None, **settings: Any
) -> Iterator[tuple[KubernetesRun, Heard]]:
    """A run of a job on the cluster, whose name is digits."""
    heard = Heard()
    backend = Kubernetes(**{"image": "train:1", "name": "digits", "poll_s": 0.02, **(options or {})})
    with serving(cluster, tmp_path) as config:
        yield backend.prepare(request_of({"KUBECONFIG": str(config)}, **settings), heard.watcher()), heard


def void(_: object) -> None:
    """For expressions whose value nobody wants."""


def until_asked(pod: FakePod) -> None:
    """Runs until it is asked to end, and saves then."""
    pod.start()
    pod.say("step 1")
    pod.asked_to_end.wait(20)
    pod.say("saved")
    pod.exit(143)


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_a_job_runs_to_its_end_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    cluster = FakeCluster()
    with prepared(cluster, tmp_path, options={"kind": kind, "checkpoints": "20Gi"}) as (run, heard):
        with run:
            assert {str(task) for task in run.alive} == {"ps:0", "worker:0", "worker:1"}
            outcome = run.wait(20)
        assert (outcome.kind, outcome.exit_code) == ("succeeded", 0)
        assert sorted(heard.lines) == [
            (task, "stdout", f"hello from {task}") for task in ("ps:0", "worker:0", "worker:1")
        ]
        assert run.last_lines(Task("worker", 1)) == ["hello from worker:1"]
        assert cluster.left() == [CLAIM], "but for the checkpoints"
        assert any("kubectl delete pvc digits-checkpoints -n team" in note for note in heard.notes)
        deleted = [name for verb, _, name in cluster.history if verb == "delete"]
        root = "digits"
        assert root in deleted
        owners = {one["name"] for one in cluster.made["Secret", "digits-files"]["metadata"]["ownerReferences"]}
        assert owners == {root}, "what the launcher cannot delete, the cluster does with the root"
        if kind == "job":
            assert deleted == ["digits-worker", "digits-ps", "digits-files", "digits"]


def test_every_pod_serves_metrics_at_the_same_port(tmp_path: Path) -> None:
    cluster, heard = FakeCluster(), Heard()
    backend = Kubernetes(image="train:1", name="digits", poll_s=0.02, kind="job")
    with serving(cluster, tmp_path) as config:
        environ = {"KUBECONFIG": str(config), PORT: "9400+"}
        with backend.prepare(request_of(environ), heard.watcher()) as run:
            assert run.wait(20).kind == "succeeded"
        with pytest.raises(YourError, match="TRAINBAND_METRICS_PORT = '0': on Kubernetes, give one port"):
            backend.prepare(request_of({**environ, PORT: "0"}), heard.watcher())
    for name in ("digits-ps", "digits-worker"):
        pod = cluster.made["Job", name]["spec"]["template"]
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9400"
        (container,) = [one for one in pod["spec"]["containers"] if one["name"] == "task"]
        assert {"name": PORT, "value": "9400"} in container["env"]


def test_events_of_a_task_on_kubernetes_were_on_its_stderr(tmp_path: Path) -> None:
    line = event(when=1.5, level="info", logger="trainband.console", message="m", task="worker:0")

    def behave(pod: FakePod) -> None:
        pod.start()
        pod.say(line)
        pod.exit(0)

    with prepared(FakeCluster(behave), tmp_path) as (run, heard), run:
        run.wait(20)
    assert {(stream, text) for _, stream, text in heard.lines} == {("stderr", line)}


def test_kubernetes_restarts_a_task_that_fails(tmp_path: Path) -> None:
    failed = threading.Event()

    def behave(pod: FakePod) -> None:
        if pod.task == "worker:1" and not failed.is_set():
            failed.set()
            pod.start()
            pod.exit(3)
        else:
            live(pod)

    with prepared(FakeCluster(behave), tmp_path, restarts=1) as (run, heard), run:
        assert run.wait(20).kind == "succeeded"
        assert "worker:1 failed (exit code 3)" in heard.notes


def test_a_task_that_fails_ends_the_job(tmp_path: Path) -> None:
    def behave(pod: FakePod) -> None:
        if pod.task == "worker:1":
            pod.start()
            pod.say("ValueError: no data")
            pod.exit(3)
        else:
            until_asked(pod)

    cluster = FakeCluster(behave)
    with prepared(cluster, tmp_path) as (run, _):
        with run:
            outcome = run.wait(20)
            assert (outcome.kind, outcome.exit_code, outcome.failed) == ("failed", 3, Task("worker", 1))
            assert run.last_lines(Task("worker", 1)) == ["ValueError: no data"]
        assert cluster.left() == []


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda pod: pod.exit(137, "OOMKilled"), "out of memory: it needed more than its limit of 16Gi; raise memory"),
        (lambda pod: pod.exit(139), "killed by SIGSEGV"),
    ],
)
def test_why_a_task_has_ended(end: Callable[[FakePod], None], reason: str, tmp_path: Path) -> None:
    def behave(pod: FakePod) -> None:
        pod.start()
        end(pod)

    with prepared(FakeCluster(behave), tmp_path, ps=0, workers=1, options={"memory": "16Gi"}) as (run, _), run:
        outcome = run.wait(20)
        assert reason in outcome.reason
        assert outcome.exit_code > 128


def test_a_pod_whose_node_is_reclaimed_has_not_failed(tmp_path: Path) -> None:
    reclaimed = threading.Event()

    def behave(pod: FakePod) -> None:
        if pod.task == "worker:0" and not reclaimed.is_set():
            reclaimed.set()
            pod.start()
            pod.exit(143, conditions=[{"type": "DisruptionTarget", "status": "True"}])
        else:
            live(pod)

    with prepared(FakeCluster(behave), tmp_path) as (run, heard), run:
        assert run.wait(20).kind == "succeeded"
        assert any("its node was drained or reclaimed: Kubernetes restarts it" in note for note in heard.notes)


def test_what_pods_wait_for_is_said_once(tmp_path: Path) -> None:
    go = threading.Event()

    def behave(pod: FakePod) -> None:
        if pod.task == "worker:0":
            pod.wait_for_node(NO_NODE)
            go.wait(20)
        live(pod)

    cluster = FakeCluster(behave)
    with prepared(cluster, tmp_path) as (run, heard), run:
        heard.react = lambda text: go.set() if NO_NODE in text else None
        assert run.wait(20).kind == "succeeded"
        assert heard.notes.count(f"worker:0 is waiting for a node ({NO_NODE})") == 1


def test_a_quota_that_refuses_pods_is_put_into_words(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.quota = QUOTA
    with prepared(cluster, tmp_path) as (run, heard), run:
        heard.react = lambda text: run.interrupt(signal.SIGTERM) if "team-quota" in text else None
        assert run.wait(20).exit_code == 128 + signal.SIGTERM
        (note,) = {note for note in heard.notes if note.startswith("pods of digits-worker-0")}
        assert note == (
            "pods of digits-worker-0 cannot be created: the quota team-quota of the namespace allows requests.cpu=10, "
            "of which requests.cpu=8 is used and requests.cpu=4 was requested; request less, or wait until others free "
            "some"
        )


def test_an_image_that_is_not_there_is_not_waited_for_without_end(tmp_path: Path) -> None:
    def behave(pod: FakePod) -> None:
        pod.wait_for_image("ImagePullBackOff", 'Back-off pulling image "train:1"')

    cluster = FakeCluster(behave)
    with prepared(cluster, tmp_path, options={"image_s": 0.2}) as (run, _):
        with run:
            outcome = run.wait(20)
        assert outcome.kind == "failed"
        assert 'its image (ImagePullBackOff: Back-off pulling image "train:1")' in outcome.reason
        assert cluster.left() == []


@pytest.mark.parametrize(
    ("refusals", "jobset", "message"),
    [
        ({}, False, "this cluster has no JobSet; .* or use kind=job"),
        ({("create", "jobsets"): (403, 'jobsets is forbidden: User "ann" cannot create')}, True, "You need a role"),
        ({("create", "secrets"): (403, f'secrets "x" is forbidden: {QUOTA}')}, True, "the quota team-quota of the"),
        ({("create", "jobsets"): (404, 'namespaces "team" not found')}, True, 'namespaces "team" not found'),
        ({("create", "jobsets"): (422, "JobSet is invalid: spec")}, True, "JobSet is invalid: spec .status 422"),
    ],
)
def test_what_the_cluster_refuses_is_said_and_undone(
    refusals: dict[tuple[str, str], tuple[int, str]], jobset: bool, message: str, tmp_path: Path
) -> None:
    cluster = FakeCluster(jobset=jobset)
    cluster.refusals = refusals
    with prepared(cluster, tmp_path) as (run, _):
        with pytest.raises(YourError, match=message), run:
            pytest.fail("it has started")
        assert cluster.left() == []


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.objects["JobSet", "digits"] = {"metadata": {"name": "digits"}, "status": {}}
    with prepared(cluster, tmp_path) as (run, _):
        with pytest.raises(YourError, match="already exists; choose another name"), run:
            pytest.fail("it has started")
        assert cluster.left() == [("JobSet", "digits")], "it is somebody else's"


def test_an_interrupt_lets_tasks_save_and_deletes_everything(tmp_path: Path) -> None:
    cluster = FakeCluster(until_asked)
    with prepared(cluster, tmp_path) as (run, heard):
        steps = 0

        def react(text: str) -> None:
            nonlocal steps
            steps += text == "step 1"
            if text == "step 1" and steps == 3:
                os.kill(os.getpid(), signal.SIGINT)

        heard.react = react
        with run:
            outcome = run.wait(20)
        assert (outcome.kind, outcome.exit_code) == ("interrupted", 130)
        assert sorted(line for line in heard.lines if line[2] == "saved") == [
            (task, "stdout", "saved") for task in ("ps:0", "worker:0", "worker:1")
        ]
        assert cluster.left() == []


def test_leaving_the_block_ends_a_job_that_runs(tmp_path: Path) -> None:
    cluster = FakeCluster(until_asked)
    with prepared(cluster, tmp_path) as (run, _):
        with pytest.raises(RuntimeError, match="of the caller"), run:
            raise RuntimeError("of the caller")
        assert cluster.left() == []


def test_a_log_whose_connection_breaks_is_read_on(tmp_path: Path) -> None:
    read = threading.Event()

    def behave(pod: FakePod) -> None:
        pod.start()
        for number in range(10):
            pod.say(f"line {number}")
        read.wait(20)
        pod.break_logs()
        for number in range(10, 25):
            pod.say(f"line {number}")
        pod.exit(0)

    with prepared(FakeCluster(behave), tmp_path, ps=0, workers=1) as (run, heard), run:
        heard.react = lambda text: read.set() if text == "line 9" else None
        assert run.wait(20).kind == "succeeded"
        assert [text for _, _, text in heard.lines] == [f"line {number}" for number in range(25)]


def test_an_api_server_that_is_away_for_a_while_is_asked_again(tmp_path: Path) -> None:
    started = threading.Event()

    def behave(pod: FakePod) -> None:
        started.wait(20)
        live(pod)

    cluster = FakeCluster(behave)
    with prepared(cluster, tmp_path, ps=0, workers=1) as (run, heard), run:
        cluster.out_of_order = 4
        started.set()
        assert run.wait(20).kind == "succeeded"
        assert any("The job continues; trying again." in note for note in heard.notes)


def test_an_api_server_that_stays_away_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.launch.kubernetes.run._SILENT_S", 0.1)
    cluster = FakeCluster(until_asked)
    heard = Heard()
    with serving(cluster, tmp_path) as config:
        backend = Kubernetes(image="i", name="digits", poll_s=0.02)
        run = backend.prepare(request_of({"KUBECONFIG": str(config)}), heard.watcher())
        with run:
            cluster.out_of_order = 1000
            with pytest.raises(Unreachable, match=r"is currently unable .* has not answered for \d+ s"):
                run.wait(20)
            cluster.out_of_order = 0


def test_a_job_that_somebody_deletes_has_failed(tmp_path: Path) -> None:
    cluster = FakeCluster(until_asked)
    with prepared(cluster, tmp_path) as (run, heard):
        heard.react = lambda text: void(text == "step 1" and cluster.remove("JobSet", "digits"))
        with run:
            outcome = run.wait(20)
        assert (outcome.kind, outcome.reason) == ("failed", "the job digits was deleted")
        assert "the job has failed: the job digits was deleted" in heard.notes
        assert cluster.left() == []


def test_without_ps_a_jobset_restarts_all_workers(tmp_path: Path) -> None:
    lives: list[str] = []

    def behave(pod: FakePod) -> None:
        lives.append(pod.task)
        pod.start()
        if len(lives) <= 2:
            pod.exit(1) if pod.task == "worker:0" else pod.asked_to_end.wait(20)
        else:
            pod.exit(0)

    with prepared(FakeCluster(behave), tmp_path, ps=0, restarts=1) as (run, _), run:
        assert run.wait(20).kind == "succeeded"
    assert sorted(lives) == ["worker:0", "worker:0", "worker:1", "worker:1"]


def test_a_function_is_sent_and_called(tmp_path: Path) -> None:
    path = str(tmp_path / "called")

    def program() -> None:
        Path(path).write_text("by a pod")

    cluster = FakeCluster()
    with prepared(cluster, tmp_path, program=program) as (run, _), run:
        run.wait(20)
    spec = cluster.made["JobSet", "digits"]["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
    command = spec["containers"][0]["command"]
    for name, content in secret_files(cluster).items():
        (tmp_path / name).write_bytes(content)
    here = [part.replace("/etc/trainband/job", str(tmp_path)) for part in command[1:]]
    subprocess.run([sys.executable, *here], check=True, timeout=30)
    assert (tmp_path / "called").read_text() == "by a pod"
    assert len(secret_files(cluster)["secret"]) > 32


def test_the_command_line_sends_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "My train.py"
    script.write_text("print('hello')")
    cluster = FakeCluster()
    with serving(cluster, tmp_path) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        options = ["-o", "image=train:1", "-o", "poll-s=0.02", "-o", "gpus=1"]
        done = CliRunner().invoke(cli, ["run", "--on", "kubernetes", *options, str(script), "--", "--steps", "5"])
        assert done.exit_code == 0, done.output
        assert "[worker:1] hello from worker:1" in done.stdout
        assert cluster.left() == []
    ((_, name),) = [key for key in cluster.made if key[0] == "JobSet"]
    assert name.startswith("my-train-")
    container = cluster.made["Job", f"{name}-worker-0"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "/etc/trainband/job/My_train.py", "--steps", "5"]
    assert secret_files(cluster)["My_train.py"] == b"print('hello')"
    assert not [one for one in container["env"] if one["name"] == "KUBECONFIG"]


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"image": ""}, {}, "give -o image=NAME"),
        ({"script": "copy"}, {}, "script = 'copy': write send or image"),
        ({}, {"program": ["no-such.py"]}, "no-such.py cannot be read here .*-o script=image"),
        ({}, {"ps": 0, "min_workers": 1}, "leave out min_workers"),
        ({"context": "other"}, {}, "the kubeconfig cannot be used: .*other"),
    ],
)
def test_what_cannot_be_run_is_refused(
    options: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises((ClusterError, YourError), match=message),
        prepared(FakeCluster(), tmp_path, options=options, **settings),
    ):
        pytest.fail("it was taken")


def test_without_a_cluster_or_a_client_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(YourError, match="no Kubernetes cluster is configured"):
        api_module.Api()
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "kubernetes":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TrainbandError, match=r"pip install 'trainband\[kubernetes\]'"):
        api_module.Api()


def test_an_api_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with prepared(FakeCluster(), tmp_path) as (run, _):
        pass
    with (
        pytest.raises(Unreachable, match=r"the Kubernetes API server at http://127\.0\.0\.1:\d+ does not answer"),
        run,
    ):
        pytest.fail("it has started")
