"""What graphs mean: dtypes without shapes, derivatives, threads, loops, and the order of reads and assignments."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from tests.compat.operations_table import TABLE

import trainband.compat.tf1 as tf

NEED_SHAPES = ("stack_unstack", "embedding_parts")
"""How many outputs, or rows, must be known while recording."""


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NEED_SHAPES])
def test_an_operation_has_its_dtype_without_a_known_shape(name: str) -> None:
    call, values = TABLE[name]
    expected = _flat(call(tf, *map(tf.constant, values)))
    found = _flat(call(tf, *(tf.placeholder(np.asarray(value).dtype) for value in values)))
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    for mine, whole in zip(found, expected, strict=True):
        assert mine.shape.is_compatible_with(whole.shape)


@pytest.mark.parametrize(
    ("make", "dtype", "sizes"),
    [
        (lambda x: tf.equal(x, 1.0), tf.bool, None),
        (lambda x: tf.cast(x, tf.bool), tf.bool, None),
        (lambda x: tf.argmax(x, 1), tf.int64, None),
        (lambda x: tf.shape(x), tf.int32, [None]),
        (lambda x: tf.size(x), tf.int32, []),
        (lambda x: tf.reduce_sum(x), tf.float32, []),
        (lambda x: tf.reshape(x, [-1, 3]), tf.float32, [None, 3]),
        (lambda x: tf.greater(x, tf.zeros([2, 3])), tf.bool, None),
        (lambda x: tf.fill(tf.cast(x, tf.int32), tf.constant(1, tf.int64)), tf.int64, None),
    ],
)
def test_what_is_known_without_a_rank(make: Any, dtype: Any, sizes: Any) -> None:
    found = make(tf.placeholder(tf.float32))
    assert (found.dtype, found.shape.sizes) == (dtype, None if sizes is None else tuple(sizes))


def test_unknown_sizes_that_must_be_those_of_another_operand() -> None:
    x = tf.placeholder(tf.float32, [None, None])
    assert tf.equal(x, tf.zeros([3, 4])).dtype == tf.bool
    assert tf.matmul(x, tf.zeros([3, 4])).shape.as_list() == [None, 4]
    assert tf.nn.conv2d(tf.placeholder(tf.float32, [None] * 4), tf.zeros([3, 3, 2, 5]), 1, "SAME").shape[3] == 5
    many = tf.placeholder(tf.float32, [None, None, None])
    assert tf.ones(tf.shape(many)).shape.as_list() == [None] * 3  # without any such array
    labels, logits = tf.placeholder(tf.float32, [64]), tf.placeholder(tf.float32, [None])
    assert tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits).shape.as_list() == [64]
    with pytest.raises(ValueError, match="must have the same shape"):
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.zeros([63]))


def test_batch_normalization_by_a_fed_choice() -> None:
    x, training = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.bool)
    out = tf.layers.batch_normalization(x, training=training)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        data = np.array([[1.0, 2.0], [3.0, 6.0]])
        np.testing.assert_allclose(session.run(out, {x: data, training: False}), data, rtol=1e-3)
        np.testing.assert_allclose(session.run(out, {x: data, training: True}), [[-1, -1], [1, 1]], rtol=1e-3)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _run(fetches: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


def test_derivatives_by_tensors_that_depend_on_each_other() -> None:
    x = tf.constant(1.0)
    y = 2 * x
    z = x + y
    v = tf.Variable(3.0)
    h = v * v
    rows = tf.Variable(np.ones((3, 2), np.float32))
    some = tf.gather(rows, [0, 2])
    again = v.read_value()
    of_rows = tf.gradients(tf.reduce_sum(some * some), [rows, some])
    assert _run(tf.gradients(z, [x, y])) == [3, 1]
    assert _run(tf.gradients([z * y, z], [x, y, z])) == [15, 6, 3]
    assert _run(tf.gradients(h * v, [v, h])) == [27, 3]
    assert _run(tf.gradients(z, [x, y], stop_gradients=[y])) == [1, 1]
    assert _run(tf.gradients(v * again, [again, v])) == [3, 6]
    assert _run(of_rows)[1].tolist() == [[2, 2], [2, 2]]
    assert _run(tf.convert_to_tensor(of_rows[0])).tolist() == [[2, 2], [0, 0], [2, 2]]
    unknown = tf.placeholder_with_default([1.0, 2.0], None)
    twice = unknown * 2
    slopes = tf.gradients(twice * unknown, [unknown, twice])
    assert [one.tolist() for one in _run(slopes)] == [[4, 8], [1, 2]]
    assert _run(tf.gradients(slopes[0] * twice, twice)[0]).tolist() == [6, 12]


def _ran_twice(fetch: Any, feeds: Any, variable: Any) -> list[Any]:
    """What a fetch gives and leaves in a variable, without feeds and with them."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [value for one in (None, feeds) for value in (session.run(fetch, one), session.run(variable))]


