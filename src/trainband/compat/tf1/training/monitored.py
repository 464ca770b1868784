"""MonitoredSession: a session with hooks, which knows when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.sessions.store import Store
from trainband.compat.tf1.sessions.targets import store_for
from trainband.compat.tf1.training.checkpoint_hook import CheckpointSaverHook
from trainband.compat.tf1.training.coordinator import Coordinator
from trainband.compat.tf1.training.hook_loop import HookLoop
from trainband.compat.tf1.training.scaffold import ChiefSessionCreator, Scaffold, SessionCreator, WorkerSessionCreator
from trainband.compat.tf1.training.session_run_hook import SessionRunHook
from trainband.compat.tf1.training.summary_hooks import StepCounterHook, SummarySaverHook

USE_DEFAULT = object()


class MonitoredSession:
    """Runs hooks around each run, and tells when to stop. A context manager.

    Args:
      session_creator: makes the session; `ChiefSessionCreator()` when left out.
      hooks: what happens beside the runs.
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,  # noqa: ARG002
    ) -> None:
        self._loop = HookLoop(hooks or ())
        self._loop.begin()
        self._session: Session | None = (session_creator or ChiefSessionCreator()).create_session()
        self._coordinator = Coordinator()
        try:
            self._loop.created(self._session, self._coordinator)
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

    def should_stop(self) -> bool:
        """Whether there is nothing more to do."""
        if self._session is None or self._coordinator.should_stop():
            return True
        store = self._session.store
        return isinstance(store, JobStore) and store.ended

    def request_stop(self) -> None:
        """Ends the loop after the current run."""
        self._coordinator.request_stop()

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Like `Session.run`, with the hooks before and after it."""
        session = self._running()

        def run(everything: Any, feeds: Any) -> Any:
            return session.run(everything, feeds, options, run_metadata)

        found, is_to_stop = self._loop.run(session, run, fetches, feed_dict)
        if is_to_stop:
            self._coordinator.request_stop()
        return found

    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any:
        """Calls a function of a context that has `session`, `run_with_hooks` and `request_stop`."""
        return step_fn(_StepContext(self))

    def close(self) -> None:
        """Ends the hooks, and releases everything."""
        self._end(None)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        clean = exc is None or isinstance(exc, OutOfRangeError | StopIteration)
        self._end(None if clean else exc)
        return clean

    def _end(self, exc: BaseException | None) -> None:
        if self._session is None:
            return
        try:
            if exc is None:
                self._loop.end(self._session)
        except BaseException as failure:
            exc = failure
            raise
        finally:
            self._coordinator.request_stop()
            self._leave(exc)

    def _leave(self, exc: BaseException | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.store.failing(exc)
            session.close()

    def _running(self) -> Session:
        if self._session is None:
            raise RuntimeError("Session is closed.")
        return self._session


class _StepContext:
    """What a step function gets."""

    def __init__(self, monitored: MonitoredSession) -> None:
        self._monitored = monitored

    @property
    def session(self) -> Session:
        """The session without hooks."""
        return self._monitored.raw_session()

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """A run with hooks."""
        return self._monitored.run(*args, **kwargs)

    def request_stop(self) -> None:
        """Ends the loop.

        Raises:
          StopIteration: always.
        """
        self._monitored.request_stop()
        raise StopIteration("step_fn has requested the iterations to stop.")


class SingularMonitoredSession(MonitoredSession):
    """A monitored session for a single process."""

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
    all_hooks = list(hooks or [])
    for hook in [*all_hooks, *(chief_only_hooks or [])]:
        if isinstance(hook, CheckpointSaverHook) and directory is None:
            directory, secs, steps = hook.checkpoint_dir, hook.save_secs, hook.save_steps
    saves = bool(directory) and (bool(secs and secs > 0) or bool(steps and steps > 0))
    settings = JobSettings(checkpoint_dir=directory, save_secs=secs, save_steps=steps)
    scaffold = scaffold or Scaffold()
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, settings=settings)
        return MonitoredSession(worker, all_hooks, stop_grace_period_secs)
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
    all_hooks += list(chief_only_hooks or [])
    chief = ChiefSessionCreator(scaffold, master, config, directory, settings=settings)
    return MonitoredSession(chief, all_hooks, stop_grace_period_secs)


def _is_in_job(master: str) -> bool:
    return isinstance(store_for(str(master or ""), get_default_graph(), ConfigProto()), JobStore)
