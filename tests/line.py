"""A program like a user's, small enough to start often: it fits a line, and does on request what users do wrong.

It is run as a process, `python tests/line.py FLAGS`, never imported.
"""

from __future__ import annotations

import argparse
import os
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


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    parser.add_argument("--job_name")
    parser.add_argument("--task_index")
    parser.add_argument("--train_steps", type=int)
    parser.add_argument("--pause_s", type=float, default=0.0, help="before each batch")
    parser.add_argument("--go", type=Path, help="wait after 20 batches until this file is there")
    parser.add_argument("--transport", default="auto", choices=["auto", "flight", "ucx", "shared-memory"])
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--standbys", type=int, default=0, help="that each shard has")
    parser.add_argument("--wait", default="", help="name=seconds of Timeouts, with commas between")
    parser.add_argument("--fault", default="")
    parser.add_argument("--of", default="", help="the one task that has the fault; default: every task")
    parser.add_argument("--params", type=Path, help="keep the params here and then wait until it has gone")
    return parser.parse_args()


def main() -> None:
    flag = flags()
    cluster = trainband.cluster.resolve(
        ps_hosts=flag.ps_hosts, worker_hosts=flag.worker_hosts, job_name=flag.job_name, task_index=flag.task_index
    )
    task = str(cluster.task) if cluster else "local"
    fault = flag.fault if flag.of in ("", task) else ""
    waits = {name: float(value) for name, _, value in (pair.partition("=") for pair in flag.wait.split(",") if pair)}
    print(f"{task} is process {os.getpid()}", flush=True)
    trainer = trainband.Trainer(
        init=lambda key: init(key, fault),
        loss=lambda params, batch: loss(params, batch, fault),
        optimizer=optax.sgd(flag.learning_rate, momentum=flag.momentum),
        strategy=trainband.ParameterServer(
            cluster,
            standbys=flag.standbys,
            transport=trainband.Network(flag.transport),
            timeouts=trainband.Timeouts(**waits),
        ),
        console=False,
    )
    seed = cluster.training_index if cluster else 0
    if fault == "no question":
        with trainband.MonitoredSession(trainer) as session:
            for one in session.feed(batches(seed, fault, flag.pause_s)):
                session.run(one)
    result = trainer.fit(batches(seed, fault, flag.pause_s, flag.go), steps=flag.train_steps)
    print(f"{task} is done at global step {result.global_step}, refused {result.refused}", flush=True)
    if fault == "evaluates for ever":
        print("evaluating", flush=True)
        trainer.evaluate(batches(seed, "", 0.01))
    if trainer.is_chief:
        print(f"evaluation: {trainer.evaluate([batch(np.random.default_rng(99))])}", flush=True)
    if flag.params:
        save_params(trainer.params, flag.params)


def init(key: jax.Array, fault: str) -> Any:
    if fault == "init never ends":
        print("initialising", flush=True)
        time.sleep(600)
    if fault == "init fails":
        raise trainband.errors.DataError("the file with the first values is not there.")
    params = {"kernel": jax.random.normal(key, (8, 3)), "bias": jnp.zeros(3)}
    match fault:
        case "duplicate name":
            return {"dense/kernel": params["kernel"], "dense": {"kernel": params["bias"]}}
        case "unusable name":
            return {"": params["kernel"], "bias": params["bias"]}
        case "integer params":
            return {**params, "steps": jnp.zeros(3, jnp.int32)}
        case "another model":
            return {**params, "bias": jnp.zeros(4)}
    return params


def loss(params: Any, batch: Any, fault: str) -> Any:
    x, y = batch
    error = (x @ params["kernel"] + params["bias"][:3] - y) ** 2
    if fault == "loss is no scalar":
        return error.mean(axis=-1)
    return error.mean()


def batch(rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.normal(size=(16, 8)).astype(np.float32)
    return x, np.stack([x.sum(1), x[:, 0], 1 - x[:, 1]], axis=1)


def batches(seed: int, fault: str, pause_s: float, go: Path | None = None) -> Iterator[Any]:
    rng = np.random.default_rng(seed)
    number = 0
    while True:
        x, y = batch(rng)
        if number == 20:
            print("training", flush=True)
            while go and not go.exists():
                time.sleep(0.02)
            if fault == "shape changes":
                x, y = x[:7], y[:7]
        if fault == "always infinite" or (fault == "infinite at times" and number % 10 == 3):
            x = np.full_like(x, np.inf)
        number += 1
        yield x, y
        if pause_s:
            time.sleep(pause_s)


def save_params(params: Any, path: Path) -> None:
    np.savez(path, **params)
    print("kept", flush=True)
    while path.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
