"""Hooks that write event files: summaries, and steps per second."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf1.graphs.graph import Graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.summary import FileWriterCache, Summary, merge_all
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.global_step import needed_step
from trainband.compat.tf1.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from trainband.compat.tf1.training.timer import SecondOrStepTimer
from trainband.runtime.overrides import override


class StepCounterHook(SessionRunHook):
    """Counts global steps per second."""

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: Any = None,
    ) -> None:
        self._last_step: int | None = None
        self._same = 0
        self._timer = SecondOrStepTimer(every_n_secs, None if every_n_secs is not None else every_n_steps)
        self._writer = summary_writer or (None if output_dir is None else FileWriterCache.get(output_dir))

    @override
    def begin(self) -> None:
        self._step = needed_step("StepCounterHook")

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._step)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        step = int(run_values.results)
        self._same = self._same + 1 if step == self._last_step else 0
        if self._same and self._same % 20 == 0:
            logging.warning(
                "It seems that global step (tf.train.get_global_step) has not been increased. Current value (could be "
                "stable): %s vs previous value: %s.",
                step,
                self._last_step,
            )
        self._last_step = step
        if self._timer.should_trigger_for_step(step):
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds and steps:
                rate = steps / seconds
                if self._writer is not None:
                    summary = Summary(value=[Summary.Value(tag="global_step/sec", simple_value=rate)])
                    self._writer.add_summary(summary, step)
                logging.info("global_step/sec: %g", rate)

    @override
    def end(self, session: Any) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.flush()


class SummarySaverHook(SessionRunHook):
    """Writes summaries at intervals.

    Raises:
      ValueError: neither or both of `scaffold` and `summary_op` are given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._directory, self._writer = output_dir, summary_writer
        self._scaffold, self._op = scaffold, summary_op
        self._wanted = False

    @override
    def begin(self) -> None:
        if self._writer is None and self._directory:
            self._writer = FileWriterCache.get(self._directory)
        self._step = needed_step("SummarySaverHook")
        self._next = 0

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        fetches: dict[str, Any] = {"global_step": self._step}
        self._wanted = self._timer.should_trigger_for_step(self._next)
        op = self._op if self._op is not None else self._scaffold.summary_op
        if self._wanted and op is not None:
            fetches["summary"] = list(op) if isinstance(op, list | tuple) else [op]
        return SessionRunArgs(fetches)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        step = int(run_values.results["global_step"])
        if self._wanted and self._writer is not None:
            self._timer.update_last_triggered_step(step)
            for one in run_values.results.get("summary", ()):
                self._writer.add_summary(one, step)
        self._next = step + 1

    @override
    def end(self, session: Any) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.flush()


def default_summary(graph: Graph) -> Any:
    """All the graph's summaries as one, made once."""
    known = graph.get_collection(GraphKeys.SUMMARY_OP)
    if known:
        return known[0]
    with graph.as_default():
        made = merge_all()
    if made is not None:
        graph.add_to_collection(GraphKeys.SUMMARY_OP, made)
    return made
