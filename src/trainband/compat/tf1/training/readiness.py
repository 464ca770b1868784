"""Readiness: how the variables of a new session get their values, and when it may be used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainband.checkpoint import CheckpointDirectory
from trainband.compat.checkpoints.files import latest_checkpoint
from trainband.compat.tf1.graphs.errors import FailedPreconditionError
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.sessions.job_store import JobSettings, JobStore
from trainband.compat.tf1.sessions.session import Session
from trainband.compat.tf1.training.saver import Saver
from trainband.runtime.waiting import say_on_stderr


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a session runs to become ready, and to know that it is; `None` means that there is nothing to do or know.

    Attributes:
      ready_op: gives the names of what is not ready.
      ready_for_local_init_op: gives the names of what is missing for `local_init_op`.
    """

    local_init_op: Any = None
    local_init_feed_dict: Any = None
    ready_op: Any = None
    ready_for_local_init_op: Any = None

    def prepare(self, session: Session) -> str | None:
        """Run the local initialisation, and return what is still missing; `None` if nothing is."""
        if self.local_init_op is not None:
            if (missing := _missing(session, self.ready_for_local_init_op)) is not None:
                return f" for local_init: {missing}"
            session.run(self.local_init_op, self.local_init_feed_dict)
        missing = _missing(session, self.ready_op)
        return None if missing is None else f": {missing}"


def _missing(session: Session, ready_op: Any) -> str | None:
    """What a ready operation says; `None`: all is ready."""
    if ready_op is None:
        return None
    try:
        names = session.run(ready_op)
    except FailedPreconditionError as exc:
        return str(exc)
    if names is None or np.size(names) == 0:
        return None
    listed = (name.decode() if isinstance(name, bytes) else str(name) for name in np.ravel(names))
    return f"Variables not initialized: {', '.join(listed)}"


def begin(
    session: Session,
    readiness: Readiness,
    *,
    is_chief: bool,
    init_op: Any = None,
    init_feed_dict: Any = None,
    init_fn: Callable[[Session], Any] | None = None,
    saver: Saver | None = None,
    checkpoint_dir: str | None = None,
    checkpoint_path: str | None = None,
    settings: JobSettings | None = None,
) -> None:
    """Initialise all variables of a session, or restore them from the newest checkpoint. In a job with ps, the
    chief does, and the others wait for it, saying so.

    Raises:
      RuntimeError: it is not ready after that.
    """
    store = session.store
    in_job = isinstance(store, JobStore)
    if isinstance(store, JobStore):
        store.configure(settings or JobSettings())
        is_chief = store.is_chief
    if is_chief:
        saved = _saved_by_job(checkpoint_dir) if in_job and not checkpoint_path else None
        restored = not in_job and restore(session, saver, checkpoint_dir, checkpoint_path)
        if not saved and not restored:
            if not in_job and all(one is None for one in (init_op, init_fn, readiness.local_init_op)):
                raise RuntimeError("Model is not initialized and no init_op or init_fn or local_init_op was given")
            if init_op is not None:
                session.run(init_op, init_feed_dict)
            if init_fn is not None:
                init_fn(session)
    if isinstance(store, JobStore):
        store.join()
        # No other task initialises what this one has for itself, such as the slots of its local variables.
        own = store.missing(session.graph.get_collection(GraphKeys.GLOBAL_VARIABLES))
        session.run([session.graph.variables[name].initializer for name in own])
    if (missing := readiness.prepare(session)) is not None:
        raise RuntimeError(
            f"Init operations did not make model ready{missing} (init_op: {_name(init_op)}, init_fn: {init_fn}, "
            f"local_init_op: {_name(readiness.local_init_op)})"
        )


def restore(
    session: Session,
    saver: Saver | None,
    directory: str | None,
    path: str | None = None,
    *,
    wait_s: float = 0.0,
    poll_s: float = 30.0,
) -> bool:
    """Whether there was a checkpoint, which has been restored.

    Args:
      wait_s: how long to wait for one.
      poll_s: how often to look.
    """
    if saver is None or (directory is None and path is None):
        return False
    deadline = time.monotonic() + wait_s
    while path is None and (path := latest_checkpoint(directory)) is None:
        if (left := deadline - time.monotonic()) <= 0:
            return False
        logging.info("Waiting for a checkpoint in %s to be available.", directory)
        time.sleep(min(poll_s, left))
    logging.info("Restoring parameters from %s", path)
    saver.restore(session, path)
    return True


def _name(operation: Any) -> Any:
    return getattr(operation, "name", operation)


def _saved_by_job(directory: str | None) -> str | None:
    if directory is None or not Path(directory).is_dir():
        return None
    newest = CheckpointDirectory(Path(directory).absolute(), say_on_stderr).newest()
    return None if newest is None else str(newest.path)
