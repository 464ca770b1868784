"""One task of trainband moving a large gradient and large params. It keeps the contract of `bench.push_pull`.

The gradient is not computed: what counts is push, update and pull, through the client that `ParameterServer` uses.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import jax
import numpy as np
import optax

import trainband
from trainband.cluster.transport_choice import TransportChoice
from trainband.model.variables import Variables
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.plan import Plan


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "worker"], required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transport", choices=[*TransportChoice], default="auto")
    flags = parser.parse_args()
    spec = trainband.ClusterSpec({"ps": [flags.address], "worker": ["worker.invalid:1"]})
    cluster = trainband.Cluster(spec=spec, task=trainband.Task(flags.role, 0))
    transport = trainband.Network(flags.transport)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as ParameterServer does
    if flags.role == "ps":
        with trainband.Server(cluster, transport=transport) as server:
            server.join()
        return
    print(json.dumps({"seconds": work(flags, cluster, transport)}), flush=True)


def work(flags: argparse.Namespace, cluster: trainband.Cluster, transport: trainband.Network) -> list[float]:
    """Exchange this many times; return the seconds of each."""
    size = flags.millions * 1_000_000
    variables = Variables.of({"embedding": jax.ShapeDtypeStruct((size,), np.float32)})
    plan = Plan.of(variables, optax.sgd(0.1), trainband.GreedyBytes(), trainband.Async(), 1)
    client = JobClient(cluster, plan, transport=transport, timeouts=trainband.Timeouts())
    now = client.join(lambda: ((np.zeros(size, np.float32),),))
    client.training.start_training(1, flags.rounds)
    gradient = ((np.ones(size, np.float32),),)
    seconds = []
    for _ in range(flags.rounds):
        begin = time.perf_counter()
        now = client.exchanger.push(gradient, now.versions, loss=0.0, examples=1, finite=True)
        seconds.append(time.perf_counter() - begin)
    last = float(now.params[0][0][-1])
    client.leave()
    if not np.isclose(last, -0.1 * flags.rounds, rtol=1e-4):
        sys.exit(f"After {flags.rounds} updates the params should be {-0.1 * flags.rounds:g}, but are {last:g}.")
    return seconds


if __name__ == "__main__":
    main()
