"""One call of `fit` on a strategy: replaces the training step of Keras's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from trainband.errors import DataError, ModelError
from trainband.keras.job import Job
from trainband.keras.keras_internals import learning_rate, unpacked
from trainband.keras.metrics import CONTRIBUTION, LazyLogs
from trainband.keras.optimizer import LEARNING_RATE
from trainband.model.batch import Dealt, examples_in
from trainband.train.hooks import StopAtStepHook
from trainband.train.session import MonitoredSession


class Training:
    """One training run of a job, in the steps of Keras's loop.

    An epoch is a number of the job's updates, on any worker. If workers run at their own speeds, a step of Keras's loop
    ends when the job has made that update: at once, if another has made it already.

    The job is joined at the first step: only then is the model built, and callbacks have loaded its weights.

    Args:
      job_for: returns the job that trains on batches like the given one.
      model: the Keras model.
      updates: in an epoch; `None`: as many as there are batches.
      alone: whether each batch is one update, so that a refused one is not replaced.
      epochs, first_epoch: of the call.
      dealt: whether all workers' batches come from the same data, with the same size in each step.
      settings: the session's, such as its `checkpoint_dir`.
    """

    def __init__(
        self,
        job_for: Callable[[Any], Job],
        model: Any,
        *,
        updates: int | None,
        alone: bool,
        epochs: int,
        first_epoch: int,
        dealt: bool,
        settings: dict[str, Any],
    ) -> None:
        self._job_for = job_for
        self._model = model
        self._job: Job | None = None
        self._updates = updates
        self._alone = alone
        self._epochs = epochs
        self._first_epoch = first_epoch
        self._dealt = dealt
        self._settings = settings
        self._session: MonitoredSession | None = None
        self._resumed = 0
        self._epoch = first_epoch
        self._steps = 0
        self._began_at = 0
        self._outside = ExitStack()
        self._learning_rate: Any = None
        self._failed = False
        self._synced = True

    def epochs_done(self, steps: int) -> int:
        """Returns the number of epochs that a resumed training has completed in this many updates."""
        self._resumed = 0 if self._updates is None else min(steps // self._updates, self._epochs - self._first_epoch)
        return self._resumed

    def start_epoch(self, epoch: int) -> None:
        """Begins an epoch."""
        if self._job is None and not self._resumed:
            self._first_epoch = epoch  # a callback such as BackupAndRestore may have made it begin later
        self._epoch, self._steps = epoch, 0
        if self._job is not None:
            self._job.running.reset()

    @property
    def epoch_is_whole(self) -> bool:
        """Whether the job has made all updates of the epoch, as far as their number is known."""
        if self._updates is None or self._job is None:
            return True
        epochs = self._epoch - self._first_epoch + 1
        return self._job.trainer.join().steps.global_step >= self._began_at + epochs * self._updates

    def step(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Keras's training step: `(logs, state)`, whose four parts are unused by Keras's loop here."""
        del state
        self._outside.close()
        batch = None
        if self._job is None:
            batch = self._next(iterator)
            self._start(batch)
        assert self._job is not None
        session = self._joined()
        if self._synced:
            self._job.adopt_changes()
        for made in range(self._model.steps_per_execution):
            if self._steps == self._updates:
                break
            try:
                self._make(session, iterator, batch)
            except StopIteration:
                if not made:
                    raise
                break
            batch = None
        if session.should_stop():
            self._model.stop_training = True
        return LazyLogs(self._job.running.results), (None,) * 4

    def results(self) -> Any:
        """Returns the metrics of the epoch."""
        return {} if self._job is None else self._job.running.results()

    def _make(self, session: MonitoredSession, iterator: Iterator[Any], batch: Any) -> None:
        """Makes a step, on this batch first if given; several, if others' steps count and this worker is ahead."""
        self._steps += 1
        while not self._is_made(session):
            self._train(session, self._next(iterator) if batch is None else batch)
            batch = None
            if self._alone or self._updates is None:
                break

    def _start(self, batch: Any) -> None:
        job = self._job_for(batch)
        hooks = []
        if self._updates is not None:
            hooks.append(StopAtStepHook(num_steps=max(0, self._epochs - self._first_epoch) * self._updates))
        session = MonitoredSession(job.trainer, hooks=hooks, console=False, **self._settings)
        self._session = session.__enter__()
        self._job = job
        job.running.reset()
        job.begun()
        self._began_at = self._session.began_at
        self._learning_rate = self._rate_now()

    def _is_made(self, session: MonitoredSession) -> bool:
        """Whether the job has made the update of this step of Keras's loop."""
        if session.should_stop():
            return True
        if self._updates is None:
            return False
        epochs = self._epoch - self._first_epoch
        return session.global_step >= self._began_at + epochs * self._updates + self._steps

    def _joined(self) -> MonitoredSession:
        if self._session is None:
            raise ModelError("fit: the job has ended, but Keras's loop continues.")
        return self._session

    def _next(self, iterator: Iterator[Any]) -> Any:
        try:
            return unpacked(next(iterator))
        except StopIteration:
            if self._updates is None:
                raise  # ends Keras's epoch
            raise DataError(
                f"fit: the data ended in epoch {self._epoch + 1}, after {self._steps} of its {self._updates} steps; "
                "repeat it, or give fewer epochs= or steps_per_epoch=."
            ) from None

    def _train(self, session: MonitoredSession, batch: Any) -> None:
        assert self._job is not None
        self._steer()
        self._synced = False
        self._job.check_structure(batch)
        try:
            report = session.run(Dealt(batch) if self._dealt else batch)
        except BaseException:
            self._failed = True
            raise
        if report.steps:  # else the whole training run had already ended
            self._job.running.add(report.metrics[CONTRIBUTION], examples_in(batch))

    def _rate_now(self) -> Any:
        variable = learning_rate(self._model.optimizer)
        return None if variable is None else variable.value

    def _steer(self) -> None:
        """Passes on a callback's change of the learning rate."""
        rate = self._rate_now()
        if rate is not self._learning_rate:
            self._learning_rate = rate
            assert self._job is not None
            self._job.trainer.join().values.steer({LEARNING_RATE: float(rate)})
            if self._session is not None:
                self._session.note_values({"learning_rate": float(rate)})

    def sync(self) -> None:
        """Gives the Keras model the job's values. Called when a callback reads the model, and after an epoch."""
        if self._synced or self._failed or self._job is None:  # a job that has failed cannot be asked
            return
        self._synced = True
        if self._session is not None and self._session.should_stop():
            self._end()  # the last values are available once the job has ended
        self._job.fill()
        self._learning_rate = self._rate_now()
        if self._session is not None:
            self._outside.enter_context(self._job.trainer.join().peers.busy("is between two epochs"))

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._outside.close()
        session = self._session
        if session is None:
            return
        if exc is not None:
            self._session = None
            session.__exit__(kind, exc, trace)
            return
        if not session.should_stop():
            if self._updates is None:
                session.used_up()
            else:
                session.request_stop("a callback ended it")
        self._end()
