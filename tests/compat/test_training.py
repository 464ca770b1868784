"""Savers, hooks, monitored sessions, supervisors and summaries, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

import trainband.compat.tf1 as tf


def read_events(directory: Path) -> list[Event]:
    """All events of a directory, in the order of the files."""
    paths = sorted(directory.glob("events.out.tfevents.*"))
    return [event for path in paths for event in tf.train.summary_iterator(str(path))]


def line() -> tuple[Any, Any, Any]:
    """(train operation, loss, weight): one step of 0.1 down a parabola."""
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    loss = tf.square(w)
    step = tf.train.get_or_create_global_step()
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss, step), loss, w


# --- savers


def test_a_saver_keeps_the_newest_and_gives_everything_back(tmp_path: Path) -> None:
    w = tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="w")
    n = tf.Variable(np.int64(1 << 40), name="n")
    with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
        tf.get_variable("table", [5, 2])
    saver = tf.train.Saver(max_to_keep=2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        table = session.run(tf.concat([v.read_value() for v in tf.global_variables() if "part" in v.name], 0))
        paths = [saver.save(session, str(tmp_path / "model"), global_step=step) for step in (1, 2, 3)]
    assert tf.train.latest_checkpoint(tmp_path) == paths[-1] == str(tmp_path / "model-3")
    state = tf.train.get_checkpoint_state(tmp_path)
    assert state.all_model_checkpoint_paths == paths[1:] == saver.last_checkpoints
    assert not tf.train.checkpoint_exists(paths[0])
    (tmp_path / "plain").touch()
    files = [path for path in tmp_path.iterdir() if path.name.startswith("model-3")]
    assert {path.stat().st_mode for path in files} == {(tmp_path / "plain").stat().st_mode}
    assert tf.train.list_variables(tmp_path) == [("n", []), ("p/table", [5, 2]), ("w", [2, 3])]
    with tf.Session() as session:
        saver.restore(session, paths[-1])
        assert session.run(w).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert session.run(n) == 1 << 40
        again = session.run(tf.concat([v.read_value() for v in tf.global_variables() if "part" in v.name], 0))
    np.testing.assert_array_equal(again, table)


def test_what_a_saver_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No variables to save"):
        tf.train.Saver()
    w = tf.Variable(tf.zeros([2]), name="w")
    other = tf.Variable(tf.zeros([3]), name="other")
    path = str(tmp_path / "model")
    with tf.Session() as session:
        saver = tf.train.Saver([w])
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value w"):
            saver.save(session, path)
        session.run(w.initializer)
        with pytest.raises(ValueError, match="Parent directory"):
            saver.save(session, str(tmp_path / "nowhere" / "model"))
        saver.save(session, path)
        with pytest.raises(tf.errors.NotFoundError, match="Key other not found"):
            tf.train.Saver().restore(session, path)
        with pytest.raises(tf.errors.InvalidArgumentError, match="shapes of both tensors to match"):
            tf.train.Saver({"w": other}).restore(session, path)
        with pytest.raises(ValueError, match="not a valid checkpoint"):
            saver.restore(session, str(tmp_path / "nothing"))
        Path(f"{path}.safetensors").write_bytes(b"damaged")
        with pytest.raises(tf.errors.DataLossError):
            saver.restore(session, path)
    assert tf.train.latest_checkpoint(tmp_path / "nowhere") is None


def test_a_saver_knows_the_variables_that_there_were_when_it_was_made(tmp_path: Path) -> None:
    tf.Variable(1.0, name="first")
    saver, later = tf.train.Saver(), tf.train.Saver(defer_build=True)
    tf.Variable(2.0, name="second")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "model"))
        assert tf.train.list_variables(path) == [("first", [])]
        saver.restore(session, path)
        later.build()
        assert tf.train.list_variables(later.save(session, str(tmp_path / "later"))) == [("first", []), ("second", [])]


def test_moving_averages_are_restored_into_their_variables(tmp_path: Path) -> None:
    w = tf.Variable(1.0, name="w")
    average = tf.train.ExponentialMovingAverage(0.5)
    apply = average.apply([w])
    saver = tf.train.Saver(average.variables_to_restore())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(w.assign(3.0))
        session.run(apply)
        assert session.run(average.average(w)) == 2.0
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
        saver.restore(session, path)
        assert session.run(w) == 2.0
    assert average.average_name(w) == "w/ExponentialMovingAverage"


# --- hooks and monitored sessions


class Noting(tf.train.SessionRunHook):  # type: ignore[misc]
    """Notes what is called."""

    def __init__(self, fetch: Any = None) -> None:
        self.calls: list[str] = []
        self.values: list[Any] = []
        self.fetch = fetch

    def begin(self) -> None:
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.calls.append("created")
        assert not coord.should_stop()
        assert session.graph.finalized

    def before_run(self, run_context: Any) -> Any:
        self.calls.append("before")
        assert run_context.original_args.fetches is not None
        return tf.train.SessionRunArgs(self.fetch)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        assert not run_context.stop_requested
        self.calls.append("after")
        self.values.append(run_values.results)

    def end(self, session: Any) -> None:
        assert session.graph.finalized
        self.calls.append("end")


def test_hooks_are_called_in_turn_and_a_checkpoint_goes_on(tmp_path: Path) -> None:
    train, loss, w = line()
    tf.summary.scalar("loss", loss)
    noting = Noting(loss)
    hooks = [noting, tf.train.StopAtStepHook(last_step=5)]
    with tf.train.MonitoredTrainingSession(checkpoint_dir=tmp_path, hooks=hooks, save_summaries_steps=2) as session:
        while not session.should_stop():
            assert session.run([train, None][:1]) == [None]
        final = session.raw_session().run(w)
    assert noting.calls == ["begin", "created", *["before", "after"] * 5, "end"]
    assert noting.values == pytest.approx([0.64**n for n in range(5)])
    with pytest.raises(RuntimeError, match="closed"):
        session.run(train)
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-5")

    tf.reset_default_graph()
    train, loss, w = line()
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[tf.train.StopAtStepHook(num_steps=2)]
    ) as session:
        assert session.run(w) == final
        count = 0
        while not session.should_stop():
            session.run(train)
            count += 1
    assert count == 2
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-7")
    steps = {
        event.step: value.simple_value
        for event in read_events(tmp_path)
        for value in event.summary.value
        if value.tag == "loss"
    }
    assert steps[1] == pytest.approx(1.0)
    assert len(steps) >= 3


def test_an_error_ends_a_session_without_the_hooks_ends_and_the_end_of_data_does_not() -> None:
    train, _, _ = line()
    noting = Noting()

    def leave_by(error: Exception) -> None:
        with tf.train.MonitoredTrainingSession(hooks=[noting]) as session:
            session.run(train)
            raise error

    with pytest.raises(ZeroDivisionError):
        leave_by(ZeroDivisionError())
    assert "end" not in noting.calls
    leave_by(tf.errors.OutOfRangeError(None, None, "no more data"))
    assert noting.calls[-1] == "end"


def test_stock_hooks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train, loss, _ = line()
    nan = tf.placeholder_with_default(tf.constant(1.0), [], name="maybe")
    final = tf.train.FinalOpsHook(loss)
    tf.logging.set_verbosity(tf.logging.INFO)
    hooks = [
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=2),
        tf.train.StepCounterHook(every_n_steps=2, output_dir=tmp_path),
        tf.train.NanTensorHook(nan, fail_on_nan_loss=False),
        tf.train.GlobalStepWaiterHook(0),
        final,
    ]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        for _ in range(4):
            session.run(train)
        assert not session.should_stop()
        session.run(train, {nan: np.nan})
        assert session.should_stop()
    said = capsys.readouterr().err
    assert said.count("INFO:tensorflow:loss = ") == 3
    assert "global_step/sec" in said
    assert "Model diverged with loss = NaN" in said
    assert final.final_ops_values == pytest.approx(0.64**5)
    tags = [value.tag for event in read_events(tmp_path) for value in event.summary.value]
    assert "global_step/sec" in tags
    failing = tf.train.NanTensorHook(nan)
    with pytest.raises(tf.train.NanLossDuringTrainingError), tf.train.SingularMonitoredSession([failing]) as session:
        session.run(train, {nan: np.nan})


def test_hooks_say_what_they_need() -> None:
    with pytest.raises(ValueError, match="One and only one"):
        tf.train.StopAtStepHook(num_steps=1, last_step=1)
    with pytest.raises(RuntimeError, match="Global step should be created"):
        tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(1)])


def test_an_unnamed_step_of_minimize_is_the_global_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TensorFlow raises here; tutorials write just this."""
    for last in (3, 5):
        tf.reset_default_graph()
        step = tf.Variable(0)
        w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(w), global_step=step)
        hooks = [tf.train.StopAtStepHook(last_step=last)]
        settings: Any = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 1, "hooks": hooks}
        with tf.train.MonitoredTrainingSession(**settings) as session:
            first = session.run(step)
            while not session.should_stop():
                session.run(train)
        assert capsys.readouterr().err.count("Variable:0, in which minimize() counts its steps, is taken for the") == 1
    assert first == 3  # resumed
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-5")


