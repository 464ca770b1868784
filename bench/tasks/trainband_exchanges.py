"""One task of `bench.scaling`: a ps, or a process with several workers that wait instead of computing.

The contract: flags ``--role ps|workers --ps_hosts A,B --workers N --marks DIR``, for a ps ``--index I``, for workers
``--first F --count C --compute_ms MS --transport auto|flight|ucx``. The process plays the workers F to F + C - 1 of
N, each in a thread with its own `JobClient`, the one that `ParameterServer` uses. When all of them have joined and
made some exchanges, it makes the file DIR/workers-F.ready and continues when DIR/go is there; when DIR/stop is there it
prints one line of JSON, {"ends": [monotonic seconds of each exchange's end], "seconds": [how long each took]}.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import optax

import trainband
from trainband.cluster.transport_choice import TransportChoice
from trainband.model.variables import Variables
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import Plan

VARIABLES = 4  # of the same size, so that 1, 2 or 4 ps hold the same amount each
SIZE = 19_878  # float32 each; together 318 kB, as many as the 784-100-10 network has
WARM_UP = 10


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "workers"], required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--compute_ms", type=float, default=20.0)
    parser.add_argument("--transport", choices=[*TransportChoice], default="auto")
    flags = parser.parse_args()
    names = [f"worker-{index}.invalid:1" for index in range(flags.workers)]
    spec = trainband.ClusterSpec({"ps": flags.ps_hosts.split(","), "worker": names})
    transport = trainband.Network(flags.transport)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as ParameterServer does
    if flags.role == "ps":
        cluster = trainband.Cluster(spec=spec, task=trainband.Task("ps", flags.index))
        with trainband.Server(cluster, transport=transport) as server:
            server.join()
        return
    ready = threading.Barrier(flags.count, action=(flags.marks / f"workers-{flags.first}.ready").touch)
    workers = [
        Worker(flags, trainband.Cluster(spec=spec, task=trainband.Task("worker", flags.first + number)), transport)
        for number in range(flags.count)
    ]
    with ThreadPoolExecutor(flags.count) as pool:
        done = [pool.submit(worker.run, ready) for worker in workers]
        for each in done:
            each.result()
    ends = [end for worker in workers for end in worker.ends]
    seconds = [took for worker in workers for took in worker.seconds]
    print(json.dumps({"ends": ends, "seconds": seconds}), flush=True)


class Worker:
    """A worker whose gradients are always ones and take a fixed time.

    Attributes:
      ends: when each exchange was over, in monotonic seconds.
      seconds: how long each took.
    """

    def __init__(self, flags: argparse.Namespace, cluster: trainband.Cluster, transport: trainband.Network) -> None:
        """Plan the job without connecting yet."""
        self._flags = flags
        self._index = cluster.task.index
        shape = jax.ShapeDtypeStruct((SIZE,), np.float32)
        variables = Variables.of({f"variable-{number}": shape for number in range(VARIABLES)})
        ps_count = len(cluster.spec.ps)
        plan = Plan.of(variables, optax.adam(0.01), trainband.GreedyBytes(), trainband.Async(), ps_count)
        self._blocks = plan.layout.scatter([np.ones(SIZE, np.float32)] * VARIABLES, np)
        self._client = JobClient(cluster, plan, transport=transport, timeouts=trainband.Timeouts())
        self.ends: list[float] = []
        self.seconds: list[float] = []

    def run(self, ready: threading.Barrier) -> None:
        """Join, warm up, meet the others, exchange until the end, leave."""
        try:
            self._exchange(ready)
        except BaseException as exc:
            ready.abort()
            self._client.leave(f"{type(exc).__name__}: {exc}")
            raise
        self._client.leave()

    def _exchange(self, ready: threading.Barrier) -> None:
        now = self._client.join(lambda: self._blocks)
        if self._index == 0:
            self._client.training.start_training(1, 1 << 40)
        self._client.training.await_training(1)
        for _ in range(WARM_UP):
            now = self._client.exchanger.push(self._blocks, now.versions, loss=0.0, examples=1, finite=True)
        ready.wait()
        while not (self._flags.marks / "go").exists():
            time.sleep(0.05)
        compute_s = self._flags.compute_ms / 1000
        time.sleep(compute_s * self._index / self._flags.workers)  # spread, as workers are after a while
        stop = self._flags.marks / "stop"
        while not stop.exists():
            time.sleep(compute_s)
            begin = time.monotonic()
            now = self._client.exchanger.push(self._blocks, now.versions, loss=0.0, examples=1, finite=True)
            end = time.monotonic()
            self.ends.append(end)
            self.seconds.append(end - begin)


if __name__ == "__main__":
    main()
