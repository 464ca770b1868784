"""A stand-in for the kubelet: runs the containers of `tests.kubernetes_cluster`'s pods as processes."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.kubernetes_cluster import INDEX, FakePod
from trainband.cluster.task import Task

ROOT = Path(__file__).parents[1]


class Kubelet:
    """Runs pods. Names of pods become ports of this machine, and mounted paths directories.

    Args:
      directory: for what is mounted.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: dict[str, int] = {}
        self._lock = threading.Lock()
        (directory / "checkpoints").mkdir()

    def run(self, pod: FakePod) -> None:
        """The life of a pod."""
        spec = pod.content["spec"]
        mounts = self._mount(pod)
        environment = self._environment(pod, spec["containers"][0], mounts)
        for before in spec.get("initContainers", ()):
            subprocess.run(self._command(before, mounts), env=environment, check=True, timeout=60)
        pod.start()
        process = subprocess.Popen(
            self._command(spec["containers"][0], mounts),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._ask_to_end, args=(pod, process), daemon=True).start()
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                pod.say(line.rstrip("\n"))
        code = process.wait()
        pod.exit(code if code >= 0 else 128 - code)
        pod.asked_to_end.set()

    def _ask_to_end(self, pod: FakePod, process: subprocess.Popen[str]) -> None:
        pod.asked_to_end.wait()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def _mount(self, pod: FakePod) -> dict[str, str]:
        mounts = {"/checkpoints": str(self._directory / "checkpoints")}
        mounted = {one["name"]: one for one in pod.content["spec"]["containers"][0].get("volumeMounts", ())}
        index = pod.content["metadata"]["annotations"][INDEX]
        for volume in pod.content["spec"].get("volumes", ()):
            if "secret" not in volume:
                continue
            name, mode = volume["secret"]["secretName"], volume["secret"]["defaultMode"]
            with pod.cluster.changed:  # a pod waits for what it mounts
                assert pod.cluster.changed.wait_for(partial(pod.cluster.made.__contains__, ("Secret", name)), 20)
            directory = self._directory / pod.name / volume["name"]
            directory.mkdir(parents=True)
            data = pod.cluster.made["Secret", name]["data"]
            for key, content in _of_secret(volume, mounted[volume["name"]], data, index).items():
                (directory / key).write_bytes(base64.b64decode(content))
                (directory / key).chmod(mode)
            mounts[mounted[volume["name"]]["mountPath"]] = str(directory)
        return mounts

    def _environment(self, pod: FakePod, container: dict[str, Any], mounts: dict[str, str]) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": f"{ROOT / 'src'}"}
        found["TRAINBAND_INDEX"] = pod.content["metadata"]["annotations"][INDEX]
        for one in container["env"][1:]:
            value = one["value"].replace("$(TRAINBAND_INDEX)", found["TRAINBAND_INDEX"])
            found[one["name"]] = self._here(value, mounts)
        return found

    def _command(self, container: dict[str, Any], mounts: dict[str, str]) -> list[str]:
        program, *arguments = container["command"]
        assert program == "python"
        return [sys.executable, *(self._here(argument, mounts) for argument in arguments)]

    def _here(self, text: str, mounts: dict[str, str]) -> str:
        """A text of the manifest, with paths and addresses of this machine."""
        for path, directory in mounts.items():
            text = text.replace(path, directory)
        pieces = text.split(":2222")
        for place, piece in enumerate(pieces[:-1]):
            name = piece.rpartition('"')[2]
            pieces[place] = f"{piece.removesuffix(name)}127.0.0.1:{self._port(name)}"
        return "".join(pieces)

    def _port(self, name: str) -> int:
        with self._lock:
            if name not in self._ports:
                with socket.create_server(("127.0.0.1", 0)) as server:
                    self._ports[name] = server.getsockname()[1]
            return self._ports[name]


def mounted_files(found: Sequence[dict[str, Any]], task: Task) -> dict[str, dict[str, bytes]]:
    """What the pod of a task finds of the Secrets among a job's objects, by the paths where they are mounted."""
    secrets = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "Secret"}
    specs = {one["metadata"]["labels"]["trainband-job"]: one["spec"] for one in found if one["kind"] == "Job"}
    for jobset in (one for one in found if one["kind"] == "JobSet"):
        specs |= {one["name"]: one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]}
    pod = specs[task.job]["template"]["spec"]
    mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
    volumes = [volume for volume in pod["volumes"] if "secret" in volume]
    return {
        mounts[volume["name"]]["mountPath"]: _of_secret(
            volume, mounts[volume["name"]], secrets[volume["secret"]["secretName"]], str(task.index)
        )
        for volume in volumes
    }


def _of_secret(volume: dict[str, Any], mount: dict[str, Any], data: Mapping[str, Any], index: str) -> dict[str, Any]:
    """What a pod sees of a Secret's data at the place where it is mounted."""
    source = volume["secret"]
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    missing = [item["key"] for item in items if item["key"] not in data]
    assert not missing or source.get("optional"), f"the pod never starts: the Secret has no {missing}"
    below = f"{mount['subPathExpr']}/".replace("$(TRAINBAND_INDEX)", index) if "subPathExpr" in mount else ""
    found = {item["path"]: data[item["key"]] for item in items if item["key"] in data}
    return {path.removeprefix(below): content for path, content in found.items() if path.startswith(below)}