def test_of_two_steps_none_is_the_global_step() -> None:
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    for name in ("a", "b"):
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(w), global_step=tf.Variable(0, name=name))
    with pytest.raises(RuntimeError, match=r"counts steps in several variables: a:0, b:0; make one of them with"):
        tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(1)])


def test_a_scaffold_with_functions_of_its_own(tmp_path: Path) -> None:
    v = tf.Variable(1.0, name="v")
    w = tf.Variable(2.0, name="w")
    assign = v.assign(7.0)
    scaffold = tf.train.Scaffold(init_op=v.initializer, init_fn=lambda _, session: session.run(assign))
    with pytest.raises(RuntimeError, match="Variables not initialized: w"):
        tf.train.MonitoredTrainingSession(scaffold=scaffold)
    tf.get_default_graph().unfinalize()
    scaffold = tf.train.Scaffold(init_fn=lambda _, session: session.run(assign))
    with tf.train.MonitoredTrainingSession(scaffold=scaffold, checkpoint_dir=None) as session:
        assert session.run([v, w]) == [7.0, 2.0]
        assert session.run_step_fn(lambda step_context: step_context.session.run(w)) == 2.0
    del tmp_path


def test_a_supervisor_saves_and_goes_on(tmp_path: Path) -> None:
    for expected in (0, 3):
        tf.reset_default_graph()
        train, _, _ = line()
        supervisor = tf.train.Supervisor(logdir=tmp_path / "run", save_model_secs=600)
        with supervisor.managed_session() as session:
            assert session.run(supervisor.global_step) == expected
            for _ in range(3):
                session.run(train)
            supervisor.request_stop()
            assert supervisor.should_stop()
    assert tf.train.latest_checkpoint(tmp_path / "run") == str(tmp_path / "run" / "model.ckpt-6")
    assert tf.train.Supervisor(graph=tf.Graph(), saver=None, summary_op=None).is_chief


