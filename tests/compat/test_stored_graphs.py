"""Graphs that are stored and recorded again: GraphDefs, files of savers, and SavedModels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

ONES = np.ones((2, 4), np.float32)


def network() -> tuple[Any, Any]:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    alive = tf.random_uniform_initializer(0.1, 1.0)
    hidden = tf.layers.dense(x, 3, tf.nn.relu, kernel_initializer=alive, name="hidden")
    y = tf.nn.softmax(tf.concat([hidden[:, 1:], tf.reduce_mean(hidden, 1, keepdims=True)], 1), name="y")
    return x, y


def random(seed: int | None) -> Any:
    return tf.random_normal([3], seed=seed)


def scaled(value: Any) -> Any:
    return tf.cond(tf.constant(True), lambda: value * 1.5, lambda: tf.constant(0.0))


def recurrent() -> Any:
    cell = tf.nn.rnn_cell.GRUCell(3, kernel_initializer=tf.constant_initializer(0.1))
    return tf.nn.dynamic_rnn(cell, tf.ones([2, 4, 1]), [4, 2], dtype=tf.float32)[0]


STORED: list[tuple[str, Any]] = [
    # what, what records it
    ("a setting that is a dtype", lambda: tf.cast([1.5, 2.5], tf.int32)),
    ("slices", lambda: tf.constant([[1.0, 2.0], [3.0, 4.0]])[:, ::-1][0, 1:]),
    ("several outputs", lambda: tf.split([1.0, 2.0, 3.0, 4.0], 2)[1]),
    ("a list and an axis", lambda: tf.stack([tf.constant([1, 2]), tf.constant([3, 4])], axis=1)),
    ("a string", lambda: tf.nn.max_pool(tf.reshape(tf.range(16.0), [1, 4, 4, 1]), [1, 2, 2, 1], [1, 2, 2, 1], "SAME")),
    ("the value of a shape", lambda: tf.reshape(tf.zeros([2, 3]), [tf.shape(tf.zeros([6]))[0]])),
    ("random numbers", lambda: random(7)),
    ("a placeholder with a default", lambda: tf.placeholder_with_default([1.0], [None]) * 2.0),
    ("complex numbers", lambda: tf.complex(tf.constant(1.0), 2.0)),
    ("a branch", lambda: tf.cond(tf.reduce_sum([1.0, 2.0]) > 2.5, lambda: tf.constant(1.0) * 2.0, lambda: scaled(3.0))),
    ("a loop", lambda: tf.while_loop(lambda i, _: i < 5, lambda i, v: (i + 1, v + scaled(v)), [0, 1.0])[1]),
    ("a recurrent network", lambda: recurrent()),
    ("a map", lambda: tf.map_fn(lambda row: row * scaled(2.0), tf.constant([[1.0, 2.0], [3.0, 4.0]]))),
    ("text", lambda: tf.constant(["a", "bc"])),
]


@pytest.mark.parametrize("make", [make for _, make in STORED], ids=[what for what, _ in STORED])
def test_operations_come_back_from_a_graph_def(make: Any) -> None:
    result = make()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = session.run(result)
    content = tf.get_default_graph().as_graph_def().SerializeToString()
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        (again,) = tf.import_graph_def(tf.GraphDef.FromString(content), return_elements=[result.name], name="")
        assert (again.name, again.dtype, again.shape.as_list()) == (result.name, result.dtype, result.shape.as_list())
        session.run([variable.initializer for variable in graph.variables.values()])
        np.testing.assert_array_equal(session.run(again), expected)


def test_inputs_of_an_imported_graph_can_be_replaced() -> None:
    a = tf.constant(2.0, name="a")
    tf.multiply(a, 3.0, name="b")
    stored = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        b, op = tf.import_graph_def(stored, {"a:0": tf.constant(5.0)}, ["b:0", "b"])
        assert (b.name, op.type, session.run(b)) == ("import/b:0", "Mul", 15.0)
        with pytest.raises(ValueError, match="not found in graph_def"):
            tf.import_graph_def(stored, {"nobody:0": a.graph and tf.constant(1.0)})
        with pytest.raises(ValueError, match="nobody"):
            tf.import_graph_def(stored, return_elements=["nobody"])


def test_what_a_graph_def_cannot_say_refuses_to_run() -> None:
    x = tf.constant(3.0)
    (derivative,) = tf.gradients(x * x, x)
    stored = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        tf.import_graph_def(stored, name="")
        assert graph.get_tensor_by_name(derivative.name).dtype == tf.float32
        with pytest.raises(tf.errors.UnimplementedError, match="Run the code that built the graph"):
            session.run(derivative.name)
        (again,) = tf.gradients(graph.get_tensor_by_name("mul:0"), graph.get_tensor_by_name(x.name))
        assert session.run(again) == 6.0


def test_a_graph_of_tensorflows_with_known_operations_is_imported() -> None:
    stored = tf.GraphDef()
    x = stored.node.add(name="x", op="Placeholder")
    x.attr["dtype"].type = tf.float32.as_datatype_enum
    axis = stored.node.add(name="axis", op="Const")
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1))
    for name, op, inputs in (("m", "MatMul", ["x", "x"]), ("s", "Sum", ["m", "axis"]), ("y", "Relu", ["s"])):
        stored.node.add(name=name, op=op, input=inputs).attr["T"].type = tf.float32.as_datatype_enum
    stored.node[2].attr["transpose_b"].b = True
    stored.node[3].attr["keep_dims"].b = True
    (y,) = tf.import_graph_def(stored, return_elements=["y:0"])
    with tf.Session() as session:
        found = session.run(y, {"import/x:0": [[1.0, 2.0], [3.0, -4.0]]})
    np.testing.assert_array_equal(found, [[0.0], [20.0]])


def test_a_saver_stores_the_graph_beside_the_values(tmp_path: Path) -> None:
    x, y = network()
    tf.add_to_collection("results", y)
    tf.add_to_collection("numbers", 3)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver({"w": tf.global_variables()[0], "b": tf.global_variables()[1]}).save(
            session, tmp_path / "model", global_step=5
        )
        expected = session.run(y, {x: ONES})
    tf.reset_default_graph()
    with tf.Session() as session:
        saver = tf.train.import_meta_graph(path + ".meta")
        saver.restore(session, path)
        graph = tf.get_default_graph()
        assert [v.op.name for v in tf.trainable_variables()] == ["hidden/kernel", "hidden/bias"]
        assert (tf.get_collection("results"), tf.get_collection("numbers")) == ([graph.get_tensor_by_name("y:0")], [3])
        np.testing.assert_array_equal(session.run("y:0", {"x:0": ONES}), expected)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(graph.get_tensor_by_name("y:0")[:, 0]))
        session.run(train, {"x:0": ONES})
        assert np.abs(session.run("y:0", {"x:0": ONES}) - expected).max() > 1e-4
        session.run(tf.global_variables_initializer())
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run("y:0", {"x:0": ONES}), expected)


def test_a_graph_can_be_imported_twice_in_scopes(tmp_path: Path) -> None:
    v = tf.Variable(3.0, name="v")
    tf.multiply(v, 2.0, name="y")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, tmp_path / "model")
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        for scope in ("one", "two"):
            tf.train.import_meta_graph(path + ".meta", import_scope=scope).restore(session, path)
        session.run(tf.assign(tf.global_variables()[1], 5.0))
        assert [v.name for v in tf.global_variables()] == ["one/v:0", "two/v:0"]
        assert session.run(["one/y:0", "two/y:0"]) == [6.0, 10.0]


def test_a_frozen_graph_has_constants_for_variables(tmp_path: Path) -> None:
    x, y = network()
    tf.train.AdamOptimizer().minimize(tf.reduce_sum(y))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        frozen = tf.graph_util.convert_variables_to_constants(session, session.graph_def, ["y"])
        expected = session.run(y, {x: ONES})
    assert not {"VariableV2", "Assign", "grad"} & {node.op for node in frozen.node}
    tf.train.write_graph(frozen, tmp_path, "frozen.pb", as_text=False)
    stored = tf.GraphDef.FromString((tmp_path / "frozen.pb").read_bytes())
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        tf.import_graph_def(stored, name="")
        np.testing.assert_array_equal(session.run("y:0", {"x:0": ONES}), expected)


def branched() -> tuple[Any, Any]:
    training = tf.placeholder(tf.bool, name="training")
    x = tf.placeholder(tf.float32, [2], name="x")
    with tf.name_scope("inner"):
        v = tf.Variable([3.0, 4.0], name="v")
        y = tf.cond(training, lambda: tf.identity(x), lambda: v * 2.0)
    return training, tf.identity(y, name="y")


def test_branches_are_frozen_too() -> None:
    branched()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        frozen = tf.graph_util.convert_variables_to_constants(session, session.graph_def, ["y"])
    stored = tf.graph_util.remove_training_nodes(frozen, ["y"])
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        tf.import_graph_def(stored, name="")
        found = [session.run("y:0", {"training:0": one, "x:0": [1.0, 2.0]}).tolist() for one in (True, False)]
    assert found == [[1.0, 2.0], [6.0, 8.0]]


def test_a_scope_is_exported_with_its_branches() -> None:
    training, _ = branched()
    meta = tf.train.export_meta_graph(export_scope="inner")
    names = [node.name for node in meta.graph_def.node]
    assert "cond/Merge" in names
    outside = {f"$unbound_inputs_{one}": tf.constant(value) for one, value in (("training", False), ("x", [1.0, 2.0]))}
    with pytest.raises(ValueError, match="unbound inputs"):
        tf.train.import_meta_graph(meta, import_scope="other")
    tf.train.import_meta_graph(meta, import_scope="other", input_map=outside)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run("other/cond/Merge:0", {training: True}).tolist() == [6.0, 8.0]


def test_a_graph_is_frozen_with_a_checkpoint(tmp_path: Path) -> None:
    from trainband.compat.tf1.scripts.freeze_graph import freeze_graph

    x, y = network()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, tmp_path / "model")
        tf.train.write_graph(session.graph, tmp_path, "graph.pbtxt")
        expected = session.run(y, {x: ONES})
    output = tmp_path / "frozen.pb"
    freeze_graph(tmp_path / "graph.pbtxt", None, False, path, "y", None, None, output, True, "")
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        tf.import_graph_def(tf.GraphDef.FromString(output.read_bytes()), name="")
        np.testing.assert_array_equal(session.run("y:0", {"x:0": ONES}), expected)


def test_an_event_file_shows_the_graph(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    tf.constant(1.0, name="one")
    tf.summary.FileWriter(tmp_path, tf.get_default_graph(), filename_suffix=".suffix").close()
    (file,) = tmp_path.glob("*.suffix")
    events: list[Event] = list(tf.train.summary_iterator(file))
    assert [node.name for node in tf.GraphDef.FromString(events[1].graph_def).node] == ["one"]


def test_a_saved_model_is_loaded(tmp_path: Path) -> None:
    x, y = network()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, tmp_path / "model", {"images": x}, {"classes": y})
        expected = session.run(y, {x: ONES})
    with tf.Session(graph=tf.Graph()) as session:
        loaded = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], tmp_path / "model")
        signature = loaded.signature_def["serving_default"]
        feeds = {signature.inputs["images"].name: ONES}
        np.testing.assert_array_equal(session.run(signature.outputs["classes"].name, feeds), expected)
    with tf.Session(graph=tf.Graph()) as session:
        with pytest.raises(RuntimeError, match="nobody"):
            tf.saved_model.loader.load(session, ["nobody"], tmp_path / "model")
        with pytest.raises(OSError, match="does not exist"):
            tf.saved_model.loader.load(session, ["serve"], tmp_path / "elsewhere")
