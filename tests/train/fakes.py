"""What the tests of `train` share: a engine and a strategy that are played, a small model, event files read back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c
from tests.strategies.regression import init, loss

from trainband.job.reports import TaskStatistics, TrainingStatus
from trainband.runtime.step_times import StepTimes
from trainband.strategies import OneDevice, StepReport
from trainband.strategies.base import Progress
from trainband.train import Hook, MonitoredSession, Trainer
from trainband.train.batch_feed import Feed
from trainband.train.passes import Passes, Position

A, B, C = (np.full((4, 2), value, np.float32) for value in range(3))


class Loader:
    """Can be iterated again, and counts how often it was."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        return iter(self.batches)


def trainer(**changes: Any) -> Trainer:
    """The regression on one device, in silence."""
    fields: dict[str, Any] = {
        "init": init,
        "loss": loss,
        "optimizer": optax.adam(1e-2),
        "strategy": OneDevice("cpu"),
        "console": False,
        "say": pytest.fail,
    }
    return Trainer(**{**fields, **changes})


def mean_model(**changes: Any) -> Trainer:
    """The loss of a batch is the mean of its values, times one param that begins as 1."""
    fields: dict[str, Any] = {
        "init": lambda _: {"w": jnp.ones(())},
        "loss": lambda params, batch: (params["w"].sum() * batch.mean(), {"largest": batch.max()}),
        "optimizer": optax.sgd(0.5),
    }
    return trainer(**{**fields, **changes})


ONES = np.ones(4, np.float32)


