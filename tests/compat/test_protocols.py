"""Coordinators, hooks, sessions and their managers: the same calls and errors as TensorFlow's, in the same order.

Nothing here but the front end is imported, so that the file also runs against TensorFlow itself.
"""

from __future__ import annotations

import collections
import sys
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


def aborted(text: str = "gone") -> Exception:
    """An error after which a session is recreated."""
    error: Exception = tf.errors.AbortedError(None, None, text)
    return error


# --- coordinators


def fail(error: Exception) -> None:
    """Raises an error."""
    raise error


def fail_in(coord: Any, error: Exception) -> None:
    """Reports an error to a coordinator, as threads do."""
    try:
        fail(error)
    except type(error):
        coord.request_stop(sys.exc_info())


def test_join_raises_what_stopped_it() -> None:
    coord = tf.train.Coordinator()
    fail_in(coord, ZeroDivisionError("first"))
    fail_in(coord, ValueError("second"))
    assert coord.should_stop()
    assert coord.wait_for_stop(0)
    assert not coord.joined
    with pytest.raises(ZeroDivisionError, match="first"):
        coord.raise_requested_exception()
    with pytest.raises(ZeroDivisionError, match="first"):
        coord.join([])
    assert coord.joined
    with pytest.raises(ValueError, match="third"):
        fail_in(coord, ValueError("third"))
    coord.clear_stop()
    assert not coord.joined
    assert not coord.should_stop()
    coord.join([])


def test_the_end_of_data_stops_without_an_error() -> None:
    coord = tf.train.Coordinator()
    with coord.stop_on_exception():
        fail(tf.errors.OutOfRangeError(None, None, "end"))
    coord.join([])
    strict = tf.train.Coordinator(clean_stop_exception_types=(KeyError,))
    with strict.stop_on_exception():
        fail(KeyError("clean"))
    strict.join([])
    strict.clear_stop()
    with strict.stop_on_exception():
        fail(tf.errors.OutOfRangeError(None, None, "end"))
    with pytest.raises(tf.errors.OutOfRangeError):
        strict.join([])


def test_a_thread_that_does_not_stop_is_named() -> None:
    coord, go_on = tf.train.Coordinator(), threading.Event()
    thread = threading.Thread(target=go_on.wait, name="stubborn", daemon=True)
    thread.start()
    coord.register_thread(thread)
    coord.request_stop()
    with pytest.raises(RuntimeError, match="Coordinator stopped with threads still running: stubborn"):
        coord.join(stop_grace_period_secs=0.01)
    coord.join([thread], stop_grace_period_secs=0.01, ignore_live_threads=True)
    go_on.set()
    thread.join(10)


def test_loopers_run_until_they_are_stopped() -> None:
    coord, seen = tf.train.Coordinator(), []

    def count(by: int, most: int = 3) -> None:
        seen.append(by)
        if len(seen) == most:
            raise LookupError("enough")

    tf.train.LooperThread.loop(coord, None, count, args=(2,), kwargs={"most": 3})
    with pytest.raises(LookupError, match="enough"):
        coord.join()
    assert seen == [2, 2, 2]
    other = tf.train.Coordinator()
    looper = tf.train.LooperThread.loop(other, 0.001, other.request_stop)
    other.join([looper])
    with pytest.raises(ValueError, match="'args' and 'kwargs' argument require that you also pass 'target'"):
        tf.train.LooperThread(other, None, args=(1,))
    with pytest.raises(ValueError, match="'coord' argument must be a Coordinator"):
        tf.train.LooperThread(None, None)


# --- monitored sessions


class Noting(tf.train.SessionRunHook):  # type: ignore[misc]
    """Notes in a list what is called, and raises errors after runs."""

    def __init__(self, calls: list[str], name: str = "", errors: Any = (), args: Any = None) -> None:
        self.calls, self.name, self.errors, self.args = calls, name, list(errors), args
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.calls.append(f"{self.name}begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        del session, coord
        self.calls.append(f"{self.name}created")

    def before_run(self, run_context: Any) -> Any:
        del run_context
        self.calls.append(f"{self.name}before")
        return self.args

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        self.calls.append(f"{self.name}after")
        self.seen.append(run_values)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    def end(self, session: Any) -> None:
        del session
        self.calls.append(f"{self.name}end")


def counter() -> tuple[Any, Any]:
    """(the global step, an operation that counts it)."""
    step = tf.train.get_or_create_global_step()
    return step, tf.assign_add(step, 1)


def test_a_session_that_is_aborted_is_made_anew_and_the_run_repeated() -> None:
    step, count = counter()
    calls: list[str] = []
    lost = tf.errors.UnavailableError(None, None, "lost")
    with tf.train.MonitoredTrainingSession(hooks=[Noting(calls, errors=[None, aborted(), lost])]) as session:
        assert session.run(count) == 1
        assert session.run(count) == 1  # variables of this process begin anew
        assert session.run(step) == 1
    again = ["created", "before", "after"]
    assert calls == ["begin", *again, *["before", "after"], *again, *again, "before", "after", "end"]


def test_an_aborted_session_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    _, count = counter()
    noting = Noting([], errors=[None, None, aborted()])
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[noting], save_checkpoint_steps=1) as s:
        assert [s.run(count) for _ in range(4)] == [1, 2, 4, 5]


