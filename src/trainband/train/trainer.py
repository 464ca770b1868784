"""Trainer: what a user drives. It turns a model, a strategy and batches into a trained model."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.ps.program import Optimizer
from trainband.ps.variables import PyTree
from trainband.strategies.base import Replica, StepReport, Strategy
from trainband.strategies.model import Model, examples_in, examples_in_step
from trainband.strategies.one_device import OneDevice
from trainband.train.console import Console
from trainband.train.feed import feed, grouped
from trainband.train.result import Evaluation, FitResult, as_float
from trainband.wire.patience import Say, say_on_stderr


class Trainer:
    """Trains one model under one strategy.

    The same program runs on every task of a cluster. On a ps, the first call that needs the job (`fit`,
    `evaluate`, `params`) serves there until the job ends, and then ends the process with exit code 0.

    Args:
      init: `init(key) -> params`: any pytree of floating-point arrays, from a JAX random key.
      loss: `loss(params, batch) -> scalar`, or `(scalar, {name: metric})`, each a mean over the batch. With a third
        parameter it gets a random key there: each worker has a stream of its own, the same in every run.
      optimizer: any optax GradientTransformation.
      strategy: how replicas cooperate; `OneDevice()` when left out.
      seed: for the first params: the same seed gives the same ones everywhere.
      accumulate: micro-batches whose mean gradient makes one step: each step takes so many batches.
      compute_dtype: what the loss is computed in, such as `jnp.bfloat16`; params, gradients and the optimizer keep
        the params' own dtypes.
      worker_transform: an optax transformation that each worker applies to its whole gradient, such as
        `optax.clip_by_global_norm(1.0)`. With `Sync`, each worker's gradient is clipped, and then the mean is taken.
      init_state: `init_state(key) -> state`, any pytree of arrays that gradients do not train, such as the running
        averages of batch normalisation. The loss is then `loss(params, state, batch, key) -> (loss, (state, metrics))`.
      state_merge: what becomes of the states of several workers in one update: their `mean`, or the `chief`'s alone.
      fixed_shapes: refuse batches whose shapes change (each would be compiled anew).
      console: show progress while training: live on a terminal, else a line every 10 s; on the chief only.
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
        worker_transform: Optimizer | None = None,
        init_state: Callable[[jax.Array], PyTree] | None = None,
        state_merge: str = "mean",
        fixed_shapes: bool = True,
        console: bool = True,
        say: Say = say_on_stderr,
    ) -> None:
        self._model = Model(
            init=init,
            loss=loss,
            optimizer=optimizer,
            seed=seed,
            accumulate=accumulate,
            compute_dtype=compute_dtype,
            worker_transform=worker_transform,
            init_state=init_state,
            state_merge=state_merge,
        )
        self._strategy: Strategy = strategy or OneDevice()
        self._fixed_shapes = fixed_shapes
        self._show = console
        self._say = say
        self._replica: Replica | None = None
        self._evaluate = jax.jit(lambda params, batch, state: self._model.value(params, batch, None, state)[:2])

    @property
    def is_chief(self) -> bool:
        """Whether this task speaks for the job: let it alone print and save. Joins the job if need be."""
        return self._join().is_chief

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows. Joins the job if need be."""
        return self._join().global_step

    @property
    def params(self) -> PyTree:
        """The params as they now are, as NumPy arrays. Joins the job if need be."""
        return self._join().params()

    @property
    def model_state(self) -> PyTree:
        """The model state as it now is, as NumPy arrays; `None` for a model without one. Joins the job if need be."""
        replica = self._join()
        replica.params()
        return replica.model_state()

    def fit(self, batches: Iterable[PyTree], steps: int | None = None) -> FitResult:
        """Trains until the job has made `steps` more updates, or this task's batches are used up.

        Args:
          batches: any iterable of pytrees of arrays. One that can be iterated afresh is repeated as often as
            `steps` asks for. Every worker brings its own.
          steps: updates of the whole job, exactly; those of the chief count. `None`: one pass over the batches.

        Raises:
          DataError: no batch, or one of another shape than the first.
          ModelError, ModelMismatch: the model cannot be trained, or is not the chief's.
          NonFiniteGradient: the gradients stay NaN or infinite.
          PeerError: a ps cannot be reached or has died.
        """
        if steps is not None and steps < 0:
            raise DataError(f"fit: steps must be 0 or more, got {steps}.")
        replica = self._join()
        try:
            return self._fit(replica, batches, steps)
        except BaseException as exc:
            self.close(f"{type(exc).__name__}: {exc}".rstrip(": "))
            raise

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """Loss and metrics with the params as they now are, each the mean over all examples.

        Args:
          batches: any finite iterable; batches may differ in size.

        Raises:
          DataError: there is no batch.
        """
        replica = self._join()
        params, state, global_step = replica.params(), replica.model_state(), replica.global_step
        total, loss, metrics = 0, 0.0, dict[str, float]()
        for batch in batches:
            count = examples_in(batch)
            batch_loss, batch_metrics = self._evaluate(params, batch, state)
            total += count
            loss += count * as_float(batch_loss)
            for name, value in batch_metrics.items():
                metrics[name] = metrics.get(name, 0.0) + count * as_float(value)
        if total == 0:
            raise DataError("evaluate: there are no batches to evaluate on.")
        means = {name: value / total for name, value in metrics.items()}
        return Evaluation(loss=loss / total, metrics=means, examples=total, global_step=global_step)

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent; done at exit if not before."""
        atexit.unregister(self.close)
        if self._replica is not None:
            self._replica.close(failure)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if exc is None else f"{type(exc).__name__}: {exc}")

    def _join(self) -> Replica:
        if self._replica is None:
            if self._strategy.serves:
                self._strategy.serve()
                raise SystemExit(0)
            self._replica = self._strategy.start(self._model)
            atexit.register(self.close)
        return self._replica

    def _fit(self, replica: Replica, batches: Iterable[PyTree], steps: int | None) -> FitResult:
        log = _Log(self._model.accumulate)
        stopped = "the job has made the updates that were asked for"
        if replica.begin(steps):
            show = Console(replica.progress, self._say) if self._show and replica.is_chief else nullcontext()
            with show:
                fed = feed(batches, repeat=steps is not None, fixed_shapes=self._fixed_shapes)
                for batch in fed if self._model.accumulate == 1 else grouped(fed, self._model.accumulate):
                    report = replica.step(batch)
                    log.add(report, batch)
                    if report.done:
                        break
                else:
                    stopped = "its batches are used up"
                    replica.pause()
        return log.result(replica, stopped)


