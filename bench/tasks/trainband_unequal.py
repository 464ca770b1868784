"""One task of `bench.unequal`: a ps, or a worker that trains on data which all workers share.

The contract: flags ``--job_name ps|worker --task_index I --ps_hosts A --worker_hosts B,C --rule NAME --data X.npz
--marks DIR --example_ms MS``. Computing a gradient takes a worker MS for each example longer than it does; MS of 0 adds
nothing. A worker takes one step, so that its program is compiled, makes the file DIR/worker-I.ready, and trains
from when DIR/go is there until DIR/stop is. Then it prints one line of JSON: steps and losses, the global step and the
batch's loss after each step, and times, the monotonic seconds of those moments.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband

RULES: dict[str, Any] = {
    "sync": trainband.Sync(),
    "sync-1-backup": trainband.Sync(backups=1),
    "sync-balanced": trainband.Sync(balance="speed"),
    "async": trainband.Async(),
}


def init(key: jax.Array) -> Any:
    """A 784-100-10 network."""
    hidden, out = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(hidden, (784, 100)) / 28, "bias": jnp.zeros(100)},
        "out": {"kernel": jax.random.normal(out, (100, 10)) / 10, "bias": jnp.zeros(10)},
    }


def loss_of(example_ms: float) -> Callable[[Any, Any], jax.Array]:
    """Cross-entropy, the mean over the batch, which takes so long an example."""

    def loss(params: Any, batch: Any) -> jax.Array:
        value = cross_entropy(params, batch)
        if not example_ms:
            return value
        seconds = len(batch[1]) * example_ms / 1000

        def wait(first: Any) -> Any:
            time.sleep(seconds)
            return np.zeros_like(first)

        # The callback's argument, one label, makes it run in every step.
        nothing = jax.pure_callback(wait, jax.ShapeDtypeStruct((), batch[1].dtype), batch[1][0])
        together: jax.Array = value + nothing.astype(jnp.float32)
        return together

    return loss


def cross_entropy(params: Any, batch: Any) -> jax.Array:
    """The loss itself."""
    images, labels = batch
    x = images.reshape(len(labels), -1).astype(jnp.float32) / 255
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    mean: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return mean


class UntilTold(trainband.Hook):
    """Ends the training when the bench says so, and notes the time of each step."""

    def __init__(self, stop: Path) -> None:
        self._stop = stop
        self.times: list[float] = []

    def after_run(self, session: Any, report: Any) -> None:
        """Looks for the mark."""
        del report
        self.times.append(time.monotonic())
        if self._stop.exists():
            session.request_stop("the time is over")


def main() -> None:
    """Run the task that the flags name; a ps serves until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--rule", choices=list(RULES), required=True)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--example_ms", type=float, default=0.0)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    flags = parser.parse_args()
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    trainer = trainband.Trainer(
        init=init,
        loss=loss_of(flags.example_ms),
        optimizer=optax.adam(flags.learning_rate),
        strategy=trainband.ParameterServer(cluster, update=RULES[flags.rule]),
        console=False,
    )
    with np.load(flags.data) as data:
        images, labels = data["train_images"], data["train_labels"]
    batches = trainband.data.shared((images, labels), batch_size=flags.batch_size, shuffle=True)
    with trainer:
        trainer.fit(batches, steps=1)
        (flags.marks / f"worker-{flags.task_index}.ready").touch()
        while not (flags.marks / "go").exists():
            time.sleep(0.001)
        hook = UntilTold(flags.marks / "stop")
        result = trainer.fit(batches, hooks=[hook])
    steps, losses = result.history[:, 0].tolist(), result.history[:, 1].tolist()
    print(json.dumps({"times": hook.times[: len(steps)], "steps": steps, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
