"""Which files a launcher gives to which task, and what a task can do with its own."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kubelet import mounted_files
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster import Task
from trainband.cluster.certificates import issue, listing, make_authority, revoke
from trainband.cluster.credentials import Credentials, new_secret, read_secret, write_secret
from trainband.cluster.identity import Identity, Role
from trainband.cluster.resolvers.credentials import SECRET_FILE, TLS_DIRECTORY
from trainband.errors import AuthenticationError, ClusterError, Refused
from trainband.launch.backends.kubernetes import Kubernetes
from trainband.launch.job_files import JobFiles
from trainband.launch.kubernetes.manifest import Kind, KubernetesJob, objects
from trainband.launch.machine import FILES, TaskProgram
from trainband.launch.machines.remote_task import header
from trainband.launch.request import JobRequest
from trainband.wire.flight import FlightTransport
from trainband.wire.transport import ANYBODY, Caller

TASKS = [Task("ps", 0), Task("worker", 0), Task("worker", 1), Task("evaluator", 0)]
COMMON = {"ca.pem", "secret"}
OWN = {task: {f"{task.job}-{task.index}.pem", f"{task.job}-{task.index}.key"} for task in TASKS}


def request(environ: dict[str, str], *, tls: bool) -> JobRequest:
    return JobRequest(program=["train.py"], evaluator=True, environment=environ, tls=tls)


def made_by_hand(directory: Path, *names: str) -> Path:
    """What `trainband certs` has made, with the authority's key."""
    make_authority(directory)
    for name in names:
        issue(directory, name)
    return directory


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobFiles]:
    """The files of a job for which the launcher makes certificates."""
    with closing(JobFiles(request({"XDG_RUNTIME_DIR": str(tmp_path)}, tls=True))) as files:
        files.make(TASKS, ["127.0.0.1"], secure=True)
        yield files


def names_in(directory: Path | None) -> set[str]:
    assert directory is not None
    return {path.name for path in directory.iterdir() if path.exists()}


def sent(directory: Path | None) -> set[str]:
    """What a task on another machine gets, by ssh, srun or Ray."""
    program = TaskProgram(command=["x"], environment={}, files=directory)
    return set(json.loads(header(program, "{}", directory="", threads=None, stop_s=1.0))["files"])


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_task_gets_its_own_key_and_no_other(job: JobFiles, task: Task) -> None:
    place = job.of(task)
    assert names_in(place) == sent(place) == COMMON | OWN[task]
    assert place is not None
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in place.iterdir() if path.exists() and path.suffix != ".pem"} == {0}
    assert job.add_to({}) == {SECRET_FILE: f"{FILES}/secret", TLS_DIRECTORY: FILES}


def test_of_certificates_made_by_hand_too(tmp_path: Path) -> None:
    ca = made_by_hand(tmp_path / "ca", "ps:0", "worker:1", "worker", "observer", "admin")
    write_secret(tmp_path / "given", new_secret())
    environ = {TLS_DIRECTORY: str(ca), SECRET_FILE: str(tmp_path / "given")}
    with closing(JobFiles(request(environ, tls=False))) as files:
        files.make(TASKS, [], secure=True)
        assert sent(files.of(Task("worker", 1))) == COMMON | OWN[Task("worker", 1)]
        assert sent(files.of(Task("worker", 0))) == COMMON | {"worker.pem", "worker.key"}, "it has only those of all"
        assert sent(files.of(Task("evaluator", 0))) == COMMON, "it calls nobody"
        here = files.of(Task("ps", 0))
        revoke(ca, "worker:1")
        assert names_in(here) == sent(here) == COMMON | OWN[Task("ps", 0)] | {"revoked"}
        assert here is not None
        assert (here / "revoked").read_text() == (ca / "revoked").read_text()


def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path) -> None:
    ca = made_by_hand(tmp_path / "ca", "worker")
    with (
        closing(JobFiles(request({TLS_DIRECTORY: str(ca)}, tls=False))) as files,
        pytest.raises(ClusterError, match=f"{ca} has no certificate for ps:0"),
    ):
        files.make(TASKS, [], secure=True)
    with (
        closing(JobFiles(request({SECRET_FILE: "nowhere"}, tls=False))) as files,
        pytest.raises(ClusterError, match="TRAINBAND_SECRET_FILE = nowhere"),
    ):
        files.make(TASKS, [], secure=True)


