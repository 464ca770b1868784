"""Pod: the state of a task, read from its pod's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainband.cluster.task import Task
from trainband.launch.kubernetes.manifest import Object
from trainband.launch.kubernetes.pod_template import AWAIT_PS, CONTAINER, INDEX_ANNOTATION, TASK_LABEL

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_COMING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A snapshot of one pod.

    Attributes:
      name, uid: of the pod. A restarted task has another one.
      task: its task.
      started: whether its container has run, so that there is a log.
      exit_code: of its container, or of a pod that ended without one; `None` while it may run.
      reason: why it has ended; empty if the exit code is enough.
      finished: when, in Kubernetes' format.
      waits_for: what it waits for, as text; empty once it runs.
      lacks_image: whether that is its image, which could not be pulled.
      excused: whether its node was drained or reclaimed, which is not the task's failure.
    """

    name: str
    uid: str
    task: Task
    started: bool
    exit_code: int | None
    reason: str
    finished: str
    waits_for: str
    lacks_image: bool
    excused: bool

    @property
    def status(self) -> int:
        """The exit code, or minus the number of the signal that killed it, told apart as in a shell."""
        code = self.exit_code or 0
        return 128 - code if 128 < code <= 128 + 64 else code


def read_pod(content: Object) -> Pod | None:
    """Returns the pod of an object; `None` if it is not a task's."""
    metadata, status = content.get("metadata") or {}, content.get("status") or {}
    job = (metadata.get("labels") or {}).get(TASK_LABEL)
    index = (metadata.get("annotations") or {}).get(INDEX_ANNOTATION, "")
    if not job or not index.isdigit():
        return None
    state = _state_of(status.get("containerStatuses"), CONTAINER)
    ended = state.get("terminated")
    phase = status.get("phase", "Pending")
    exit_code = None
    reason = finished = ""
    if ended is not None and phase in ("Succeeded", "Failed"):
        exit_code, finished = int(ended.get("exitCode", 1)), ended.get("finishedAt") or ""
        reason = _why(content, ended)
    elif phase == "Failed" and (before := _failed_before(status)):
        exit_code, finished = int(before.get("exitCode", 1)), before.get("finishedAt") or ""
        reason = _why_not_begun(metadata.get("name", ""), before)
    elif phase == "Failed":  # evicted, for example: no container has a status
        exit_code, finished = 137, metadata.get("deletionTimestamp") or metadata.get("creationTimestamp") or ""
        reason = f"{status.get('reason') or 'Failed'}: {status.get('message') or 'its node ended it'}"
    waits_for, lacks_image = ("", False) if ended or "running" in state else _awaited(status)
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    return Pod(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        task=Task(job, int(index)),
        started="running" in state or ended is not None,
        exit_code=exit_code,
        reason=reason,
        finished=finished,
        waits_for=waits_for if exit_code is None else "",
        lacks_image=lacks_image,
        excused=conditions.get("DisruptionTarget", {}).get("status") == "True",
    )


def _why(content: Object, ended: Mapping[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        containers = {one["name"]: one for one in (content.get("spec") or {}).get("containers", ())}
        limit = containers.get(CONTAINER, {}).get("resources", {}).get("limits", {}).get("memory", "")
        allowed = f" than its limit of {limit}" if limit else ""
        return f"out of memory: it needed more{allowed}; raise memory (or ps_memory, for a ps)"
    if ended.get("reason") in (None, "", "Error", "Completed"):
        return ""
    return ": ".join(filter(None, (ended["reason"], ended.get("message"))))


def _failed_before(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns how the container that waits for the ps failed; `None` if it did not."""
    ended = _state_of(status.get("initContainerStatuses"), AWAIT_PS).get("terminated") or {}
    return ended if ended.get("exitCode") else None


def _why_not_begun(name: str, ended: Mapping[str, Any]) -> str:
    why = ended.get("message") or f"exit code {ended.get('exitCode')}"
    return f"it could not wait for the ps: {why}. Is trainband in its image? See kubectl logs {name} -c {AWAIT_PS}"


def _awaited(status: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns what a pod waits for, and whether that is its image."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"a node ({condition.get('message') or condition.get('reason') or 'none fits'})", False
    before = _state_of(status.get("initContainerStatuses"), AWAIT_PS)
    if "running" in before:
        return "the ps", False
    for state in (before, _state_of(status.get("containerStatuses"), CONTAINER)):
        waiting = state.get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _NO_IMAGE:
            return f"its image ({reason}: {message or 'no message'})", True
        if reason and reason not in _COMING:
            return f"its container ({reason}: {message or 'no message'})", False
    return "its container to be made", False


def _state_of(statuses: Any, name: str) -> Mapping[str, Any]:
    for one in statuses or ():
        if one.get("name") == name:
            return one.get("state") or {}
    return {}
