"""One task of trainband's parameter servers, as its users write it. It keeps the contract of `bench.ps_mnist`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband
from trainband.cluster.transport_choice import TransportChoice

HIDDEN = 100
RULES: dict[str, Any] = {
    "async": trainband.Async(),
    "sync": trainband.Sync(),
    "bounded": trainband.Bounded(staleness=2),
}


def main() -> None:
    """Run the task that the flags name; a ps serves until the job ends."""
    flags = parse_flags()
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    strategy = trainband.ParameterServer(
        cluster,
        update=RULES[flags.rule],
        standbys=flags.standbys,
        transport=trainband.Network(flags.transport),
    )
    trainer = trainband.Trainer(
        init=init, loss=loss, optimizer=optax.adam(flags.learning_rate), strategy=strategy, console=False
    )
    with np.load(flags.data) as data:
        train = (data["train_images"], data["train_labels"])
        test = (data["test_images"], data["test_labels"])
    watch = Watch(flags, trainer)
    batches = trainband.data.Batches(*train, batch_size=flags.batch_size, seed=flags.task_index)
    trainer.fit(watch.through(batches), steps=flags.train_steps)
    watch.end()
    evaluation = trainer.evaluate([test])
    result = {"task": f"worker:{flags.task_index}", **watch.result()}
    print(json.dumps({**result, "loss": evaluation.loss, **evaluation.metrics}), flush=True)


def parse_flags() -> argparse.Namespace:
    """Read the flags of the contract."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=10_000)
    parser.add_argument("--warm_up_steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--rule", choices=list(RULES), default="async")
    parser.add_argument("--standbys", type=int, default=0)
    parser.add_argument("--transport", choices=[*TransportChoice], default="auto")
    return parser.parse_args()


def init(key: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Make the params of the 784-100-10 network."""
    hidden, output = jax.random.split(key)
    glorot = jax.nn.initializers.glorot_uniform()
    return {
        "hidden": {"kernel": glorot(hidden, (784, HIDDEN), jnp.float32), "bias": jnp.zeros(HIDDEN)},
        "output": {"kernel": glorot(output, (HIDDEN, 10), jnp.float32), "bias": jnp.zeros(10)},
    }


def loss(params: Any, batch: Any) -> Any:
    """Softmax cross entropy; images come as uint8[n, 28, 28]."""
    images, labels = batch
    pixels = images.reshape(len(images), 784).astype(jnp.float32) / 255
    hidden = jax.nn.relu(pixels @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(axis=-1) == labels).mean()}


class Watch:
    """Marks the moments of the contract while batches go by, and measures between two of them."""

    def __init__(self, flags: argparse.Namespace, trainer: trainband.Trainer) -> None:
        """Record the watched task."""
        self._flags = flags
        self._trainer = trainer
        self._workers = len(flags.worker_hosts.split(","))
        self._begin_step = self._begin_s = self._wall_s = 0.0

    def through(self, batches: trainband.data.Batches) -> Iterator[Any]:
        """Yield the batches, looking at the global step before each."""
        self._mark("ready")
        while not all((self._flags.marks / f"worker-{index}.ready").exists() for index in range(self._workers)):
            time.sleep(0.001)
        begun = False
        for batch in batches:
            if not begun and self._trainer.global_step >= self._flags.warm_up_steps:
                begun = True
                self._begin_step, self._begin_s = self._trainer.global_step, time.perf_counter()
                self._mark("begin")
            yield batch

    def end(self) -> None:
        """Note that the last step was made."""
        self._wall_s = time.perf_counter() - self._begin_s
        self._mark("end")

    def result(self) -> dict[str, float]:
        """Return the speed of the whole job between the marks."""
        steps = self._trainer.global_step - self._begin_step
        return {"steps": steps, "wall_s": self._wall_s, "steps_per_s": steps / self._wall_s}

    def _mark(self, moment: str) -> None:
        (self._flags.marks / f"worker-{self._flags.task_index}.{moment}").touch()


if __name__ == "__main__":
    main()
