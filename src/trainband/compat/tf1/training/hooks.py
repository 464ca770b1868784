"""The other hooks that come with TensorFlow: when to stop, what to print, and what to feed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.graph import get_default_graph
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


class StopAtStepHook(SessionRunHook):
    """Ends training at a global step, or after a number of steps.

    Scripts derive hooks from this one and the next, and use their private attributes, which have TensorFlow's names.

    Raises:
      ValueError: not one of the two is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError("One and only one of num_steps and last_step must be specified.")
        self._num_steps, self._last_step = num_steps, last_step

    @property
    def known_last_step(self) -> int | None:
        """The global step, if it was given; `None` if a class of the script's decides otherwise when to stop."""
        decides_itself = type(self).after_run is not StopAtStepHook.after_run
        return None if self._last_step is None or decides_itself else int(self._last_step)

    @override
    def begin(self) -> None:
        self._global_step_tensor = needed_step("StopAtStepHook")

    @override
    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        if self._last_step is None:
            self._last_step = int(session.run(self._global_step_tensor)) + int(self._num_steps or 0)

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(self._global_step_tensor)

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        if self._last_step is not None and int(run_values.results) >= self._last_step:
            run_context.request_stop()


def last_step_of(hooks: Iterable[SessionRunHook]) -> int | None:
    """The global step at which some hooks end training; `None` if no hook knows it before there is a session."""
    found = [hook.known_last_step for hook in hooks if isinstance(hook, StopAtStepHook)]
    return min((step for step in found if step is not None), default=None)


class LoggingTensorHook(SessionRunHook):
    """Prints tensors at intervals.

    Args:
      tensors: what to print, by what it is called.
      formatter: makes a line of the values.

    Raises:
      ValueError: it is not clear when.
    """

    def __init__(
        self,
        tensors: Any,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Any = None,
    ) -> None:
        if not isinstance(tensors, Mapping):
            tensors = {one: one for one in tensors}
        if not at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError("either at_end and/or exactly one of every_n_iter and every_n_secs must be provided.")
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        self._tensors = dict(tensors)
        self._tag_order = list(self._tensors)
        self._at_end, self._formatter = at_end, formatter
        self._timer = None
        if every_n_iter is not None or every_n_secs is not None:
            self._timer = SecondOrStepTimer(every_n_secs, every_n_iter)

    @override
    def begin(self) -> None:
        self._current_tensors = {tag: _tensor(one) for tag, one in self._tensors.items()}
        self._iter_count = 0
        self._should_trigger = False

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:  # noqa: ARG002
        self._should_trigger = self._timer is not None and self._timer.should_trigger_for_step(self._iter_count)
        return SessionRunArgs(self._current_tensors) if self._should_trigger else None

    @override
    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        if self._should_trigger:
            self._log_tensors(run_values.results)
        self._iter_count += 1

    @override
    def end(self, session: Any) -> None:
        if self._at_end:
            self._log_tensors(session.run(self._current_tensors))

    def _log_tensors(self, values: Mapping[str, Any]) -> None:
        seconds = self._timer.update_last_triggered_step(self._iter_count)[0] if self._timer is not None else None
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                logging.info(self._formatter(values))
                return
            text = ", ".join(f"{tag} = {values[tag]!s}" for tag in self._tag_order)  # without !s, more digits
        logging.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


def _tensor(one: Any) -> Any:
    """The tensor that something is or names; an operation's name stands for its only output."""
    named = isinstance(one, str) and ":" not in one
    return get_default_graph().as_graph_element(f"{one}:0" if named else one)


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


class FinalOpsHook(SessionRunHook):
    """Runs operations at the end."""

    def __init__(self, final_ops: Any, final_ops_feed_dict: Any = None) -> None:
        self._ops, self._feed = final_ops, final_ops_feed_dict
        self.final_ops_values: Any = None
        """Their values."""

    @override
    def end(self, session: Any) -> None:
        self.final_ops_values = session.run(self._ops, self._feed)


class FeedFnHook(SessionRunHook):
    """Feeds what a function returns."""

    def __init__(self, feed_fn: Any) -> None:
        self._feed_fn = feed_fn

    @override
    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:  # noqa: ARG002
        return SessionRunArgs(fetches=None, feed_dict=self._feed_fn())


class GlobalStepWaiterHook(SessionRunHook):
    """Waits before the first run until the job has reached a global step."""

    def __init__(self, wait_until_step: int) -> None:
        self._until = wait_until_step
        self._done = False

    @override
    def begin(self) -> None:
        self._step = needed_step("GlobalStepWaiterHook")

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


class ProfilerHook(SessionRunHook):
    """Takes TensorFlow's arguments and records nothing: JAX has a profiler of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    @override
    def begin(self) -> None:
        logging.warning("ProfilerHook records nothing: use jax.profiler in place of it.")
