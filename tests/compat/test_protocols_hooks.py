"""The hooks of `tf.train`, the synchronous optimizer's face, and what a ready script may pass: as TensorFlow's.

Nothing here but the front end is imported, so that the file also runs against TensorFlow itself.
"""

from __future__ import annotations

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
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.reset_default_graph()


def counter() -> tuple[Any, Any]:
    """(the global step, an operation that counts it)."""
    step = tf.train.get_or_create_global_step()
    return step, tf.assign_add(step, 1)


def test_tensors_are_logged_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    tf.logging.set_verbosity(tf.logging.INFO)
    _, count = counter()
    x = tf.constant(7.0, name="x")
    tf.divide(x, 70.0, name="tenth")
    hook = tf.train.LoggingTensorHook
    for wrong in ({}, {"every_n_iter": 1, "every_n_secs": 1.0}, {"every_n_iter": 0}):
        with pytest.raises(ValueError, match="every_n_iter"):
            hook({"x": x}, **wrong)
    hooks = [
        hook({"at end": x}, at_end=True),
        hook([x], every_n_iter=2, formatter=lambda values: f"formatted {values[x]}"),
        hook(["x:0"], every_n_secs=1000.0),
        hook({"by operation": "tenth"}, every_n_iter=4),
    ]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(4):
            session.run(count)
    lines = capfd.readouterr().err.splitlines()
    shown = [line.removeprefix("INFO:tensorflow:") for line in lines if " = " in line or "formatted" in line]
    assert shown == ["formatted 7.0", "x:0 = 7.0", "by operation = 0.1", "formatted 7.0", "at end = 7.0"]


def test_when_training_stops() -> None:
    _, count = counter()
    for hook, expected in ((tf.train.StopAtStepHook(last_step=3), 3), (tf.train.StopAtStepHook(num_steps=2), 2)):
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                seen = session.run(count)
        assert seen == expected


def test_a_hook_of_the_script_may_use_the_private_names_of_the_one_it_derives_from() -> None:
    class Stop(tf.train.StopAtStepHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            del coord
            self._last_step = session.run(self._global_step_tensor) + self._num_steps

    _, count = counter()
    with tf.train.MonitoredSession(hooks=[Stop(num_steps=2)]) as session:
        while not session.should_stop():
            seen = session.run(count)
    assert seen == 2


class Listener(tf.train.CheckpointSaverListener):  # type: ignore[misc]
    """Notes what is called, and asks for the end at a step."""

    def __init__(self, last: int) -> None:
        self.calls: list[Any] = []
        self.last = last

    def begin(self) -> None:
        self.calls.append("begin")

    def before_save(self, session: Any, global_step_value: int) -> None:
        del session
        self.calls.append(("before", int(global_step_value)))

    def after_save(self, session: Any, global_step_value: int) -> bool:
        del session
        self.calls.append(("after", int(global_step_value)))
        return bool(global_step_value >= self.last)

    def end(self, session: Any, global_step_value: int) -> None:
        del session
        self.calls.append(("end", int(global_step_value)))


def test_listeners_see_each_save_and_may_stop(tmp_path: Path) -> None:
    _, count = counter()
    listener = Listener(4)
    hook = tf.train.CheckpointSaverHook(
        str(tmp_path), save_steps=2, listeners=[listener], checkpoint_basename="mine", saver=tf.train.Saver()
    )
    with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
        runs = 0
        while not session.should_stop():
            session.run(count)
            runs += 1
    assert runs == 4
    saves = [one for step in (0, 2, 4) for one in (("before", step), ("after", step))]
    assert listener.calls == ["begin", *saves, ("end", 4)]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "mine-4")
    with pytest.raises(ValueError, match="both saver and scaffold"):
        tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1, saver=tf.train.Saver(), scaffold=tf.train.Scaffold())
    with pytest.raises(ValueError, match="Either every_secs or every_steps should be provided"):
        tf.train.CheckpointSaverHook(str(tmp_path))


def test_final_operations_and_feeds() -> None:
    x = tf.placeholder(tf.float32, [])
    hook = tf.train.FinalOpsHook({"x": x * 2.0}, final_ops_feed_dict={x: 4.0})
    assert hook.final_ops_values is None
    with tf.train.MonitoredSession(hooks=[hook, tf.train.FeedFnHook(lambda: {x: 3.0})]) as session:
        assert session.run(x) == 3.0
    assert hook.final_ops_values == {"x": 8.0}


def test_a_loss_that_is_not_a_number() -> None:
    x = tf.placeholder(tf.float32, [])
    with tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(x, fail_on_nan_loss=False)]) as session:
        session.run(x, {x: np.nan})
        assert session.should_stop()
    strict = tf.train.SingularMonitoredSession(hooks=[tf.train.NanTensorHook(x)])
    with pytest.raises(tf.train.NanLossDuringTrainingError, match="NaN loss during training"):
        strict.run(x, {x: np.nan})


def test_a_profiler_is_taken_and_named_timers_tell(tmp_path: Path) -> None:
    _, count = counter()
    hook = tf.train.ProfilerHook(save_steps=2, output_dir=str(tmp_path), show_dataflow=True, show_memory=False)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(count)
    timer = tf.train.SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert [timer.should_trigger_for_step(step) for step in (1, 3, 4)] == [False, False, True]
    assert timer.update_last_triggered_step(5)[1] == 4
    assert timer.last_triggered_step() == 5
    timer.reset()
    assert timer.last_triggered_step() is None


def test_summaries_are_saved_by_operation_or_scaffold(tmp_path: Path) -> None:
    _, count = counter()
    summary = tf.summary.scalar("x", tf.constant(1.0))
    hook = tf.train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=[summary])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(count)
    assert list(tmp_path.glob("events*"))
    for wrong in ({}, {"summary_op": summary, "scaffold": tf.train.Scaffold()}):
        with pytest.raises(ValueError, match="Exactly one of scaffold or summary_op"):
            tf.train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path), **wrong)


def test_a_synchronous_optimizer_gives_its_hook_before_it_is_used() -> None:
    step = tf.train.get_or_create_global_step()
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0))
    optimizer = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(0.5), replicas_to_aggregate=1, total_num_replicas=1, use_locking=True
    )
    for needs_gradients in (optimizer.get_chief_queue_runner, optimizer.get_init_tokens_op):
        with pytest.raises(ValueError, match="hould be called after apply_gradients"):
            needs_gradients()
    hook = optimizer.make_session_run_hook(True, num_tokens=0)
    with pytest.raises(ValueError, match="apply_gradient should be called before"):
        tf.train.MonitoredSession(hooks=[hook])
    train = optimizer.minimize(tf.square(w), global_step=step)
    assert optimizer.get_chief_queue_runner() is not None
    assert optimizer.get_init_tokens_op(num_tokens=1) is not None
    assert optimizer.chief_init_op is not None
    assert optimizer.local_step_init_op is not None
    assert optimizer.ready_for_local_init_op is not None
    assert optimizer.get_slot_names() == []
    with tf.train.MonitoredTrainingSession(hooks=[optimizer.make_session_run_hook(is_chief=True)]) as session:
        session.run(train)
        assert session.run(w) == 0.0


def test_sessions_inside_a_monitored_session_are_found() -> None:
    _, count = counter()
    with tf.train.MonitoredTrainingSession() as session:
        inner = session
        while type(inner).__name__ != "Session":
            inner = inner._sess  # noqa: SLF001 - what scripts do to save by hand
        assert inner.run(count) == 1
        assert session._sess._sess._sess._sess.run(count) == 2  # noqa: SLF001
        assert session._tf_sess().run(count) == 3  # noqa: SLF001
