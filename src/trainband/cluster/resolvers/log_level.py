"""The level and the format of the log, from the environment variables `TRAINBAND_LOG` and `TRAINBAND_LOG_FORMAT`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainband.cluster.resolvers import tf_config
from trainband.errors import ClusterError, YourError
from trainband.runtime.logs import FORMATS, LEVELS, NOBODY, log_to_stderr

VARIABLE = "TRAINBAND_LOG"
FORMAT = "TRAINBAND_LOG_FORMAT"
"""`text` or `json`."""


def follow_environment(environ: Mapping[str, str] | None = None) -> None:
    """Prints the log from the level in the environment; does nothing without one.

    As JSON, it is printed from `info` by default.

    Args:
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      YourError: the level or format is unknown.
    """
    environ = os.environ if environ is None else environ
    form = log_format(environ)
    level = environ.get(VARIABLE, "").lower() or ("info" if form == "json" else "")
    if not level:
        return
    if level not in LEVELS:
        raise YourError(f"{VARIABLE} = {environ[VARIABLE]!r}: there is no such level; use {', '.join(LEVELS)}.")
    log_to_stderr(level, _task(environ), form)


def log_format(environ: Mapping[str, str]) -> str:
    """Returns the format in the environment; `text` by default.

    Raises:
      YourError: the format is unknown.
    """
    form = environ.get(FORMAT, "").lower() or "text"
    if form not in FORMATS:
        raise YourError(f"{FORMAT} = {environ[FORMAT]!r}: there is no such format; use {' or '.join(FORMATS)}.")
    return form


def _task(environ: Mapping[str, str]) -> str:
    try:
        cluster = tf_config.resolve(environ)
    except ClusterError:  # raised again when the cluster is resolved
        return NOBODY
    return NOBODY if cluster is None else str(cluster.task)
