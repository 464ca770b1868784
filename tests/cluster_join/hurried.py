"""A program whose job takes its time until somebody makes it hurry, so that workers can come and go meanwhile.

It fits a line. Run as a script by the tests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband

RULES: dict[str, Any] = {
    "sync": trainband.Sync(),
    "async": trainband.Async(),
    "bounded": trainband.Bounded(staleness=3),
}


def batches(seed: int, hurry: Path) -> Iterator[Any]:
    generator = np.random.default_rng(seed)
    for number in range(1_000_000):
        if number == 3:
            print("training", flush=True)
        x = generator.normal(size=(16, 8)).astype(np.float32)
        yield x, x.sum(axis=1)
        if not hurry.exists():
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rule", choices=RULES, default="async")
    parser.add_argument("--hurry", type=Path, help="while this is no file, a step takes 0.1 s")
    parser.add_argument("--stay", type=Path, help="the tasks stay in the job for as long as this is a file")
    parser.add_argument("--job_name")
    parser.add_argument("--task_index")
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve(
        ps_hosts=flag.ps_hosts, worker_hosts=flag.worker_hosts, job_name=flag.job_name, task_index=flag.task_index
    )
    assert cluster is not None
    strategy = trainband.ParameterServer(cluster, update=RULES[flag.rule])
    trainer = trainband.Trainer(
        init=lambda key: {"kernel": jax.random.normal(key, (8,)), "bias": jnp.zeros(())},
        loss=lambda params, batch: ((batch[0] @ params["kernel"] + params["bias"] - batch[1]) ** 2).mean(),
        optimizer=optax.sgd(0.01),
        strategy=strategy,
        console=False,
    )
    result = trainer.fit(batches(cluster.training_index, flag.hurry), steps=flag.steps)
    print(f"{result.task} made {result.steps} steps, to global step {result.global_step}", flush=True)
    while flag.stay and flag.stay.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