def test_other_errors_and_singular_sessions_propagate() -> None:
    _, count = counter()
    calls: list[str] = []
    with (
        pytest.raises(tf.errors.InternalError),
        tf.train.MonitoredSession(hooks=[Noting(calls, errors=[tf.errors.InternalError(None, None, "x")])]) as session,
    ):
        session.run(count)
    assert calls == ["begin", "created", "before", "after"]
    with (
        pytest.raises(tf.errors.AbortedError),
        tf.train.SingularMonitoredSession(hooks=[Noting(calls, errors=[aborted()])]) as session,
    ):
        session.run(count)


def test_hooks_are_called_in_their_order_with_what_they_asked_for() -> None:
    step, _ = counter()
    x = tf.placeholder(tf.float32, [])
    calls: list[str] = []
    options, metadata = tf.RunOptions(timeout_in_ms=5000), tf.RunMetadata()
    first = Noting(calls, "a ", args=tf.train.SessionRunArgs({"x": x * 2.0}, feed_dict={x: 3.0}, options=options))
    second = Noting(calls, "b ", args=tf.train.SessionRunArgs([step, (x,)]))
    third = Noting(calls, "c ")
    with tf.train.MonitoredSession(hooks=[first, second, third]) as session:
        assert session.run(x, run_metadata=metadata) == 3.0
    assert first.seen[0].results == {"x": 6.0}
    assert first.seen[0].run_metadata is not None
    assert first.seen[0].options is not None
    assert second.seen[0].results == [0, (3.0,)]
    assert third.seen[0].results is None
    each = [[f"{name} {call}" for name in "abc"] for call in ("begin", "created", "before", "after", "end")]
    assert calls == [call for one in each for call in one]


def test_what_is_fed_twice_is_an_error() -> None:
    x = tf.placeholder(tf.float32, [])
    feeds = tf.train.FeedFnHook(lambda: {x: 1.0})
    with tf.train.MonitoredSession(hooks=[feeds]) as session:
        assert session.run(x) == 1.0
        with pytest.raises(RuntimeError, match="Same tensor is fed by a SessionRunHook and user"):
            session.run(x, {x: 2.0})
    twice = tf.train.MonitoredSession(hooks=[feeds, tf.train.FeedFnHook(lambda: {x: 1.0})])
    with pytest.raises(RuntimeError, match="Same tensor is fed by two hooks"):
        twice.run(x)


def test_step_functions() -> None:
    step, count = counter()
    calls: list[str] = []

    class Steps:
        def once(self, step_context: Any) -> Any:
            return step_context.run_with_hooks(count)

    def stop(step_context: Any) -> None:
        step_context.request_stop()

    with tf.train.MonitoredSession(hooks=[Noting(calls, errors=[aborted()])]) as session:
        assert session.run_step_fn(lambda step_context: step_context.session.run(count)) == 1
        assert calls == ["begin", "created"]
        assert session.run_step_fn(Steps().once) == 1  # after it was aborted
        assert calls[-5:] == ["before", "after", "created", "before", "after"]
        for wrong in (lambda: 1, lambda context: context, lambda step_context, more: [step_context, more]):
            with pytest.raises(ValueError, match="`step_fn` may either have one `step_context` argument"):
                session.run_step_fn(wrong)
        assert session.run(step) == 1
        session.run_step_fn(stop)
        fail(AssertionError("not reached"))
    assert calls[-1] == "end"


def test_a_graph_is_final_only_while_its_session_is_open() -> None:
    _, count = counter()
    with tf.train.MonitoredSession() as session:
        assert session.graph.finalized
        with pytest.raises(RuntimeError, match="finalized"):
            tf.constant(1.0)
        session.run(count)
    tf.constant(1.0)
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="already closed"):
        session.close()


def test_after_a_stop_was_requested_nothing_runs() -> None:
    _, count = counter()
    with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(last_step=1)]) as session:
        session.run(count)
        assert session.should_stop()
        with pytest.raises(RuntimeError, match="Run called even after should_stop requested"):
            session.run(count)


