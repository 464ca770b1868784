"""Savers, session managers, supervisors, scaffolds and clusters: the same calls and errors as TensorFlow's.

Nothing here but the front end is imported, so that the file also runs against TensorFlow itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf


@pytest.fixture(autouse=True)
def _fresh_graph() -> Iterator[None]:
    tf.reset_default_graph()
    yield
    tf.reset_default_graph()


# --- savers


def saved(directory: Path, **values: Any) -> str:
    """A checkpoint of these variables."""
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in values.items():
            tf.get_variable(name, initializer=tf.constant(value))
        session.run(tf.global_variables_initializer())
        path: str = tf.train.Saver().save(session, str(directory / "model.ckpt"))
    return path


def test_an_export_has_the_variables_and_is_written_once(tmp_path: Path) -> None:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    y = tf.matmul(x, tf.get_variable("w", initializer=tf.ones([2, 1])), name="y")
    exported = str(tmp_path / "exported")
    builder = tf.saved_model.builder.SavedModelBuilder(exported)
    info = tf.saved_model.utils.build_tensor_info(y)
    assert (info.name, info.dtype) == ("y:0", "float32" if isinstance(info.dtype, str) else 1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(AssertionError, match="invoke `add_meta_graph_and_variables"):
            builder.add_meta_graph([tf.saved_model.tag_constants.SERVING])
        signatures = {"predict": tf.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})}
        builder.add_meta_graph_and_variables(session, [tf.saved_model.tag_constants.SERVING], signatures)
        with pytest.raises(AssertionError, match="has already been saved"):
            builder.add_meta_graph_and_variables(session, [tf.saved_model.tag_constants.TRAINING])
        builder.add_meta_graph([tf.saved_model.tag_constants.TRAINING])
        assert Path(builder.save().decode()).is_file()
        assert tf.saved_model.loader.maybe_saved_model_directory(exported)
        with pytest.raises(AssertionError, match="already exists, and isn't empty"):
            tf.saved_model.simple_save(session, exported, {"x": x}, {"y": y})


def test_a_checkpoint_is_read_without_a_graph(tmp_path: Path) -> None:
    path = saved(tmp_path, w=np.ones((2, 3), np.float32), n=np.int64(4))
    reader = tf.train.NewCheckpointReader(path)
    assert reader.get_variable_to_shape_map() == {"w": [2, 3], "n": []}
    assert reader.get_variable_to_dtype_map() == {"w": tf.float32, "n": tf.int64}
    assert reader.has_tensor("w")
    assert not reader.has_tensor("other")
    assert reader.get_tensor("w").tolist() == [[1.0] * 3] * 2
    assert "w (DT_FLOAT) [2,3]" in str(reader.debug_string())
    with pytest.raises(tf.errors.NotFoundError, match="other not found in checkpoint"):
        tf.train.load_variable(tmp_path, "other")
    with pytest.raises(tf.errors.NotFoundError):
        tf.train.NewCheckpointReader(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="Couldn't find 'checkpoint' file or checkpoints in given directory"):
        tf.train.list_variables(tmp_path.parent)
    assert tf.train.load_checkpoint(str(tmp_path)).has_tensor("n")
    (time,) = tf.train.get_checkpoint_mtimes([path])
    assert time > 1e9
    tf.train.remove_checkpoint(path)
    assert not tf.train.checkpoint_exists(path)


def test_variables_begin_with_values_of_a_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path, **{"a": np.float32(1.0), "old/b": np.float32(2.0), "old/c": np.float32(3.0)})
    a = tf.get_variable("mine", [], initializer=tf.zeros_initializer())
    with tf.variable_scope("new"):
        b, c = (tf.get_variable(name, [], initializer=tf.zeros_initializer()) for name in "bc")
    tf.train.init_from_checkpoint(path, {"a": a})
    tf.train.init_from_checkpoint(str(tmp_path), {"old/": "new/"})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run([a, b, c]) == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="Tensor nowhere is not found in"):
        tf.train.init_from_checkpoint(path, {"nowhere": a})
    wide = tf.get_variable("wide", [2])
    with pytest.raises(ValueError, match="Shape of variable wide"):
        tf.train.init_from_checkpoint(path, {"a": wide})


def test_how_savers_name_and_keep(tmp_path: Path) -> None:
    step = tf.train.get_or_create_global_step()
    count = tf.assign_add(step, 1)
    other = tf.get_variable("other", [], initializer=tf.constant_initializer(5.0))
    saver, every = tf.train.Saver({"renamed": other}, max_to_keep=2), tf.train.Saver(max_to_keep=None)
    with pytest.raises(ValueError, match="At least two variables have the same name"):
        tf.train.Saver([other, other])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        paths = []
        for _ in range(3):
            session.run(count)
            paths.append(saver.save(session, str(tmp_path / "m"), global_step=step, latest_filename="mine"))
            every.save(session, str(tmp_path / "every"), global_step=step)
        assert saver.last_checkpoints == paths[1:]
        assert every.last_checkpoints == []
        assert tf.train.checkpoint_exists(str(tmp_path / "every-1"))
        assert tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths == [str(tmp_path / "every-3")]
        assert tf.train.latest_checkpoint(str(tmp_path), "mine") == str(tmp_path / "m-3")
        assert tf.train.list_variables(paths[-1]) == [("renamed", [])]
        with pytest.raises(ValueError, match="must not contain path components"):
            saver.save(session, str(tmp_path / "m"), latest_filename="a/b")
    again = tf.train.Saver({"renamed": other}, max_to_keep=2)
    again.recover_last_checkpoints([*paths, str(tmp_path / "gone")])
    assert again.last_checkpoints == paths[1:]
    again.set_last_checkpoints_with_time([(paths[1], 0.0)])
    assert again.last_checkpoints == paths[1:2]
    with pytest.raises(ValueError, match="Can't load save_path when it is None"):
        again.restore(tf.Session(), None)


def test_a_graph_is_described_in_a_file(tmp_path: Path) -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    meta = tf.train.export_meta_graph(str(tmp_path / "a.meta"))
    assert w.op.name in [node.name for node in meta.graph_def.node]
    assert tf.train.Saver().export_meta_graph(str(tmp_path / "b.meta")) is not None
    assert (tmp_path / "a.meta").exists()
    assert (tmp_path / "b.meta").exists()


# --- session managers


def test_a_session_manager_initialises_or_recovers(tmp_path: Path) -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    local = tf.get_variable("local", [], initializer=tf.zeros_initializer(), collections=["local_variables"])
    init, saver = tf.global_variables_initializer(), tf.train.Saver([w])
    given: list[float] = []
    manager = tf.train.SessionManager(
        local_init_op=tf.local_variables_initializer(), ready_op=tf.report_uninitialized_variables()
    )
    session, is_restored = manager.recover_session("", saver, str(tmp_path))
    assert not is_restored
    with pytest.raises(RuntimeError, match="Model is not initialized and no init_op or init_fn or local_init_op"):
        tf.train.SessionManager(ready_op=tf.report_uninitialized_variables()).prepare_session("")
    session = manager.prepare_session("", init, saver, str(tmp_path), init_fn=lambda s: given.append(s.run(w)))
    assert (given, session.run(local)) == ([1.0], 0.0)
    saver.save(session, str(tmp_path / "model"), global_step=3)
    session, is_restored = manager.recover_session("", saver, str(tmp_path))
    assert (is_restored, session.run([w, local])) == (True, [1.0, 0.0])
    session = manager.prepare_session("", init, saver, checkpoint_filename_with_path=str(tmp_path / "model-3"))
    assert given == [1.0]
    partial = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables())
    with pytest.raises(RuntimeError, match=r"Init operations did not make model ready.*local"):
        partial.prepare_session("", init)


def test_waiting_for_a_session_ends() -> None:
    tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), recovery_wait_secs=0.05)
    with pytest.raises(tf.errors.DeadlineExceededError, match="Session was not ready after waiting 0 secs"):
        manager.wait_for_session("", max_wait_secs=0.1)


def test_what_is_not_ready_is_said() -> None:
    v = tf.get_variable("v", [], initializer=tf.constant_initializer(1.0))
    tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    ready = tf.report_uninitialized_variables([v])
    scaffold = tf.train.Scaffold(init_op=v.initializer, ready_op=ready, ready_for_local_init_op=ready)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold)) as session:
        assert session.run(v) == 1.0
    strict = tf.train.Scaffold(init_op=v.initializer)
    with pytest.raises(RuntimeError, match=r"Init operations did not make model ready.*w"):
        tf.train.MonitoredSession(tf.train.ChiefSessionCreator(strict))


def test_scaffolds_take_over_and_find_what_they_need() -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    order: list[str] = []
    assign = w.assign(5.0)
    first = tf.train.Scaffold(init_fn=lambda _, session: order.append(f"first {session.run(w)}"), local_init_op=assign)
    second = tf.train.Scaffold(copy_from_scaffold=first)
    assert second.local_init_op is assign
    assert second.finalize() is second
    for member in ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "saver"):
        assert getattr(second, member) is not None, member
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(second)) as session:
        assert session.run(w) == 5.0
    assert order == ["first 1.0"]
    tf.get_default_graph()._unsafe_unfinalize()  # noqa: SLF001 - what scripts use
    third = tf.train.Scaffold(copy_from_scaffold=first, init_fn=lambda _, __: order.append("third"))
    third.init_fn(None)
    assert order == ["first 1.0", "third"]
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    for _ in range(2):
        assert tf.train.Scaffold.get_or_default("arg", "some collection", make) == 1
    with pytest.raises(TypeError, match="copy_from_scaffold is not a Scaffold instance"):
        tf.train.Scaffold(copy_from_scaffold=3)


# --- supervisors


def test_a_supervisor_runs_loops_and_services(tmp_path: Path) -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    step = tf.train.get_or_create_global_step()
    count = tf.assign_add(step, 1)
    tf.summary.scalar("w", w)
    sv = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0, summary_op=None)
    assert (sv.ready_op is not None, sv.ready_for_local_init_op, sv.summary_op) == (True, None, None)
    assert sv.save_path == str(tmp_path / "model.ckpt")
    assert (sv.save_summaries_secs, sv.save_model_secs, sv.init_feed_dict) == (120, 0, None)
    assert sv.session_manager is not None
    called = threading.Event()
    with sv.managed_session() as session:
        looper = sv.loop(0.01, lambda value, more: called.set() if value == more else None, (1,), {"more": 1})
        for _ in range(200):
            session.run(count)
            if called.wait(0.01):
                break
        sv.summary_computed(session, tf.summary.Summary(value=[tf.summary.Summary.Value(tag="mine", simple_value=1.0)]))
        assert sv.start_queue_runners(session) == []
        sv.saver.save(session, sv.save_path, global_step=sv.global_step)
    assert called.is_set()
    looper.join(10)
    assert sv.should_stop()
    with pytest.raises(RuntimeError, match="Writing a summary requires a summary writer"):
        tf.train.Supervisor(graph=tf.Graph(), saver=None, summary_op=None).summary_computed(None, None)


def fail(error: Exception) -> None:
    """Raises an error."""
    raise error


def test_errors_leave_a_managed_session_and_the_end_of_data_does_not() -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    for error in (tf.errors.OutOfRangeError(None, None, "end"), ZeroDivisionError("wrong")):
        tf.get_default_graph()._unsafe_unfinalize()  # noqa: SLF001 - what scripts use
        sv = tf.train.Supervisor(ready_op=None, local_init_op=None)
        assert sv.summary_writer is None
        try:
            with sv.managed_session() as session, sv.stop_on_exception():
                session.run(w)
                fail(error)
        except ZeroDivisionError:
            assert not isinstance(error, tf.errors.OpError)
        else:
            assert isinstance(error, tf.errors.OutOfRangeError)


def test_a_supervisor_takes_what_it_is_given() -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    x = tf.placeholder(tf.float32, [])
    step = tf.get_variable("mine", [], tf.int64, tf.zeros_initializer(), trainable=False)
    init = tf.group(w.assign(x), step.initializer)
    sv = tf.train.Supervisor(
        init_op=init, init_feed_dict={x: 4.0}, global_step=step, saver=None, logdir=None, ready_op=None,
        init_fn=lambda session: session.run(w),
    )  # fmt: skip
    assert (sv.saver, sv.global_step) == (None, step)
    with sv.managed_session() as session:
        assert session.run(w) == 4.0
    assert tf.train.Supervisor.USE_DEFAULT == 0


def test_the_basic_train_loop() -> None:
    step = tf.train.get_or_create_global_step()
    count = tf.assign_add(step, 1)
    sv = tf.train.Supervisor()

    def train(session: Any, least: int, *, more: int) -> None:
        if session.run(count) >= least + more:
            sv.request_stop()

    tf.train.basic_train_loop(sv, train, args=(2,), kwargs={"more": 1})
    assert sv.should_stop()


# --- clusters


def test_clusters_in_every_form() -> None:
    spec = tf.train.ClusterSpec({"trainer": {1: "b:1", 7: "c:1"}, "ps": ["a:1"]})
    assert spec.as_dict() == {"trainer": {1: "b:1", 7: "c:1"}, "ps": ["a:1"]}
    assert spec.job_tasks("trainer") == [None, "b:1", None, None, None, None, None, "c:1"]
    assert (spec.task_indices("trainer"), spec.num_tasks("trainer")) == ([1, 7], 2)
    assert sorted(spec.jobs) == ["ps", "trainer"]
    message = spec.as_cluster_def()
    assert [(job.name, dict(job.tasks)) for job in message.job] == [
        ("ps", {0: "a:1"}),
        ("trainer", {1: "b:1", 7: "c:1"}),
    ]
    assert tf.train.ClusterSpec(message) == spec
    assert spec != tf.train.ClusterSpec({"ps": ["a:1"]})
    assert spec
    assert not tf.train.ClusterSpec({})
    made = tf.train.ClusterDef()
    job = made.job.add()
    job.name = "worker"
    job.tasks[0] = "d:1"
    assert tf.train.ClusterSpec(made).as_dict() == {"worker": ["d:1"]}
    server = tf.train.ServerDef(cluster=made, job_name="worker", task_index=0, protocol="grpc")
    assert (server.cluster.job[0].name, server.job_name, server.task_index) == ("worker", "worker", 0)
    for wrong in ({"ps": "a:1"}, {"ps": [1]}, "a:1"):
        with pytest.raises(TypeError):
            tf.train.ClusterSpec(wrong)


def test_a_local_server() -> None:
    server = tf.train.Server.create_local_server()
    assert (server.server_def.job_name, server.server_def.task_index) == ("localhost", 0)
    assert [job.name for job in server.server_def.cluster.job] == ["localhost"]
    assert server.server_def.protocol == "grpc"
    count = tf.Variable(2)
    with tf.Session(server.target) as session:
        session.run(count.initializer)
        session.run(count.assign_add(1))
    with tf.Session(server.target) as session:  # a server's variables outlive its sessions
        assert session.run(count) == 3


def test_devices_of_replicas() -> None:
    setter = tf.train.replica_device_setter
    spec = tf.train.ClusterSpec({"store": ["a:1", "b:1"], "worker": ["c:1"]})
    with tf.device(setter(ps_device="/job:store/cpu:0", worker_device="/job:worker/task:0/gpu:1", cluster=spec)):
        v, w = tf.Variable(0.0), tf.Variable(0.0)
        total = v + w
    assert [v.device, w.device] == ["/job:store/task:0/device:CPU:0", "/job:store/task:1/device:CPU:0"]
    assert total.device == "/job:worker/task:0/device:GPU:1"
    with tf.device(setter(ps_tasks=2, ps_ops=["Const"], ps_strategy=lambda _: 1)):
        c = tf.constant(1.0)
        v = tf.Variable(0.0)
    assert (c.device, v.device) == ("/job:ps/task:1", "/job:worker")
    with tf.device(setter(cluster=spec.as_cluster_def(), ps_device="/job:store")):
        assert tf.Variable(0.0).device == "/job:store/task:0"
    with pytest.raises(TypeError, match="ps_strategy must be callable"):
        setter(ps_tasks=1, ps_strategy=3)


WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4)
CUTS = [(None, 0), (2, 0), (4, 0), (2, 1), (3, 1)]
"""Into how many parts a variable is cut, and along which axis."""


def _cut(parts: int | None, axis: int) -> tuple[Any, list[Any]]:
    """The whole of a variable, and what an optimizer keeps for it."""
    tf.reset_default_graph()
    cut = None if parts is None else tf.fixed_size_partitioner(parts, axis)
    variable = tf.get_variable("v", initializer=tf.constant(WHOLE), partitioner=cut)
    optimizer = tf.train.MomentumOptimizer(0.5, 0.9)
    optimizer.minimize(tf.nn.l2_loss(tf.convert_to_tensor(variable)), name="train")
    pieces = [variable] if parts is None else list(variable)
    slots = [optimizer.get_slot(piece, "momentum") for piece in pieces]
    return tf.convert_to_tensor(variable), tf.concat([tf.convert_to_tensor(slot) for slot in slots], axis)


@pytest.mark.parametrize("saved", CUTS)
def test_a_partitioned_variable_and_its_slots_are_restored_however_they_are_cut(saved: Any, tmp_path: Path) -> None:
    wanted = _cut(*saved)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run("train")
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
        before = session.run(wanted)
    assert dict(tf.train.list_variables(path)) == {"v": [6, 4], "v/Momentum": [6, 4]}
    for restored in CUTS:
        found = _cut(*restored)
        with tf.Session() as session:
            tf.train.Saver().restore(session, path)
            for one, other in zip(before, session.run(found), strict=True):
                np.testing.assert_array_equal(one, other)
    _cut(3, 0)
    stored = tf.train.export_meta_graph()
    tf.reset_default_graph()
    saver = tf.train.import_meta_graph(stored)
    with tf.Session() as session:
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run("v/part_1:0"), before[0][2:4])


def test_variables_begin_with_those_of_another_model_and_vocabulary(tmp_path: Path) -> None:
    path = saved(tmp_path, old=WHOLE, classes=WHOLE.T, bias=np.ones(3, np.float32))
    (tmp_path / "old.txt").write_text("a\nb\nc\nd\ne\nf\n")
    (tmp_path / "new.txt").write_text("f\nx\na\n")
    tf.reset_default_graph()
    with tf.variable_scope("", partitioner=tf.fixed_size_partitioner(2)):
        rows = tf.get_variable("rows", [4, 4])
    columns, bias = tf.get_variable("classes", [4, 3]), tf.get_variable("bias", [3])
    other = tf.get_variable("other", initializer=5.0)
    words = tf.train.VocabInfo(
        str(tmp_path / "new.txt"), 3, 1, str(tmp_path / "old.txt"), backup_initializer=tf.constant_initializer(7.0)
    )
    classes = tf.train.VocabInfo(str(tmp_path / "new.txt"), 3, 0, str(tmp_path / "old.txt"), 5, axis=1)
    for wanted, prev in (("missing", {}), (".*", {"nobody": "old"})):
        with pytest.raises((ValueError, tf.errors.NotFoundError), match=r"not used|not found"):
            tf.train.warm_start(path, wanted, {"rows": words}, prev)
    tf.train.warm_start(path, "rows|classes|bias", {"rows": words, "classes": classes}, {"rows": "old"})
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run([tf.convert_to_tensor(rows), columns, bias, other])
    np.testing.assert_array_equal(found[0], [WHOLE[5], [7] * 4, WHOLE[0], [7] * 4])
    np.testing.assert_array_equal(found[1], np.stack([[0] * 4, [0] * 4, WHOLE[0]], 1))
    assert (found[2].tolist(), found[3]) == ([1, 1, 1], 5)
