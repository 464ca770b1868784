"""Run as a script: a Ray cluster on this machine, whose nodes have addresses of their own in 127.0.0.0/8.

`python -m tests.ray_nodes NETWORK NODES`: the nodes are NETWORK.1, NETWORK.2 and so on, with two CPUs each; the first
is the head. Each line on standard input is a request; its answer is a line of JSON. The cluster ends with the input.

- `add N`, `remove N`: starts the node with that number, unless it runs; or kills it, as a power failure would.
- `state`: how many CPUs there are and are free, and the placement groups that have not been removed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster


def main() -> None:
    """Starts the nodes and answers."""
    network, nodes = sys.argv[1], int(sys.argv[2])
    head = {"num_cpus": 2, "node_ip_address": f"{network}.1", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    running: dict[int, Any] = {}

    def add(number: int) -> None:
        if number not in running:
            running[number] = cluster.add_node(num_cpus=2, node_ip_address=f"{network}.{number}")

    for number in range(2, nodes + 1):
        add(number)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, _node_ip_address=f"{network}.1", log_to_driver=False)
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        request, *numbers = line.split()
        if request == "add":
            add(int(numbers[0]))
        elif request == "remove":
            cluster.remove_node(running.pop(int(numbers[0])), allow_graceful=False)
        groups = [group["name"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
        state = {
            "cpus": ray.cluster_resources().get("CPU", 0),
            "free": ray.available_resources().get("CPU", 0),
            "groups": groups,
        }
        print(json.dumps(state), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
