"""The run of a task of the job `evaluator`, in place of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from trainband.cluster import Cluster
from trainband.cluster.task_metrics import serve_metrics
from trainband.errors import ClusterError
from trainband.model.variables import PyTree, Variables
from trainband.runtime.waiting import Say
from trainband.train.result import Evaluation


def run_evaluator(
    cluster: Cluster,
    evaluate: Callable[[PyTree, PyTree, Iterable[PyTree], int], Evaluation],
    variables: Variables,
    checkpoint_dir: str | Path | None,
    validation: Iterable[PyTree] | None,
    say: Say,
) -> NoReturn:
    """Evaluates the checkpoints of the job until it has ended, and then ends the process.

    Args:
      cluster: with this task.
      evaluate: see `Evaluator`, as for `variables`.
      variables: of the model.
      checkpoint_dir: where the checkpoints appear.
      validation: the batches to evaluate on.
      say: receives lines for people.

    Raises:
      ClusterError: there is no directory, or there are no batches.
    """
    if checkpoint_dir is None or validation is None:
        raise ClusterError(
            "an evaluator task needs fit(checkpoint_dir=..., validation=...): the checkpoints to evaluate, and the "
            "batches to evaluate them on."
        )
    serve_metrics(cluster, say)
    from trainband.train.evaluator import Evaluator  # here: the library of summaries takes a while

    Evaluator(evaluate, variables, Path(checkpoint_dir), validation, say=say).run()
    raise SystemExit(0)
