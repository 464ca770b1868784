"""`TF_CONFIG`: the JSON that launchers (Kubeflow, Vertex AI, SageMaker, `trainband run`) pass to each task."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task, check_index, check_job
from trainband.errors import ClusterError
from trainband.runtime.formatting import printable

VARIABLE = "TF_CONFIG"

_WITHOUT_A_CLUSTER = frozenset({"environment", "job", "rpc_layer", "trial"})
"""Keys that platforms write even for a standalone program."""


def content(environ: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Returns the JSON of `TF_CONFIG`, unchecked; `None` when it is absent or empty.

    Raises:
      ClusterError: it is not a JSON object.
    """
    text = (os.environ if environ is None else environ).get(VARIABLE, "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        json.dumps(config, ensure_ascii=False).encode()  # JSON alone can hold half a character (a lone surrogate)
    except (ValueError, RecursionError) as exc:
        raise ClusterError(f"{VARIABLE} is not JSON: {exc}; it reads {_shorten(text)!r}.") from None
    if not isinstance(config, dict):
        raise ClusterError(f"{VARIABLE} must be a JSON object with cluster and task, got {_shorten(text)!r}.")
    return config


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster in `TF_CONFIG`; `None` when it is absent, empty or has an empty cluster.

    ::

        {"cluster": {"ps": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}

    Keys other than `cluster` and `task` are ignored: platforms add their own (`environment`,
    `rpc_layer`, `job`), and a misspelt `cluster` or `task` shows up as a missing one.

    `"elastic": true` within `task` marks a worker that is in no cluster spec and joins a running job (`Cluster`).

    Raises:
      ClusterError: it is not JSON, or a part is missing or wrong; the message names the part, such as
        `TF_CONFIG.task.index`.

    Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    config = content(environ)
    if config is None:
        return None
    if "cluster" not in config:
        if "task" in config:
            raise ClusterError(f"{VARIABLE}.cluster is missing, though {VARIABLE}.task is set.")
        if not config.keys() <= _WITHOUT_A_CLUSTER:
            raise ClusterError(f"{VARIABLE}.cluster is missing; the keys are {_shorten(printable(', '.join(config)))}.")
        return None
    if not isinstance(config["cluster"], dict):
        raise ClusterError(
            f"{VARIABLE}.cluster must be an object {{job: [address, ...]}}, got {_shorten(repr(config['cluster']))}."
        )
    spec = ClusterSpec(config["cluster"], field=f"{VARIABLE}.cluster.{{job}}")
    if not spec:
        return None
    task, elastic = _read_task(config, spec)
    try:
        return Cluster(spec=spec, task=task, elastic=elastic)
    except ClusterError as exc:
        raise ClusterError(f"{VARIABLE}.task: {exc}") from None


def write(cluster: Cluster) -> str:
    """Returns the text from which `resolve` returns this cluster."""
    task: dict[str, object] = {"type": cluster.task.job, "index": cluster.task.index}
    if cluster.elastic:
        task["elastic"] = True
    return json.dumps({"cluster": cluster.spec.as_dict(), "task": task})


def _read_task(config: Mapping[str, object], spec: ClusterSpec) -> tuple[Task, bool]:
    """Returns the task, and whether it is an elastic worker."""
    field = f"{VARIABLE}.task"
    task = config.get("task")
    if task is None:
        raise ClusterError(f"{field} is missing: it says which task this process is.")
    if not isinstance(task, dict):
        raise ClusterError(f"{field} must be an object with type and index, got {_shorten(repr(task))}.")
    for part in ("type", "index"):
        if part not in task:
            raise ClusterError(f"{field}.{part} is missing.")
    job = check_job(task["type"], f"{field}.type")
    index = check_index(task["index"], f"{field}.index")
    elastic = task.get("elastic", False)
    if not isinstance(elastic, bool):
        raise ClusterError(f"{field}.elastic must be true or false, got {_shorten(repr(elastic))}.")
    if elastic:
        return Task(job, index), True
    if job != "evaluator" and job not in spec.jobs:
        raise ClusterError(f"{field}.type = {job!r}: {VARIABLE}.cluster has no such job, only {', '.join(spec.jobs)}.")
    if job in spec.jobs and Task(job, index) not in spec:
        raise ClusterError(f"{field}.index = {index}: the cluster has no {job}:{index}; {spec.describe_indices(job)}.")
    return Task(job, index), False


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
