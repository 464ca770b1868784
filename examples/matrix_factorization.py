"""Learns who likes what: ratings are products of a user's and an item's vector, and training must recover them.

    trainband run --ps 1 --workers 2 examples/matrix_factorization.py

Users are texts and items 64-bit numbers, each in a table of its own; see docs/tables.md. The ratings come from vectors
that were planted, and have noise: the error of a model that has found those vectors is the noise.
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

USERS, ITEMS, RANK, NOISE, MEAN = 1000, 500, 4, 0.5, 3.0
NAMES = np.array([f"user-{number}" for number in range(USERS)])
NUMBERS = np.arange(ITEMS) + 10**15  # more than 32 bits

_random = np.random.default_rng(0)  # what it plants is the same in every task
OF_USER = _random.normal(size=(USERS, RANK))
OF_ITEM = _random.normal(size=(ITEMS, RANK))


@dataclass(frozen=True)
class Ratings:
    """Batches of ratings of random users and items, without an end unless `batches` says how many."""

    seed: int
    batch_size: int
    batches: int | None = None

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        random = np.random.default_rng([1, self.seed])
        for _ in itertools.count() if self.batches is None else range(self.batches):
            user, item = random.integers(USERS, size=self.batch_size), random.integers(ITEMS, size=self.batch_size)
            noise = NOISE * random.normal(size=self.batch_size)
            rating = MEAN + (OF_USER[user] * OF_ITEM[item]).sum(1) + noise
            yield {"user": NAMES[user], "item": NUMBERS[item], "rating": rating.astype(np.float32)}


def loss(params: Any, looked_up: dict[str, jax.Array], batch: dict[str, Any]) -> jax.Array:
    products = (looked_up["user"] * looked_up["item"]).sum(-1)  # batch["user"] and batch["item"] are None here
    return jnp.mean((params["mean"] + products - batch["rating"]) ** 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="updates of the whole job")
    parser.add_argument("--batch_size", type=int, default=1024, help="ratings in a worker's batch")
    parser.add_argument("--checkpoint_dir", help="save to and resume from this directory")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()
    optimizer = rows.RowwiseAdagrad(0.3)
    users = trainband.Table("users", dim=RANK, optimizer=optimizer, initializer=rows.Normal(0.5))
    items = trainband.Table("items", dim=RANK, optimizer=optimizer, initializer=rows.Normal(0.5))
    trainer = trainband.Trainer(
        init=lambda _: {"mean": jnp.zeros(())},
        loss=loss,
        optimizer=optax.adam(0.1),
        tables={"user": (users, lambda batch: batch["user"]), "item": (items, lambda batch: batch["item"])},
        strategy=trainband.ParameterServer(cluster),
    )
    mine = Ratings(seed=cluster.training_index if cluster else 0, batch_size=flag.batch_size)
    trainer.fit(mine, steps=flag.steps, checkpoint_dir=flag.checkpoint_dir)
    if trainer.is_chief:
        error = float(trainer.evaluate(Ratings(seed=1_000_000, batch_size=1024, batches=20)).loss) ** 0.5
        print(f"held out: RMSE {error:.3f}; the noise is {NOISE}")


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
