"""`Model.fit` in the scope of a ParameterServerStrategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compat_tf2.test_coordinator import cluster

import trainband.compat.tf2 as tf

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(64, 6)).astype(np.float32)
Y = (X @ RANDOM.normal(size=(6, 1)) > 0).astype(np.float32)


def dataset(_: Any = None) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).repeat()


def model() -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(3)
    found = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    found.compile(
        keras.optimizers.Adam(0.05),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    return found


def test_fit_of_one_worker_is_that_of_one_process() -> None:
    seen: list[tuple[int, float]] = []
    note = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])))
    with cluster(workers=1) as job:
        with job.strategy.scope():
            trained = model()
        creator = tf.keras.utils.experimental.DatasetCreator(dataset)
        history = trained.fit(
            creator, epochs=2, steps_per_epoch=4, callbacks=[note], validation_data=(X, Y), verbose=0
        ).history
        alone = model()
        expected = alone.fit(dataset(), epochs=2, steps_per_epoch=4, validation_data=(X, Y), verbose=0).history
        for name, values in expected.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-4, err_msg=name)
        for one, other in zip(trained.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        assert [epoch for epoch, _ in seen] == [0, 1]
        assert int(trained.optimizer.iterations) == 8
        np.testing.assert_allclose(
            np.asarray(trained.predict(X[:4], verbose=0)), alone.predict(X[:4], verbose=0), rtol=1e-3
        )
        with pytest.raises(ValueError, match="steps_per_epoch"):
            trained.fit(creator)
