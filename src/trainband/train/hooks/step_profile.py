"""StepProfileHook: a trace of some steps, of all tasks involved, on one clock."""

from __future__ import annotations

from pathlib import Path

import jax

from trainband.errors import TrainbandError, YourError
from trainband.monitor.step_profile import CLOCK, JaxEvent, StepProfile, jax_events_in, save_profile
from trainband.runtime.overrides import override
from trainband.runtime.step_recording import MOST_STEPS, StepRecorder
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import RecordedSession


class StepProfileHook(Hook):
    """Records the steps from one global step to another, and writes them as a trace.

    The trace shows each worker's part in each step (waiting for data, computing, encoding and sending, waiting for
    the ps), each ps's handling of each push (checking, waiting for the update rule, the update, the standby), the
    network, and the events of JAX's profiler, all on one clock. It is
    `<directory>/steps-<first>-<last>/trace.json.gz`, for https://ui.perfetto.dev or chrome://tracing. Every worker adds
    its part there; if they share no file system, each has a trace of its own steps and of the ps's handling of
    them. The output of JAX's profiler is in `jax/<task>` there, for TensorBoard's profile plugin (xprof).

    Args:
      first: the first global step to record; from the second on, nothing is compiled any longer.
      last: the last one.
      directory: where to write; by default `profiles` in the session's `checkpoint_dir`.

    Raises:
      YourError: `last` comes before `first`, or is more than 1,000 steps after it.
    """

    def __init__(self, first: int, last: int, directory: str | Path | None = None) -> None:
        if not 1 <= first <= last < first + MOST_STEPS:
            raise YourError(
                f"steps to profile must be (first, last) with 1 <= first <= last and at most {MOST_STEPS:,} steps, "
                f"got ({first}, {last})."
            )
        self._first, self._last = first, last
        self._directory = None if directory is None else Path(directory)
        self._session: RecordedSession | None = None
        self._recorder: StepRecorder | None = None
        self._clock_s = 0.0
        self._traces = False
        self._is_over = False

    @override
    def begin(self, session: RecordedSession) -> None:
        if self._directory is None and session.checkpoint_dir is None:
            raise YourError("a profile of steps needs a directory; pass profile_dir= or checkpoint_dir=.")
        self._session = session
        if session.global_step >= self._last:
            self._is_over = True
        elif session.global_step + 1 >= self._first:
            self._start(session)
            if self._recorder is not None:
                self._recorder.start_step()

    @override
    def before_run(self, session: RecordedSession) -> None:
        if self._recorder is not None and (session.global_step >= self._last or self._recorder.is_over):
            self._finish()

    @override
    def after_run(self, session: RecordedSession, report: StepReport) -> None:
        if self._is_over:
            return
        if self._recorder is None and report.global_step + 1 >= self._first:
            self._start(session)
        elif self._traces and report.global_step >= self._last:
            jax.block_until_ready(report.loss)  # otherwise the trace shows only half of the last step

    @override
    def end(self, session: RecordedSession) -> None:
        del session
        self._finish()

    @override
    def close(self) -> None:
        self._finish()
        self._session = None

    @property
    def _target(self) -> Path:
        assert self._session is not None
        parent = self._directory
        if parent is None:
            assert self._session.checkpoint_dir is not None
            parent = self._session.checkpoint_dir / "profiles"
        return parent / f"steps-{self._first}-{self._last}"

    @property
    def _jax_directory(self) -> Path:
        assert self._session is not None
        return self._target / "jax" / self._session.task.replace(":", "-")

    def _start(self, session: RecordedSession) -> None:
        recorder = session.record_steps(self._last - max(session.global_step, self._first - 1))
        if recorder is None:
            return  # a viewer of the job is recording steps
        self._recorder = recorder
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # a frame for every call hides the rest, and takes twice as long
        try:
            jax.profiler.start_trace(self._jax_directory, create_perfetto_trace=True, profiler_options=options)
        except (OSError, RuntimeError) as exc:  # a process can run only one profiler
            session.say(f"WARNING: the profile of steps lacks JAX's profiler, which could not start: {exc}")
            return
        self._traces = True
        self._clock_s = recorder.clock()
        with jax.profiler.TraceAnnotation(CLOCK):
            pass

    def _finish(self) -> None:
        """Writes the recording; a failure does not end the training."""
        session, recorder = self._session, self._recorder
        if self._is_over or session is None or recorder is None:
            return
        self._is_over = True
        try:
            events: tuple[JaxEvent, ...] = ()
            if self._traces:
                jax.profiler.stop_trace()
                events = jax_events_in(self._jax_directory, self._clock_s)
            recording = session.recording(recorder)
            path = save_profile(self._target, StepProfile(session.job, recording, events))
        except (OSError, RuntimeError, TrainbandError) as exc:
            session.say(f"WARNING: could not write the profile of steps {self._first} to {self._last}: {exc}")
            return
        session.say(f"{session.task} has profiled {sum(s.name == 'step' for s in recording.spans)} steps: {path}")
