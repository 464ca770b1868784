"""Makes `scripts.json`: what TensorFlow itself gives for the scripts in `examples/tf2`.

The recipe, with the path of a Python that has TensorFlow 2.21 and tf_keras of the same version (and TensorBoard for
`summaries`, which takes the names of its functions from there):

    python tests/compat_tf2/golden/make.py PYTHON [RUN]...

Keras 2 (`TF_USE_LEGACY_KERAS=1`) computes them, which the scripts are written for. A run is a script, its arguments and
a cluster; its value is what the script's last line has, of the chief where there is a cluster. Where TensorFlow cannot
run one, the reason stands in its place.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent / "scripts.json"
SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "tf2"
DEADLINE_S = 240.0


@dataclass(frozen=True)
class Run:
    """A script's name, its arguments, and how many tasks its cluster has of each job."""

    script: str
    arguments: tuple[str, ...] = ()
    cluster: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Name, as the golden values have it: `script argument@2 worker`."""
        cluster = "+".join(f"{count} {job}" for job, count in self.cluster)
        return " ".join((self.script, *self.arguments)) + (f"@{cluster}" if cluster else "")


WORKERS = (("worker", 2),)
SERVERS = (("chief", 1), ("worker", 2), ("ps", 1))
ONE = (
    "callbacks",
    "custom_loop",
    "dcgan_loop",
    "function_control_flow",
    "gan_train_step",
    "input_context",
    "keras_mirrored",
    "keras_multi_worker",
    "loop_multi_worker",
    "lstm_text",
    "mixed_precision",
    "saving",
    "summaries",
    "tfrecord",
    "two_replicas",
    "two_tower",
    "vae_train_step",
)
STRATEGIES = (
    "MirroredStrategy",
    "OneDeviceStrategy",
    "CentralStorageStrategy",
    "MultiWorkerMirroredStrategy",
    "experimental.MultiWorkerMirroredStrategy",
)
RUNS = (
    *(Run(script) for script in ONE),
    *(Run("any_strategy", (strategy,)) for strategy in STRATEGIES),
    Run("any_strategy", ("MultiWorkerMirroredStrategy",), WORKERS),
    Run("any_strategy", ("ParameterServerStrategy",), SERVERS),
    *(Run(script, (), WORKERS) for script in ("keras_multi_worker", "loop_multi_worker", "input_context")),
    *(Run(script, (), SERVERS) for script in ("keras_parameter_server", "coordinator")),
)


def main() -> None:
    """Makes the values of all runs, or of those that are named."""
    python, *wanted = sys.argv[1:]
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for run in RUNS:
        if not wanted or run.name in wanted or run.script in wanted:
            golden[run.name] = result_of(run, python)
            print(run.name, golden[run.name], flush=True)
    kept = {run.name: golden[run.name] for run in RUNS if run.name in golden}
    GOLDEN.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def tasks_of(cluster: Sequence[tuple[str, int]]) -> dict[str, dict[str, str]]:
    """The environment of each task, the one that gives the result first; without a cluster there is one task."""
    if not cluster:
        return {"one": {}}
    with ExitStack() as stack:
        sockets = {job: [stack.enter_context(socket.socket()) for _ in range(count)] for job, count in cluster}
        for one in (one for several in sockets.values() for one in several):
            one.bind(("127.0.0.1", 0))
        jobs = {job: [f"127.0.0.1:{one.getsockname()[1]}" for one in several] for job, several in sockets.items()}
    return {
        f"{job}:{index}": {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})}
        for job, addresses in jobs.items()
        for index in range(len(addresses))
    }


def result_of(run: Run, python: str) -> dict[str, Any]:
    """What the first task's last line has, or the reason why there is none."""
    fixed = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    with tempfile.TemporaryDirectory() as directory:
        processes: list[subprocess.Popen[bytes]] = []
        # A file rather than a pipe: a pipe that nobody reads fills, and its task waits.
        outputs: list[Path] = []
        try:
            for task, extra in tasks_of(run.cluster).items():
                command = [python, str(SCRIPTS / f"{run.script}.py"), *run.arguments]
                command += [directory] if run.cluster and not run.arguments else []
                outputs.append(Path(directory) / f"{task}.log")
                with outputs[-1].open("wb") as stream:
                    every: Mapping[str, str] = {**environment, **fixed, **extra}
                    started = subprocess.Popen(command, env=every, stdout=stream, stderr=subprocess.STDOUT)
                processes.append(started)
            processes[0].wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        text = outputs[0].read_text(errors="replace")
    found = re.findall(r"^RESULT (.*)$", text, re.MULTILINE)
    if found:
        return dict(json.loads(found[-1]))
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", text, re.MULTILINE)
    return {"not run": errors[-1][:200] if errors else f"no result within {DEADLINE_S:g} s"}


if __name__ == "__main__":
    main()
