"""A Keras model whose `fit`, `evaluate` and `predict` run on a strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainband.checkpoint import CheckpointDirectory
from trainband.errors import CheckpointError, ClusterError, ModelError
from trainband.keras.callbacks import LineEachEpoch, with_bridge
from trainband.keras.evaluation import OnAllDevices, with_checked_batches
from trainband.keras.keras_internals import in_stateless_scope, keras, train_validation_split
from trainband.keras.shares import Endless, Order, Share, adapter_for
from trainband.keras.tensorboard import refuse_what_needs_tensorflow
from trainband.keras.training import Training
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies.base import Strategy, checked

MARK = "_trainband"
"""The attribute of a Keras model that holds its `Distributed`."""

WRAP = "wrap_distributed"
"""An optional method of a model's class, of (name, method), that returns the replacement of a model's own method when a
strategy trains it. A front end sets it to accept other data than Keras."""


class Distributed:
    """Trains one Keras model on a strategy, in front of Keras's own methods, which do most of the work.

    Keras's `fit` runs unchanged, with its callbacks, history and progress bar; only its step function is the
    strategy's. On a ps, `fit` serves until the job ends, and then ends the process.

    Args:
      model: any Keras model.
      strategy: trains it.
      checkpoint_dir, save_steps, save_secs: see `MonitoredSession`: a restarted script resumes from the newest
        checkpoint there.
      say: prints lines for people.

    Raises:
      ModelError: the settings contradict each other.
    """

    def __init__(
        self,
        model: Any,
        strategy: Strategy,
        *,
        checkpoint_dir: str | Path | None = None,
        save_steps: int | None = None,
        save_secs: float = 600.0,
        say: Say = say_on_stderr,
    ) -> None:
        if checkpoint_dir is None and save_steps is not None:
            raise ModelError("save_steps= needs a checkpoint_dir= to save to.")
        self._model = model
        self.strategy = checked(strategy)
        """The strategy that trains the model."""
        self._directory = None if checkpoint_dir is None else Path(checkpoint_dir).absolute()
        self._settings = {"checkpoint_dir": self._directory, "save_steps": save_steps, "save_secs": save_secs}
        self._say = say
        self._job: Any = None
        self._training: Training | None = None
        self._own: dict[str, Callable[..., Any]] = {}
        self._aside = False
        self._devices: OnAllDevices | None = None
        self._fits = 0

    def attach(self) -> None:
        """Replaces the model's own methods by these."""
        replacements: dict[str, Callable[..., Any]] = {
            "fit": self.fit,
            "evaluate": self._set_aside("evaluate"),
            "predict": self._set_aside("predict"),
            "test_on_batch": self._set_aside("test_on_batch"),
            "predict_on_batch": self._set_aside("predict_on_batch"),
            "train_on_batch": self._train_on_batch,
            "make_train_function": self._make_train_function,
            "make_test_function": self._make_split("test"),
            "make_predict_function": self._make_split("predict"),
            "jax_state_sync": self._sync,
            "_get_jax_state": self._get_state,
            "get_metrics_result": self._metrics_result,
        }
        wrap = getattr(self._model, WRAP, None)
        for name, method in replacements.items():
            self._own[name] = getattr(self._model, name)
            # Bypasses Keras's __setattr__, which searches everything for variables to track.
            object.__setattr__(self._model, name, method if wrap is None else wrap(name, method))
        object.__setattr__(self._model, MARK, self)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        **validation: Any,
    ) -> Any:
        """Keras's `fit` on the strategy, with Keras's arguments and result.

        `batch_size` is per worker. Arrays and `PyDataset`s are split among the workers; an epoch is one pass of all of
        them together over the data, or `steps_per_epoch` updates of the job.

        Raises:
          ModelError: the model cannot be trained in a job.
          DataError: the data ends early, changes its structure, or cannot be shared.
        """
        self._serve()
        if not self._model.compiled:
            raise ModelError(f"fit: {self._model.name} is not compiled; call compile(optimizer=..., loss=...) first.")
        data = x, y, sample_weight
        if validation_split and validation_data is None:  # before the data is split
            data, validation_data = train_validation_split(data, validation_split=validation_split)
        refuse_what_needs_tensorflow(callbacks)
        share = Share.of(self.strategy)
        order = Order(share.workers, self._fits + 1, by_epoch=not steps_per_epoch)
        x = adapter_for(
            share,
            order,
            data,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        return self._train(
            share,
            order,
            x,
            callbacks,
            initial_epoch,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            validation_data=validation_data,
            shuffle=shuffle,
            steps_per_epoch=steps_per_epoch,
            **validation,
        )

    def _train(self, share: Share, order: Order, x: Any, callbacks: Any, initial_epoch: int, **settings: Any) -> Any:
        """Runs Keras's `fit` on split data, with the steps of a training run."""
        model, strategy = self._model, self.strategy
        epochs, updates = settings["epochs"], settings["steps_per_epoch"] or x.num_batches
        if not strategy.is_chief:
            settings["verbose"] = 0
            if not share.alike:  # synchronous workers would wait for the chief anyway, and need the history
                settings["validation_data"] = None
        self._fits += 1
        with Training(
            self._job_for,
            model,
            updates=updates,
            alone=share.is_all,
            epochs=epochs,
            first_epoch=initial_epoch,
            dealt=share.alike and isinstance(x, Endless),
            settings=self._settings,
        ) as training:
            self._training = training
            if not strategy.is_chief:
                task = "" if strategy.cluster is None else str(strategy.cluster.task)
                callbacks = [LineEachEpoch(task, epochs, training, of_all=share.alike)]
            callbacks = with_bridge(
                callbacks, training, order, verbose=settings["verbose"], epochs=epochs, steps=updates, model=model
            )
            begin = initial_epoch + training.epochs_done(self._steps_done())
            # Already in the adapter.
            used = {"y": None, "class_weight": None, "sample_weight": None}
            try:
                return self._own["fit"](x=x, callbacks=callbacks, initial_epoch=begin, **used, **settings)
            finally:
                self._training = None
                model.train_function = None

    def _serve(self) -> None:
        """Serves, on a ps, and ends the process."""
        if self.strategy.serves:
            self.strategy.serve(() if self._directory is None else (self._directory,))
            raise SystemExit(0)
        cluster = self.strategy.cluster
        if cluster is not None and not cluster.task.trains:
            raise ClusterError(
                f"{cluster.task} takes no part in fit: Keras evaluates on the chief, by validation_data=. Remove that "
                "task."
            )

    def _job_for(self, batch: Any) -> Any:
        """Returns the job that trains the model on such batches; a new one if the model has changed."""
        from trainband.keras.job import Job

        job = self._job
        if job is not None and not job.is_of_today:
            if self.strategy.cluster is not None:
                raise ModelError(
                    f"{self._model.name} was compiled again, or its frozen layers or their values have changed, "
                    "since its job began, but all tasks of a job train one model. Save the model, and continue in a "
                    "new program; without a cluster, one program may do both."
                )
            job.trainer.close()
            job = None
        if job is None:
            job = self._job = Job(self._model, self.strategy, batch, self._say)
        return job

    def _steps_done(self) -> int:
        """Returns the updates of a first training run before a restart, from its newest checkpoint."""
        if self._directory is None or self._fits > 1:
            return 0
        try:
            newest = next(iter(CheckpointDirectory(self._directory, self._say).candidates()), None)
        except CheckpointError:
            return 0  # the restore reports the problem
        return 0 if newest is None else newest.global_step - (newest.manifest.trainings or (0,))[0]

    def _make_train_function(self, force: bool = False) -> None:
        if self._training is None:
            self._own["make_train_function"](force=force)
        else:
            self._model.train_function = self._training.step

    def _sync(self) -> None:
        if self._training is None or self._aside:
            self._own["jax_state_sync"]()
        else:
            self._training.sync()

    def _get_state(self, **which: Any) -> tuple[Any, ...]:
        if self._training is None or self._aside:
            found: tuple[Any, ...] = self._own["_get_jax_state"](**which)
            return found if self._devices is None or not self._aside else tuple(self._devices.state(found))
        return ()

    def _make_split(self, kind: str) -> Callable[..., None]:
        """Returns a replacement of Keras's `make_test_function` or `make_predict_function`, for all devices."""

        def make(force: bool = False) -> None:
            before = getattr(self._model, f"{kind}_function")
            self._own[f"make_{kind}_function"](force=force)
            made = getattr(self._model, f"{kind}_function")
            if made is before:
                return
            if self._devices is not None:
                made = self._devices.step(made)
            if not self._model.run_eagerly:  # eager layers of Keras may take text
                made = with_checked_batches(made, "evaluate" if kind == "test" else kind)
            setattr(self._model, f"{kind}_function", made)

        return make

    def _metrics_result(self) -> dict[str, Any]:
        if self._training is None or self._aside or in_stateless_scope():
            found: dict[str, Any] = self._own["get_metrics_result"]()
            return found
        return dict(self._training.results())

    def _set_aside(self, name: str) -> Callable[..., Any]:
        """Wraps Keras's own method, which sees the model's own values, even during a training run."""

        def call(*args: Any, **settings: Any) -> Any:
            self._serve()
            refuse_what_needs_tensorflow(settings.get("callbacks"))
            self._sync()
            if self._devices is None:
                self._devices = OnAllDevices.of(self.strategy)
            before, self._aside = self._aside, True
            try:
                return self._own[name](*args, **settings)
            finally:
                self._aside = before

        call.__doc__ = getattr(type(self._model), name).__doc__
        return call

    def _train_on_batch(self, *args: Any, **settings: Any) -> Any:
        """Keras's own, which makes the update that all devices of this process would make together.

        Raises:
          ModelError: other tasks would have to make it, too.
        """
        if self.strategy.cluster is None:
            return self._set_aside("train_on_batch")(*args, **settings)
        raise ModelError(
            "train_on_batch makes one update in one process, but this model is trained by "
            f"{type(self.strategy).__name__} in a cluster: use fit with a generator, or write the loop with "
            "trainband.Trainer."
        )


def distribute(model: Any, strategy: Strategy, **settings: Any) -> Any:
    """Makes `fit`, `evaluate` and `predict` of a Keras model run on a strategy. Returns the model.

    For a model not created in `strategy.scope()`, such as one loaded from a file.

    Args:
      model: any Keras 3 model.
      strategy: any of trainband's.
      settings: `checkpoint_dir`, `save_steps`, `save_secs`: see `Distributed`.

    Raises:
      ModelError: it is not a Keras model, or another strategy trains it already.
    """
    if not isinstance(model, keras.Model):
        raise ModelError(f"distribute: expected a keras.Model, got {model!r}.")
    before = getattr(model, MARK, None)
    if before is not None:
        raise ModelError(
            f"distribute: {model.name} is already trained by {type(before.strategy).__name__}; make a copy of it with "
            "keras.models.clone_model."
        )
    Distributed(model, strategy, **settings).attach()
    return model
