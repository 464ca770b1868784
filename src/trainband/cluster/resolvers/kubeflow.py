"""The nodes of a TrainJob of Kubeflow Trainer v2 as a cluster: one task per pod.

The PyTorch and JAX runtimes tell each node the number of nodes, its own index, and the address of the first. All are
pods of one indexed Job with one headless service, so the other names follow from the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.ranks import cluster_of, number
from trainband.errors import ClusterError

_NODES, _RANK, _HOST, _PORT = "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"
_JAX_NODES, _JAX_RANK, _JAX_ADDRESS = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"
_FIRST_POD = re.compile(r"(?P<job>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?-node-0)-0\.(?P<service>[a-z0-9][-a-z0-9.]*)")
_LOCAL_SIZE = "LOCAL_WORLD_SIZE"


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of this process's TrainJob; `None` outside of one, or if this is its only node.

    The first `TRAINBAND_PS` nodes are ps, and the others workers. Each listens on the port of the first node's address,
    which Kubeflow opens on all of them (29500). `PET_NPROC_PER_NODE` is for torchrun and is ignored.

    Raises:
      ClusterError: a variable is missing or not a number; torchrun has started several processes in this pod; or the
        variables are torchrun's, not Kubeflow's, and do not locate the other nodes.

    Source: https://github.com/kubeflow/trainer at 8c0f505, pkg/runtime/framework/plugins/torch/torch.go and
    pkg/runtime/framework/plugins/jax/jax.go, `EnforceMLPolicy`.
    """
    if environ.get(_NODES):
        if not environ[_NODES].isdigit():  # torchrun's min:max, of an elastic job
            raise ClusterError(
                f"{_NODES} = {environ[_NODES]!r} is not a number; elastic torchrun jobs are not supported."
            )
        if int(environ[_NODES]) < 2:
            return None
        for name in (_RANK, _HOST, _PORT):
            if not environ.get(name):
                raise ClusterError(f"{_NODES} is set but {name} is not; Kubeflow Trainer sets both.")
        if number(environ.get(_LOCAL_SIZE) or "1", _LOCAL_SIZE) > 1:
            raise ClusterError(
                f"{_LOCAL_SIZE} = {environ[_LOCAL_SIZE]}: torchrun has started several processes in this pod, and a "
                "pod is one task. In the TrainJob's command, write python train.py instead of torchrun train.py."
            )
        nodes, rank, host, port = (environ[name] for name in (_NODES, _RANK, _HOST, _PORT))
        found = _FIRST_POD.fullmatch(host)
        if found is None:
            raise ClusterError(
                f"{_HOST} = {host!r} is not Kubeflow Trainer's first node (NAME-node-0-0.NAME), so the addresses of "
                f"the other {int(nodes) - 1} nodes are unknown. Set TF_CONFIG, or unset {_NODES}."
            )
        return _cluster(environ, found, number(nodes, _NODES), number(rank, _RANK), number(port, _PORT))
    host, _, port = environ.get(_JAX_ADDRESS, "").rpartition(":")
    found = _FIRST_POD.fullmatch(host)
    if found is None or environ.get(_JAX_NODES, "1") == "1":
        return None  # JAX's own variables do not imply Kubeflow
    nodes, rank = environ[_JAX_NODES], environ.get(_JAX_RANK, "")
    return _cluster(environ, found, number(nodes, _JAX_NODES), number(rank, _JAX_RANK), number(port, _JAX_ADDRESS))


def _cluster(environ: Mapping[str, str], first: re.Match[str], nodes: int, rank: int, port: int) -> Cluster:
    addresses = [f"{first['job']}-{node}.{first['service']}:{port}" for node in range(nodes)]
    return cluster_of(addresses, rank, environ, "Kubeflow Trainer")
