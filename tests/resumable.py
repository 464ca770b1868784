"""A small training that can be stopped anywhere and started again: its last line is a digest of the params.

The loss takes a random key (dropout), so that what is not restored shows. Run as a script by the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband
from trainband.strategies.base import StepReport

HELD_AT = 60

RULES: dict[str, Any] = {
    "sync": trainband.Sync(),
    "async": trainband.Async(),
    "bounded": trainband.Bounded(staleness=2),
}


def init(key: jax.Array) -> Any:
    hidden, out = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(hidden, (64, 32)) / 8, "bias": jnp.zeros(32)},
        "out": {"kernel": jax.random.normal(out, (32, 10)) / 6, "bias": jnp.zeros(10)},
    }


def loss(params: Any, batch: Any, key: jax.Array) -> Any:
    x, y = batch
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape)
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == y).mean()}


class Slow(trainband.Hook):
    """Gives every step a length, says when the first was made, and makes the last ones when it is told to."""

    def __init__(self, step_s: float, go: Path | None) -> None:
        self._step_s = step_s
        self._go = go
        self._said = False

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:  # noqa: ARG002
        if not self._said:
            print("training", flush=True)
            self._said = True
        time.sleep(self._step_s)
        while self._go and report.global_step >= HELD_AT and not self._go.exists():
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dir")
    parser.add_argument("--rule", choices=RULES, default="sync")
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--step_s", type=float, default=0.0)
    parser.add_argument("--go", type=Path, help=f"wait after {HELD_AT} steps until this file is there")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--batches", type=int, default=0, help="that this task has; 0 for no end")
    parser.add_argument("--hidden", type=int, default=0, help="of another model")
    parser.add_argument("--raises_at", type=int, default=-1, help="the batch at which worker:1's data raises")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()
    placement = trainband.RoundRobin(max_slice_bytes=2000)
    strategy = trainband.ParameterServer(cluster, update=RULES[flag.rule], placement=placement)
    shape = {"extra": jnp.zeros(flag.hidden)} if flag.hidden else {}
    trainer = trainband.Trainer(
        init=lambda key: {**init(key), **shape}, loss=loss, optimizer=optax.adam(1e-3), strategy=strategy
    )

    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 64)).astype(np.float32)
    y = x[:, :10].argmax(axis=1).astype(np.int32)
    workers = len(cluster.spec.workers) if cluster else 1
    number = cluster.training_index if cluster else 0
    batches: Any = trainband.data.Batches(x, y, batch_size=50, shard=(number, workers))
    if flag.shared:
        batches = trainband.data.shared((x, y), batch_size=50, epochs=2)
    if flag.batches:
        batches = itertools.islice(batches, flag.batches)
    if flag.raises_at >= 0 and cluster and str(cluster.task) == "worker:1":
        batches = broken(batches, flag.raises_at)
    result = trainer.fit(
        batches,
        steps=None if flag.shared else flag.steps,
        checkpoint_dir=flag.dir,
        save_steps=flag.save_steps,
        validation=[(x[:500], y[:500])],
        every=1_000_000,
        hooks=[Slow(flag.step_s, flag.go)],
    )
    print(f"{result.task} trained on {result.examples} examples", flush=True)
    if flag.shared:
        print(f"repeated {batches.report.repeated}", flush=True)
    if trainer.is_chief:
        params = trainer.params
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
        print(f"digest {digest.hexdigest()[:16]} at global step {result.global_step}", flush=True)
        trainer.close()


def broken(batches: Any, at: int) -> Any:
    for number, batch in enumerate(batches):
        if number == at:
            raise OSError("the disk with the pictures is gone")
        yield batch


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
