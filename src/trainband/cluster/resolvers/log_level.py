"""The level of the log, from the environment variable `TRAINBAND_LOG`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainband.cluster.resolvers import tf_config
from trainband.errors import ClusterError, YourError
from trainband.runtime.logs import LEVELS, NOBODY, log_to_stderr

VARIABLE = "TRAINBAND_LOG"


def follow_environment(environ: Mapping[str, str] | None = None) -> None:
    """Prints the log from the level on that the environment asks for; does nothing where it asks for none.

    Args:
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      YourError: there is no such level.
    """
    environ = os.environ if environ is None else environ
    level = environ.get(VARIABLE, "").lower()
    if not level:
        return
    if level not in LEVELS:
        raise YourError(f"{VARIABLE} = {environ[VARIABLE]!r}: there is no such level; use {', '.join(LEVELS)}.")
    log_to_stderr(level, _task(environ))


def _task(environ: Mapping[str, str]) -> str:
    try:
        cluster = tf_config.resolve(environ)
    except ClusterError:  # which is for whoever asks for the cluster
        return NOBODY
    return NOBODY if cluster is None else str(cluster.task)
