"""Supervisor: TensorFlow's older way to initialise, save and monitor a session."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.state import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)
from trainband.compat.tf1.operations.summary import FileWriter
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.coordinator import Coordinator
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.compat.tf1.training.hook_loop import HookLoop
from trainband.compat.tf1.training.looper_thread import LooperThread
from trainband.compat.tf1.training.readiness import Readiness, begin
from trainband.compat.tf1.training.saver import Saver, default_saver
from trainband.compat.tf1.training.session_manager import SessionManager
from trainband.compat.tf1.training.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from trainband.compat.tf1.training.summary_hooks import default_summary
from trainband.runtime.overrides import override

USE_DEFAULT = 0


class Supervisor:
    """Prepares sessions, saves at intervals, and tells when to stop.

    On the chief it initialises the variables or restores them from `logdir`, and saves into that; others wait, with a
    line that says for whom. What TensorFlow does in threads happens here between two runs of the session.

    Args:
      is_chief: whether this task is the chief.
      init_op, local_init_op: what gives variables their values; made when left out.
      logdir: where checkpoints and summaries go; none when left out.
      summary_op: written every `save_summaries_secs`; the graph's own when left out, none for `None`.
      saver: what saves; made when left out, none for `None`.
      recovery_wait_secs: ignored; TensorFlow's workers poll at this interval, trainband's are notified.
    """

    USE_DEFAULT = USE_DEFAULT

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Any = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: Any = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: Any = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Session], Any] | None = None,
        local_init_run_options: Any = None,  # noqa: ARG002
    ) -> None:
        self._graph = graph or get_default_graph()
        self._is_chief = is_chief
        self._logdir = None if not logdir else str(logdir)
        self.init_feed_dict = init_feed_dict
        """What is fed to `init_op`."""
        self._init_fn = init_fn
        self._stop_grace_s = stop_grace_secs
        self.save_summaries_secs, self.save_model_secs = save_summaries_secs, save_model_secs
        self.recovery_wait_secs, self._grace_s = recovery_wait_secs, stop_grace_secs
        with self._graph.as_default(), self._graph.name_scope(None):
            self._init_op = global_variables_initializer() if init_op is USE_DEFAULT else init_op
            if local_init_op is USE_DEFAULT:
                local_init_op = group(local_variables_initializer(), tables_initializer())
            if ready_op is USE_DEFAULT:
                ready_op = report_uninitialized_variables()
            if ready_for_local_init_op is USE_DEFAULT:
                known = self._graph.get_collection("ready_for_local_init_op")
                ready_for_local_init_op = known[0] if known else None
            self._readiness = Readiness(local_init_op, None, ready_op, ready_for_local_init_op)
            self._saver = self._found_saver() if saver is USE_DEFAULT else saver
            self._summary_op = default_summary(self._graph) if summary_op is USE_DEFAULT else summary_op
            self._global_step = get_global_step() if global_step is USE_DEFAULT else global_step
        self._given_manager = session_manager
        self.session_manager = session_manager or SessionManager(
            local_init_op, ready_op, ready_for_local_init_op, self._graph, recovery_wait_secs
        )
        """Makes sessions by hand."""
        self.save_path = None if self._logdir is None else str(Path(self._logdir) / checkpoint_basename)
        """Prefix of checkpoint files."""
        self.coord = Coordinator()
        """Says when to stop."""
        self._writer: Any = None
        if is_chief and self._logdir is not None:
            Path(self._logdir).mkdir(parents=True, exist_ok=True)
        if summary_writer is not USE_DEFAULT:
            self._writer = summary_writer
        elif is_chief and self._logdir is not None:
            self._writer = FileWriter(self._logdir)
        self._sessions: list[Session] = []
        self._graph.finalize()

    def _found_saver(self) -> Saver | None:
        savers = self._graph.get_collection(GraphKeys.SAVERS)
        if savers:
            return savers[0]  # type: ignore[no-any-return]
        return default_saver(self._graph) if global_variables() else None

    # --- what it has

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief."""
        return self._is_chief

    @property
    def saver(self) -> Saver | None:
        """What saves."""
        return self._saver

    @property
    def global_step(self) -> Any:
        """The graph's global step."""
        return self._global_step

    @property
    def init_op(self) -> Any:
        """What gives shared variables their values."""
        return self._init_op

    @property
    def ready_op(self) -> Any:
        """What tells which variables are not ready."""
        return self._readiness.ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """What tells which variables `local_init_op` still lacks."""
        return self._readiness.ready_for_local_init_op

    @property
    def summary_op(self) -> Any:
        """What is written now and then."""
        return self._summary_op

    @property
    def summary_writer(self) -> Any:
        """Where summaries go."""
        return self._writer

    # --- sessions

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Session:
        """Return a session with initialised variables; a task that is not the chief waits for the chief."""
        self.coord.clear_stop()
        session = self._made(master, config, wait_for_checkpoint, max_wait_secs)
        self._sessions.append(session)
        if start_standard_services and self._is_chief:
            self.start_standard_services(session)
        if start_standard_services:
            self.start_queue_runners(session)
        return session

    def _made(self, master: str, config: ConfigProto | None, wait_for_checkpoint: bool, max_wait_s: float) -> Session:
        manager: Any = self._given_manager
        if manager is not None and not self._is_chief:
            return manager.wait_for_session(master, config=config, max_wait_secs=max_wait_s)  # type: ignore[no-any-return]
        if manager is not None:
            return manager.prepare_session(  # type: ignore[no-any-return]
                master,
                init_op=self._init_op,
                saver=self._saver,
                checkpoint_dir=self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_s,
                config=config,
                init_feed_dict=self.init_feed_dict,
                init_fn=self._init_fn,
            )
        session = _Supervised(master, self._graph, config)
        begin(
            session,
            self._readiness,
            is_chief=self._is_chief,
            init_op=self._init_op,
            init_feed_dict=self.init_feed_dict,
            init_fn=self._init_fn,
            saver=self._saver,
            checkpoint_dir=self._logdir,
            settings=JobSettings(checkpoint_dir=self._logdir, save_secs=self.save_model_secs or None),
        )
        return session

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Session]:
        """A context with such a session, which an `OutOfRangeError` ends without an error.

        Raises:
          Exception: what the body, or a thread of the coordinator, has raised first.
        """
        session = self.prepare_or_wait_for_session(master, config, start_standard_services=start_standard_services)
        try:
            with self._graph.as_default(), session.as_default():
                yield session
        except Exception as exc:
            self.coord.request_stop(exc)
        finally:
            try:
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                session.close()

    def start_standard_services(self, sess: Any) -> list[Any]:
        """Makes the chief save and write summaries between the runs of this session.

        Raises:
          RuntimeError: this task is not the chief.
        """
        if not self._is_chief:
            raise RuntimeError("Only chief supervisor can start services.")
        if self._logdir is None or not isinstance(sess, _Supervised):
            return []
        if self.save_summaries_secs and self._summary_op is not None and not self._summary_needs_feed():
            sess.every(self.save_summaries_secs, lambda: self._write_summary(sess))
        if self.save_model_secs and not isinstance(sess.store, JobStore):
            self._save(sess)
            sess.every(self.save_model_secs, lambda: self._save(sess))
        return []

    def start_queue_runners(self, sess: Any, queue_runners: Sequence[Any] | None = None) -> list[Any]:
        """Start the threads of the graph's queue runners, or of these; returns them."""
        runners = self._graph.get_collection(GraphKeys.QUEUE_RUNNERS) if queue_runners is None else queue_runners
        return [one for runner in runners for one in runner.create_threads(sess, self.coord, daemon=True, start=True)]

    def loop(
        self, timer_interval_secs: float | None, target: Callable[..., Any], args: Any = None, kwargs: Any = None
    ) -> LooperThread:
        """Calls a function at intervals in a thread, until training stops."""
        return LooperThread.loop(self.coord, timer_interval_secs, target, args, kwargs)

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """Writes a summary that a run returned.

        Raises:
          RuntimeError: there is no writer.
        """
        if self._writer is None:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None and self._global_step is not None:
            global_step = int(sess.run(self._global_step))
        self._writer.add_summary(summary, global_step)

    # --- stopping

    def should_stop(self) -> bool:
        """Whether a stop was requested, or the job has ended."""
        stores = [session.store for session in self._sessions]
        return self.coord.should_stop() or any(isinstance(store, JobStore) and store.ended for store in stores)

    def request_stop(self, ex: Any = None) -> None:
        """Requests a stop."""
        self.coord.request_stop(ex)

    def ShouldStop(self) -> bool:  # noqa: N802 - TensorFlow's older name
        """Like `should_stop`."""
        return self.should_stop()

    def RequestStop(self, ex: Any = None) -> None:  # noqa: N802
        """Like `request_stop`."""
        self.request_stop(ex)

    def stop(self, threads: Any = None, close_summary_writer: bool = True, ignore_live_threads: bool = False) -> None:
        """Waits for the threads, saves a last checkpoint, and in a job with ps leaves the job.

        Raises:
          Exception: what was passed to `request_stop`.
          RuntimeError: a thread is still running.
        """
        error: BaseException | None = None
        self.coord.request_stop()
        try:
            self.coord.join(threads, self._stop_grace_s, ignore_live_threads)
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._leave_sessions(error)
            if close_summary_writer and self._writer is not None:
                self._writer.close()

    def _leave_sessions(self, error: BaseException | None) -> None:
        for session in self._sessions:
            session.store.failing(error)
            if isinstance(session.store, JobStore):
                session.close()
            elif isinstance(session, _Supervised):
                if self._is_chief and self._logdir is not None and self.save_model_secs and not session.closed:
                    self._save(session)
                session.forget()
        self._sessions.clear()

    def wait_for_stop(self) -> None:
        """Waits for a request to stop."""
        self.coord.wait_for_stop()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Requests a stop if the body raises."""
        with self.coord.stop_on_exception():
            yield

    def _save(self, session: Session) -> None:
        if self._saver is not None and self.save_path is not None:
            logging.info("Saving checkpoint to path %s", self.save_path)
            self._saver.save(session, self.save_path, global_step=self._global_step)

    def _write_summary(self, session: Session) -> None:
        if self._writer is None:
            return
        with contextlib.suppress(OutOfRangeError):  # the next run of the script meets the end of the input, too
            step = None if self._global_step is None else int(session.run(self._global_step))
            self._writer.add_summary(session.run(self._summary_op), step)

    def _summary_needs_feed(self) -> bool:
        """Whether the summary depends on a placeholder; then the script itself writes it."""
        waiting, seen = [self._summary_op.op], set()
        while waiting:
            op = waiting.pop()
            if op.type == "Placeholder":
                return True
            if op not in seen:
                seen.add(op)
                waiting += [tensor.op for tensor in op.inputs]
        return False


class _Every(SessionRunHook):
    """Calls a function at intervals, between two runs."""

    def __init__(self, seconds: float, action: Callable[[], Any]) -> None:
        self._seconds, self._action = seconds, action
        self._due_s = time.monotonic() + seconds

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        now = time.monotonic()
        if now >= self._due_s:
            self._due_s = now + self._seconds
            self._action()


class _Supervised(Session):
    """A session with hooks of its supervisor, which run other things in it between its runs."""

    def __init__(self, target: str, graph: Graph, config: ConfigProto | None) -> None:
        super().__init__(target, graph, config)
        self._loop = HookLoop()
        self._is_in_hooks = False
        self._one_at_a_time = threading.RLock()

    def every(self, seconds: float, action: Callable[[], Any]) -> None:
        """Calls a function at intervals."""
        self._loop.hooks.append(_Every(seconds, action))

    def forget(self) -> None:
        """Stops calling functions between runs."""
        self._loop.hooks.clear()

    @override
    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        with self._one_at_a_time:  # the functions of `Supervisor.loop` run things, too
            if self._is_in_hooks or not self._loop.hooks:
                return super().run(fetches, feed_dict, options, run_metadata)
            self._is_in_hooks = True
            try:
                return self._loop.run(self, super().run, fetches, feed_dict, options, run_metadata)[0]
            finally:
                self._is_in_hooks = False