def test_a_loop_reads_what_it_has_assigned() -> None:
    v = tf.Variable(2.0)

    def squared(i: Any) -> Any:
        with tf.control_dependencies([tf.assign(v, tf.square(v))]):
            return i + 1

    def either(i: Any) -> Any:
        changed = tf.cond(tf.equal(i % 2, 0), lambda: tf.assign(v, v + 10.0), lambda: tf.assign(v, v * 2.0))
        with tf.control_dependencies([changed]):
            return i + 1

    def summed(i: Any, total: Any) -> Any:
        with tf.control_dependencies([v.assign_add(1.0)]):
            return i + 1, total + v.read_value()

    rounds = tf.placeholder_with_default(4, [])
    for body, result in ((squared, 65536.0), (either, 68.0)):
        loop = tf.while_loop(lambda i: i < rounds, body, [0])
        assert _ran_twice(loop, {rounds: 0}, v) == [4, result, 0, result]
    assert _ran_twice(tf.while_loop(lambda i, _: i < 3, summed, [0, 0.0]), None, v)[0] == (3, 12.0)
    until = tf.while_loop(lambda _: v < 100.0, squared, [0])
    assert _ran_twice(until, None, v) == [3, 256.0, 0, 256.0]


def test_a_branch_assigns_what_the_other_leaves() -> None:
    v, p = tf.Variable(2.0), tf.placeholder_with_default(True, [])

    def assigned() -> Any:
        with tf.control_dependencies([v.assign(7.0)]):
            return tf.constant(1.0)

    def in_loop() -> Any:
        def body(i: Any) -> Any:
            return tf.cond(
                i > 1.0, lambda: tf.tuple([i + 1.0], control_inputs=[v.assign_add(10.0)])[0], lambda: i + 1.0
            )

        return tf.while_loop(lambda i: i < 3.0, body, [0.0])

    unneeded = tf.cond(p, lambda: (v.assign(0.0), tf.constant(3.0))[1], lambda: tf.constant(4.0))
    assert _ran_twice(tf.cond(p, assigned, in_loop), {p: False}, v) == [1, 7, 3, 17]
    grouped = tf.cond(p, lambda: tf.group(v.assign(8.0)), tf.no_op)
    assert _ran_twice(grouped, {p: False}, v) == [True, 8, False, 8]
    assert _ran_twice(unneeded, {p: False}, v) == [3, 2, 4, 2]
    with tf.control_dependencies([v.assign(5.0)]):
        after = tf.cond(p, lambda: v * 2.0, lambda: 0.0)
    assert _run(after) == 10
    late = tf.cond(v.assign(6.0) > 5.0, lambda: v.read_value(), lambda: 0.0)
    assert _run(late) == 6


def test_derivatives_by_variables_that_branches_and_loops_read() -> None:
    v, x = tf.Variable(3.0), tf.constant(2.0)
    loop = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a * v * x), [0, 1.0])[1]
    fed = tf.placeholder_with_default(3, [])
    long = tf.while_loop(lambda i, _: i < fed, lambda i, a: (i + 1, tf.cond(i < 9, lambda: a * v, lambda: a)), [0, x])[
        1
    ]
    assert _run(tf.gradients(loop, [v, x])) == [216, 324]
    assert _run(tf.gradients(long, [v, x])) == [54, 27]
    assert _run(tf.gradients(tf.cond(fed > 0, lambda: v, lambda: x), v)) == [1]
    assigned = tf.while_loop(lambda i: i < 3.0, lambda i: tf.tuple([i + v], control_inputs=[v.assign(1.0)])[0], [x])
    with pytest.raises(NotImplementedError, match="both reads and assigns"):
        tf.gradients(assigned, v)


def test_structures_and_shapes_of_loops() -> None:
    class Flow:
        def __init__(self, flow: Any) -> None:
            self.flow = flow

        def _nest_flatten(self) -> list[Any]:
            return [self.flow]

        def _nest_pack(self, values: list[Any]) -> Flow:
            return Flow(values[0])

    flow = tf.while_loop(lambda f: f.flow < 3, lambda f: Flow(f.flow + 1), [Flow(tf.constant(0))])
    both = tf.cond(tf.constant(True), lambda: {"f": Flow(tf.constant(1))}, lambda: {"f": Flow(tf.constant(2))})
    grown = tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, tf.concat([x, x], 0)), [0, tf.constant([1.0])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])], parallel_iterations=1, swap_memory=True,
    )  # fmt: skip
    assert _run([flow.flow, both["f"].flow]) == [3, 1]
    assert _run(grown[1]).tolist() == [1] * 8
    assert grown[1].shape.as_list() == [None]
    assert isinstance(tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0], return_same_structure=True), list)
    with pytest.raises(ValueError, match="enters the loop with shape"):
        tf.while_loop(lambda x: tf.size(x) < 9, lambda x: tf.concat([x, x], 0), [tf.constant([1.0])])
    rows = tf.cond(
        tf.constant(True),
        lambda: tf.IndexedSlices(tf.constant([2.0]), tf.constant([0])),
        lambda: tf.IndexedSlices(tf.constant([3.0]), tf.constant([1])),
    )
    assert isinstance(rows, tf.IndexedSlices)


