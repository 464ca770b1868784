"""The variables of pods, as Kubernetes, JobSet and Kubeflow Trainer set them."""

from __future__ import annotations

import pytest

from trainband.cluster import Cluster, Task, resolve
from trainband.cluster.resolvers import kubernetes, slurm
from trainband.cluster.resolvers.ranks import PORT
from trainband.errors import ClusterError

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": "/root"}
JOB = POD | {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "digits-2"}
"""Of an indexed Job: kubernetes.io, "Jobs", section "Completion mode"."""
WITH_A_SERVICE = JOB | {kubernetes.TASKS: "3", kubernetes.SERVICE: "digits-svc"}
JOBSET = POD | {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "my-run-worker-0-1"}
"""kubernetes-sigs/jobset at 08dfbdf, pkg/util/placement/placement.go: `JOBSET-REPLICATEDJOB-JOBINDEX-PODINDEX`."""
TORCH = POD | {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "llm-node-0-1",
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "llm-node-0-0.llm",
    "PET_MASTER_PORT": "29500",
}
"""kubeflow/trainer at 8c0f505, pkg/runtime/framework/plugins/torch/torch.go, `EnforceMLPolicy`."""
JAX = POD | {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "llm-node-0-1",
    "JAX_NUM_PROCESSES": "3",
    "JAX_PROCESS_ID": "1",
    "JAX_COORDINATOR_ADDRESS": "llm-node-0-0.llm:29500",
}
"""The same, pkg/runtime/framework/plugins/jax/jax.go."""


def found_in(environ: dict[str, str]) -> Cluster:
    """The cluster, which must be found."""
    cluster = resolve(environ)
    assert cluster is not None
    return cluster


def test_an_indexed_job_with_a_headless_service() -> None:
    found = found_in(WITH_A_SERVICE | {slurm.PS: "1"})
    assert found.task == Task("worker", 1)
    assert found.spec.as_dict() == {
        "worker": ["digits-1.digits-svc:2222", "digits-2.digits-svc:2222"],
        "ps": ["digits-0.digits-svc:2222"],
    }


def test_a_stateful_set() -> None:
    environ = {**WITH_A_SERVICE, "HOSTNAME": "digits-0.digits-svc.default.svc.cluster.local", PORT: "4000"}
    del environ["JOB_COMPLETION_INDEX"]
    assert found_in(environ).address == "digits-0.digits-svc:4000"


def test_a_jobset_with_a_replicated_job_for_each_job() -> None:
    found = found_in(JOBSET | {kubernetes.TASKS: "ps=1,worker=2"})
    assert found.task == Task("worker", 1)
    assert found.spec.as_dict() == {
        "worker": ["my-run-worker-0-0.my-run:2222", "my-run-worker-0-1.my-run:2222"],
        "ps": ["my-run-ps-0-0.my-run:2222"],
    }


@pytest.mark.parametrize("environ", [TORCH, JAX], ids=["torch", "jax"])
def test_a_train_job_of_kubeflow(environ: dict[str, str]) -> None:
    found = found_in(environ | {slurm.PS: "1"})
    assert found.task == Task("worker", 0)
    assert found.spec.as_dict() == {
        "worker": ["llm-node-0-1.llm:29500", "llm-node-0-2.llm:29500"],
        "ps": ["llm-node-0-0.llm:29500"],
    }


@pytest.mark.parametrize(
    "environ",
    [
        POD,
        JOB,  # each pod of a sweep, say, stands alone
        TORCH | {"PET_NNODES": "1", "PET_NODE_RANK": "0"},
        JAX | {"JAX_NUM_PROCESSES": "1"},
        JAX | {"JAX_COORDINATOR_ADDRESS": "10.0.0.7:1234"},  # of somebody who uses JAX's variables himself
    ],
)
def test_a_pod_that_nobody_counts_stands_alone(environ: dict[str, str]) -> None:
    assert resolve(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (JOB | {slurm.PS: "1"}, "TRAINBAND_PS is set in a pod of an indexed Job, but TRAINBAND_TASKS is not"),
        (JOB | {kubernetes.TASKS: "3"}, "TRAINBAND_SERVICE is not set; add a headless service"),
        (WITH_A_SERVICE | {"HOSTNAME": "node-7-4"}, "does not end in its index; .*no hostNetwork"),
        (WITH_A_SERVICE | {"HOSTNAME": ""}, "HOSTNAME is not"),
        (WITH_A_SERVICE | {kubernetes.TASKS: "2"}, "gives this process the rank 2, but has only 2"),
        (WITH_A_SERVICE | {kubernetes.TASKS: "three"}, "TRAINBAND_TASKS = 'three' is not a number"),
        (WITH_A_SERVICE | {PORT: "0"}, "TRAINBAND_PORT = 0 is not a port"),
        (JOBSET | {kubernetes.TASKS: "ps=1,trainer=2"}, "'trainer' is not a job"),
        (JOBSET | {kubernetes.TASKS: "chief=1"}, "not from a JobSet with replicated jobs of these names"),
        (JOBSET | {kubernetes.TASKS: "worker=2", "HOSTNAME": "my-run-worker-1-0"}, "write replicas: 1"),
        (TORCH | {"PET_MASTER_ADDR": ""}, "PET_NNODES is set but PET_MASTER_ADDR is not"),
        (TORCH | {"PET_MASTER_ADDR": "10.0.0.7"}, "is not Kubeflow Trainer's first node"),
        (TORCH | {"PET_NNODES": "1:3"}, "PET_NNODES = '1:3' is not a number"),
        (TORCH | {"LOCAL_WORLD_SIZE": "4"}, "python train.py instead of torchrun"),
    ],
)
def test_what_is_missing_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        resolve(environ)
