"""SessionManager: makes sessions in TensorFlow's older way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.errors import DeadlineExceededError
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.readiness import Readiness, begin, restore
from trainband.compat.tf1.training.saver import Saver


class SessionManager:
    """Makes sessions that are ready to use.

    Args:
      local_init_op: run in each session.
      ready_op, ready_for_local_init_op: give the names of what is not ready after, and before, `local_init_op` runs.
      graph: what is run; the default graph if none is given.
      recovery_wait_secs: how often to look whether a checkpoint is there, or another task has initialised the
        variables. In a job with ps, trainband is notified.
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: Any = None,  # noqa: ARG002
        local_init_feed_dict: Any = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op , "
                f"ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._readiness = Readiness(local_init_op, local_init_feed_dict, ready_op, ready_for_local_init_op)
        self._graph = graph or get_default_graph()
        self._wait_s = recovery_wait_secs

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Saver | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Session], Any] | None = None,
    ) -> Session:
        """A session whose variables are initialised or restored.

        Raises:
          RuntimeError: it is not ready after that.
          ValueError: a directory and a checkpoint are given.
        """
        session = Session(master, self._graph, config)
        directory = _one_of(checkpoint_dir, checkpoint_filename_with_path)
        if wait_for_checkpoint and not isinstance(session.store, JobStore):
            restore(session, saver, directory, wait_s=max_wait_secs, poll_s=self._wait_s)
        begin(
            session,
            self._readiness,
            is_chief=True,
            init_op=init_op,
            init_feed_dict=init_feed_dict,
            init_fn=init_fn,
            saver=saver,
            checkpoint_dir=directory,
            checkpoint_path=checkpoint_filename_with_path,
            settings=JobSettings(checkpoint_dir=directory),
        )
        return session

    def recover_session(
        self,
        master: str,
        saver: Saver | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
    ) -> tuple[Session, bool]:
        """(a session, whether a checkpoint was restored in it and it is ready).

        Raises:
          ValueError: a directory and a checkpoint are given.
        """
        session = Session(master, self._graph, config)
        path = checkpoint_filename_with_path
        directory = _one_of(checkpoint_dir, path)
        wait_s = max_wait_secs if wait_for_checkpoint else 0.0
        restored = restore(session, saver, directory, path, wait_s=wait_s, poll_s=self._wait_s)
        missing = self._readiness.prepare(session)
        if not restored:
            return session, False
        if missing is not None:
            logging.info("Restoring model from %s did not make model ready%s", path or directory, missing)
            return session, False
        return session, True

    def wait_for_session(
        self, master: str, config: ConfigProto | None = None, max_wait_secs: float | None = float("inf")
    ) -> Session:
        """A session whose variables another task initialises.

        Raises:
          DeadlineExceededError: nobody has, for so long.
        """
        limit_s = float("inf") if max_wait_secs is None else max_wait_secs
        deadline = time.monotonic() + limit_s
        while True:
            session = Session(master, self._graph, config)
            if isinstance(session.store, JobStore):
                begin(session, self._readiness, is_chief=False)
                return session
            if (missing := self._readiness.prepare(session)) is None:
                return session
            session.close()
            if time.monotonic() + self._wait_s > deadline:
                raise DeadlineExceededError(None, None, f"Session was not ready after waiting {int(limit_s)} secs.")
            logging.info("Waiting for model to be ready%s", missing)
            time.sleep(self._wait_s)


def _one_of(directory: Any, path: str | None) -> str | None:
    if directory is not None and path:
        raise ValueError("Can not provide both checkpoint_dir and checkpoint_filename_with_path.")
    return None if directory is None else str(directory)
