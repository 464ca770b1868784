"""QueueRunner: the threads that keep a queue filled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from trainband.compat.tf1.graphs.default_session import get_default_session
from trainband.compat.tf1.graphs.errors import CancelledError, OutOfRangeError
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.coordinator import Coordinator


class QueueRunner:
    """Fills a queue: a thread for each operation runs it again and again, until the input has ended.

    Args:
      queue: which one.
      enqueue_ops: what the threads run.
      close_op, cancel_op: what closes the queue when the input has ended, and when all threads are to stop; made when
        left out.
      queue_closed_exception_types: the errors that mean that the input has ended.

    Raises:
      ValueError: no queue, or nothing to run.
    """

    def __init__(
        self,
        queue: Any = None,
        enqueue_ops: Sequence[Any] | None = None,
        close_op: Any = None,
        cancel_op: Any = None,
        queue_closed_exception_types: Sequence[type[BaseException]] | None = None,
        queue_runner_def: Any = None,
        import_scope: Any = None,
    ) -> None:
        del queue_runner_def, import_scope
        if queue is None or not enqueue_ops:
            raise ValueError("Must provide queue and enqueue_ops")
        close = queue.close() if close_op is None else close_op
        cancel = queue.close(cancel_pending_enqueues=True) if cancel_op is None else cancel_op
        self._set(queue, list(enqueue_ops), close, cancel, tuple(queue_closed_exception_types or (OutOfRangeError,)))

    @classmethod
    def idle(cls) -> QueueRunner:
        """One that runs nothing."""
        found = object.__new__(cls)
        found._set(None, [])
        return found

    def _set(
        self,
        queue: Any,
        enqueue_ops: list[Any],
        close_op: Any = None,
        cancel_op: Any = None,
        ended: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._queue, self._enqueue_ops = queue, enqueue_ops
        self._close_op, self._cancel_op, self._ended = close_op, cancel_op, ended
        self._lock = threading.Lock()
        self._running: dict[int, int] = {}
        self._exceptions: list[BaseException] = []

    @property
    def queue(self) -> Any:
        """The queue."""
        return self._queue

    @property
    def enqueue_ops(self) -> list[Any]:
        """What the threads run."""
        return self._enqueue_ops

    @property
    def close_op(self) -> Any:
        """What closes the queue."""
        return self._close_op

    @property
    def cancel_op(self) -> Any:
        """What closes the queue and ends those that wait to fill it."""
        return self._cancel_op

    @property
    def queue_closed_exception_types(self) -> tuple[type[BaseException], ...]:
        """The errors that mean that the input has ended."""
        return self._ended

    @property
    def exceptions_raised(self) -> list[BaseException]:
        """The errors of threads without a coordinator."""
        return self._exceptions

    @property
    def name(self) -> str:
        """That of the queue."""
        return "" if self._queue is None else str(self._queue.name)

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Make the threads; none if those of an earlier call still run in this session.

        Args:
          coord: tells the threads when to stop, and is told their errors.
        """
        session: Session = sess.raw_session() if hasattr(sess, "raw_session") else sess
        with self._lock:
            if self._running.get(id(session), 0) > 0:
                return []
            self._running[id(session)] = len(self._enqueue_ops)
            self._exceptions = []
        threads = [
            threading.Thread(
                target=self._fill, args=(session, op, coord), name=f"QueueRunnerThread-{self.name}-{op.name}"
            )
            for op in self._enqueue_ops
        ]
        if coord is not None and threads:
            threads.append(
                threading.Thread(
                    target=self._cancel_on_stop,
                    args=(session, coord),
                    name=f"QueueRunnerThread-{self.name}-close_on_stop",
                )
            )
        for thread in threads:
            if coord is not None:
                coord.register_thread(thread)
            thread.daemon = daemon
            if start:
                thread.start()
        return threads

    def _fill(self, session: Session, op: Any, coord: Coordinator | None) -> None:
        try:
            while coord is None or not coord.should_stop():
                Session.run(session, op)  # without what a supervisor does between the runs of a script
        except self._ended:
            self._leave(session, is_last_to_close=True)
            return
        except Exception as exc:
            if session.closed or (coord is not None and coord.should_stop() and isinstance(exc, CancelledError)):
                pass  # it is over anyway
            elif coord is not None:
                coord.request_stop(exc)
            else:
                logging.error("Exception in QueueRunner: %s", exc)
                self._exceptions.append(exc)
        self._leave(session, is_last_to_close=False)

    def _leave(self, session: Session, *, is_last_to_close: bool) -> None:
        with self._lock:
            self._running[id(session)] -= 1
            is_last = self._running[id(session)] == 0
        if is_last and is_last_to_close:
            self._try(session, self._close_op)

    def _cancel_on_stop(self, session: Session, coord: Coordinator) -> None:
        coord.wait_for_stop()
        self._try(session, self._cancel_op)

    def _try(self, session: Session, op: Any) -> None:
        try:
            Session.run(session, op)
        except Exception as exc:  # the session may be closed by now
            logging.vlog(1, "Ignored exception: %s", exc)


def add_queue_runner(qr: QueueRunner, collection: str = GraphKeys.QUEUE_RUNNERS) -> None:
    """Adds a queue runner to a collection of the graph, so that `start_queue_runners` starts it."""
    get_default_graph().add_to_collection(collection, qr)


def start_queue_runners(
    sess: Any = None,
    coord: Coordinator | None = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = GraphKeys.QUEUE_RUNNERS,
) -> list[threading.Thread]:
    """Start the threads of the queue runners of a graph; returns them.

    Raises:
      ValueError: no session is given, and there is no default one.
      TypeError: it is no session.
    """
    session = get_default_session() if sess is None else sess
    if session is None:
        raise ValueError(
            "Cannot start queue runners: No default session is registered. Use `with sess.as_default()` or pass an "
            "explicit session to tf.start_queue_runners(sess=sess)"
        )
    if not hasattr(session, "run") or not hasattr(session, "graph"):
        raise TypeError(f"sess must be a `tf.Session` object. Given class: {session.__class__}")
    runners = session.graph.get_collection(collection)
    return [
        thread for runner in runners for thread in runner.create_threads(session, coord, daemon=daemon, start=start)
    ]
