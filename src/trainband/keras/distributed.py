"""A Keras model whose `fit`, `evaluate` and `predict` run on a strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainband.checkpoint import CheckpointDirectory
from trainband.errors import CheckpointError, ClusterError, ModelError
from trainband.keras.callbacks import Bridge, Callbacks, LineEachEpoch
from trainband.keras.evaluation import OnAllDevices
from trainband.keras.inside import in_stateless_scope, keras, train_validation_split
from trainband.keras.shares import Endless, Share, adapter_for
from trainband.keras.tensorboard import refuse_what_needs_tensorflow
from trainband.keras.training import Training
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies.base import Strategy, checked

MARK = "_trainband"
"""The attribute of a Keras model that says what trains it."""

WRAP = "wrap_distributed"
"""The method of a model's class, if it has one, of (name, method): what stands in the place of a model's own method
when a strategy trains it. A front end that takes other data than Keras sets it."""


class Distributed:
    """What trains one Keras model. It stands between the model's user and Keras's own methods, which do most.

    Keras's `fit` runs as it is, with its callbacks, its history and its progress bar; only what it calls to make a step
    is the strategy's. On a ps, `fit` serves until the job ends, and then ends the process.

    Args:
      model: any Keras model.
      strategy: how it is trained.
      checkpoint_dir, save_steps, save_secs: see `MonitoredSession`: a script that is started again resumes from the
        newest checkpoint there.
      say: where lines for people go.

    Raises:
      ModelError: the settings contradict one another.
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
            raise ModelError("save_steps= says how often to save, and there is no checkpoint_dir= to save into.")
        self._model = model
        self.strategy = checked(strategy)
        """How the model is trained."""
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
        """Puts these methods in the place of the model's own."""
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
            # Past Keras's own __setattr__, which looks into everything for variables to track.
            object.__setattr__(self._model, name, method if wrap is None else wrap(name, method))
        object.__setattr__(self._model, MARK, self)

    # --- what a user calls

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
        """Keras's `fit` on the strategy; the arguments and what is returned are Keras's.

        `batch_size` is that of one worker. Arrays and `PyDataset`s are shared out among the workers; an epoch is one
        pass of all of them together over the data, or `steps_per_epoch` updates of the job.

        Raises:
          ModelError: the model cannot be trained in a job.
          DataError: the data ends early, changes its structure, or cannot be shared.
        """
        self._serve()
        model, strategy = self._model, self.strategy
        if not model.compiled:
            raise ModelError(f"fit: {model.name} is not compiled; call compile(optimizer=..., loss=...) first.")
        if validation_split and validation_data is None:  # before the data is shared out
            (x, y, sample_weight), validation_data = train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        refuse_what_needs_tensorflow(callbacks)
        share = Share.of(strategy)
        x = adapter_for(
            share,
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        updates = steps_per_epoch or x.num_batches
        y = sample_weight = class_weight = None
        callbacks = _as_list(callbacks)
        if not strategy.is_chief:
            task = "" if strategy.cluster is None else str(strategy.cluster.task)
            callbacks, validation_data, verbose = [LineEachEpoch(task, epochs)], None, 0
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
            callbacks.append(Bridge(training))
            if isinstance(callbacks, list):
                callbacks = Callbacks(
                    callbacks,
                    add_history=True,
                    add_progbar=verbose != 0,
                    verbose=verbose,
                    epochs=epochs,
                    steps=updates,
                    model=model,
                )
            try:
                return self._own["fit"](
                    x=x,
                    y=y,
                    batch_size=batch_size,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    shuffle=shuffle,
                    class_weight=class_weight,
                    sample_weight=sample_weight,
                    initial_epoch=initial_epoch + training.epochs_done(self._steps_done()),
                    steps_per_epoch=steps_per_epoch,
                    **validation,
                )
            finally:
                self._training = None
                model.train_function = None

    def _serve(self) -> None:
        """On a ps: serves, and ends the process."""
        if self.strategy.serves:
            self.strategy.serve(() if self._directory is None else (self._directory,))
            raise SystemExit(0)
        cluster = self.strategy.cluster
        if cluster is not None and not cluster.task.trains:
            raise ClusterError(
                f"{cluster.task} takes no part in fit: Keras evaluates on the chief, by validation_data=. Leave that "
                "task out."
            )

    def _job_for(self, batch: Any) -> Any:
        """The job that trains the model, for a batch like those to come; a new one, if the model is another now."""
        from trainband.keras.job import Job

        job = self._job
        if job is not None and not job.is_of_today:
            if self.strategy.cluster is not None:
                raise ModelError(
                    f"{self._model.name} was compiled again, or its frozen layers are others or have other values, "
                    "since its job began, and all tasks of a job train one model. Save the model, and train on in a "
                    "program that is started anew; without a cluster, one program may do both."
                )
            job.trainer.close()
            job = None
        if job is None:
            job = self._job = Job(self._model, self.strategy, batch, self._say)
        return job

    def _steps_done(self) -> int:
        """Updates that a first training has made before the program was started again, by its newest checkpoint."""
        if self._directory is None or self._fits > 1:
            return 0
        try:
            newest = next(iter(CheckpointDirectory(self._directory, self._say).candidates()), None)
        except CheckpointError:
            return 0  # who restores it says what is wrong with it
        return 0 if newest is None else newest.global_step - (newest.manifest.trainings or (0,))[0]

    # --- what Keras's own loops call

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
        """Keras's `make_test_function` or `make_predict_function`, for all devices."""

        def make(force: bool = False) -> None:
            before = getattr(self._model, f"{kind}_function")
            self._own[f"make_{kind}_function"](force=force)
            made = getattr(self._model, f"{kind}_function")
            if self._devices is not None and made is not before:
                setattr(self._model, f"{kind}_function", self._devices.step(made))

        return make

    def _metrics_result(self) -> dict[str, Any]:
        if self._training is None or self._aside or in_stateless_scope():
            found: dict[str, Any] = self._own["get_metrics_result"]()
            return found
        return dict(self._training.results())

    def _set_aside(self, name: str) -> Callable[..., Any]:
        """Keras's own method, in which the model's values are its own, also while a training goes on."""

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
          ModelError: other tasks would have to make it too.
        """
        if self.strategy.cluster is None:
            return self._set_aside("train_on_batch")(*args, **settings)
        raise ModelError(
            "train_on_batch makes one update in one process, and this model is trained by "
            f"{type(self.strategy).__name__} in a cluster: use fit with a generator, or write the loop with "
            "trainband.Trainer."
        )


def distribute(model: Any, strategy: Strategy, **settings: Any) -> Any:
    """Has `fit`, `evaluate` and `predict` of a Keras model run on a strategy. Returns the model.

    For a model that was not made in `strategy.scope()`, such as one that was loaded from a file.

    Args:
      model: any Keras 3 model.
      strategy: any of trainband's.
      settings: `checkpoint_dir`, `save_steps`, `save_secs`: see `Distributed`.

    Raises:
      ModelError: it is no Keras model, or another strategy trains it already.
    """
    if not isinstance(model, keras.Model):
        raise ModelError(f"distribute: a keras.Model is wanted, got {model!r}.")
    before = getattr(model, MARK, None)
    if before is not None:
        raise ModelError(
            f"distribute: {model.name} is trained by {type(before.strategy).__name__} already; make a copy of it with "
            "keras.models.clone_model."
        )
    Distributed(model, strategy, **settings).attach()
    return model


def _as_list(callbacks: Any) -> Any:
    """What Keras takes as callbacks, as something to append one to."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.tree.flatten(callbacks) if callbacks else []
