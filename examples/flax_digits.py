"""Trains a small convolutional network of Flax NNX on handwritten digits.

Alone, on a parameter server with two workers, and on two workers that compute in lockstep:

    python examples/flax_digits.py
    trainband run --ps 1 --workers 2 examples/flax_digits.py
    trainband run --ps 0 --workers 2 examples/flax_digits.py -- --strategy mirrored
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import trainband


class ConvNet(nnx.Module):
    """Two convolutions with batch normalisation, and dropout before the last layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (5, 5), strides=2, rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (5, 5), strides=2, rngs=rngs)
        self.norm2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.output = nnx.Linear(7 * 7 * 32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = images[..., None] / 255.0
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        return self.output(self.dropout(x.reshape(x.shape[0], -1)))


def loss(model: ConvNet, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
    images, labels = batch
    logits = model(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(axis=-1) == labels).mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategy", choices=["ps", "mirrored"], default="ps")
    parser.add_argument("--steps", type=int, default=300, help="updates of the whole job")
    flag = parser.parse_args()

    cluster = trainband.cluster.resolve()  # None in a single process
    strategy: trainband.ParameterServer | trainband.MultiWorkerMirrored
    if flag.strategy == "mirrored":
        strategy = trainband.MultiWorkerMirrored(cluster)
    else:
        strategy = trainband.ParameterServer(cluster, update=trainband.Sync())
    digits = trainband.data.load()
    seed = cluster.training_index if cluster else 0  # each worker has its own order
    train = trainband.data.Batches(digits.train.images, digits.train.labels, batch_size=64, seed=seed)
    test = [(digits.test.images, digits.test.labels)]

    model = ConvNet(nnx.Rngs(0))
    rate = optax.cosine_decay_schedule(3e-3, flag.steps)
    trainer = trainband.Trainer.from_nnx(model, loss, optimizer=optax.adam(rate), strategy=strategy)
    trainer.fit(train, steps=flag.steps)  # the module has the trained values afterwards
    if trainer.is_chief:
        print(f"held out: {trainer.evaluate(test)}")
        trained = nnx.view(model, deterministic=True, use_running_average=True)
        print(f"the first digits are {trained(jnp.asarray(digits.test.images[:5])).argmax(axis=-1)}")


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
