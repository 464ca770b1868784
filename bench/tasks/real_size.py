"""One task of `bench.real_sizes`: a ps, a worker, or one process under another strategy.

The contract: flags ``--role ps|worker|alone --ps A,B --workers C,D --index I --strategy NAME --layers N --width W
--optimizer sgd|adam --rule async|sync --steps N``. Each role but the ps prints one line of JSON: first_s, seconds from
before the trainer is made until the first step is over; step_s, the median of the others; loss, of the last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from functools import partial

import jax

import trainband
from bench.tasks.deep_chain import OPTIMIZERS, batch_of, init, loss

RULES = {"async": trainband.Async, "sync": trainband.Sync}


def main() -> None:
    """Serves or trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "worker", "alone"], required=True)
    parser.add_argument("--ps", default="")
    parser.add_argument("--workers", default="")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--strategy", default="OneDevice")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), required=True)
    parser.add_argument("--rule", choices=list(RULES), default="async")
    parser.add_argument("--steps", type=int, required=True)
    flags = parser.parse_args()
    if flags.role != "ps":
        jax.block_until_ready(jax.device_put(batch_of(flags.width)))  # the device is started
    begin = time.perf_counter()
    if flags.role == "alone":
        strategy = getattr(trainband, flags.strategy)()
    else:
        spec = trainband.ClusterSpec({"ps": flags.ps.split(","), "worker": flags.workers.split(",")})
        cluster = trainband.Cluster(spec=spec, task=trainband.Task(flags.role, flags.index))
        strategy = trainband.ParameterServer(cluster, update=RULES[flags.rule]())
    trainer = trainband.Trainer(
        init=partial(init, layers=flags.layers, width=flags.width),
        loss=loss,
        optimizer=OPTIMIZERS[flags.optimizer](),
        strategy=strategy,
        console=False,
    )
    batch, ends = batch_of(flags.width), []
    with trainband.MonitoredSession(trainer) as session:
        for _ in range(flags.steps):
            last = float(session.run(batch).loss)
            ends.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(ends)]
    print(json.dumps({"first_s": ends[0] - begin, "step_s": statistics.median(steps), "loss": last}), flush=True)


if __name__ == "__main__":
    main()
