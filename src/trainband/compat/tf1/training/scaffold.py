"""Scaffold and session creators: they initialise or restore the variables of a session."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainband.checkpoint import CheckpointDirectory
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.state import (
    global_variables,
    global_variables_initializer,
    local_variables,
    local_variables_initializer,
    tables_initializer,
)
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.checkpoint_files import latest_checkpoint
from trainband.compat.tf1.training.saver import Saver
from trainband.compat.tf1.training.summary_hooks import default_summary
from trainband.runtime.overrides import override
from trainband.runtime.waiting import say_on_stderr


class Scaffold:
    """What a session needs to start. What is not passed is created when the graph is finalized."""

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Scaffold, Session], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,  # noqa: ARG002
        local_init_feed_dict: Any = None,
    ) -> None:
        self.init_op, self.init_feed_dict, self.init_fn = init_op, init_feed_dict, init_fn
        self.ready_op, self.ready_for_local_init_op = ready_op, ready_for_local_init_op
        self.local_init_op, self.local_init_feed_dict = local_init_op, local_init_feed_dict
        self.summary_op, self.saver = summary_op, saver

    def finalize(self) -> Scaffold:
        """Creates what was not passed."""
        graph = get_default_graph()
        if self.init_op is None:
            self.init_op = _once(graph, GraphKeys.INIT_OP, lambda: group(global_variables_initializer()))
        if self.local_init_op is None:
            self.local_init_op = _once(graph, GraphKeys.LOCAL_INIT_OP, _local_init)
        if self.summary_op is None:
            self.summary_op = default_summary(graph)
        if self.saver is None:
            savers = graph.get_collection(GraphKeys.SAVERS)
            if savers:
                self.saver = savers[0]
            elif global_variables():
                self.saver = Saver()  # which puts itself there
        return self


def _local_init() -> Any:
    return group(local_variables_initializer(), tables_initializer())


def _once(graph: Graph, collection: str, make: Callable[[], Any]) -> Any:
    """Return the first item of a collection, which is created if the collection is empty."""
    if not graph.get_collection(collection):
        graph.add_to_collection(collection, make())
    return graph.get_collection(collection)[0]


def begin(
    session: Session,
    *,
    is_chief: bool,
    init_op: Any,
    init_feed_dict: Any = None,
    init_fn: Callable[[Session], Any] | None = None,
    local_init_op: Any = None,
    saver: Saver | None = None,
    checkpoint_dir: str | None = None,
    checkpoint_path: str | None = None,
    settings: JobSettings | None = None,
) -> None:
    """Initialise all variables of a session, or restore them from the newest checkpoint. In a job with ps, the
    chief does, and the others wait for it, saying so.

    Raises:
      RuntimeError: a variable still has no value.
    """
    store = session.store
    in_job = isinstance(store, JobStore)
    if isinstance(store, JobStore):
        store.configure(settings or JobSettings())
        is_chief = store.is_chief
    if is_chief:
        saved = checkpoint_path or (_saved_by_job(checkpoint_dir) if in_job else _latest(checkpoint_dir))
        if saved and not in_job and saver is not None:
            logging.info("Restoring parameters from %s", saved)
            saver.restore(session, saved)
        elif not saved:
            if init_op is not None:
                session.run(init_op, init_feed_dict)
            if init_fn is not None:
                init_fn(session)
    if isinstance(store, JobStore):
        store.join()
    if local_init_op is not None:
        session.run(local_init_op)
    graph = session.graph
    with graph.as_default():
        every: list[Variable] = [*global_variables(), *local_variables()]
    if missing := store.missing(every):
        raise RuntimeError("Init operations did not make model ready. Variables not initialized: " + ", ".join(missing))


def _latest(directory: str | None) -> str | None:
    return None if directory is None else latest_checkpoint(directory)


def _saved_by_job(directory: str | None) -> str | None:
    if directory is None or not Path(directory).is_dir():
        return None
    newest = CheckpointDirectory(Path(directory).absolute(), say_on_stderr).newest()
    return None if newest is None else str(newest.path)


class SessionCreator:
    """Makes sessions."""

    def create_session(self) -> Session:
        """A session with values in all variables."""
        raise NotImplementedError


class ChiefSessionCreator(SessionCreator):
    """Makes a session whose variables it initialises or restores."""

    is_chief = True

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: str | None = None,
        settings: JobSettings | None = None,
    ) -> None:
        self.scaffold = scaffold or Scaffold()
        self._master, self._config = master, config
        self._directory = None if checkpoint_dir is None else str(checkpoint_dir)
        self._path = checkpoint_filename_with_path
        self._settings = settings

    @override
    def create_session(self) -> Session:
        scaffold = self.scaffold.finalize()
        graph: Graph = get_default_graph()
        graph.finalize()
        session = Session(self._master, graph, self._config)
        init_fn = scaffold.init_fn
        begin(
            session,
            is_chief=self.is_chief,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=None if init_fn is None else lambda running: init_fn(scaffold, running),
            local_init_op=scaffold.local_init_op,
            saver=scaffold.saver,
            checkpoint_dir=self._directory,
            checkpoint_path=self._path,
            settings=self._settings or JobSettings(checkpoint_dir=self._directory),
        )
        return session


class WorkerSessionCreator(ChiefSessionCreator):
    """Makes a session whose variables the chief initialises."""

    is_chief = False

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 1800,  # noqa: ARG002 - trainband's Timeouts.start_s
        settings: JobSettings | None = None,
    ) -> None:
        super().__init__(scaffold, master, config, settings=settings)


class SessionManager:
    """Makes sessions, in TensorFlow's older way."""

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,  # noqa: ARG002 - it is asked of the store
        ready_for_local_init_op: Any = None,  # noqa: ARG002
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: Any = None,  # noqa: ARG002
    ) -> None:
        self._local_init_op = local_init_op
        self._graph = graph
        self.recovery_wait_secs = recovery_wait_secs
        """How often TensorFlow polls; trainband is notified."""
        self.made_at = time.time()
        """When it was made."""

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Saver | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,  # noqa: ARG002
        max_wait_secs: float = 7200,  # noqa: ARG002
        config: ConfigProto | None = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Session], Any] | None = None,
    ) -> Session:
        """A session whose variables are initialised or restored."""
        session = Session(master, self._graph, config)
        directory = None if checkpoint_dir is None else str(checkpoint_dir)
        begin(
            session,
            is_chief=True,
            init_op=init_op,
            init_feed_dict=init_feed_dict,
            init_fn=init_fn,
            local_init_op=self._local_init_op,
            saver=saver,
            checkpoint_dir=directory,
            checkpoint_path=checkpoint_filename_with_path,
            settings=JobSettings(checkpoint_dir=directory),
        )
        return session

    def wait_for_session(
        self, master: str, config: ConfigProto | None = None, max_wait_secs: float = float("inf")
    ) -> Session:
        """A session whose variables another task initialises."""
        del max_wait_secs
        session = Session(master, self._graph, config)
        begin(session, is_chief=False, init_op=None, local_init_op=self._local_init_op)
        return session
