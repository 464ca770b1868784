"""Run in a pod before its task: waits until the ps of the job can be reached.

`python -m trainband.launch.kubernetes.await_ps HOST:PORT ...`

Pods are created together but start at different times: one waits for a node, another for its image. Until then even its
name is unknown. A task would eventually give up on it and count as failed.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence

from trainband.cluster.address import Address
from trainband.runtime.waiting import Say, Waiting, say_on_stderr

LOOK_S = 1.0
ANSWER_S = 5.0


def await_ps(addresses: Sequence[str], say: Say = say_on_stderr, sleep: Callable[[float], None] = time.sleep) -> None:
    """Returns when each address accepts connections. Until then, it regularly says which does not, and why.

    There is no deadline: a pod may wait for a node as long as the cluster is full, and Kubernetes says so.

    Args:
      addresses: `host:port` of each ps.

    Raises:
      ClusterError: an address is invalid.
    """
    for text in addresses:
        address = Address.parse(text, "address of a ps")
        waiting = Waiting(None, say)
        while True:
            try:
                socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
                break
            except OSError as exc:  # also socket.gaierror, for a name that does not exist yet
                waiting.check(f"the ps at {address} ({exc.strerror or exc})", "")
                sleep(LOOK_S)


if __name__ == "__main__":
    await_ps(sys.argv[1:])
