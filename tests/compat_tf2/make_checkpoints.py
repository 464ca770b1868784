"""Make the checkpoints of `data/` with TensorFlow 2.21: `TF_USE_LEGACY_KERAS=1 python make_checkpoints.py keras2`, and
`python make_checkpoints.py keras3`, which also writes that of a variable in parts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

DATA = Path(__file__).parent / "data"


class Net(tf.Module):  # type: ignore[misc]
    """A module of some variables."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([5.0, 6.0])
        self.parts = [tf.Variable(1), {"a": tf.Variable(2.0)}]


def main(keras: str) -> None:
    """Write one of them."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((3,)), layers.Dense(2), layers.BatchNormalization(), layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([2, 3])) ** 2)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    tf.train.Checkpoint(model=model, opt=optimizer, net=Net(), step=tf.Variable(3)).write(
        str(DATA / f"checkpoint_{keras}")
    )
    slots = [one for one in optimizer.variables if "iteration" not in one.name and "learning_rate" not in one.name]
    np.savez(
        DATA / f"checkpoint_{keras}.npz",
        **{f"w{i}": one.numpy() for i, one in enumerate(model.weights)},
        **{f"s{i}": one.numpy() for i, one in enumerate(slots)},
    )
    if keras == "keras3":
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session() as session:
            start = tf.constant(np.arange(21.0, dtype=np.float32).reshape(7, 3))
            table = v1.get_variable("table", [7, 3], partitioner=v1.fixed_size_partitioner(3), use_resource=False)
            session.run(v1.global_variables_initializer())
            at = 0
            for part in table:
                session.run(part.assign(start[at : at + part.shape[0]]))
                at += part.shape[0]
            v1.train.Saver().save(session, str(DATA / "checkpoint_parts"), write_meta_graph=False, write_state=False)


if __name__ == "__main__":
    main(sys.argv[1])
