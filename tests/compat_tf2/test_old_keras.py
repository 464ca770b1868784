"""What programs for Keras 2 do with models beyond training them: save them under any name, resume, load early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from trainband.compat.missing import MissingName
from trainband.compat.tf1.graphs.errors import NotFoundError

X = np.random.RandomState(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.RandomState(1).randint(2, size=16)


def small(**settings: Any) -> Any:
    """A model that is built and compiled."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax", input_shape=(4,))])
    settings = {"optimizer": tf.keras.optimizers.Adam(lr=0.1, decay=1e-3), "metrics": ["acc"], **settings}
    model.compile(loss="sparse_categorical_crossentropy", experimental_run_tf_function=False, **settings)
    return model


@pytest.mark.parametrize("name", ["folder", "one.h5", "one.keras"])
def test_a_model_is_loaded_from_any_name(name: str, tmp_path: Path) -> None:
    model = small()
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / name)
    loaded = tf.keras.models.load_model(tmp_path / name)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert int(loaded.optimizer.iterations.numpy()) == 1
    assert loaded.fit(X, Y, verbose=0).history.keys() == {"acc", "loss"}


@pytest.mark.parametrize("name", ["weights", "weights.h5", "of/cp-01.ckpt", "one.weights.h5"])
def test_weights_are_loaded_from_any_name(name: str, tmp_path: Path) -> None:
    model = small()
    model.save_weights(str(tmp_path / name))
    early = tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax")])
    early.load_weights(str(tmp_path / name)).expect_partial()
    np.testing.assert_array_equal(early(X).numpy(), model(X).numpy())
    if "h5" not in name:
        assert tf.train.latest_checkpoint((tmp_path / name).parent) == str(tmp_path / name)
    with pytest.raises(NotFoundError, match=r"there are no weights at .*elsewhere"):
        model.load_weights(str(tmp_path / "elsewhere"))


def test_a_training_that_broke_off_resumes(tmp_path: Path) -> None:
    epochs: list[int] = []

    class Breaks(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            epochs.append(epoch)
            if len(epochs) == 2:
                raise KeyboardInterrupt

    def run() -> Any:
        callbacks = [
            tf.keras.callbacks.experimental.BackupAndRestore(backup_dir=str(tmp_path / "backup")),
            tf.keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}"), save_weights_only=True, period=2),
            Breaks(),
        ]
        return small().fit(X, Y, epochs=3, verbose=0, callbacks=callbacks)

    with pytest.raises(KeyboardInterrupt):
        run()
    run()
    assert epochs == [0, 1, 1, 2]
    assert sorted(one.name for one in tmp_path.glob("*.weights.h5")) == ["2.weights.h5"]


def test_random_operations_of_a_layer_draw_anew() -> None:
    class Noise(tf.keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs + tf.random.normal(tf.shape(inputs))

    inputs = tf.keras.Input((4,))
    model = tf.keras.Model(inputs, Noise()(inputs))
    traced = tf.function(lambda: model(X))
    draws = [model(X).numpy(), model(X).numpy(), *(model.predict(X, verbose=0) for _ in range(2))]
    draws += [traced().numpy() for _ in range(3)]
    assert len({float(one[0, 0]) for one in draws}) == len(draws)


def test_a_layer_that_decides_by_values_runs_as_it_stands() -> None:
    class Sign(tf.keras.layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            self.scale = self.add_weight("scale", shape=(input_shape.as_list()[-1],), initializer="ones")

        def call(self, inputs: Any) -> Any:
            return inputs * self.scale if tf.reduce_sum(inputs) > 0 else -inputs

    layer = Sign()
    assert [layer(tf.constant([[sign]])).numpy().tolist() for sign in (2.0, -3.0)] == [[[2.0]], [[3.0]]]


def test_a_seed_of_tensorflow_determines_first_weights() -> None:
    found = []
    for _ in range(2):
        tf.random.set_seed(5)
        found.append(small().get_weights()[0])
    np.testing.assert_array_equal(found[0], found[1])


def test_bad_input() -> None:
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    with pytest.raises(ValueError, match="please specify a `steps_per_epoch` value"):
        small().fit(endless)
    with pytest.raises(ValueError, match="`y` argument is not supported when using dataset"):
        small().fit(endless, Y, steps_per_epoch=1)
    with pytest.raises(MissingName, match=r"tf.keras.layers.Dens is not in .*tf.keras.layers.Dense"):
        _ = tf.keras.layers.Dens
    with pytest.raises(AttributeError, match="TensorFlow no longer has estimators"):
        _ = tf.keras.estimator
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        tf.keras.optimizers.SGD().apply_gradients([(None, tf.Variable(1.0))])
    with pytest.raises(FileNotFoundError, match="downloads nothing unasked"):
        tf.keras.datasets.boston_housing.load_data(path="nowhere.npz")


def test_targets_of_rank_1_are_compared_with_each_output() -> None:
    random = np.random.RandomState(0)
    x, y = random.rand(32, 4).astype("float32"), random.rand(32).astype("float32")
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    model.set_weights([np.full((4, 3), 0.1), np.zeros(3)])
    model.compile("sgd", "mse")
    losses = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses == pytest.approx([0.2022448, 0.1994600], rel=1e-5)  # as TensorFlow 2.21 gives with Keras 2


def test_a_cell_takes_what_keras_2s_took_for_its_initial_state() -> None:
    cell = tf.keras.layers.LSTMCell(3)
    assert [one.shape for one in cell.get_initial_state(batch_size=tf.constant(2), dtype=tf.float32)] == [(2, 3)] * 2
    assert tf.keras.layers.RNN(cell)(tf.ones((2, 4, 3))).shape == (2, 3)
