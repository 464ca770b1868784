"""The check against a cluster's task that trains without its cluster: each would silently train its own model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from trainband.cluster import resolve
from trainband.errors import ClusterError
from trainband.strategies.base import Strategy


def users_line() -> str:
    """Returns the line of the program that called trainband, as `train.py:12`."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` reads the source of every frame
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("trainband", "keras"):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def require_cluster(strategy: Strategy, line: str) -> None:
    """Refuses a strategy that does not use the cluster of this process.

    Args:
      strategy: of a trainer.
      line: where the trainer was made, as returned by `users_line`.

    Raises:
      ClusterError: `TF_CONFIG` has a cluster of several tasks; `standalone=True` allows it.
    """
    if strategy.cluster is not None or getattr(strategy, "standalone", False):
        return
    cluster = resolve()
    tasks = [] if cluster is None else list(cluster.spec.tasks())
    if cluster is None or len(tasks) < 2:
        return
    name = type(strategy).__name__
    wanted = "ParameterServer" if cluster.spec.ps else "MultiWorkerMirrored"
    raise ClusterError(
        f"this process is {cluster.task} of a cluster of {len(tasks)} tasks, but {line or 'the program'} "
        f"trains with {name}, without the cluster, so every task would train its own model; there, write "
        f"strategy=trainband.{wanted}(trainband.cluster.resolve()), or strategy=trainband.OneDevice(standalone=True) "
        "if each task is to train alone."
    )