def test_counting_up_to_a_limit() -> None:
    v = tf.Variable(0)
    with tf.Session() as session:
        session.run(v.initializer)
        assert [session.run(v.count_up_to(2)), session.run(tf.count_up_to(v, 2))] == [0, 1]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(v.count_up_to(2))
        assert session.run(v) == 2


def test_an_endless_loop_ends_by_an_interrupt() -> None:
    v = tf.Variable(0)
    endless = tf.while_loop(
        lambda i: i >= 0, lambda i: tf.tuple([i * 1], control_inputs=[v.assign_add(1)])[0], [v.read_value()]
    )
    with tf.Session() as session:
        session.run(v.initializer)
        pressed = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            session.run(endless)
        pressed.join()
        assert session.run(v) > 0


def test_each_thread_has_its_own_graph_session_and_scopes() -> None:
    turn = threading.Barrier(2, timeout=30)
    found: dict[int, Any] = {}

    def work(place: int) -> None:
        graph = tf.Graph()
        with graph.as_default(), tf.Session() as session, tf.variable_scope(f"scope{place}"), tf.device("/cpu:0"):
            turn.wait()
            with tf.name_scope(f"inner{place}"), tf.control_dependencies([tf.no_op()]):
                turn.wait()
                x = tf.constant(place, name="x")
                turn.wait()
            v = tf.get_variable("v", [], initializer=tf.constant_initializer(place))
            turn.wait()
            session.run(tf.global_variables_initializer())
            mine = tf.get_default_graph() is graph and tf.get_default_session() is session
            found[place] = mine, x.name, v.name, v.eval()

    threads = [threading.Thread(target=work, args=[place]) for place in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {n: (True, f"scope{n}/inner{n}/x:0", f"scope{n}/v:0", n) for n in (1, 2)}
    assert found == expected
    assert tf.get_default_graph().get_operations() == []


def test_threads_record_into_one_graph_and_run_in_one_session() -> None:
    v = tf.Variable(0)
    graph, added = tf.get_default_graph(), v.assign_add(1)

    def work() -> None:
        with graph.as_default():
            for _ in range(20):
                with tf.name_scope("same"):
                    tf.constant(1)
                session.run(added)

    with tf.Session() as session:
        session.run(v.initializer)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run(v) == 80
    names = [op.name for op in graph.get_operations()]
    assert len(names) == len(set(names)) == len({op.number for op in graph.get_operations()})


def test_an_inner_graph_that_is_also_the_outer_one() -> None:
    first, second = tf.Graph(), tf.Graph()
    with first.as_default(), second.as_default():
        with first.as_default():
            pass
        assert tf.get_default_graph() is second


def test_functions_of_rows() -> None:
    rows, v = tf.placeholder_with_default([1.0, 2.0, 3.0], [None]), tf.Variable(2.0)
    sums = tf.scan(lambda a, x: a + x, rows)
    scaled = tf.map_fn(lambda x: x * v, rows)
    pairs = tf.map_fn(lambda x: (x, tf.cast(x, tf.int32)), rows, dtype=(tf.float32, tf.int32))
    assert _run(sums).tolist() == [1, 3, 6]
    assert _run(tf.scan(lambda a, x: a + x, rows, reverse=True)).tolist() == [6, 5, 3]
    assert _run(tf.scan(lambda a, x: (a[0] + x, a[1] * x), rows, initializer=(1.0, 2.0)))[1].tolist() == [2, 4, 12]
    assert _run([tf.foldl(lambda a, x: a - x, rows), tf.foldr(lambda a, x: a - x, rows, initializer=1.0)]) == [-4, -5]
    assert [one.tolist() for one in _run(pairs)] == [[1, 2, 3], [1, 2, 3]]
    assert [np.sum(one) for one in _run([scaled, *tf.gradients(scaled, [v, rows])])] == [12, 6, 6]
    named = tf.map_fn(
        lambda pair: pair[1] * 2.0, (tf.constant([b"a", b"b"]), tf.constant([1.0, 2.0])), dtype=tf.float32
    )
    assert _run(named).tolist() == [2, 4]
    counted = tf.map_fn(lambda x: tf.tuple([x], control_inputs=[v.assign_add(x)])[0], rows)
    assert _ran_twice(counted, {rows: [5.0]}, v)[1::2] == [8, 13]
    with pytest.raises(ValueError, match="not scalars"):
        tf.map_fn(lambda x: x, 3.0)
    with pytest.raises(ValueError, match="say which by dtype"):
        tf.map_fn(lambda x: x > 0, rows)


def test_branches_by_number() -> None:
    n = tf.placeholder(tf.int32, [])
    ten, twenty = (lambda: tf.constant(10)), (lambda: tf.constant(20))
    listed = tf.switch_case(n, [ten, twenty])
    named = tf.switch_case(n, {4: ten, 7: twenty}, default=lambda: tf.constant(-1))
    bare = tf.case({tf.equal(n, 4): ten, tf.equal(n, 7): twenty})
    with tf.Session() as session:
        assert session.run([listed, named], {n: 0}) == [10, -1]
        assert session.run([listed, named, bare], {n: 7}) == [20, 20, 20]
        with pytest.raises(tf.errors.InvalidArgumentError, match="None of the conditions"):
            session.run(bare, {n: 1})


def test_second_derivatives_of_any_shape_and_rows_as_weights() -> None:
    matrix, x = tf.constant([[1.0, 2.0]]), tf.constant([1.0, 2.0])
    rows = tf.IndexedSlices(tf.constant([5.0]), tf.constant([1]), tf.constant([2]))
    assert _run(tf.hessians(matrix**3, matrix)[0]).tolist() == [[[[6, 0]], [[0, 12]]]]
    assert _run(tf.gradients(x * 3.0, x, grad_ys=rows)[0]).tolist() == [0, 15]
    unconnected = tf.gradients(tf.constant(1.0), x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert _run(unconnected[0]).tolist() == [0, 0]


def test_derivatives_of_the_scripts_own() -> None:
    graph, x, v = tf.get_default_graph(), tf.constant(2.0), tf.Variable(3.0)

    def softplus(x: Any) -> Any:
        e = tf.exp(x)
        return tf.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    def scaled(x: Any) -> Any:
        def derivative(dy: Any, variables: Any) -> Any:
            return dy * 5.0, [dy * 7.0 for _ in variables]

        return x * v, derivative

    name = f"own {id(graph)}"
    tf.RegisterGradient(name)(lambda op, slope: slope * op.inputs[0] * 100.0)
    with graph.gradient_override_map({"PyFunc": name, "Sign": name}):
        called = tf.py_func(lambda a: a, [x], tf.float32)
        called.set_shape([])
        both = called + tf.sign(x)
    large = tf.constant(100.0)
    cubed = tf.custom_gradient(lambda x: (x * x * x, lambda dy: dy * 3.0 * x * x))
    (slope,) = tf.gradients(cubed(x), x)
    assert _run(tf.gradients(tf.custom_gradient(softplus)(large), large)) == [1]
    assert _run([slope, *tf.gradients(slope, x)]) == [12, 12]
    assert _run(tf.gradients(tf.custom_gradient(scaled)(x), [x, v])) == [5, 7]
    assert _run(tf.gradients(both, x)) == [400]
    with pytest.raises(KeyError):
        tf.RegisterGradient(name)(abs)
    with graph.gradient_override_map({"Exp": "nobody"}), pytest.raises(LookupError):
        tf.exp(x)


def test_what_graphs_say_of_themselves() -> None:
    graph, x = tf.get_default_graph(), tf.placeholder(tf.float32, [], name="x")
    y = tf.add(x, x, name="y")
    graph.add_to_collections(["a", "b"], y)
    graph.clear_collection("a")
    assert graph.get_all_collection_keys() == ["b"]
    assert [(node.name, node.op, node.input) for node in graph.as_graph_def().node][1] == ("y", "Add", ["x", "x"])
    for name, error in (("y", ValueError), ("y:1", KeyError), ("z:0", KeyError), (y, TypeError)):
        with pytest.raises(error):
            graph.get_tensor_by_name(name)
    graph.prevent_feeding(x)
    graph.prevent_fetching(y.op)
    with tf.Session() as session:
        with pytest.raises(ValueError, match="may not be fed"):
            session.run(x, {x: 1.0})
        with pytest.raises(ValueError, match="not fetchable"):
            session.run(y)


def test_a_constant_waits_for_what_it_depends_on() -> None:
    v = tf.Variable(1.0)
    with tf.control_dependencies([v.assign(2.0)]):
        constant = tf.constant(5)
    assert _ran_twice(constant, None, v)[:2] == [5, 2]
