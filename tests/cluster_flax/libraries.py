"""One small network as NNX, Linen and Equinox write it.

No layer before batch normalisation has a bias: its gradient would be 0 but for rounding, which Adam makes large.

Run as a script, it trains one of them as a task of a cluster.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import trainband

SIZE, STEPS = 16, 12
EXAMPLE = np.zeros((1, 6), np.float32)


def batches(rank: int = 0, ranks: int = 1) -> list[Any]:
    """Each worker's part of the batches of all."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(STEPS):
        x = generator.normal(size=(SIZE, 6)).astype(np.float32)
        y = (x[:, 0] > x[:, 1]).astype(np.int32)
        part = slice(rank * SIZE // ranks, (rank + 1) * SIZE // ranks)  # the order in which all are one batch
        found.append((x[part], y[part]))
    return found


def scored(logits: jax.Array, labels: jax.Array) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


def nnx_trainer(**switches: Any) -> Any:
    """An NNX module, with dropout."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(6, 16, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(16, momentum=0.8, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.last = nnx.Linear(16, 2, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

    def loss(model: Net, batch: Any) -> Any:
        return scored(model(batch[0]), batch[1])

    return trainband.Trainer.from_nnx(Net(nnx.Rngs(0)), loss, **switches)


def linen_trainer(**switches: Any) -> Any:
    """A Linen module: its params, its `batch_stats` as the model state, and dropout from the loss's key."""
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            x = linen.Dense(16, use_bias=False)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not train, momentum=0.8)(x))
            return linen.Dense(2)(linen.Dropout(0.2, deterministic=not train)(x))

    net = Net()

    def loss(params: Any, batch_stats: Any, batch: Any, key: Any) -> Any:
        variables = {"params": params, "batch_stats": batch_stats}
        logits, changed = net.apply(variables, batch[0], train=True, rngs={"dropout": key}, mutable=["batch_stats"])
        value, metrics = scored(logits, batch[1])
        return value, (changed["batch_stats"], metrics)

    def evaluation_loss(params: Any, batch_stats: Any, batch: Any, _: Any) -> Any:
        logits: Any = net.apply({"params": params, "batch_stats": batch_stats}, batch[0], train=False)
        value, metrics = scored(logits, batch[1])
        return value, (batch_stats, metrics)

    return trainband.Trainer(
        init=lambda key: net.init(key, EXAMPLE, train=False)["params"],
        init_state=lambda key: net.init(key, EXAMPLE, train=False)["batch_stats"],
        loss=loss,
        evaluation_loss=evaluation_loss,
        **switches,
    )


def equinox_trainer(**switches: Any) -> Any:
    """An Equinox module: its arrays are the params, and the rest of it is the same in every process."""
    import equinox as eqx

    def make(key: Any) -> Any:
        first, second = jax.random.split(key)
        return eqx.nn.Sequential(
            [
                eqx.nn.Linear(6, 16, key=first),
                eqx.nn.LayerNorm(16),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Linear(16, 2, key=second),
            ]
        )

    static = eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)[1]

    def loss(params: Any, batch: Any) -> Any:
        return scored(jax.vmap(eqx.combine(params, static))(batch[0]), batch[1])

    return trainband.Trainer(init=lambda key: eqx.filter(make(key), eqx.is_inexact_array), loss=loss, **switches)


TRAINERS: dict[str, Callable[..., Any]] = {
    "nnx": nnx_trainer,
    "linen": linen_trainer,
    "equinox": equinox_trainer,
}


def numbers(trainer: Any) -> list[float]:
    """All params and all of the model state."""
    return [float(x) for leaf in jax.tree.leaves((trainer.params, trainer.model_state)) for x in np.ravel(leaf)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=list(TRAINERS))
    parser.add_argument("--strategy", choices=["sync", "async", "mirrored"])
    parser.add_argument("--out", type=Path)
    flag = parser.parse_args(arguments)
    cluster = trainband.cluster.resolve()
    assert cluster is not None
    strategy: Any
    match flag.strategy:
        case "mirrored":
            strategy = trainband.MultiWorkerMirrored(cluster)
        case "sync":
            strategy = trainband.ParameterServer(cluster, update=trainband.Sync())
        case _:
            strategy = trainband.ParameterServer(cluster)
    trainer = TRAINERS[flag.library](optimizer=optax.adam(1e-2), strategy=strategy, console=False)
    result = trainer.fit(batches(cluster.training_index, len(cluster.spec.workers)), steps=STEPS)
    if trainer.is_chief:
        evaluation = trainer.evaluate(batches())
        found = {"step": result.global_step, "numbers": numbers(trainer), "loss": evaluation.loss}
        flag.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
