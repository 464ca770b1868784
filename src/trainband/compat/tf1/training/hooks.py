"""SessionRunHook and the hooks that come with TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.overrides import override
from trainband.compat.tf1.graphs.graph import Graph, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.summary import FileWriterCache, Summary, merge_all
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.compat.tf1.training.saver import Saver


@dataclass(frozen=True, slots=True)
class SessionRunArgs:
    """What a hook wants of the next run: fetches and feeds besides the caller's own."""

    fetches: Any = None
    feed_dict: Any = None
    options: Any = None


@dataclass(frozen=True, slots=True)
class SessionRunValues:
    """What a hook gets of a run: the values of what it asked for."""

    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext:
    """A run as a hook sees it."""

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        """What the caller has asked for."""
        self.session = session
        """The session, to run other things in."""
        self._stop = False

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked for the end."""
        return self._stop

    def request_stop(self) -> None:
        """Ends the session's loop after this run."""
        self._stop = True


class SessionRunHook:
    """What happens beside the runs of a monitored session. All its methods may be left as they are."""

    def begin(self) -> None:
        """Once, before the graph is finalized."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """When there is a session, with values in all variables."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Before a run: what it wants of that."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """After a run."""

    def end(self, session: Any) -> None:
        """At the end, not after an error."""


class SecondOrStepTimer:
    """Says whether it is time, by seconds or by steps."""

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError("exactly one of every_secs and every_steps should be provided.")
        self._secs, self._steps = every_secs, every_steps
        self._last_step: int | None = None
        self._last_time = 0.0

    def reset(self) -> None:
        """From the beginning."""
        self._last_step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time, at a step."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._secs is not None:
            return time.monotonic() >= self._last_time + self._secs
        return step >= self._last_step + (self._steps or 1)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """It was done at a step; (seconds, steps) since the last time."""
        now = time.monotonic()
        since = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return since

    def last_triggered_step(self) -> int | None:
        """When it was done last."""
        return self._last_step


def _needed_step(what: str) -> Any:
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {what}.")
    return step


class StopAtStepHook(SessionRunHook):
    """Ends the training at a global step, or after so many.

    Raises:
      ValueError: not one of the two is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("One and only one of num_steps and last_step must be specified.")
        self._num, self._last = num_steps, last_step

    @override
    def begin(self) -> None:
        self._step = _needed_step("StopAtStepHook")

    @override
    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        if self._last is None:
            self._last = int(session.run(self._step)) + int(self._num or 0)

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._step)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._last is not None and int(run_values.results) >= self._last:
            run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Prints tensors now and then."""

    def __init__(
        self,
        tensors: Any,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Any = None,
    ) -> None:
        if not isinstance(tensors, Mapping):
            tensors = {one if isinstance(one, str) else one.name: one for one in tensors}
        self._tensors = dict(tensors)
        self._at_end, self._formatter = at_end, formatter
        self._timer = None
        if every_n_iter is not None or every_n_secs is not None or not at_end:
            self._timer = SecondOrStepTimer(every_n_secs, every_n_iter)
        self._count = 0
        self._wanted = False

    @override
    def begin(self) -> None:
        graph = get_default_graph()
        self._elements = {name: graph.as_graph_element(one) for name, one in self._tensors.items()}

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:  # noqa: ARG002
        self._wanted = self._timer is not None and self._timer.should_trigger_for_step(self._count)
        return SessionRunArgs(self._elements) if self._wanted else None

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        if self._wanted and self._timer is not None:
            self._log(run_values.results, self._timer.update_last_triggered_step(self._count)[0])
        self._count += 1

    @override
    def end(self, session: Any) -> None:
        if self._at_end:
            self._log(session.run(self._elements), None)

    def _log(self, values: Mapping[str, Any], seconds: float | None) -> None:
        if self._formatter is not None:
            logging.info(self._formatter(values))
            return
        text = ", ".join(f"{name} = {values[name]}" for name in self._tensors)
        logging.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


class NanLossDuringTrainingError(RuntimeError):
    """The loss is not a number."""

    def __str__(self) -> str:
        return "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Ends the training, or fails, when a loss is not a number."""

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fail = loss_tensor, fail_on_nan_loss

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._loss)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if np.isnan(run_values.results).any():
            logging.error("Model diverged with loss = NaN.")
            if self._fail:
                raise NanLossDuringTrainingError
            run_context.request_stop()