def test_a_job_that_moves_has_certificates_for_its_new_hosts(job: JobFiles) -> None:
    """As on Ray, when the node of a ps has died: clients look for the ps's host in its certificate."""
    job.move(TASKS, ["10.0.0.9"])
    place = job.of(Task("ps", 0))
    assert place is not None
    (moved,) = [one for one in listing(place) if one.name == "ps:0"]
    assert "10.0.0.9" in moved.hosts
    assert names_in(place) == COMMON | OWN[Task("ps", 0)]


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_a_pod_mounts_its_own_key_and_no_other(kind: Kind) -> None:
    platform = Kubernetes(image="train:1", kind=kind, script="image")
    found = objects(platform._job(request({}, tls=True)))  # noqa: SLF001 - what `prepare` gives to the API
    (secret,) = [one["data"] for one in found if one["kind"] == "Secret"]
    assert not [name for name in secret if name.startswith(("admin", "observer", "worker.", "ca.key"))]
    for task in TASKS:
        assert set(mounted_files(found, task)["/etc/trainband/job"]) == COMMON | OWN[task]


def test_of_a_secret_with_certificates_too() -> None:
    job = KubernetesJob(
        name="digits", image="train:1", command=["train.py"], sizes={"ps": 1, "worker": 2}, tls_secret="certs"
    )
    names = ("ca.pem", "ca.key", "ps-0.pem", "ps-0.key", "worker-1.pem", "worker-1.key", "admin.pem", "admin.key")
    certs = {"kind": "Secret", "metadata": {"name": "certs"}, "data": {name: base64.b64encode(b"x") for name in names}}
    for task in TASKS[:3]:
        found = mounted_files([*objects(job), certs], task)["/etc/trainband/tls"]
        assert set(found) == {"ca.pem"} | ({*OWN[task]} & {*names})


class Service(EchoHandler):
    """Notes that the job was ended, by somebody who may."""

    has_ended = False

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        assert action == "shutdown"
        caller.require(frozenset({Role.ADMIN}), "end the job")  # as a ps does, see tests/ps/test_permissions.py
        self.has_ended = True
        return body


def stolen(own: Path, to: Path, name: str) -> Path:
    """Everything in a task's directory, with its pair under the name of another."""
    to.mkdir()
    for path in own.iterdir():
        if path.exists():
            renamed = f"{name.replace(':', '-')}{path.suffix}" if path.name.startswith("worker-1") else path.name
            (to / renamed).write_bytes(path.read_bytes())
            (to / renamed).chmod(0o600)
    return to


def test_the_files_of_a_worker_cannot_end_the_job(job: JobFiles, tmp_path: Path) -> None:
    """With its certificate, the secret or both, under any name: the certificate bounds what its owner may do."""
    ps, own, service = job.of(Task("ps", 0)), job.of(Task("worker", 1)), Service()
    assert ps is not None
    assert own is not None
    assert job.directory is not None
    secret = read_secret(own / "secret", "it")

    def shut_down(credentials: Credentials, name: str) -> None:
        with closing(FlightTransport(credentials, Identity(name, "x")).connect(listener.address, FAST)) as connection:
            connection.call("shutdown", timeout_s=5.0)

    serving = FlightTransport(Credentials(secret=secret, tls=ps), Identity("ps:0", "x"))
    listener = serving.listen("127.0.0.1:0", service, FAST)
    try:
        for name, known in itertools.product(("admin", "ps:0", "worker:0", "worker:1", "worker"), (b"", secret)):
            directory = stolen(own, tmp_path / f"{name}-{len(known)}", name)
            with pytest.raises((AuthenticationError, Refused, ClusterError)):
                shut_down(Credentials(secret=known, tls=directory), name)
            with pytest.raises((AuthenticationError, Refused)):
                shut_down(Credentials(secret=known), name)
        assert not service.has_ended
        shut_down(Credentials(secret=secret, tls=job.directory), "admin")  # the launcher's files can
        assert service.has_ended
    finally:
        listener.stop(1.0)
