"""CheckpointSaverHook: saves at intervals, and at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.scripts import logging
from trainband.compat.tf1.training.global_step import needed_step
from trainband.compat.tf1.training.saver import Saver
from trainband.compat.tf1.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from trainband.compat.tf1.training.timer import SecondOrStepTimer
from trainband.runtime.overrides import override


class CheckpointSaverListener:
    """What happens around each save."""

    def begin(self) -> None:
        """Once, before the graph is finalized."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Before a checkpoint is written."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called after it; returns whether training is to end."""

    def end(self, session: Any, global_step_value: int) -> None:
        """At the end."""


class CheckpointSaverHook(SessionRunHook):
    """Saves at intervals of steps or seconds, and at the end.

    In a job with ps, the job itself saves, into the session's directory and at this hook's intervals.
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
        self._step = needed_step("CheckpointSaverHook")
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
