"""Run in a pod before its task: waits until the ps of the job can be reached.

`python -m trainband.launch.kubernetes.await_ps HOST:PORT ...`

Pods are made at the same time and come up one after the other: one waits for a node, another for its image. Until then
even its name is unknown. A task would give up on it in the end, and be counted as failed.
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
    """Returns when each address takes connections. Until then, it says now and then which does not, and why.

    There is no deadline: who waits for a node may wait for as long as the cluster is full, and Kubernetes says so.

    Args:
      addresses: `host:port` of each ps.
      say: told what is awaited.
      sleep: waits for so many seconds.

    Raises:
      ClusterError: that is no address.
    """
    for text in addresses:
        address = Address.parse(text, "address of a ps")
        waiting = Waiting(None, say)
        while True:
            try:
                socket.create_connection((address.host, address.port), timeout=ANSWER_S).close()
                break
            except OSError as exc:  # also socket.gaierror, for a name that is not known yet
                waiting.check(f"the ps at {address} ({exc.strerror or exc})", "")
                sleep(LOOK_S)


if __name__ == "__main__":
    await_ps(sys.argv[1:])
