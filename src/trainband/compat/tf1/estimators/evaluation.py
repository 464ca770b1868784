"""One evaluation: a session that goes through all batches, and the values of the metrics at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.operations.summary import FileWriterCache, Summary
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.hooks import FinalOpsHook
from trainband.compat.tf1.training.monitored import MonitoredSession
from trainband.compat.tf1.training.scaffold import ChiefSessionCreator, Scaffold
from trainband.compat.tf1.training.session_run_hook import SessionRunContext, SessionRunHook, SessionRunValues
from trainband.runtime.overrides import override


class StopAfterRuns(SessionRunHook):
    """Ends a session after a number of runs, and counts them aloud."""

    def __init__(self, runs: int | None) -> None:
        self._runs = runs
        self._done = 0
        self._every = 1 if runs is None or runs < 10 else runs // 10

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        self._done += 1
        if self._runs is None:
            logging.debug("Evaluation [%d]", self._done)
            return
        if self._done % self._every == 0 or self._done == self._runs:
            logging.info("Evaluation [%d/%d]", self._done, self._runs)
        if self._done >= self._runs:
            run_context.request_stop()


def evaluate_once(
    checkpoint_path: str | None,
    scaffold: Scaffold,
    update: Any,
    results: Mapping[str, Any],
    steps: int | None,
    hooks: Sequence[SessionRunHook],
    config: Any,
) -> dict[str, Any]:
    """Run an update for each batch, until there are no more or as often as `steps` says; return the results' values.

    Args:
      checkpoint_path: where the values of the variables come from; `None`: from their initialisers.
    """
    final = FinalOpsHook(dict(results))
    logging.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    creator = ChiefSessionCreator(scaffold, config=config, checkpoint_filename_with_path=checkpoint_path)
    with MonitoredSession(creator, [StopAfterRuns(steps), *hooks, final]) as session:
        while not session.should_stop():
            session.run(update)
    logging.info("Finished evaluation at %s", time.strftime("%Y-%m-%d-%H:%M:%S", time.gmtime()))
    found: dict[str, Any] = final.final_ops_values
    return found


def write_results(directory: str, results: Mapping[str, Any], step: int, checkpoint_path: str | None) -> None:
    """Writes results into an event file, and into the log."""
    shown = ", ".join(f"{name} = {value!s}" for name, value in sorted(results.items()))
    logging.info("Saving dict for global step %d: %s", step, shown)
    summary = Summary()
    for name, value in results.items():
        if name == "global_step" or value is None:
            continue
        if np.ndim(value) == 0 and isinstance(value, int | float | np.number | np.bool_):
            summary.value.add(tag=name, simple_value=float(value))
        else:
            logging.debug("Skipping summary for %s, must be a float or np.float32.", name)
    writer = FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    writer.flush()
    if checkpoint_path is not None:
        logging.info("Saving 'checkpoint_path' summary for global step %d: %s", step, checkpoint_path)
