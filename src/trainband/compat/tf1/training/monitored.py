"""MonitoredSession: a session with hooks, which knows when to stop."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import AbortedError, OutOfRangeError, UnavailableError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.sessions.store import Store
from trainband.compat.tf1.sessions.targets import store_for
from trainband.compat.tf1.training.checkpoint_hook import CheckpointSaverHook
from trainband.compat.tf1.training.coordinator import Coordinator
from trainband.compat.tf1.training.hook_loop import HookLoop
from trainband.compat.tf1.training.hooks import last_step_of
from trainband.compat.tf1.training.queue_runner import start_queue_runners
from trainband.compat.tf1.training.scaffold import ChiefSessionCreator, Scaffold, SessionCreator, WorkerSessionCreator
from trainband.compat.tf1.training.session_run_hook import SessionRunHook
from trainband.compat.tf1.training.summary_hooks import StepCounterHook, SummarySaverHook

USE_DEFAULT = object()


LOST = (AbortedError, UnavailableError)
"""The errors after which a session is recreated."""


class StepContext:
    """What a step function gets.

    Args:
      session: the session without hooks.
      run_with_hooks: runs fetches as the monitored session does.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        """The session without hooks."""
        self.run_with_hooks = run_with_hooks
        """A run with hooks."""

    def request_stop(self) -> None:
        """Ends the loop.

        Raises:
          StopIteration: always.
        """
        raise StopIteration("step_fn has requested the iterations to stop.")


