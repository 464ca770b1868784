"""`tf.train.Checkpoint` and its manager: our files, and TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf1
import trainband.compat.tf2 as tf

DATA = Path(__file__).parent / "data"


class _Net(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])
        self.parts = [tf.Variable(3), {"a": tf.Variable(4.0)}]
        self.same = self.w

    def later(self) -> None:
        self.late = tf.Variable(5.0)


def test_objects_are_saved_and_restored(tmp_path: Path) -> None:
    net, step = _Net(), tf.Variable(7, dtype=tf.int64)
    net.later()
    saved = tf.train.Checkpoint(net=net, step=step)
    path = saved.save(tmp_path / "ckpt")
    assert path == str(tmp_path / "ckpt-1")
    assert tf.train.latest_checkpoint(tmp_path) == path
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert [name.removesuffix(value) for name, _ in tf.train.list_variables(path)] == [
        "net/late", "net/parts/0", "net/parts/1/a", "net/w", "save_counter", "step",
    ]  # fmt: skip
    new = _Net()
    new.w.assign([0.0, 0.0])
    fresh = tf.train.Checkpoint(step=tf.Variable(0, dtype=tf.int64), net=new)
    status = fresh.restore(path)
    assert (new.w.numpy().tolist(), int(fresh.step), int(fresh.save_counter)) == ([1.0, 2.0], 7, 1)
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="net/late"):
        status.assert_consumed()
    new.later()
    new.late.assign(0.0)  # it had its value before
    assert float(new.late) == 0.0
    status.assert_consumed()
    assert tf.train.Checkpoint(net).read(saved.write(tmp_path / "other")).expect_partial() is not None


def test_a_variable_gets_its_value_when_it_is_made(tmp_path: Path) -> None:
    net = _Net()
    net.later()
    net.late.assign(9.0)
    path = tf.train.Checkpoint(net=net).write(str(tmp_path / "x"))
    other = _Net()
    checkpoint = tf.train.Checkpoint(net=other)
    checkpoint.restore(path)
    other.later()
    assert float(other.late) == 9.0


def test_bad_checkpoints_are_named(tmp_path: Path) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable([1.0]))
    with pytest.raises(tf.errors.NotFoundError, match="Failed to find any matching files"):
        checkpoint.restore(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="trackable object"):
        tf.train.Checkpoint(v=3)
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).restore(checkpoint.save(str(tmp_path / "c")))
    with pytest.raises(AssertionError, match="save_path=None"):
        checkpoint.restore(None).assert_consumed()
    with pytest.raises(AssertionError, match="Python objects: w"):
        tf.train.Checkpoint(w=tf.Variable(1.0)).restore(str(tmp_path / "c-1")).assert_existing_objects_matched()


def test_a_manager_keeps_the_newest(tmp_path: Path) -> None:
    now = [0.0]
    step = tf.Variable(0)

    def manager(**more: Any) -> Any:
        checkpoint = tf.train.Checkpoint(step=step)
        return tf.train.CheckpointManager(checkpoint, str(tmp_path), 2, clock=lambda: now[0], **more)

    one = manager(keep_checkpoint_every_n_hours=1.0)
    assert one.latest_checkpoint is None
    assert one.restore_or_initialize() is None
    for number in range(5):
        step.assign(number)
        now[0] += 1800
        one.save()
    assert [Path(path).name for path in one.checkpoints] == ["ckpt-4", "ckpt-5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint", "ckpt-2.safetensors", "ckpt-4.safetensors", "ckpt-5.safetensors",
    ]  # fmt: skip
    step.assign(100)
    again = manager(step_counter=step, checkpoint_interval=10)
    assert again.restore_or_initialize() == str(tmp_path / "ckpt-5")
    assert int(step) == 4
    assert again.save() is None
    step.assign(14)
    assert again.save() == str(tmp_path / "ckpt-14")
    assert again.save(checkpoint_number=3, check_interval=False) == str(tmp_path / "ckpt-3")
    assert [Path(path).name for path in again.checkpoints] == ["ckpt-14", "ckpt-3"]


def _model() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Dense(2), layers.BatchNormalization(), layers.Dense(1)])


def _step(model: Any, optimizer: Any) -> float:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([2, 3])) ** 2)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    return float(loss)


def test_a_model_and_its_optimizer_are_restored_as_they_are_built(tmp_path: Path) -> None:
    model, optimizer = _model(), tf.keras.optimizers.Adam(0.1)
    _step(model, optimizer)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "c"))
    losses = [_step(model, optimizer) for _ in range(2)]
    checkpoint = tf.train.Checkpoint(model=_model(), optimizer=tf.keras.optimizers.Adam(0.5))
    status = checkpoint.restore(path)
    np.testing.assert_allclose([_step(checkpoint.model, checkpoint.optimizer) for _ in range(2)], losses, rtol=1e-6)
    status.assert_consumed()


@pytest.mark.parametrize("keras", ["keras2", "keras3"])
def test_tensorflows_checkpoints_are_read(keras: str) -> None:
    golden = dict(np.load(DATA / f"checkpoint_{keras}.npz"))
    prefix = str(DATA / f"checkpoint_{keras}")
    assert dict(tf.train.list_variables(prefix))["step/.ATTRIBUTES/VARIABLE_VALUE"] == []
    model, optimizer = _model(), tf.keras.optimizers.Adam()
    model.build((None, 3))
    optimizer.build(model.trainable_variables)
    net, step = _Net(), tf.Variable(0)
    tf.train.Checkpoint(model=model, opt=optimizer, net=net, step=step).restore(prefix)
    assert (int(step), net.w.numpy().tolist(), float(net.parts[1]["a"])) == (3, [5.0, 6.0], 2.0)
    for number, one in enumerate(model.weights):
        np.testing.assert_array_equal(one.numpy(), golden[f"w{number}"])
    for number, one in enumerate(optimizer.variables[2:]):
        np.testing.assert_array_equal(one.numpy(), golden[f"s{number}"])
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("is_built", [True, False])
def test_a_model_loads_the_weights_of_a_checkpoint(tmp_path: Path, is_built: bool) -> None:
    model = _model()
    model.build((None, 3))
    path = tf.train.Checkpoint(model).write(str(tmp_path / "weights"))
    other = _model()
    if is_built:
        other.build((None, 3))
    other.load_weights(path).expect_partial()
    np.testing.assert_array_equal(other(tf.ones([2, 3])), model(tf.ones([2, 3])))
    with pytest.raises(AssertionError, match="Nothing except the root"):
        model.load_weights(tf.train.Checkpoint(other=tf.Variable(1.0)).write(str(tmp_path / "other")))


def test_the_parts_of_a_variable_are_put_together() -> None:
    reader = tf.train.load_checkpoint(DATA / "checkpoint_parts")
    np.testing.assert_array_equal(reader.get_tensor("table"), np.arange(21.0).reshape(7, 3))


def test_a_saver_of_version_1_reads_tensorflows_files() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        table = tf1.get_variable("table", [7, 3])
        tf1.train.Saver().restore(session, str(DATA / "checkpoint_parts"))
        np.testing.assert_array_equal(session.run(table), np.arange(21.0).reshape(7, 3))


def test_damaged_files_of_tensorflow_are_named(tmp_path: Path) -> None:
    index, data = "checkpoint_parts.index", "checkpoint_parts.data-00000-of-00001"
    damaged = bytearray((DATA / data).read_bytes())
    damaged[5] ^= 1
    (tmp_path / index).write_bytes((DATA / index).read_bytes())
    (tmp_path / data).write_bytes(damaged)
    with pytest.raises(tf.errors.DataLossError, match="the checksum of table is wrong"):
        tf.train.load_checkpoint(tmp_path / "checkpoint_parts")
    (tmp_path / index).write_bytes((DATA / index).read_bytes()[:-9])
    with pytest.raises(tf.errors.DataLossError, match="truncated"):
        tf.train.load_checkpoint(tmp_path / "checkpoint_parts")