# --- summaries


def test_summaries_are_tensorboards(tmp_path: Path) -> None:
    x = tf.placeholder(tf.float32, [None], name="x")
    with tf.name_scope("scope"):
        tf.summary.scalar("average", tf.reduce_mean(x))
    tf.summary.histogram("values", x)
    tf.summary.image("picture", tf.reshape(x, [1, 2, 2, 1]))
    merged = tf.summary.merge_all()
    with tf.Session() as session, tf.summary.FileWriter(str(tmp_path), session.graph) as writer:
        text, total = session.run([merged, tf.reduce_sum(x)], {x: [1.0, 2.0, 3.0, 6.0]})
        assert total == 12.0
        writer.add_summary(text, 4)
        writer.add_summary(Summary(value=[Summary.Value(tag="mine", simple_value=5.0)]), np.int64(5))
    events = read_events(tmp_path)
    values = {value.tag: (event.step, value) for event in events for value in event.summary.value}
    assert set(values) == {"scope/average", "values", "picture/image", "mine"}
    assert values["scope/average"][0] == 4
    assert values["scope/average"][1].simple_value == 3.0
    assert values["values"][1].histo.sum == 12.0
    assert (values["picture/image"][1].image.height, values["picture/image"][1].image.width) == (2, 2)
    assert tf.summary.merge_all(key="nothing") is None


# --- printing and Python


def test_print_and_py_func(capsys: pytest.CaptureFixture[str]) -> None:
    x = tf.placeholder(tf.float32, [None])
    w = tf.Variable(2.0)
    shown = tf.Print(x * w, [x, w], "x and w: ", first_n=2, summarize=2)
    (gradient,) = tf.gradients(tf.reduce_sum(shown), w)
    called = tf.py_func(lambda a, b: (a.sum() + b, np.float32(a.size)), [x, w], [tf.float32, tf.float32])
    sorted_ = tf.py_func(np.sort, [x], tf.float32)
    sorted_.set_shape([3])
    broken = tf.py_func(lambda a: 1 / a.size, [tf.constant(np.zeros(0))], tf.float64)
    with tf.Session() as session:
        session.run(w.initializer)
        value, slope = session.run([shown, gradient], {x: [1.0, 2.0, 3.0]})
        assert (value.tolist(), slope) == ([2.0, 4.0, 6.0], 6.0)
        session.run(shown, {x: [1.0]})
        session.run(shown, {x: [1.0]})
        assert session.run(called, {x: [1.0, 2.0]}) == [5.0, 2.0]
        assert session.run(sorted_, {x: [3.0, 1.0, 2.0]}).tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="set_shape"):
            session.run(sorted_, {x: [3.0, 1.0]})
        with pytest.raises(tf.errors.UnknownError, match="ZeroDivisionError"):
            session.run(broken)
    assert capsys.readouterr().err.splitlines() == ["x and w: [1.0 2.0...][2.0]", "x and w: [1.0][2.0]"]


