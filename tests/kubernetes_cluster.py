"""A stand-in for a cluster of Kubernetes: an API server on 127.0.0.1 with the controllers of Jobs and JobSets.

It answers as the API server does, as far as the launcher asks: paths, statuses, messages and fields were taken from the
documentation of the API (https://kubernetes.io/docs/reference/kubernetes-api/), and the messages of refusals from
reports of users. What a pod does, the test says.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.programs import until

Object = dict[str, Any]

PLURALS = {
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "secrets": "Secret",
    "services": "Service",
    "pods": "Pod",
    "jobs": "Job",
    "jobsets": "JobSet",
    "events": "Event",
}
INDEX = "batch.kubernetes.io/job-completion-index"
CRD_MISSING = "404 page not found\n"
"""What the API server writes for a path that no API has."""


@dataclass
class FakePod:
    """A pod, whose life a test tells."""

    cluster: FakeCluster
    content: Object
    job: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    ended: bool = False
    over: bool = False
    """Whether its thread has ended."""
    broken: int = 0
    asked_to_end: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """Of the pod."""
        return str(self.content["metadata"]["name"])

    @property
    def task(self) -> str:
        """Such as `worker:0`."""
        metadata = self.content["metadata"]
        return f"{metadata['labels']['trainband-job']}:{metadata['annotations'][INDEX]}"

    def wait_for_node(self, message: str) -> None:
        """The scheduler finds no node."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._become("Pending", conditions=[condition])

    def wait_for_image(self, reason: str, message: str) -> None:
        """The kubelet cannot pull the image."""
        state = {"waiting": {"reason": reason, "message": message}}
        self._become("Pending", containerStatuses=[{"name": "task", "state": state}])

    def start(self) -> None:
        """The container runs."""
        self._become("Running", containerStatuses=[{"name": "task", "state": {"running": {}}}])

    def say(self, text: str) -> None:
        """The container prints a line."""
        with self.cluster.changed:
            self.lines.append((self.cluster.stamp(), text))
            self.cluster.changed.notify_all()

    def break_logs(self) -> None:
        """Every connection that reads the log breaks."""
        with self.cluster.changed:
            self.broken += 1
            self.cluster.changed.notify_all()

    def exit(self, code: int, reason: str = "", *, conditions: list[Object] | None = None) -> None:
        """The container exits, and the controllers react."""
        ended = {"exitCode": code, "finishedAt": self.cluster.stamp()[:19] + "Z"}
        ended["reason"] = reason or ("Error" if code else "Completed")
        state = {"name": "task", "state": {"terminated": ended}}
        with self.cluster.changed:
            self.ended = True
            self._become("Failed" if code else "Succeeded", containerStatuses=[state], conditions=conditions or [])
            self.cluster.control(self.job)

    def _become(self, phase: str, **status: Any) -> None:
        with self.cluster.changed:
            self.content["status"] = {"phase": phase, **status}
            self.cluster.changed.notify_all()


def live(pod: FakePod) -> None:
    """What a pod does unless the test says otherwise: it runs, prints a line, and succeeds."""
    pod.start()
    pod.say(f"hello from {pod.task}")
    pod.exit(0)