class _Log:
    """What a training did, noted cheaply: losses stay on the device until the end."""

    def __init__(self, accumulate: int) -> None:
        self._accumulate = accumulate
        self._steps: list[int] = []
        self._losses: list[Any] = []
        self._examples = 0
        self._refused = 0
        self._applied = 0
        self._staleness = 0
        self._first_at = 0.0

    def add(self, report: StepReport, batch: PyTree) -> None:
        if not self._steps:
            self._first_at = time.perf_counter()
        self._steps.append(report.global_step)
        self._losses.append(report.loss)
        self._examples += examples_in_step(batch, self._accumulate)
        self._applied += report.applied
        self._staleness += report.staleness
        self._refused += bool(report.refusal)

    def result(self, replica: Replica, stopped: str) -> FitResult:
        losses = np.array(jax.device_get(self._losses), np.float64)
        seconds = time.perf_counter() - self._first_at if self._steps else 0.0
        return FitResult(
            task=replica.task,
            global_step=replica.global_step,
            updates=self._steps[-1] - self._steps[0] if self._steps else 0,
            steps=len(self._steps),
            examples=self._examples,
            seconds=seconds,
            stopped=stopped,
            refused=self._refused,
            mean_staleness=self._staleness / max(1, self._applied),
            history=np.stack([np.array(self._steps, np.float64), losses], axis=1),
        )