def test_metrics_over_batches() -> None:
    labels, guesses = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
    accuracy, update = tf.metrics.accuracy(labels, guesses)
    precision, update_precision = tf.metrics.precision(labels, guesses)
    recall, update_recall = tf.metrics.recall(labels, guesses)
    error, update_error = tf.metrics.root_mean_squared_error(labels, guesses)
    updates = [update, update_precision, update_recall, update_error]
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(accuracy) == 0.0
        session.run(updates, {labels: [1, 1, 0, 0], guesses: [1, 0, 0, 1]})
        session.run(updates, {labels: [1, 1], guesses: [1, 1]})
        found = session.run([accuracy, precision, recall, error])
    assert found == pytest.approx([4 / 6, 3 / 4, 3 / 4, (2 / 6) ** 0.5])
    assert not tf.global_variables()


# --- optimizers of a script's own


class _Halved(tf.train.Optimizer):  # type: ignore[misc]
    """Momentum of one half, written as TensorFlow's own optimizers are."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__(False, "Halved")
        self._rate = learning_rate

    def _create_slots(self, var_list: Any) -> None:
        for one in var_list:
            self._zeros_slot(one, "m", self._name)

    def _prepare(self) -> None:
        self._rate_tensor = tf.convert_to_tensor(self._rate)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        moved = self.get_slot(var, "m").assign(self.get_slot(var, "m") * 0.5 + grad)
        return var.assign_sub(self._rate_tensor * moved)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return tf.scatter_sub(var, grad.indices, self._rate_tensor * grad.values)


def test_a_script_derives_an_optimizer() -> None:
    dense, rows = tf.Variable([1.0, 2.0], name="dense"), tf.Variable([[1.0], [2.0], [3.0]], name="rows")
    loss = tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(rows, [2, 0, 2]))
    step = tf.train.get_or_create_global_step()
    optimizer = _Halved(0.5)
    train = optimizer.minimize(loss, step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        session.run(train)
        assert session.run(step) == 2
        assert session.run(dense).tolist() == [-0.25, 0.75]
        assert session.run(rows).ravel().tolist() == [0.0, 2.0, 1.0]
    assert [one.name for one in optimizer.variables()] == ["dense/Halved:0", "rows/Halved:0"]
    assert optimizer.get_slot_names() == ["m"]


def test_averages_of_tensors_are_corrected_for_their_beginning() -> None:
    value = tf.placeholder(tf.float32, [])
    average = tf.train.ExponentialMovingAverage(0.5, zero_debias=True)
    with tf.variable_scope("outer"):
        update = average.apply([tf.identity(value, name="value")])
    (shadow,) = [one for one in tf.global_variables() if one.op.name == "outer/outer/value/ExponentialMovingAverage"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = []
        for number in (4.0, 8.0):
            session.run(update, {value: number})
            found.append(float(session.run(shadow)))
    assert found == pytest.approx([4.0, 20.0 / 3.0])  # (1/4 4 + 1/2 8) / (3/4)


def test_a_session_manager_runs_the_local_initialisation_without_a_checkpoint(tmp_path: Path) -> None:
    local = tf.get_variable("local", [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    manager = tf.train.SessionManager(tf.local_variables_initializer(), tf.report_uninitialized_variables())
    with tf.Graph().as_default():  # the graph is that in which the manager was made
        session, is_restored = manager.recover_session("", None, str(tmp_path))
    assert not is_restored
    assert session.run(tf.is_variable_initialized(local))
    with pytest.raises(ValueError, match="Can not provide both"):
        manager.recover_session("", None, str(tmp_path), str(tmp_path / "model"))


def test_a_savers_of_a_part_is_not_taken_for_the_graphs(tmp_path: Path) -> None:
    first, _ = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    tf.train.Saver([first])  # such as one that restores what was trained before
    tf.train.get_or_create_global_step()
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
        session.run(first)
    assert [name for name, _ in tf.train.list_variables(str(tmp_path))] == ["first", "global_step", "second"]


def test_a_session_is_made_anew_where_a_thread_has_lost_it() -> None:
    made: list[Any] = []

    class Creator(tf.train.ChiefSessionCreator):  # type: ignore[misc]
        def create_session(self) -> Any:
            made.append(super().create_session())
            return made[-1]

    class Loses(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
            self.coordinator = coord

    hook = Loses()
    session = tf.train.MonitoredSession(Creator(), [hook])
    hook.coordinator.request_stop(tf.errors.AbortedError(None, None, "lost"))
    assert not session.should_stop()
    assert len(made) == 2
    hook.coordinator.request_stop(ValueError("wrong"))
    assert session.should_stop()
    with pytest.raises(ValueError, match="wrong"):
        session.close()
