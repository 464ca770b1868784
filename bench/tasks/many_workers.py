"""The tasks of `bench.many_workers`: one ps, or all workers of a job, each a process that computes nothing.

Roles: ``ps ADDRESSES RULE TRANSPORT`` serves; ``workers`` makes the plan, and then a process for each worker by a fork,
so that what JAX costs is paid once and before the clock starts. The workers print one line of JSON: start_s, until the
last of them has had the answer to its first push, end_s, from SIGTERM to the end of the last, cpu_s, processor seconds
of them all, and failed, how many raised an error or had to be killed. The interpreter's shutdown is left out: with JAX
loaded, it costs as much for each.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax

from trainband import Async, Sync
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.model.placement import GreedyBytes
from trainband.model.variables import Variables
from trainband.ps.server import Server
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import Plan
from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

RULES: dict[str, Any] = {"async": Async(), "sync": Sync()}
PARAMS = {"w": np.zeros(256, np.float32)}
STEP_S = 1.0
"""The stand-in for a gradient: the cores are for the measured work."""

PATIENCE_S = 180.0
KILL_S = 20.0
"""As long as the launcher waits."""


def serve(spec: ClusterSpec, network: Network) -> None:
    """Run the ps until all workers have left; prints its processor seconds."""
    with Server(spec, job_name="ps", task_index=0, transport=network) as server:
        server.join()
    used = os.times()
    print(json.dumps({"cpu_s": used.user + used.system}))


def work(number: int, spec: ClusterSpec, plan: Plan, network: Network, seen: mmap.mmap) -> None:
    """Run one worker until it is told to end."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    values = plan.layout.scatter([PARAMS["w"]], np)
    client = JobClient(
        Cluster(spec=spec, task=Task("worker", number)),
        plan,
        transport=network,
        timeouts=Timeouts(),
        say=lambda text: print(f"worker:{number}: {text}", file=sys.stderr),
    )
    now = client.join(lambda: values)
    client.training.await_training(1, 1 << 40)
    while not asked:
        now = client.exchanger.push(values, now.versions, loss=1.0, examples=1, finite=True)
        seen[number] = 1
        time.sleep(STEP_S)
    client.leave()


def run_all(spec: ClusterSpec, rule: str, network: Network) -> None:
    """Start all workers, end them again, and print how long both took."""
    count = len(spec.workers)
    plan = Plan.of(Variables.of(PARAMS), optax.sgd(0.1), GreedyBytes(), RULES[rule], 1)
    plan.shard_optimizer(0).export()
    seen = mmap.mmap(-1, count)
    begun_s = time.monotonic()
    children: list[int] = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(number, spec, plan, network, seen)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    while sum(seen[:]) < count:
        if time.monotonic() - begun_s > PATIENCE_S:
            raise SystemExit(f"{sum(seen[:])} of {count} workers have pushed in {PATIENCE_S} s")
        time.sleep(0.01)
    start_s = time.monotonic() - begun_s
    time.sleep(2 * STEP_S)
    asked_s = time.monotonic()
    for pid in children:
        os.kill(pid, signal.SIGTERM)
    failed = _await_all(children, asked_s)
    end_s, used = time.monotonic() - asked_s, os.times()
    cpu_s = used.children_user + used.children_system
    print(json.dumps({"start_s": start_s, "end_s": end_s, "cpu_s": cpu_s, "failed": failed}))


def _await_all(children: Sequence[int], asked_s: float) -> int:
    """Wait for the end of all, kill late ones, and return how many failed."""
    left, failed = set(children), 0
    while left:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.discard(pid)
                failed += status != 0
        if time.monotonic() - asked_s > KILL_S:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return failed


def main() -> None:
    """Run the role that the arguments name."""
    role, addresses, rule, transport = sys.argv[1:]
    # The fork comes before gRPC has any threads, and JAX's own are idle.
    warnings.filterwarnings("ignore", message=".*fork.*")
    first, *others = addresses.split(",")
    spec = ClusterSpec({"ps": [first], "worker": others})
    network = Network(transport.replace(" ", "-"))
    if role == "ps":
        serve(spec, network)
    else:
        run_all(spec, rule, network)


if __name__ == "__main__":
    main()