class FakeEngine:
    """Notes what it is asked for, and answers from a queue. It is each of its parts."""

    task = "worker:9"
    is_chief = True
    job = ""
    restored = None
    worker_state = None
    place = None
    trainings: tuple[int, ...] = ()
    last_step: int | None = None
    has_another_end = False
    """Whether the chief ends the training at `chiefs_end`, whatever this task asks for."""
    chiefs_end: int | None = None
    steps_per_execution = 1
    share = None
    unused = 0
    refused = 0

    def __init__(self, reports: list[StepReport] | None = None, more: bool = True) -> None:
        self.reports = reports or []
        self.more = more
        self.calls: list[Any] = []
        self.global_step = 0
        self.examples_rate = 0.0
        self.times = StepTimes()
        self.lost = 0

    @property
    def steps(self) -> FakeEngine:
        return self

    values = checkpoints = peers = steps

    @property
    def training(self) -> TrainingStatus:
        return TrainingStatus(starts=self.trainings, last_step=self.last_step, unused=self.unused, refused=self.refused)

    def statistics(self) -> TaskStatistics:
        return TaskStatistics(
            task=self.task,
            is_chief=self.is_chief,
            global_step=self.global_step,
            last_step=self.last_step,
            steps=0,
            examples=None,
            refused=0,
            loss=None,
            seconds={},
            memory_bytes=3_000,
            memory_parts={"params": 1_000, "rest": 2_000},
        )

    def pop_known(self) -> Sequence[tuple[int, float]]:
        return ()

    def start_training(self, last_step: int | None, trainings: Sequence[int] = ()) -> bool:
        assert trainings
        self.calls.append(("begin", last_step))
        self.last_step = self.chiefs_end if self.has_another_end else last_step
        return self.more

    def step(self, batch: Any) -> StepReport:
        self.calls.append(("step", batch))
        report = self.reports.pop(0)
        self.global_step = report.global_step
        self.refused += bool(report.refusal)
        return report

    def finish(self) -> None:
        self.calls.append("finish")

    def missing(self) -> int:
        return self.lost

    def pause(self, reason: str = "") -> str:
        self.calls.append("pause")
        return reason

    def settle(self) -> None:
        self.calls.append("settle")

    def at_work(self) -> tuple[str, ...]:
        return ()

    def store_worker_state(self, training: int, position: str, behind: int = 0) -> None:
        self.calls.append(("worker state", training, position, behind))

    def lease(self, request: Any) -> Any:
        raise AssertionError(request)

    def save(self, directory: Path, at: int) -> Any:
        raise AssertionError((directory, at))

    in_parts = False
    unused = 0

    def busy(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def computed(
        self,
        function: Callable[..., Any],
        batches: Iterable[Any],
        what: str,  # noqa: ARG002
    ) -> Iterator[tuple[Any, Any]]:
        return ((batch, function(self.params(), self.model_state(), batch)) for batch in batches)

    def gather(self, work: Callable[[], object]) -> bool:
        work()
        return False

    def end(self) -> None:
        """Nobody has to be told."""

    def model_state(self) -> Any:
        return None

    def params(self) -> Any:
        return {"w": np.zeros(3)}

    def progress(self) -> Progress | None:
        return Progress(self.global_step, None, 0.0, None, examples_rate=self.examples_rate)

    def close(self, failure: str = "") -> None:
        self.calls.append(("close", failure))


class FakeStrategy:
    """Gives out one engine."""

    serves = False
    cluster = None
    mesh_axes = ("data",)

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.starts = 0

    def start(self, model: Any, restore: Any = None) -> Any:
        del model, restore
        self.starts += 1
        return self.engine

    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:
        del checkpoint_dirs
        raise AssertionError


def reports(*losses: Any, first: int = 1, **more: Any) -> list[StepReport]:
    """One a step, from the global step `first` on."""
    fields: dict[str, Any] = {"applied": True, "staleness": 0, "done": False}
    return [StepReport(value, first + i, **{**fields, **more}) for i, value in enumerate(losses)]


class Failing(Hook):
    """Notes what it is called for, and raises in one of its methods."""

    def __init__(self, error: BaseException | None = None, where: str = "", log: list[str] | None = None) -> None:
        self.error = error
        self.where = where
        self.log = log if log is not None else []

    def _called(self, method: str) -> None:
        self.log.append(method)
        if method == self.where and self.error is not None:
            raise self.error

    def begin(self, session: MonitoredSession) -> None:
        del session
        self._called("begin")

    def before_run(self, session: MonitoredSession) -> None:
        del session
        self._called("before_run")

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        del session, report
        self._called("after_run")

    def end(self, session: MonitoredSession) -> None:
        del session
        self._called("end")

    def close(self) -> None:
        self._called("close")


def events_in(directory: Path) -> list[list[Any]]:
    """The events of each event file of a TensorBoard run, in the order in which TensorBoard reads them."""
    return [list(_events_of(path)) for path in sorted(directory.glob("events.out.tfevents.*"))]


def curves_in(directory: Path, purged: bool = True) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each scalar, as TensorBoard shows it: a file that begins anew at a step does away with the rest.

    Source: TensorBoard's EventAccumulator, `_CheckForRestartAndMaybePurge`.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for events in events_in(directory):
        for event in events:
            if event.HasField("session_log") and purged:
                curves = {tag: [point for point in curve if point[0] < event.step] for tag, curve in curves.items()}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def _events_of(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (header_crc,) = struct.unpack_from("<I", data, at + 8)
        body = data[at + 12 : at + 12 + length]
        (body_crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert (header_crc, body_crc) == (masked_crc32c(data[at : at + 8]), masked_crc32c(body))
        yield Event.FromString(body)
        at += 16 + length


def lines_with(said: list[str], text: str) -> list[str]:
    """What was said of something."""
    return [line for line in said if text in line]


class Ticking:
    """A clock that advances by a number of seconds each time that it is read."""

    def __init__(self, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def feed_of(
    batches: Iterable[Any],
    *,
    repeat: bool = False,
    fixed_shapes: bool = True,
    start: Position | None = None,
    place: Callable[[Any], Any] | None = None,
    task: str = "",
    track: bool = True,
    **settings: Any,
) -> Feed:
    """A feed of these batches."""
    passes = Passes(batches, repeat=repeat, fixed_shapes=fixed_shapes, start=start, place=place, task=task, track=track)
    return Feed(passes, **settings)
