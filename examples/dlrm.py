"""Trains DLRM, a model of clicks, on a stream that has the shape of Criteo's: 26 categories and 13 numbers an example.

    trainband run --ps 1 --workers 2 examples/dlrm.py

The categories' embeddings are rows of one table on the ps; see docs/tables.md. The stream is made here: ids are of
Zipf's distribution, and clicks follow a planted model, whose own loss is the least that any model can reach.

Source: Naumov et al. 2019, Deep Learning Recommendation Model for Personalization and Recommendation Systems.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

import trainband
from trainband import rows

CATEGORIES, NUMBERS, DIM = 26, 13, 8
VALUES = np.geomspace(10, 100_000, CATEGORIES).astype(np.int64)
"""How many values each category has."""

_random = np.random.default_rng(0)  # what it plants is the same in every task
OF_VALUES = [0.4 * _random.normal(size=count) for count in VALUES]
OF_NUMBERS = 0.3 * _random.normal(size=NUMBERS)


@dataclass(frozen=True)
class Clicks:
    """Batches of a stream, without an end unless `batches` says how many."""

    seed: int
    batch_size: int
    batches: int | None = None

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        random = np.random.default_rng([1, self.seed])
        for _ in itertools.count() if self.batches is None else range(self.batches):
            values = random.zipf(1.3, (self.batch_size, CATEGORIES)) % VALUES
            numbers = random.normal(size=(self.batch_size, NUMBERS))
            weights = np.stack([OF_VALUES[i][values[:, i]] for i in range(CATEGORIES)], axis=1)
            # The first 13 categories act alone, the others in pairs.
            logit = weights[:, :13].sum(1) + 4.0 * (weights[:, 13:19] * weights[:, 19:25]).sum(1)
            logit += numbers @ OF_NUMBERS - 1.0
            probability = 1.0 / (1.0 + np.exp(-logit))
            yield {
                "ids": values + (np.arange(CATEGORIES) << 40),  # one table for all: the category is in the high bits
                "numbers": numbers.astype(np.float32),
                "click": (random.random(self.batch_size) < probability).astype(np.float32),
                "probability": probability.astype(np.float32),  # of the planted model; not for training
            }


def init(key: jax.Array) -> Any:
    def layers(key: jax.Array, *widths: int) -> list[dict[str, jax.Array]]:
        shapes = list(zip(jax.random.split(key, len(widths) - 1), widths[:-1], widths[1:], strict=True))
        return [{"kernel": jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, "bias": jnp.zeros(b)} for k, a, b in shapes]

    bottom, top = jax.random.split(key)
    pairs = CATEGORIES * (CATEGORIES + 1) // 2
    return {"bottom": layers(bottom, NUMBERS, 32, DIM), "top": layers(top, pairs + DIM * (CATEGORIES + 1), 64, 1)}


def perceptron(layers: list[dict[str, jax.Array]], x: Any) -> Any:
    for i, layer in enumerate(layers):
        x = (x if i == 0 else jax.nn.relu(x)) @ layer["kernel"] + layer["bias"]
    return x


def loss(params: Any, looked_up: dict[str, jax.Array], batch: dict[str, Any]) -> Any:
    numbers = perceptron(params["bottom"], batch["numbers"])
    vectors = jnp.concatenate([numbers[:, None], looked_up["category"]], axis=1)  # (examples, 27, DIM)
    products = jnp.einsum("nid,njd->nij", vectors, vectors)[:, *np.triu_indices(CATEGORIES + 1, k=1)]
    inputs = jnp.concatenate([products, vectors.reshape(len(vectors), -1)], axis=1)
    logits = perceptron(params["top"], inputs)[:, 0]
    return optax.sigmoid_binary_cross_entropy(logits, batch["click"]).mean()


def entropy(clicks: NDArray[Any], probability: NDArray[Any]) -> float:
    return float(-np.mean(clicks * np.log(probability) + (1 - clicks) * np.log1p(-probability)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="updates of the whole job")
    parser.add_argument("--batch_size", type=int, default=512, help="examples in a worker's batch")
    parser.add_argument("--checkpoint_dir", help="save to and resume from this directory")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()
    table = trainband.Table(
        "categories", dim=DIM, optimizer=rows.RowwiseAdagrad(0.05), initializer=rows.Normal(0.1), max_rows=1_000_000
    )
    trainer = trainband.Trainer(
        init=init,
        loss=loss,
        optimizer=optax.adam(2e-3),
        tables={"category": (table, lambda batch: batch["ids"])},
        strategy=trainband.ParameterServer(cluster),
    )
    mine = Clicks(seed=cluster.training_index if cluster else 0, batch_size=flag.batch_size)
    trainer.fit(mine, steps=flag.steps, checkpoint_dir=flag.checkpoint_dir)
    if trainer.is_chief:
        test = list(Clicks(seed=1_000_000, batch_size=1024, batches=20))
        clicks, planted = (np.concatenate([batch[name] for batch in test]) for name in ("click", "probability"))
        base = entropy(clicks, np.full_like(clicks, clicks.mean()))
        print(f"held out: loss {float(trainer.evaluate(test).loss):.4f}")
        print(f"base rate: {base:.4f}, planted model: {entropy(clicks, planted):.4f}")


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