class MonitoredSession:
    """Runs hooks around each run, and tells when to stop. A context manager.

    A run or hook that raises `AbortedError` or `UnavailableError` makes the session anew, and the run is repeated. In a
    job with ps the job goes on; in one process, variables are initialised or restored again.

    Args:
      session_creator: makes the session; `ChiefSessionCreator()` when left out.
      hooks: what happens beside the runs.
      stop_grace_period_secs: how long the threads of hooks may take to end.
    """

    StepContext = StepContext
    _recovers = True

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        self._graph = get_default_graph()
        self._was_finalized = self._graph.finalized
        self._grace_s = stop_grace_period_secs
        self._loop = HookLoop(hooks or ())
        self._loop.begin()
        self._creator = session_creator or ChiefSessionCreator()
        if isinstance(self._creator, ChiefSessionCreator):
            self._creator.end_at(last_step_of(self._loop.hooks))
        self._session: Session | None = None
        self._in_job: Session | None = None
        """A session that is used again, because it takes part in a job."""
        self._coordinator = Coordinator(())
        self._closed = self._is_to_stop = False
        try:
            self._recovering(self._running)
        except BaseException as exc:
            self._leave(exc)
            raise

    @property
    def graph(self) -> Graph:
        """What is run."""
        return self._running().graph

    @property
    def store(self) -> Store:
        """Where the variables are."""
        return self._running().store

    def raw_session(self) -> Session:
        """The session without hooks."""
        return self._running()

    @property
    def _sess(self) -> Session:  # scripts go down by this name to save by hand
        return self._running()

    _tf_sess = raw_session

    def should_stop(self) -> bool:
        """Whether there is nothing more to do."""
        if self._closed or self._is_to_stop:
            return True
        if self._coordinator.should_stop():
            try:
                self._coordinator.raise_requested_exception()
            except LOST as exc:
                if not self._recovers:
                    return True
                self._say_lost(exc)
                self._forget()
                self._recovering(self._running)
                return False
            except Exception:
                return True
            return True
        store = None if self._session is None else self._session.store
        return isinstance(store, JobStore) and store.ended

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Like `Session.run`, with the hooks before and after it.

        Raises:
          RuntimeError: it is closed, a hook has asked for the end, or something is fed twice.
        """
        return self._recovering(lambda: self._run(fetches, feed_dict, options, run_metadata))

    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any:
        """Calls a function of a context that has `session`, `run_with_hooks` and `request_stop`.

        Raises:
          ValueError: it is no function of one argument `step_context`.
        """
        names = tuple(inspect.signature(step_fn).parameters)
        if names != ("step_context",):
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or `self` and `step_context` arguments if it's "
                f"an instance method. Got {names} instead."
            )
        return self._recovering(lambda: step_fn(StepContext(self._running(), self._run)))

    def close(self) -> None:
        """Ends the hooks, and releases everything.

        Raises:
          RuntimeError: it is closed already.
        """
        self._end(None)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        clean = exc is None or isinstance(exc, OutOfRangeError | StopIteration)
        self._end(None if clean else exc)
        return clean

    def _recovering(self, action: Callable[[], Any]) -> Any:
        while True:
            try:
                return action()
            except LOST as exc:
                if not self._recovers:
                    raise
                self._say_lost(exc)
                self._forget()

    def _say_lost(self, exc: BaseException) -> None:
        logging.info("The session is recreated because it ended with %s: %s", type(exc).__name__, exc)

    def _is_closed(self) -> bool:
        return self._closed

    def _run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        session = self._running()
        if self._is_to_stop:
            raise RuntimeError("Run called even after should_stop requested.")
        try:
            found, is_to_stop = self._loop.run(session, session.run, fetches, feed_dict, options, run_metadata)
        except LOST:
            raise
        except Exception:
            self._coordinator.raise_requested_exception()  # the cause rather than what follows from it
            raise
        self._is_to_stop = self._is_to_stop or is_to_stop
        return found

    def _end(self, exc: BaseException | None) -> None:
        if self._closed:
            raise RuntimeError("Session is already closed.")
        try:
            if exc is None:
                self._loop.end(self._session)
            self._join()
        except BaseException as failure:
            exc = failure
            raise
        finally:
            self._leave(exc)

    def _join(self) -> None:
        self._coordinator.request_stop()
        self._coordinator.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)

    def _leave(self, exc: BaseException | None) -> None:
        self._closed = True
        self._coordinator.request_stop()
        session, self._session = self._session or self._in_job, None
        if session is not None:
            session.store.failing(exc)
            session.close()
        if not self._was_finalized:
            self._graph.unfinalize()

    def _forget(self) -> None:
        """Closes the session, so that the next use makes another; a job is not left."""
        with contextlib.suppress(Exception):  # what the threads of a lost session say is a consequence of the loss
            self._join()
        session, self._session = self._session, None
        if session is not None and isinstance(session.store, JobStore):
            self._in_job = session
        elif session is not None:
            session.close()

    def _running(self) -> Session:
        if self._closed:
            raise RuntimeError("Session is closed.")
        if self._session is None:
            self._session = self._in_job or self._creator.create_session()
            self._coordinator = Coordinator(())
            start_queue_runners(self._session, self._coordinator)
            self._loop.created(self._session, self._coordinator)
        return self._session


class SingularMonitoredSession(MonitoredSession):
    """A monitored session that passes every error on."""

    _recovers = False

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: Any = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        super().__init__(creator, hooks, stop_grace_period_secs)


def MonitoredTrainingSession(  # noqa: N802 - TensorFlow's name
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: Any = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: ConfigProto | None = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: Any = None,
    save_graph_def: bool = True,
) -> MonitoredSession:
    """A monitored session for training: the chief initialises, restores and saves; the others wait for it."""
    del max_wait_secs, save_graph_def
    secs, steps = save_checkpoint_secs, save_checkpoint_steps
    if secs is USE_DEFAULT and steps is USE_DEFAULT:
        secs, steps = 600, None
    elif secs is USE_DEFAULT:
        secs = None
    elif steps is USE_DEFAULT:
        steps = None
    directory = None if checkpoint_dir is None else str(checkpoint_dir)
    own_hooks = list(hooks or [])
    for hook in [*own_hooks, *(chief_only_hooks or [])]:
        if isinstance(hook, CheckpointSaverHook) and directory is None:
            directory, secs, steps = hook.checkpoint_dir, hook.save_secs, hook.save_steps
    saves = bool(directory) and (bool(secs and secs > 0) or bool(steps and steps > 0))
    # A hook of the chief's alone does not end the training of the other workers.
    settings = JobSettings(
        checkpoint_dir=directory, save_secs=secs, save_steps=steps, last_step=last_step_of(own_hooks)
    )
    scaffold = scaffold or Scaffold()
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, settings=settings)
        return MonitoredSession(worker, own_hooks, stop_grace_period_secs)
    all_hooks = list(chief_only_hooks or [])
    written = summary_dir or checkpoint_dir
    if written:
        if log_step_count_steps and log_step_count_steps > 0:
            all_hooks.append(StepCounterHook(every_n_steps=log_step_count_steps, output_dir=written))
        every_steps, every_secs = save_summaries_steps, save_summaries_secs
        if every_steps is USE_DEFAULT and every_secs is USE_DEFAULT:
            every_steps, every_secs = 100, None
        every_steps = None if every_steps is USE_DEFAULT else every_steps
        every_secs = None if every_secs is USE_DEFAULT else every_secs
        if every_steps or every_secs:
            all_hooks.append(
                SummarySaverHook(every_steps or None, every_secs or None, output_dir=written, scaffold=scaffold)
            )
    if saves and not _is_in_job(master):
        all_hooks.append(CheckpointSaverHook(directory, secs, steps, scaffold=scaffold))
    all_hooks += own_hooks
    chief = ChiefSessionCreator(scaffold, master, config, directory, settings=settings)
    return MonitoredSession(chief, all_hooks, stop_grace_period_secs)


def _is_in_job(master: str) -> bool:
    return isinstance(store_for(str(master or ""), get_default_graph(), ConfigProto()), JobStore)
