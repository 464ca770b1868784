"""Trainer: what a user drives. It turns a model, a strategy and batches into a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from trainband.checkpoint import Checkpoint, CheckpointDirectory, Retention
from trainband.cluster import Cluster
from trainband.errors import DataError, ModelError
from trainband.model.batch import examples_in
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Model
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree
from trainband.ps.worker.checkpointing import RestoreFrom
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies.base import Strategy, checked
from trainband.strategies.engine import Engine
from trainband.strategies.one_device import OneDevice
from trainband.train.checkpointer import About, Checkpointer
from trainband.train.evaluator_task import run_evaluator
from trainband.train.feed import Feed, require_batches
from trainband.train.hook_loop import require_hooks
from trainband.train.hooks import EarlyStopping, Hook, StepProfileHook, StopAtStepHook, ValidationHook
from trainband.train.job import Job
from trainband.train.passes import Position
from trainband.train.portions import Portions
from trainband.train.remarks import remarks
from trainband.train.result import Evaluation, FitResult, mean_over_examples
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
      loss: `loss(params, batch) -> scalar`, or `(scalar, {name: metric})`, each a mean over the batch. With a third
        parameter it gets a random key there: each worker has a stream of its own, the same in every run.
      optimizer: any optax GradientTransformation.
      strategy: how workers cooperate; `OneDevice()` when left out. A `ParameterServer` is for one Trainer at a time.
      seed: for the first params: the same seed gives the same ones everywhere.
      accumulate: micro-batches whose mean gradient makes one step: each step takes so many batches.
      compute_dtype: what the loss is computed in, such as `jnp.bfloat16`; params, gradients and the optimizer keep
        the params' own dtypes, which evaluations and predictions compute in, too.
      remat: compute intermediate values again for the gradient instead of keeping them: less memory for more time.
        `True`, or one of `jax.checkpoint_policies`, which says what is kept all the same.
      donate: let a step write the new params where the old ones were; without, both are there for a moment. On a ps
        that is decided by who reads them.
      worker_transform: an optax transformation that each worker applies to its whole gradient, such as
        `optax.clip_by_global_norm(1.0)`. With `Sync`, each worker's gradient is clipped, and then the mean is taken.
      init_state: `init_state(key) -> state`, any pytree of arrays that gradients do not train, such as the running
        averages of batch normalisation. The loss is then `loss(params, state, batch, key) -> (loss, (state, metrics))`.
      state_merge: what becomes of the states of several workers in one update: their `mean`, or the `chief`'s alone.
      evaluation_loss: the loss as evaluations compute it, such as without dropout and with batch normalisation's
        running averages; called as `loss` is, and a state that it returns is dropped. `loss` itself when left out.
      steps_per_execution: steps that are computed in one call, for small steps, of which Python's part is large. Hooks,
        checkpoints, the display and SIGTERM come after every so many steps; a training still ends at its very step.
        1, whatever is given, where each step sends params or gradients by itself: under `ParameterServer`, and with
        `central_storage=True`. Where workers compute in step, `timeout_s` is for a call, and whoever is at the end
        of its data or of the training computes a whole call; else single steps.
      quantization: compute the loss, in training and in evaluations, as with 8-bit weights and activations.
      pruning: have the optimizer set weights to 0, and keep them there.
      fixed_shapes: refuse batches whose shapes change (each would be compiled again).
      console: show progress while training: live on a terminal, else a line every 10 s; on the chief only.
      history: keep a history of the figures and events in each `checkpoint_dir`, as `trainband.history` reads it.
      say: where lines for people go.

    Raises:
      ModelError: one of these is not what it must be.
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
        fixed_shapes: bool = True,
        console: bool = True,
        history: bool = True,
        say: Say = say_on_stderr,
    ) -> None:
        self._strategy: Strategy = OneDevice() if strategy is None else checked(strategy)
        if quantization is not None:
            loss = quantization.loss(loss)
            evaluation_loss = None if evaluation_loss is None else quantization.loss(evaluation_loss)
        if pruning is not None:
            optimizer = pruning.wrap(optimizer)
        self._model = Model(
            init=init,
            loss=loss,
            optimizer=optimizer,
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
        )
        for option in (quantization, pruning):
            if option is not None:
                option.check(self._model.shapes().params)
        self._fixed_shapes = fixed_shapes
        self.console = console
        """Whether the chief shows progress."""
        self.keeps_history = history
        """Whether it keeps a history, where there is a `checkpoint_dir`."""
        self.say = say
        """Where lines for people go."""
        self.job = Job(self._strategy, self._model, say)
        """This task's part in the job, which the sessions share."""
        self.evaluates_as_it_trains = evaluation_loss is None
        """Whether evaluations give the metrics of training."""
        evaluated = self._model if evaluation_loss is None else replace(self._model, loss=evaluation_loss)
        self._evaluate = self._compiled(lambda params, state, batch: evaluated.value(params, batch, None, state)[:2])
        self._predictors: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._module: NNXModule | None = None

    @staticmethod
    def from_nnx(
        model: Any, loss: Callable[..., Any], *, optimizer: Optimizer, strategy: Strategy | None = None, **switches: Any
    ) -> Trainer:
        """A trainer of a Flax NNX module. `NNXModule` says what becomes of its modes, its state and its values.

        Args:
          model: an `nnx.Module`. Its `nnx.Param`s are trained; all else in it that is an array (batch statistics,
            random streams, variables of your own) is the model state.
          loss: `loss(model, batch) -> scalar`, or `(scalar, {name: metric})`, each a mean over the batch. With a third
            parameter it gets a random key there.
          optimizer, strategy, switches: as for `Trainer`, but for `init` and `init_state`, which the module is.

        Raises:
          ModelError: this is no module that can be trained, or Flax is not installed.
        """
        try:
            from trainband.train.nnx import NNXModule
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] != "flax":
                raise
            raise ModelError("Trainer.from_nnx needs Flax: pip install 'trainband[flax]'.") from None
        module = NNXModule(model)
        cluster = None if strategy is None else checked(strategy).cluster
        made = Trainer(**module.functions(loss, cluster, switches), optimizer=optimizer, strategy=strategy, **switches)
        made._module = module
        return made

    def nnx_model(self) -> Any:
        """The module given to `from_nnx`, updated in place with the values as they now are. Joins the job if need be.

        Raises:
          ModelError: its variables are not those that it had when the trainer was made; or there is no module.
        """
        if self._module is None:
            raise ModelError("nnx_model: this trainer was not made by Trainer.from_nnx, and has no module.")
        self._module.check(mode=False)
        params = self.params
        return self._module.update(params, self.join().model_state())

    @property
    def is_chief(self) -> bool:
        """Whether this task speaks for the job: let it alone print and save. Joins the job if need be."""
        return self.join().is_chief

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows. Joins the job if need be."""
        return self.join().global_step

    @property
    def params(self) -> PyTree:
        """The params as they now are, as NumPy arrays. Joins the job if need be."""
        return self.join().params()

    @property
    def model_state(self) -> PyTree:
        """The model state as it now is, as NumPy arrays; `None` for a model without one. Joins the job if need be."""
        engine = self.join()
        engine.params()
        return engine.model_state()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, and which of its tasks this is; `None` for a process that stands alone."""
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

        With a `checkpoint_dir`, a script that is started again resumes from its last checkpoint, and `steps`
        counts from where this training first began: so it makes only the updates that are missing. An `evaluator` task
        evaluates every checkpoint on `validation`, and ends with the job.

        Args:
          batches: any iterable of pytrees of arrays. One that can be iterated afresh is repeated as often as
            `steps` asks for. Every worker brings its own.
          steps: updates of the whole job, exactly; those of the chief count. `None`: one pass over the batches.
          checkpoint_dir, save_steps, save_secs, retention: see `MonitoredSession`.
          validation: batches that the chief evaluates on every `every` steps; any iterable that can be iterated afresh.
          every: global steps between two validations; about a tenth of `steps` when left out.
          early_stopping: ends the training when validation gets no better.
          hooks: what happens beside the steps.
          profile_steps: the first and the last global step to be traced on every worker and ps, see `StepProfileHook`.
          profile_dir: where to; `profiles` in the `checkpoint_dir` when left out.

        Raises:
          DataError: no batch, or one of another shape than the first.
          ModelError, ModelMismatch: the model cannot be trained, or is not the chief's, or the checkpoint's.
          NonFiniteGradient: the gradients stay NaN or infinite.
          PeerError: a ps cannot be reached or has died.
          DirectoryLocked: another job writes into the directory.
          CheckpointError: the last checkpoint could not be written; the params are still there.
        """
        require_batches(batches, "fit")
        require_hooks(hooks)
        if steps is not None and (isinstance(steps, float) or steps < 0):
            raise DataError(f"fit: steps must be a whole number, 0 or more, got {steps!r}.")
        if early_stopping is not None and validation is None:
            raise DataError("fit: early_stopping looks at the validation; give validation=, batches to evaluate on.")
        if self._module is not None:
            self._module.check()
        if self.cluster is not None and self.cluster.task.job == "evaluator":
            variables = self._model.variables()
            run_evaluator(self.cluster, self.evaluate_params, variables, checkpoint_dir, validation, self.say)
        stop = [] if steps is None else [StopAtStepHook(num_steps=steps)]
        validating = []
        if validation is not None:
            every = every or max(1, (steps or 1000) // 10)
            validating = [ValidationHook(validation, every_steps=every, early_stopping=early_stopping)]
        profiling = [] if profile_steps is None else [StepProfileHook(*profile_steps, directory=profile_dir)]
        session = MonitoredSession(
            self,
            checkpoint_dir=checkpoint_dir,
            hooks=[*stop, *validating, *hooks, *profiling],
            save_steps=save_steps,
            save_secs=save_secs,
            retention=retention,
        )
        with session:
            log = TrainingLog(self._model.accumulate, session.global_step, self.join().times)
            if not session.should_stop():
                for batch in session.feed(batches, repeat=steps is not None):
                    log.add(session.run(batch), batch)
                    if session.should_stop():
                        break
                else:
                    session.used_up()
        evaluations = tuple(evaluation for hook in validating for evaluation in hook.evaluations)
        if self._module is not None:
            self.nnx_model()
        result = log.result(self.join(), session.stopped, evaluations)
        for line in remarks(result, steps, session.began_at, resumed=self.join().restored is not None):
            if self.is_chief or line.startswith("WARNING: "):
                self.say(line)
        return result

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """Loss and metrics with the params as they now are, each the mean over all examples.

        Args:
          batches: any finite iterable; batches may differ in size, and an empty one counts for nothing.

        Raises:
          DataError: there is no batch.
        """
        require_batches(batches, "evaluate")
        engine = self.join()
        what = "evaluates"
        with engine.busy(what):
            return mean_over_examples(engine.computed(self._evaluate, _not_empty(batches), what), engine.global_step)

    def predict(self, function: Callable[..., PyTree], batches: Iterable[PyTree]) -> PyTree:
        """What a function makes of batches with the params as they now are, as NumPy arrays.

        Args:
          function: `function(params, batch)`, of a model with a state `function(params, state, batch)`, of an NNX
            module `function(model, batch)` after `model.eval()`: arrays with an element for each example along their
            first axis; compiled, once for each shape of batch.
          batches: any finite iterable; batches may differ in size.

        Returns:
          The outputs for all batches, one after the other along the first axis.

        Raises:
          DataError: there is no batch.
        """
        require_batches(batches, "predict")
        engine = self.join()
        compiled = self._predictors.get(function)
        if compiled is None:
            if self._module is not None:
                computed = self._module.applied(function)
            elif self._model.init_state is not None:
                computed = function
            else:
                computed = lambda params, _, batch: function(params, batch)  # noqa: E731
            compiled = self._predictors[function] = self._compiled(computed)
        what = f"predicts by {getattr(function, '__qualname__', type(function).__name__)}"
        with engine.busy(what):
            found = [jax.tree.map(np.asarray, outputs) for _, outputs in engine.computed(compiled, batches, what)]
        if not found:
            raise DataError("predict: there are no batches.")
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found)

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
        """Exports a function with the params as they now are. Joins the job if need be; the chief writes.

        Args:
          function: as for `predict`.
          example: a batch on which the export is compared with the function before it is put in place.
          out: the directory to make.
          to: one of `trainband.export.TARGETS`.
          batch: how many examples every call will have; any number when `None`.
          force: whether an earlier export in `out` is replaced.

        Returns:
          What was exported; `None` on tasks that are not the chief.

        Raises:
          ModelError: the function cannot be exported to this format, or computes something else there.
          YourError: `out` is there, or a library is missing.
        """
        from trainband.train.exporting import export_of  # here: its libraries take a while

        engine, module = self.join(), None if self._module is None else self._module.model
        with engine.busy("exports the model"):
            return export_of(engine, self._model, module, function, example, out, to=to, batch=batch, force=force)

    def save(self, directory: str | Path) -> None:
        """Writes a checkpoint of the job as it now is, into a directory of checkpoints. Joins the job if need be.

        The chief writes. On other tasks nothing happens, except where no worker has all the variables (`ModelParallel`
        over several workers): there all must call this together, and give the chief their parts.

        While a session with a `checkpoint_dir` goes on, `MonitoredSession.save` does this there.

        Raises:
          CheckpointError: it could not be written.
          DirectoryLocked: another job writes into the directory.
        """
        path = Path(directory).absolute()
        self.job.note_checkpoint_dir(path)
        engine, job = self.join(), self.job
        home = CheckpointDirectory(path, self.say)
        try:
            if not engine.is_chief:
                return
            with (
                engine.busy("writes a checkpoint"),
                Checkpointer(
                    home, engine.task, Retention(), self.say, announce=self.console, job=job.id, runtime=job.runtime
                ) as writer,
            ):
                writer.order(engine, 0, About(strategy=job.strategy_name, trainings=job.trainings.starts))
                engine.leave_worker_state(job.trainings.number, "")
                writer.finish()
        finally:
            engine.end()  # until then, the others give what they are asked for

    def restore(self, path: str | Path, *, optimizer: bool = True) -> None:
        """Has the job begin from a checkpoint, unless it resumes from one in its `checkpoint_dir`.

        To be called on every task, before anything that joins the job. The checkpoint may be of any strategy.

        Args:
          path: a checkpoint, or a directory of them, of which the newest is taken.
          optimizer: take the optimizer's state too, and not only the params and the model's state.

        Raises:
          CheckpointError: there is none, or it cannot be read.
          TrainbandError: this task has joined its job already.
        """
        where = Path(path).absolute()
        self.job.note_checkpoint_dir(where)
        home = CheckpointDirectory(where, self.say)
        if home.steps():
            candidates = home.candidates
        else:
            checkpoint = Checkpoint.open(where)  # raises where there is none
            candidates = lambda: iter([checkpoint])  # noqa: E731
        self.job.begin_from(RestoreFrom(candidates=candidates, worker_state=lambda _: {}, optimizer=optimizer))

    def evaluate_params(
        self, params: PyTree, model_state: PyTree, batches: Iterable[PyTree], global_step: int
    ) -> Evaluation:
        """As `evaluate`, with these params and this model state; joins no job."""
        found = ((batch, self._evaluate(params, model_state, batch)) for batch in _not_empty(batches))
        return mean_over_examples(found, global_step)

    def _compiled(self, function: Callable[[PyTree, PyTree, PyTree], PyTree]) -> Callable[..., PyTree]:
        """A function of the params, the model state and a batch."""
        return jax.jit(on_mesh(function, axes=self._model.axes))

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent; done at exit if not before."""
        self.job.close(failure)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if exc is None else f"{type(exc).__name__}: {exc}")

    # --- for sessions

    def join(self) -> Engine:
        """Joins the job, if this task has not yet; returns its part in it. A ps serves, and then ends its process.

        Raises:
          ModelError: the script has set a mesh by `jax.set_mesh`.
        """
        return self.job.join()

    def feed(self, batches: Iterable[PyTree], *, repeat: bool, start: Position | None, track: bool) -> Feed:
        """The batches as this trainer wants them, for its engine; the arguments are those of `Feed`."""
        engine = self.join()
        share, accumulate = engine.share, self._model.accumulate
        return Feed(
            batches,
            repeat=repeat,
            fixed_shapes=self._fixed_shapes,
            accumulate=accumulate if share is None else 1,
            steps_per_execution=engine.steps_per_execution,
            start=start,
            place=engine.place,
            task=engine.task,
            track=track,
            idle=engine.pause,
            portions=None if share is None else Portions(share, accumulate),
            times=engine.times,
            runtime=self.job.runtime,
        )


def _not_empty(batches: Iterable[PyTree]) -> Iterator[PyTree]:
    """Without those that have no example: their mean is no number."""
    return (batch for batch in batches if examples_in(batch))
