"""A script with a ParameterServerStrategy, of one process a task under TF_CONFIG. Run by the tests."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import trainband.compat.tf2 as tf


def coordinate(resolver: Any, steps: int) -> None:
    """Makes steps, some of them after a line that tests wait for; prints what comes of them."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(np.zeros((4, 1), np.float32))
        made = tf.Variable(0)

    def dataset() -> tf.data.Dataset:
        rng = np.random.RandomState(0)
        features = rng.normal(size=(64, 4)).astype(np.float32)
        targets = features @ np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
        return tf.data.Dataset.from_tensor_slices((features, targets)).shuffle(64).repeat().batch(16)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        features, targets = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(features, weights) - targets) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        made.assign_add(1)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    for _ in range(steps):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    print("HALF", flush=True)
    values: list[Any] = []
    while len(values) < steps or (sys.argv[2:] and not _is_there(sys.argv[2])):
        values.append(coordinator.schedule(step, args=(iterator,)))
        if len(values) % 20 == 0:
            coordinator.join()
    coordinator.join()
    print("LOSS", coordinator.fetch(values[-1]))
    print("WEIGHTS", np.round(weights.numpy().ravel(), 3).tolist())
    print("EXTRA", int(made) - steps - len(values))


def _is_there(path: str) -> bool:
    from pathlib import Path

    return Path(path).exists()


if __name__ == "__main__":
    found = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if found.task_type in ("worker", "ps"):
        tf.distribute.Server(found.cluster_spec(), job_name=found.task_type, task_index=found.task_id).join()
        raise AssertionError("code after join does not run")
    coordinate(found, int(sys.argv[1]))
