"""What layers, cells and argument scopes refuse, remember and share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.finder import install, uninstall

slim = tf.contrib.slim


def names() -> list[str]:
    return [one.op.name for one in tf.global_variables()]


def test_contrib_can_be_imported_in_every_way() -> None:
    finder = install(lambda _: None)
    try:
        script: dict[str, Any] = {}
        exec(
            "import tensorflow as tf, tensorflow.contrib.slim as one, tensorflow.contrib.layers as layers\n"
            "from tensorflow.contrib import slim, rnn, legacy_seq2seq\n"
            "from tensorflow.contrib.framework import arg_scope, nest\n"
            "from tensorflow.contrib.layers.python.layers import layers as inner, batch_norm\n"
            "from tensorflow.contrib.framework.python.ops import variables\n",
            script,
        )
        assert script["one"].conv2d is script["layers"].conv2d is script["tf"].contrib.slim.conv2d
        assert script["slim"].learning.train
        assert script["inner"].conv2d is script["slim"].conv2d
        assert script["batch_norm"] is script["slim"].batch_norm
        assert script["variables"].get_or_create_global_step is tf.train.get_or_create_global_step
        assert script["nest"].map_structure(lambda a, b: a + b, [1, (2,)], [3, (4,)]) == [4, (6,)]
    finally:
        uninstall(finder)


def test_a_layer_is_shared_by_calling_it_again_and_by_name() -> None:
    layer = tf.layers.Dense(3, name="d")
    x = tf.placeholder(tf.float32, [None, 2])
    layer(x)
    layer(x)
    tf.layers.dense(x, 3, name="d", reuse=True)
    assert names() == ["d/kernel", "d/bias"] == [one.op.name for one in layer.trainable_variables]
    with pytest.raises(ValueError, match="already exists"):
        tf.layers.dense(x, 3, name="d")
    with pytest.raises(ValueError, match="incompatible with the layer"):
        layer(tf.zeros([1, 4]))


def test_a_layer_of_a_script_has_its_variables_in_its_scope() -> None:
    class Scale(tf.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.by = self.add_variable("by", [int(shape[-1])], regularizer=tf.reduce_sum)
            super().build(shape)

        def call(self, inputs: Any) -> Any:
            return inputs * self.by

    with tf.variable_scope("outer"):
        layer = Scale(name="scale")
        layer(tf.ones([2, 3]))
    assert names() == ["outer/scale/by"]
    assert layer.losses == tf.losses.get_regularization_losses()


def test_a_regularized_cell_has_its_losses_outside_of_its_loop() -> None:
    with tf.variable_scope("s", regularizer=slim.l2_regularizer(1.0)):
        tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(2), tf.ones([1, 3, 2]), dtype=tf.float32)
    total = tf.losses.get_regularization_loss()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(total) > 0


def test_dropout_drops_anew_in_each_step_unless_it_is_variational() -> None:
    def outputs(**more: Any) -> Any:
        cell = tf.nn.rnn_cell.BasicRNNCell(40, activation=lambda x: x * 0 + 1)
        wrapped = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.5, **more)
        return tf.nn.dynamic_rnn(wrapped, tf.ones([1, 4, 2]), dtype=tf.float32, scope=f"s{len(names())}")[0]

    made = [outputs(), outputs(variational_recurrent=True, dtype=tf.float32)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        plain, same = session.run(made)
        assert set(np.unique(plain)) == set(np.unique(same)) == {0.0, 2.0}
        assert not (plain[:, 0] == plain[:, 1]).all()
        assert (same == same[:, :1]).all()
        assert not (session.run(made[1]) == same).all()


def test_rnns_say_what_is_wrong() -> None:
    cell = tf.nn.rnn_cell.GRUCell(2)
    with pytest.raises(ValueError, match="you must give a dtype"):
        tf.nn.dynamic_rnn(cell, tf.ones([1, 3, 2]))
    with pytest.raises(ValueError, match="rank at least 2"):
        tf.nn.dynamic_rnn(cell, tf.ones([3]), dtype=tf.float32)
    with pytest.raises(ValueError, match="at least one cell"):
        tf.nn.rnn_cell.MultiRNNCell([])


def test_argument_scopes_nest_and_are_opened_again() -> None:
    with slim.arg_scope([slim.fully_connected], activation_fn=None, biases_initializer=None) as kept:
        slim.fully_connected(tf.ones([1, 2]), 3)
        with slim.arg_scope([slim.fully_connected], biases_initializer=tf.zeros_initializer()):
            slim.fully_connected(tf.ones([1, 2]), 3, scope="b")
    with slim.arg_scope(kept):
        slim.fully_connected(tf.ones([1, 2]), 3, scope="c")
    assert names() == ["fully_connected/weights", "b/weights", "b/biases", "c/weights"]
    assert [one.op.name for one in slim.get_model_variables("b")] == ["b/weights", "b/biases"]
    with pytest.raises(ValueError, match="not decorated"), slim.arg_scope([test_rnns_say_what_is_wrong], a=1):
        pass


def test_batch_norm_without_a_collection_updates_whenever_it_is_computed() -> None:
    made = slim.batch_norm(tf.constant([[1.0], [3.0]]), decay=0.5, updates_collections=None)
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(made)
        assert session.run(slim.get_variables("BatchNorm/moving_mean"))[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "optimizer", ["SGD", tf.train.GradientDescentOptimizer, tf.train.GradientDescentOptimizer(0.1)]
)
def test_optimize_loss_makes_a_step_when_the_loss_is_computed(optimizer: Any) -> None:
    v = tf.get_variable("v", initializer=2.0)
    step = tf.train.get_or_create_global_step()
    loss = tf.contrib.layers.optimize_loss(v * v, step, 0.1, optimizer, clip_gradients=2.0, summaries=["loss"])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(loss) == pytest.approx(4.0)
        assert session.run([v, step]) == [pytest.approx(1.8), 1]


def test_checkpoints_are_restored_and_begin_models(tmp_path: Any) -> None:
    slim.model_variable("old/w", [2], initializer=tf.ones_initializer())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    tf.reset_default_graph()
    w, other = (slim.variable(name, [2], initializer=tf.zeros_initializer()) for name in ("new/w", "x"))
    tf.contrib.framework.init_from_checkpoint(str(tmp_path), {"old/": "new/"})
    restore = slim.assign_from_checkpoint_fn(path, {"old/w": other, "absent": w}, ignore_missing_vars=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run([w, other])[0].tolist() == [1, 1]
        restore(session)
        assert session.run(other).tolist() == [1, 1]


def test_slim_trains_logs_saves_and_evaluates(tmp_path: Any) -> None:
    x = tf.constant([[1.0], [2.0]])
    predicted = slim.linear(x, 1, weights_initializer=tf.zeros_initializer())
    loss = slim.losses.mean_squared_error(predicted, 2 * x)
    train_op = slim.learning.create_train_op(loss, tf.train.GradientDescentOptimizer(0.1), clip_gradient_norm=4.0)
    last = slim.learning.train(train_op, str(tmp_path), number_of_steps=30)
    assert last < 0.1
    tf.reset_default_graph()
    predicted = slim.linear(tf.constant([[1.0], [2.0]]), 1)
    values, updates = slim.metrics.aggregate_metric_map(
        {"error": slim.metrics.streaming_mean_absolute_error(predicted, tf.constant([[2.0], [4.0]]))}
    )
    found = slim.evaluation.evaluate_once(
        "", tf.train.latest_checkpoint(str(tmp_path)), None, 2, eval_op=list(updates.values()), final_op=values
    )
    assert found["error"] < 0.5


def test_sequence_losses_are_weighted_means() -> None:
    logits = np.random.RandomState(0).normal(size=(2, 3, 4)).astype(np.float32)
    targets = np.array([[0, 1, 2], [3, 0, 1]])
    weights = np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    exact = -np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1)[..., 0]
    new = tf.contrib.seq2seq.sequence_loss(tf.constant(logits), tf.constant(targets), tf.constant(weights))
    old = tf.contrib.legacy_seq2seq.sequence_loss_by_example(
        *([tf.constant(one[:, i]) for i in range(3)] for one in (logits, targets, weights))
    )
    with tf.Session() as session:
        mean, each = session.run([new, old])
    assert mean == pytest.approx((exact * weights).sum() / 3, rel=1e-5)
    np.testing.assert_allclose(each, (exact * weights).sum(1) / weights.sum(1), rtol=1e-5)


def test_tensor_arrays_refuse_what_does_not_fit() -> None:
    made = tf.TensorArray(tf.float32, 2).write(0, [1.0, 2.0])
    with pytest.raises(ValueError, match="Inconsistent shapes"):
        made.write(1, [1.0])
    with pytest.raises(ValueError, match="trying to write dtype"):
        made.write(1, tf.constant([1, 2]))
    with pytest.raises(ValueError, match="Size must be provided"):
        tf.TensorArray(tf.float32)
    assert made.stack().shape.as_list() == [2, 2]


def test_a_tensor_array_that_grows_has_as_many_parts_as_there_are_rounds() -> None:
    limit = tf.placeholder(tf.float32, [])

    def loop(**more: Any) -> Any:
        made = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        return tf.while_loop(
            lambda _, x, __: x < limit, lambda t, x, a: (t + 1, x + 1.0, a.write(t, x)), (0, 0.0, made), **more
        )[2].stack()

    with tf.Session() as session:
        assert session.run(loop(), {limit: 2.0}).tolist() == [0, 1]
        assert session.run(loop(maximum_iterations=3), {limit: 2.0}).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda x: tf.layers.conv2d(x, 2, (1, 2, 3)), "`kernel_size` argument must be"),
        (lambda x: tf.layers.conv2d(x, 2, 3, strides=None), "`strides` argument must be"),
        (lambda x: tf.layers.max_pooling2d(x, 2, 2, data_format="NHWC"), "`data_format` argument must be"),
        (lambda x: tf.layers.average_pooling2d(x, 2, 2, padding="full"), "`padding` argument must be"),
        (lambda x: tf.layers.Flatten()(x[:, 0, 0, 0]), "expected min_ndim=2, found ndim=1"),
        (lambda _: tf.layers.Dense(2)(tf.placeholder(tf.float32)), "undefined|should be defined"),
        (lambda _: tf.layers.Dense(2).count_params(), "not built yet"),
    ],
)
def test_layers_refuse_wrong_arguments_and_inputs(layer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(tf.placeholder(tf.float32, [None, 8, 8, 3]))


def test_a_layer_makes_its_variables_in_its_own_scope_wherever_it_is_asked() -> None:
    layer = tf.layers.Dense(2, name="d")
    layer.build((None, 3))
    assert names() == ["d/kernel", "d/bias"]
    assert layer.count_params() == 8
    with tf.variable_scope("other"):
        tf.layers.Layer(name="mine").add_variable("w", [1])
    assert names()[2:] == ["other/mine/w"]


def test_a_layer_tells_which_losses_and_updates_are_because_of_inputs() -> None:
    class Counted(tf.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            self.add_loss(tf.reduce_sum(inputs), inputs=inputs)
            self.add_loss(tf.constant(1.0))
            return inputs + 1.0

    layer, first, second = Counted(), tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    layer(first * 2.0)
    layer(second)
    assert len(layer.losses) == 4
    assert layer.get_losses_for(first) == layer.losses[:1]
    assert layer.get_losses_for([second]) == layer.losses[2:3]
    assert len(layer.get_losses_for(None)) == 2
