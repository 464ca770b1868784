"""What must be the same under every strategy, one after the other. Run as a script by the tests."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.strategies import models

import trainband

STEPS = 2
SWITCHES: dict[str, dict[str, Any]] = {
    "none": {},
    "accumulate": {"accumulate": 2},
    "bf16": {"compute_dtype": jnp.bfloat16},
    "remat": {"remat": True},
    "policy": {"remat": jax.checkpoint_policies.dots_saveable},
    "not donated": {"donate": False},
    "transform": {"worker_transform": optax.clip_by_global_norm(0.1)},
    "three": {"accumulate": 3, "compute_dtype": jnp.bfloat16, "remat": True},
}
ODD = models.SIZE - 2
"""Examples of which each of two workers has a number that its two devices do not divide."""


def strategy_of(name: str, cluster: Any) -> Any:
    match name:
        case "mirrored":
            return trainband.MultiWorkerMirrored(cluster, remainder="pad")
        case "tensor":
            return trainband.ModelParallel(
                {"data": 2, "model": 2}, models.RULES["mlp"], cluster=cluster, remainder="pad"
            )
        case "fsdp":
            rules = trainband.auto_fsdp(smallest=64)
            return trainband.ModelParallel({"data": -1}, rules, cluster=cluster, remainder="pad")
        case "local":
            return trainband.ParameterServer(cluster, update=trainband.Sync(), local=trainband.Mirrored())
        case _:
            return trainband.OneDevice()


def trained(strategy: Any, batches: list[Any], **changes: Any) -> tuple[list[float], int]:
    """The params, and how many examples counted."""
    model = models.MODELS["mlp"]()
    trainer = trainband.Trainer(**model, optimizer=models.optimizer(), strategy=strategy, console=False, **changes)
    result = trainer.fit(batches, STEPS)
    return [float(x) for leaf in jax.tree.leaves(trainer.params) for x in np.ravel(leaf)], result.examples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy")
    parser.add_argument("out", type=Path)
    flag = parser.parse_args()
    cluster = trainband.cluster.resolve()
    strategy = strategy_of(flag.strategy, cluster)
    rank, ranks = (0, 1) if cluster is None else (cluster.training_index, len(cluster.spec.workers))

    shape = jax.eval_shape(models.MODELS["mlp"]()["init"], jax.random.key(0))
    placed = jax.tree.leaves(strategy.global_batch(models.batches(1, models.SIZE, rank, ranks)[0]))[0]
    found: dict[str, Any] = {
        "described": str(strategy.describe(shape, models.optimizer())),
        "replicas": strategy.num_replicas,
        "batch": strategy.global_batch(10),
        "rows": len(placed),
    }
    # A job on parameter servers is one training.
    for switch in ("three",) if flag.strategy == "local" else SWITCHES:
        found[switch], _ = trained(strategy, models.batches(STEPS, models.SIZE, rank, ranks), **SWITCHES[switch])
    if flag.strategy != "local":
        found["padded"], found["examples"] = trained(strategy, models.batches(STEPS, ODD, rank, ranks))
    if strategy.is_chief:
        flag.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {type(error).__name__}: {error}")
