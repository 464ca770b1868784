"""What the status of a pod says, as Kubernetes writes it."""

from __future__ import annotations

from typing import Any

import pytest

from trainband.launch.kubernetes.pods import Pod, read_pod

AWAIT_PS = "await-ps"
METADATA = {
    "name": "digits-worker-0-1-x7k2p",
    "uid": "1",
    "labels": {"trainband-job": "worker"},
    "annotations": {"batch.kubernetes.io/job-completion-index": "1"},
}


def pod_with(**status: Any) -> Pod:
    """A pod, which must be one of a task."""
    found = read_pod({"metadata": METADATA, "spec": {"containers": [{"name": "task"}]}, "status": status})
    assert found is not None
    assert str(found.task) == "worker:1"
    return found


def container(name: str, **state: Any) -> list[dict[str, Any]]:
    """The statuses of one container."""
    return [{"name": name, "state": state}]


COMING = container("task", waiting={"reason": "PodInitializing"})


@pytest.mark.parametrize(
    ("status", "waits_for", "lacks_image"),
    [
        ({}, "its container to be made", False),
        ({"phase": "Pending", "containerStatuses": COMING}, "its container to be made", False),
        (
            {"initContainerStatuses": container(AWAIT_PS, running={}), "containerStatuses": COMING},
            "the ps",
            False,
        ),
        (
            {
                "initContainerStatuses": container(AWAIT_PS, waiting={"reason": "ErrImagePull", "message": "denied"}),
                "containerStatuses": COMING,
            },
            "its image (ErrImagePull: denied)",
            True,
        ),
        (
            {
                "containerStatuses": container(
                    "task", waiting={"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}
                )
            },
            'its container (CreateContainerConfigError: secret "s" not found)',
            False,
        ),
        ({"phase": "Running", "containerStatuses": container("task", running={})}, "", False),
    ],
)
def test_what_it_waits_for(status: dict[str, Any], waits_for: str, lacks_image: bool) -> None:
    pod = pod_with(**status)
    assert (pod.waits_for, pod.lacks_image, pod.exit_code) == (waits_for, lacks_image, None)


NOT_FOUND = 'exec: "python": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("status", "exit_code", "reason"),
    [
        ({"containerStatuses": container("task", terminated={"exitCode": 3, "reason": "Error"})}, 3, ""),
        (
            {
                "containerStatuses": container(
                    "task", terminated={"exitCode": 128, "reason": "StartError", "message": NOT_FOUND}
                )
            },
            128,
            f"StartError: {NOT_FOUND}",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            137,
            "Evicted: The node was low on resource: memory.",
        ),
        (
            {
                "initContainerStatuses": container(AWAIT_PS, terminated={"exitCode": 1, "reason": "Error"}),
                "containerStatuses": COMING,
            },
            1,
            "it could not wait for the ps: exit code 1. Is trainband in its image? See kubectl logs "
            "digits-worker-0-1-x7k2p -c await-ps",
        ),
    ],
)
def test_how_it_has_failed(status: dict[str, Any], exit_code: int, reason: str) -> None:
    pod = pod_with(phase="Failed", **status)
    assert (pod.exit_code, pod.reason, pod.waits_for) == (exit_code, reason, "")


def test_a_pod_of_somebody_else_is_none_of_ours() -> None:
    assert read_pod({"metadata": {"name": "web", "labels": {}}, "status": {}}) is None