def test_threads_of_a_hook_end_a_monitored_session() -> None:
    _, count = counter()
    found: list[Any] = []

    class Coordinated(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            del session
            found.append(coord)

    session = tf.train.MonitoredSession(hooks=[Coordinated()])
    session.run(count)
    fail_in(found[0], LookupError("in a thread"))
    assert session.should_stop()
    with pytest.raises(LookupError, match="in a thread"):
        session.close()


# --- sessions

Pair = collections.namedtuple("Pair", ["left", "right"])


def test_fetches_keep_their_form() -> None:
    a, b = tf.constant(1), tf.constant(2)
    ordered = collections.OrderedDict([("z", a), ("a", (b, [a]))])
    with tf.Session() as session:
        found = session.run(ordered)
        assert type(found) is collections.OrderedDict
        assert list(found.items()) == [("z", 1), ("a", (2, [1]))]
        pair = session.run(Pair(a, Pair(b, {"k": a})))
        assert pair == Pair(1, Pair(2, {"k": 1}))
        assert type(pair.right) is Pair
        assert session.run([]) == []
        assert session.run({}) == {}
        assert session.run([[a, []], ()]) == [[1, []], ()]
        counted = collections.defaultdict(list, {"k": a})
        assert session.run(counted) == {"k": 1}


def test_rows_are_fetched_and_fed_as_rows() -> None:
    rows = tf.IndexedSlices(
        tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [2])
    )
    given = np.ones([1, 2], np.float32), np.array([3]), np.array([5, 2])
    with tf.Session() as session:
        found = session.run(rows, {rows: given})
        assert found.values.tolist() == [[1.0, 1.0]]
        assert found.indices.tolist() == [3]
        assert found.dense_shape.tolist() == [5, 2]
        again = session.run(rows.values * 2.0, {rows: found})
    assert again.tolist() == [[2.0, 2.0]]


def test_a_closed_session_says_so() -> None:
    x = tf.constant(1.0)
    session = tf.Session()
    session.run(x)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
        session.run(x)
    with pytest.raises(RuntimeError, match="graph is empty"):
        tf.Session(graph=tf.Graph()).run([])


def test_callables_take_their_feeds_in_order() -> None:
    x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    with tf.Session() as session:
        subtract = session.make_callable([x - y, {"k": x}], feed_list=[x, y], accept_options=True)
        assert subtract(5.0, 3.0) == [2.0, {"k": 5.0}]
        assert subtract(5.0, 4.0, options=tf.RunOptions(), run_metadata=tf.RunMetadata()) == [1.0, {"k": 5.0}]
        with pytest.raises(TypeError):
            session.make_callable(x, feed_list=x)


def test_a_run_in_parts() -> None:
    a, b = tf.placeholder(tf.float32, [], name="a"), tf.placeholder(tf.float32, [], name="b")
    total = a + b
    scaled = total * a
    with tf.Session() as session:
        handle = session.partial_run_setup([total, scaled], [a, b])
        assert session.partial_run(handle, total, feed_dict={a: 1.0, b: 2.0}) == 3.0
        assert session.partial_run(handle, scaled) == 3.0
        handle = session.partial_run_setup([total, scaled], [a, b])
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.partial_run(handle, total, feed_dict={a: 1.0})


def test_options_and_metadata_are_taken() -> None:
    x = tf.constant(1.0)
    with tf.Session() as session:
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        assert session.run(x, options=options, run_metadata=metadata) == 1.0
        assert metadata.step_stats is not None
        assert [node.name for node in session.graph_def.node] == [x.op.name]
        assert session.graph.as_graph_def().node[0].op == "Const"


def test_a_run_waits_no_longer_than_it_may() -> None:
    queue = tf.FIFOQueue(3, tf.float32, [])
    put, take = queue.enqueue(1.0), queue.dequeue_many(2)
    soon = tf.RunOptions(timeout_in_ms=50)
    with tf.Session() as session:
        session.run(put)
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(take, options=soon)
        assert session.run(queue.size()) == 1
        session.run(put)
        assert session.run(take, options=soon).tolist() == [1.0, 1.0]
    patient = tf.ConfigProto(operation_timeout_in_ms=50)
    with tf.Session(config=patient) as session, pytest.raises(tf.errors.DeadlineExceededError):
        session.run(take)


def test_a_traced_run_says_how_long_it_has_taken(tmp_path: Path) -> None:
    metadata, writer = tf.RunMetadata(), tf.summary.FileWriter(str(tmp_path))
    with tf.Session() as session:
        session.run(tf.constant(1.0), run_metadata=metadata)
        assert not metadata.step_stats.dev_stats
        session.run(tf.constant(1.0), options=tf.RunOptions(trace_level=3), run_metadata=metadata)
    (device,) = metadata.step_stats.dev_stats
    assert [node.all_end_rel_micros > 0 for node in device.node_stats]
    again = tf.RunMetadata()
    again.ParseFromString(metadata.SerializeToString())
    assert again == metadata
    writer.add_run_metadata(metadata, "first", 3)
    writer.close()