class FakeCluster:
    """The cluster. `behave` is called for each pod, in a thread of its own."""

    def __init__(self, behave: Callable[[FakePod], None] = live, *, jobset: bool = True) -> None:
        self.behave = behave
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[tuple[str, str], Object] = {}
        self.history: list[tuple[str, str, str]] = []
        """Verb, kind and name of whatever was asked that changes something."""
        self.made: dict[tuple[str, str], Object] = {}
        """Each object as it was asked for."""
        self.pods: dict[str, FakePod] = {}
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        """By verb and plural: the status and message of a refusal."""
        self.quota = ""
        """A message with which pods are refused."""
        self.jobset = jobset
        self.out_of_order = 0
        """How many requests are answered with 503 from now on."""
        self.closing = False
        self.threads: list[threading.Thread] = []
        self._ticks = 0

    def stamp(self) -> str:
        """Times as the kubelet writes them, without zeros at the end of fractions: each later than the one before."""
        self._ticks += 1
        fraction = f"{self._ticks:04}".rstrip("0")
        return f"2026-08-01T10:00:00.{fraction}Z"

    def left(self) -> list[tuple[str, str]]:
        """What there still is, but for events."""
        with self.changed:
            return sorted(key for key in self.objects if key[0] != "Event")

    def control(self, name: str) -> None:
        """What the controllers of Jobs and JobSets do once a pod has ended."""
        job = self.objects.get(("Job", name))
        if job is None or job["status"].get("conditions"):
            return
        spec = job["spec"]
        pods = [pod for pod in self.pods.values() if pod.job == name]
        for index in range(spec["completions"]):
            mine = [pod for pod in pods if pod.content["metadata"]["annotations"][INDEX] == str(index)]
            phases = [pod.content["status"]["phase"] for pod in mine]
            if "Succeeded" in phases or not all(pod.ended for pod in mine):
                continue
            counted = [pod for pod in mine if not pod.content["status"].get("conditions")]
            if len(counted) > spec["backoffLimitPerIndex"]:
                self._end(job, "Failed", f"Job has failed indexes: {index}")
                return
            self._make_pod(job, index)
        succeeded = {
            pod.content["metadata"]["annotations"][INDEX]
            for pod in pods
            if pod.content["status"]["phase"] == "Succeeded"
        }
        if len(succeeded) == spec["completions"]:
            self._end(job, "Complete", "")

    def _end(self, job: Object, kind: str, message: str) -> None:
        job["status"]["conditions"] = [{"type": kind, "status": "True", "message": message}]
        if kind == "Failed":
            for pod in [one for one in self.pods.values() if one.job == job["metadata"]["name"] and not one.ended]:
                self.remove("Pod", pod.name)
        name = job["metadata"].get("jobset", "")
        jobset = self.objects.get(("JobSet", name))
        if jobset is None:
            return
        jobs = [one for (which, _), one in self.objects.items() if which == "Job" and one["metadata"]["jobset"] == name]
        if kind == "Failed":
            restarts = jobset["status"].setdefault("restarts", 0)
            if restarts < jobset["spec"]["failurePolicy"]["maxRestarts"]:
                jobset["status"]["restarts"] = restarts + 1
                for one in jobs:
                    self.remove("Job", one["metadata"]["name"])
                self._make_jobs(jobset)
                return
            jobset["status"]["conditions"] = [{"type": "Failed", "status": "True", "message": "jobset failed"}]
        elif all(one["status"].get("conditions") for one in jobs):
            jobset["status"]["conditions"] = [{"type": "Completed", "status": "True"}]

    def create(self, kind: str, content: Object) -> Object:
        """Makes an object, and what its controller makes of it."""
        name = content["metadata"]["name"]
        self.made[kind, name] = json.loads(json.dumps(content))
        content["metadata"]["uid"] = str(uuid.uuid4())
        content.setdefault("status", {})
        self.objects[kind, name] = content
        self.changed.notify_all()
        if kind == "JobSet":
            self._make_jobs(content)
        if kind == "Job":
            for index in range(content["spec"]["completions"]):
                self._make_pod(content, index)
        return content

    def _make_jobs(self, jobset: Object) -> None:
        name = jobset["metadata"]["name"]
        for one in jobset["spec"]["replicatedJobs"]:
            metadata = {"name": f"{name}-{one['name']}-0", "jobset": name, **one["template"]["metadata"]}
            self.create("Job", {"metadata": metadata, "spec": one["template"]["spec"]})

    def _make_pod(self, job: Object, index: int) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        if self.quota:
            message = f'Error creating: pods "{name}-{index}-" is forbidden: {self.quota}'
            event = {"involvedObject": {"kind": "Job", "name": name}, "reason": "FailedCreate", "message": message}
            self.objects["Event", f"{name}-{index}"] = {"metadata": {}, "type": "Warning", **event}
            return
        metadata = {
            "name": f"{name}-{index}-{uuid.uuid4().hex[:5]}",
            "uid": str(uuid.uuid4()),
            "labels": template["metadata"]["labels"],
            "annotations": {INDEX: str(index)},
        }
        content = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        pod = FakePod(self, content, name)
        self.objects["Pod", pod.name], self.pods[pod.name] = content, pod
        thread = threading.Thread(target=self._live, args=(pod,), name=f"pod {pod.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _live(self, pod: FakePod) -> None:
        try:
            self.behave(pod)
        finally:
            with self.changed:
                pod.over = True
                self.changed.notify_all()

    def remove(self, kind: str, name: str) -> bool:
        """Deletes an object and whatever belongs to it."""
        with self.changed:
            found = self.objects.get((kind, name))
            if found is None:
                return False
            if kind == "Pod":
                self.pods[name].asked_to_end.set()
                threading.Thread(target=self._bury, args=(name,), daemon=True).start()
                return True
            del self.objects[kind, name]
            for other, content in list(self.objects.items()):
                metadata = content["metadata"]
                owners = [(one["kind"], one["name"]) for one in metadata.get("ownerReferences", ())]
                is_pod_of = kind == "Job" and other[0] == "Pod" and self.pods[other[1]].job == name
                if (kind, name) in owners or is_pod_of or (kind == "JobSet" and metadata.get("jobset") == name):
                    self.remove(*other)
            return True

    def _bury(self, name: str) -> None:
        """The pod goes once it has done what the test says."""
        pod = self.pods[name]
        with self.changed:
            self.changed.wait_for(lambda: pod.over or self.closing)
            pod.ended = True
            self.objects.pop(("Pod", name), None)
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: FakeCluster

    def log_message(self, *_args: object) -> None:
        """Says nothing."""

    def _answer(self, status: int, content: Object | str) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})

    def _asked(self, verb: str) -> tuple[str, str, str, dict[str, list[str]]] | None:
        """The kind, name and what follows it; `None` where it has been answered."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.body = json.loads(body) if body else {}
        url = urlsplit(self.path)
        parts = url.path.split("/namespaces/team/", 1)[-1].split("/")
        cluster = self.cluster
        if self.headers.get("Authorization") != "Bearer token":
            self._refuse(401, "Unauthorized")
        elif cluster.out_of_order > 0:
            cluster.out_of_order -= 1
            self._refuse(503, "the server is currently unable to handle the request")
        elif parts[0] == "jobsets" and not cluster.jobset:
            self._answer(404, CRD_MISSING)
        elif (verb, parts[0]) in cluster.refusals:
            self._refuse(*cluster.refusals[verb, parts[0]])
        else:
            return PLURALS[parts[0]], parts[1] if len(parts) > 1 else "", "/".join(parts[2:]), parse_qs(url.query)
        return None

    def do_GET(self) -> None:
        if (asked := self._asked("get")) is None:
            return
        kind, name, rest, query = asked
        with self.cluster.changed:
            if rest == "log":
                pod = self.cluster.pods.get(name)
            elif name:
                found = self.cluster.objects.get((kind, name))
                if found is None:
                    self._refuse(404, f'{kind.lower()}s "{name}" not found')
                else:
                    self._answer(200, found)
                return
            else:
                labels = dict([(query.get("labelSelector") or ["a=b"])[0].split("=")])
                every = [one for (which, _), one in self.cluster.objects.items() if which == kind]
                chosen = [
                    one
                    for one in every
                    if kind == "Event" or labels.items() <= one["metadata"].get("labels", {}).items()
                ]
                self._answer(200, {"kind": f"{kind}List", "items": chosen})
                return
        if pod is None or ("Pod", name) not in self.cluster.objects:
            self._refuse(404, f'pods "{name}" not found')
            return
        assert query["follow"] == ["true"]
        assert query["timestamps"] == ["true"]
        assert query["container"] == ["task"]
        self._stream(pod)

    def _stream(self, pod: FakePod) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, broken = 0, pod.broken
        while True:
            with self.cluster.changed:
                while not (len(pod.lines) > sent or pod.ended or pod.broken > broken or self.cluster.closing):
                    self.cluster.changed.wait()
                lines, over = pod.lines[sent:], pod.ended or self.cluster.closing
                sent = len(pod.lines)
                is_broken = pod.broken > broken
            for stamp, text in lines:
                piece = f"{stamp} {text}\n".encode()
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if is_broken:
                self.close_connection = True
                return
            if over:
                self.wfile.write(b"0\r\n\r\n")
                return

    def do_POST(self) -> None:
        if (asked := self._asked("create")) is None:
            return
        kind = asked[0]
        name = self.body["metadata"]["name"]
        with self.cluster.changed:
            self.cluster.history.append(("create", kind, name))
            if (kind, name) in self.cluster.objects:
                self._refuse(409, f'{kind.lower()}s "{name}" already exists')
            else:
                self._answer(201, self.cluster.create(kind, self.body))

    def do_DELETE(self) -> None:
        if (asked := self._asked("delete")) is None:
            return
        kind, name, _, query = asked
        assert "Foreground" in (*query.get("propagationPolicy", ()), self.body.get("propagationPolicy"))
        self.cluster.history.append(("delete", kind, name))
        if self.cluster.remove(kind, name):
            self._answer(200, {"kind": "Status", "status": "Success"})
        else:
            self._refuse(404, f'{kind.lower()}s "{name}" not found')


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are none."""


@contextmanager
def serving(cluster: FakeCluster, directory: Path) -> Iterator[Path]:
    """Serves the cluster, and gives the kubeconfig with which it is reached."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    config = directory / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "u", "user": {"token": "token"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    }
    config.write_text(json.dumps(content))
    try:
        yield config
    finally:
        with cluster.changed:
            cluster.closing = True
            for pod in cluster.pods.values():
                pod.asked_to_end.set()
            cluster.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
        until(lambda: not any("process_request" in one.name for one in threading.enumerate()), "the last answers")
        for one in cluster.threads:
            one.join(10)


def secret_files(cluster: FakeCluster) -> dict[str, bytes]:
    """The files of the one Secret that was made."""
    (found,) = [content for (kind, _), content in cluster.made.items() if kind == "Secret"]
    return {name: base64.b64decode(text) for name, text in found["data"].items()}