class CheckpointSaverHook(SessionRunHook):
    """Saves every so many steps or seconds, and at the end.

    In a job with ps, the job itself saves, into the session's own directory and as often as this one says.
    """

    def __init__(
        self,
        checkpoint_dir: Any,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Any = None,
        save_graph_def: bool = True,  # noqa: ARG002
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self.checkpoint_dir = str(checkpoint_dir)
        """Where checkpoints go."""
        self.save_secs, self.save_steps = save_secs, save_steps
        self._path = str(Path(self.checkpoint_dir) / checkpoint_basename)
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._saver, self._scaffold = saver, scaffold
        self._listeners = list(listeners or [])

    @override
    def begin(self) -> None:
        self._step = _needed_step("CheckpointSaverHook")
        for listener in self._listeners:
            listener.begin()

    @override
    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        step = int(session.run(self._step))
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._step)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    @override
    def end(self, session: Any) -> None:
        step = int(session.run(self._step))
        if step != self._timer.last_triggered_step():
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        save = getattr(session.store, "save", None)
        for listener in self._listeners:
            listener.before_save(session, step)
        if save is not None:
            if self._timer.last_triggered_step() is not None:
                save()
        else:
            Path(self.checkpoint_dir).mkdir(parents=True, exist_ok=True)
            logging.info("Saving checkpoints for %d into %s.", step, self._path)
            self._needed_saver().save(session, self._path, global_step=step)
        asked = [listener.after_save(session, step) for listener in self._listeners]
        return any(asked)

    def _needed_saver(self) -> Saver:
        if self._saver is None and self._scaffold is not None:
            self._saver = self._scaffold.saver
        if self._saver is None:
            savers = get_default_graph().get_collection(GraphKeys.SAVERS)
            if not savers:
                raise RuntimeError("No items in collection savers: give the hook a saver, or a scaffold.")
            self._saver = savers[0]
        return self._saver


class CheckpointSaverListener:
    """What happens around each save."""

    def begin(self) -> None:
        """Once, before the graph is finalized."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Before a checkpoint is written."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """After it; whether the training shall end."""

    def end(self, session: Any, global_step_value: int) -> None:
        """At the end."""


class StepCounterHook(SessionRunHook):
    """Counts global steps per second."""

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: Any = None,
    ) -> None:
        self._timer = SecondOrStepTimer(every_n_secs, None if every_n_secs is not None else every_n_steps)
        self._writer = summary_writer or (None if output_dir is None else FileWriterCache.get(output_dir))

    @override
    def begin(self) -> None:
        self._step = _needed_step("StepCounterHook")

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._step)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        step = int(run_values.results)
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
    """Writes summaries now and then.

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
        self._step = _needed_step("SummarySaverHook")
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


class FinalOpsHook(SessionRunHook):
    """Runs something at the end."""

    def __init__(self, final_ops: Any, final_ops_feed_dict: Any = None) -> None:
        self._ops, self._feed = final_ops, final_ops_feed_dict
        self.final_ops_values: Any = None
        """What came of it."""

    @override
    def end(self, session: Any) -> None:
        self.final_ops_values = session.run(self._ops, self._feed)


class FeedFnHook(SessionRunHook):
    """Feeds what a function gives."""

    def __init__(self, feed_fn: Any) -> None:
        self._feed_fn = feed_fn

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(fetches=None, feed_dict=self._feed_fn())


class GlobalStepWaiterHook(SessionRunHook):
    """Waits before the first run until the job has come to a global step."""

    def __init__(self, wait_until_step: int) -> None:
        self._until = wait_until_step
        self._done = False

    @override
    def begin(self) -> None:
        self._step = _needed_step("GlobalStepWaiterHook")

    @override
    def before_run(self, run_context: SessionRunContext) -> None:
        while not self._done:
            step = int(run_context.session.run(self._step))
            self._done = step >= self._until
            if not self._done:
                logging.info(
                    "Waiting for global step %d before starting training. Current step is %d.", self._until, step
                )
                time.sleep(0.5)


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
