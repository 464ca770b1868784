"""What every strategy is: a way for replicas of one model to cooperate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trainband.ps.variables import PyTree
from trainband.strategies.model import Model

MOST_REFUSALS = 100
"""Gradients that are not finite, in a row, after which a replica gives up: its model is broken for good, and
repeating it would go on for ever."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, for the display."""

    task: str
    presence: str
    rate: float
    """Steps per second."""
    staleness: float
    loss: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, for the display."""

    global_step: int
    last_step: int | None
    """Where this training ends; `None` while nobody knows."""
    rate: float
    """Global steps per second."""
    loss: float | None
    workers: tuple[WorkerRow, ...] = ()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of one replica did.

    Attributes:
      loss: of the batch, a float or a scalar array still being computed.
      global_step: updates made by the whole job, after this step.
      applied: whether this step's gradient became an update. Where exchanges overlap with computing, this and
        what follows speak of the step before.
      staleness: of that update.
      done: whether the job has made all the updates that were asked for.
      refusal: why the gradient was refused as not finite; empty if it was not.
    """

    loss: Any
    global_step: int
    applied: bool
    staleness: int
    done: bool
    refusal: str = ""


class Replica(Protocol):
    """One process's part in a running job."""

    @property
    def task(self) -> str:
        """Its name in the cluster, or `local`."""
        ...

    @property
    def is_chief(self) -> bool:
        """Whether this one speaks for the job."""
        ...

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this replica knows."""
        ...

    def begin(self, steps: int | None) -> bool:
        """Starts a training of `steps` more updates (`None`: no limit); returns whether any are left to make."""
        ...

    def step(self, batch: PyTree) -> StepReport:
        """Trains on one batch."""
        ...

    def pause(self) -> None:
        """Ends this replica's part in the training under way: its batches are used up, nobody shall wait for it."""
        ...

    def params(self) -> PyTree:
        """The params as they now are, as arrays that nothing changes later."""
        ...

    def model_state(self) -> PyTree:
        """The model state as it was when `params` was last called, `None` for a model without one."""
        ...

    def progress(self) -> Progress | None:
        """How far the job is; may be called from another thread; `None` where it cannot be told now."""
        ...

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        ...


class Strategy(Protocol):
    """How replicas of a model cooperate. One strategy a file."""

    @property
    def serves(self) -> bool:
        """Whether this task only serves others (a ps) and never trains."""
        ...

    def start(self, model: Model) -> Replica:
        """Takes this process into the job."""
        ...

    def serve(self) -> str:
        """Serves until the job ends; returns why it did. Only where `serves`."""
        ...
