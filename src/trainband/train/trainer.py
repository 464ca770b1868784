"""Trainer: the user's interface. It turns a model, a strategy and batches into a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jax

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Retention
from trainband.cluster import Cluster
from trainband.errors import ModelError
from trainband.job.checkpoints import RestoreFrom, TrainingRecord
from trainband.job.engine import Engine
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.tables import Features, Tables
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies.base import Strategy, checked, tables_of
from trainband.strategies.one_device import OneDevice
from trainband.train.batch_feed import Feed, require_batches
from trainband.train.checkpointer import Checkpointer
from trainband.train.compiled_functions import CompiledFunctions
from trainband.train.evaluator_task import run_evaluator
from trainband.train.fitting import Fitting
from trainband.train.hooks import EarlyStopping, Hook
from trainband.train.job import Job
from trainband.train.passes import Passes, Position
from trainband.train.portions import Portions
from trainband.train.remarks import remarks
from trainband.train.result import Evaluation, FitResult
from trainband.train.session import MonitoredSession
from trainband.train.training_log import TrainingLog

if TYPE_CHECKING:
    from trainband.compress import Pruning, QuantizationAware
    from trainband.export import ExportReport
    from trainband.train.nnx import NNXModule


class Trainer:
    """Trains one model under one strategy.

    The same program runs on every task of a cluster. On a ps, the first call that needs the job (`fit`,
    `evaluate`, `params`) serves there until the job ends, and then ends the process with exit code 0.

    Args:
      init: `init(key) -> params`: any pytree of floating-point arrays, from a JAX random key.
      loss: `loss(params, batch) -> scalar`, or `(scalar, {name: metric})`, each a mean over the batch. A third
        parameter, if any, receives a random key: each worker has its own stream, the same in every run.
      optimizer: any optax GradientTransformation.
      strategy: how workers cooperate; by default `OneDevice()`. A `ParameterServer` is for one Trainer at a time.
      seed: for the initial params: the same seed gives the same ones everywhere.
      accumulate: micro-batches whose mean gradient makes one step: each step takes this many batches.
      compute_dtype: the dtype that the loss is computed in, such as `jnp.bfloat16`; params, gradients and the optimizer
        keep the params' own dtypes, in which evaluations and predictions are computed too.
      remat: compute intermediate values again for the gradient instead of keeping them: less memory for more time.
        `True`, or one of `jax.checkpoint_policies`, which decides what is kept nevertheless.
      donate: let a step overwrite the old params with the new ones; otherwise both exist for a moment. On a ps
        that depends on who reads them.
      worker_transform: an optax transformation that each worker applies to its whole gradient, such as
        `optax.clip_by_global_norm(1.0)`. With `Sync`, each worker's gradient is clipped before the mean is taken.
      init_state: `init_state(key) -> state`, any pytree of arrays that gradients do not train, such as the running
        averages of batch normalisation. The loss is then `loss(params, state, batch, key) -> (loss, (state, metrics))`.
      state_merge: how an update merges the states of several workers: their `mean`, or the `chief`'s alone.
      evaluation_loss: the loss for evaluations, such as without dropout and with batch normalisation's
        running averages; called like `loss`, and a state that it returns is dropped. Default: `loss` itself.
      steps_per_execution: steps that are computed in one call, for small steps, of which Python's part is large. Hooks,
        checkpoints, the display and SIGTERM come only after this many steps; a training run still ends at its exact
        step. Always 1 if each step sends params or gradients by itself: under `ParameterServer`, and with
        `central_storage=True`. If workers compute in lockstep, `timeout_s` is for a call, and a worker at the end
        of its data or of the training computes a whole call; otherwise single steps.
      quantization: compute the loss, in training and in evaluations, as with 8-bit weights and activations.
      pruning: let the optimizer set weights to 0, and keep them there.
      tables: by name, a `trainband.Table` and a function from a batch to the ids whose rows the loss needs, an array of
        integers or texts. The loss takes the rows before the batch: `loss(params, rows, batch)`, where `rows[name]` has
        the shape of the ids and the table's dim. Needs a `ParameterServer` with a cluster.
      fixed_shapes: refuse batches whose shapes change (each would be compiled again).
      console: show progress while training: live on a terminal, else a line every 10 s; on the chief only.
      history: keep a history of the figures and events in each `checkpoint_dir`, for `trainband.history`.
      say: receives lines for people.

    Raises:
      ModelError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        init: Callable[[jax.Array], PyTree],
        loss: Callable[..., Any],
        optimizer: Optimizer,
        strategy: Strategy | None = None,
        seed: int = 0,
        accumulate: int = 1,
        compute_dtype: Any = None,
        remat: bool | Callable[..., bool] = False,
        donate: bool = True,
        worker_transform: Optimizer | None = None,
        init_state: Callable[[jax.Array], PyTree] | None = None,
        state_merge: str = "mean",
        evaluation_loss: Callable[..., Any] | None = None,
        steps_per_execution: int = 1,
        quantization: QuantizationAware | None = None,
        pruning: Pruning | None = None,
        tables: Features | None = None,
        fixed_shapes: bool = True,
        console: bool = True,
        history: bool = True,
        say: Say = say_on_stderr,
    ) -> None:
        self._strategy: Strategy = OneDevice() if strategy is None else checked(strategy)
        self._tables = tables_of(tables, self._strategy)
        as_called = partial(_as_called, self._tables, quantization, init_state is not None)
        loss, evaluation_loss = as_called(loss), evaluation_loss and as_called(evaluation_loss)
        self._model = Model(
            init=init,
            loss=loss,
            optimizer=optimizer if pruning is None else pruning.wrap(optimizer),
            seed=seed,
            accumulate=accumulate,
            compute_dtype=compute_dtype,
            remat=remat,
            donate=donate,
            worker_transform=worker_transform,
            init_state=init_state,
            state_merge=state_merge,
            steps_per_execution=steps_per_execution,
            axes=self._strategy.mesh_axes,
            tables=self._tables,
        )
        for option in [one for one in (quantization, pruning) if one is not None]:
            option.check(self._model.shapes().params)
        self._fixed_shapes = fixed_shapes
        self.console = console
        """Whether the chief shows progress."""
        self.keeps_history = history
        """Whether it keeps a history if there is a `checkpoint_dir`."""
        self.say = say
        """Receives lines for people."""
        self.job = Job(self._strategy, self._model, say)
        """This task's part in the job, which the sessions share."""
        self.evaluates_as_it_trains = evaluation_loss is None
        """Whether evaluations return the metrics of training."""
        self._functions = CompiledFunctions(self._model, evaluation_loss)
        self._module: NNXModule | None = None

    @staticmethod
    def from_nnx(
        model: Any, loss: Callable[..., Any], *, optimizer: Optimizer, strategy: Strategy | None = None, **switches: Any
    ) -> Trainer:
        """Returns a trainer of a Flax NNX module. `NNXModule` describes its modes, its state and its values.

        Args:
          model: an `nnx.Module`. Its `nnx.Param`s are trained; all its other arrays (batch statistics,
            random streams, your own variables) are the model state.
          loss: `loss(model, batch) -> scalar`, or `(scalar, {name: metric})`, each a mean over the batch. A third
            parameter, if any, receives a random key.
          optimizer, strategy, switches: as for `Trainer`, but the module replaces `init` and `init_state`.

        Raises:
          ModelError: the module cannot be trained, or Flax is not installed.
        """
        try:
            from trainband.train.nnx import NNXModule
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] != "flax":
                raise
            raise ModelError(
                "Trainer.from_nnx needs Flax, which is not installed: pip install 'trainband[flax]'."
            ) from None
        module = NNXModule(model)
        cluster = None if strategy is None else checked(strategy).cluster
        made = Trainer(**module.functions(loss, cluster, switches), optimizer=optimizer, strategy=strategy, **switches)
        made._module = module
        return made

    def nnx_model(self) -> Any:
        """Returns the module given to `from_nnx`, updated in place with the current values. Joins the job if necessary.

        Raises:
          ModelError: its variables differ from those when the trainer was made; or there is no module.
        """
        if self._module is None:
            raise ModelError("nnx_model: this trainer has no module; make it with Trainer.from_nnx.")
        self._module.check(mode=False)
        params = self.params
        return self._module.update(params, self.join().values.model_state())

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which alone should print and save. Joins the job if necessary."""
        return self.join().peers.is_chief

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows. Joins the job if necessary."""
        return self.join().steps.global_step

    @property
    def params(self) -> PyTree:
        """The current params as NumPy arrays. Joins the job if necessary."""
        return self.join().values.params()

    @property
    def model_state(self) -> PyTree:
        """The current model state as NumPy arrays; `None` for a model without one. Joins the job if necessary."""
        values = self.join().values
        values.params()
        return values.model_state()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that runs alone."""
        return self._strategy.cluster

    def fit(
        self,
        batches: Iterable[PyTree],
        steps: int | None = None,
        *,
        checkpoint_dir: str | Path | None = None,
        save_steps: int | None = None,
        save_secs: float = 600.0,
        retention: Retention | None = None,
        validation: Iterable[PyTree] | None = None,
        every: int | None = None,
        early_stopping: EarlyStopping | None = None,
        hooks: Sequence[Hook] = (),
        profile_steps: tuple[int, int] | None = None,
        profile_dir: str | Path | None = None,
    ) -> FitResult:
        """Trains until the job has made `steps` more updates, or this task's batches are used up.

        With a `checkpoint_dir`, a restarted script resumes from its last checkpoint, and `steps` counts from where this
        training first began: it makes only the missing updates. An `evaluator` task evaluates every checkpoint on
        `validation`, and ends with the job.

        Args:
          batches: any iterable of pytrees of arrays. One that can be iterated again is repeated as often as
            `steps` requires. Every worker passes its own.
          steps: updates of the whole job, exactly; the chief's number counts. `None`: one pass over the batches.
          checkpoint_dir, save_steps, save_secs, retention: see `MonitoredSession`.
          validation: batches that the chief evaluates on every `every` steps; any iterable that can be iterated again.
          every: global steps between two validations; by default about a tenth of `steps`.
          early_stopping: ends the training when validation stops improving.
          hooks: actions at the steps.
          profile_steps: the first and the last global step to trace on every worker and ps, see `StepProfileHook`.
          profile_dir: where to write; by default `profiles` in the `checkpoint_dir`.

        Raises:
          DataError: there are no batches, or one has a different shape than the first.
          ModelError, ModelMismatch: the model cannot be trained, or is not that of the chief or the checkpoint.
          NonFiniteGradient: the gradients stay NaN or infinite.
          PeerError: a ps cannot be reached or has died.
          DirectoryLocked: another job writes into the directory.
          CheckpointError: the last checkpoint could not be written; the params are still there.
        """
        require_batches(batches, "fit")
        fitting = Fitting(steps, hooks, validation, every, early_stopping, profile_steps, profile_dir)
        if self._module is not None:
            self._module.check()
        if self.cluster is not None and self.cluster.task.job == "evaluator":
            variables = self._model.variables()
            run_evaluator(self.cluster, self.evaluate_params, variables, checkpoint_dir, validation, self.say)
        session = MonitoredSession(
            self,
            checkpoint_dir=checkpoint_dir,
            hooks=fitting.hooks,
            save_steps=save_steps,
            save_secs=save_secs,
            retention=retention,
        )
        return self._train(session, batches, fitting)

    def _train(self, session: MonitoredSession, batches: Iterable[PyTree], fitting: Fitting) -> FitResult:
        """Runs a session until it should stop, or the batches are used up."""
        with session:
            log = TrainingLog(self._model.accumulate, session.global_step, self.join().steps.times)
            if not session.should_stop():
                for batch in session.feed(batches, repeat=fitting.steps is not None):
                    log.add(session.run(batch), batch)
                    if session.should_stop():
                        break
                else:
                    session.used_up()
        if self._module is not None:
            self.nnx_model()
        engine = self.join()
        result = log.result(engine.steps, engine.peers.task, session.stopped, fitting.evaluations)
        for line in remarks(result, fitting.steps, session.began_at, resumed=engine.checkpoints.restored is not None):
            if self.is_chief or line.startswith("WARNING: "):
                self.say(line)
        return result

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """Returns loss and metrics with the current params, each the mean over all examples.

        Args:
          batches: any finite iterable; batches may differ in size, and an empty one counts for nothing.

        Raises:
          DataError: there is no batch.
        """
        require_batches(batches, "evaluate")
        return self._functions.evaluate(self.join(), batches)

    def predict(self, function: Callable[..., PyTree], batches: Iterable[PyTree]) -> PyTree:
        """Applies a function to batches with the current params; returns NumPy arrays.

        Args:
          function: `function(params, batch)`, for a model with a state `function(params, state, batch)`, for an NNX
            module `function(model, batch)` after `model.eval()`: returns arrays with an element for each example along
            their first axis; compiled once for each batch shape.
          batches: any finite iterable; batches may differ in size.

        Returns:
          The outputs for all batches, concatenated along the first axis.

        Raises:
          DataError: there is no batch.
        """
        require_batches(batches, "predict")
        applied = None if self._module is None else self._module.applied
        return self._functions.predict(self.join(), function, batches, applied)

    def export(
        self,
        function: Callable[..., PyTree],
        example: PyTree,
        out: str | Path,
        *,
        to: str = "stablehlo",
        batch: int | None = None,
        force: bool = False,
    ) -> ExportReport | None:
        """Exports a function with the current params. Joins the job if necessary; the chief writes.

        Args:
          function: as for `predict`.
          example: a batch on which the export is compared with the function before it is put in place.
          out: the directory to create.
          to: one of `trainband.export.TARGETS`.
          batch: how many examples every call will have; any number when `None`.
          force: whether an earlier export in `out` is replaced.

        Returns:
          A report of the export; `None` on tasks that are not the chief.

        Raises:
          ModelError: the function cannot be exported to this format, or computes something else there.
          YourError: `out` exists, or a library is missing.
        """
        from trainband.export import export_program  # here: its libraries take a while
        from trainband.train.exporting import program_of

        engine, module = self.join(), None if self._module is None else self._module.model
        with engine.peers.busy("exports the model"):
            program = program_of(engine, self._model, module, function, example, batch)
            return None if program is None else export_program(program, out, to, force=force)

    def save(self, directory: str | Path) -> None:
        """Writes a checkpoint of the current job to a directory of checkpoints. Joins the job if necessary.

        The chief writes. On other tasks nothing happens, except if no worker has all the variables (`ModelParallel`
        over several workers): then all must call this together, to contribute their parts.

        During a session with a `checkpoint_dir`, use `MonitoredSession.save`.

        Raises:
          CheckpointError: it could not be written.
          DirectoryLocked: another job writes into the directory.
        """
        path = Path(directory).absolute()
        self.job.add_checkpoint_dir(path)
        engine, job = self.join(), self.job
        home = CheckpointDirectory(path, self.say)
        announce = self.say if self.console else lambda _: None
        try:
            if not engine.peers.is_chief:
                return
            with (
                engine.peers.busy("writes a checkpoint"),
                Checkpointer(
                    home,
                    engine.peers.task,
                    Retention(),
                    self.say,
                    job=job.id,
                    on_commit=lambda checkpoint: announce(str(checkpoint)),
                    runtime=job.runtime,
                ) as writer,
            ):
                writer.order(engine, 0, TrainingRecord(strategy=job.strategy_name, trainings=job.trainings.starts))
                engine.checkpoints.store_worker_state(job.trainings.number, "")
                writer.finish()
        finally:
            engine.checkpoints.end()  # until then, the others give the requested parts

    def restore(self, path: str | Path, *, optimizer: bool = True) -> None:
        """Makes the job start from a checkpoint, unless it resumes from one in its `checkpoint_dir`.

        Call it on every task, before anything that joins the job. The checkpoint may be of any strategy.

        Args:
          path: a checkpoint, or a directory of them, of which the newest is used.
          optimizer: restore the optimizer's state too, not only the params and the model's state.

        Raises:
          CheckpointError: there is none, or it cannot be read.
          TrainbandError: this task has already joined its job.
        """
        where = Path(path).absolute()
        self.job.add_checkpoint_dir(where)
        home = CheckpointDirectory(where, self.say)
        if home.steps():
            candidates = home.candidates
        else:
            checkpoint = Checkpoint.open(where)  # raises if there is none
            candidates = lambda: iter([checkpoint])  # noqa: E731
        self.job.start_from(RestoreFrom(candidates=candidates, worker_state=lambda _: {}, optimizer=optimizer))

    def evaluate_params(
        self, params: PyTree, model_state: PyTree, batches: Iterable[PyTree], global_step: int
    ) -> Evaluation:
        """Like `evaluate`, with these params and this model state; joins no job."""
        return self._functions.evaluate_params(params, model_state, batches, global_step)

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent; done at exit if not before."""
        self.job.close(failure)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if exc is None else f"{type(exc).__name__}: {exc}")

    def join(self) -> Engine:
        """Joins the job, if this task has not yet; returns its engine. A ps serves, and then ends its process.

        Raises:
          ModelError: the script has set a mesh by `jax.set_mesh`.
        """
        return self.job.join()

    def without_ids(self, batch: PyTree) -> PyTree:
        """Takes the ids of the tables out of a batch; returns it as it is if there are no tables."""
        return batch if self._tables is None else self._tables.split(batch)

    def feed(self, batches: Iterable[PyTree], *, repeat: bool, start: Position | None, track: bool) -> Feed:
        """Returns the batches as this training needs them, for its engine; the arguments are those of `Passes`."""
        engine = self.join()
        steps, accumulate = engine.steps, self._model.accumulate
        share = steps.share
        return Feed(
            Passes(
                batches,
                repeat=repeat,
                fixed_shapes=self._fixed_shapes,
                start=start,
                split=None if self._tables is None else self._tables.split,
                place=steps.place,
                task=engine.peers.task,
                track=track,
            ),
            accumulate=accumulate if share is None else 1,
            steps_per_execution=steps.steps_per_execution,
            idle=steps.pause,
            portions=None if share is None else Portions(share, accumulate),
            times=steps.times,
            runtime=self.job.runtime,
        )


def _as_called(
    tables: Tables | None, quantization: QuantizationAware | None, has_state: bool, loss: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a loss as the model calls it."""
    if tables is not None:
        loss = tables.taking_rows(loss, has_state=has_state, takes_key=True)
    return loss if quantization is None else quantization.loss(loss)
