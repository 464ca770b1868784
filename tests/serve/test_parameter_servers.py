"""A job's parameter servers as a source of versions, over the in-memory transport."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.programs import until
from tests.ps.jobs import FAST, Job, first_values, in_thread
from tests.ps.plans import blocks_of, plan_of
from tests.serve.served import EXAMPLE, scaled
from tests.serve.test_sources import commit
from trainband.errors import ModelMismatch, Unreachable
from trainband.model.predictor import Predictor
from trainband.ps.reader.follower import Follower
from trainband.serve import ServedModel, SourceState
from trainband.serve.sources.parameter_servers import ParameterServerSource

PARAMS = {"factor": np.float32(2.0)}


def init(_: Any) -> Any:
    return {"factor": jax.numpy.float32(0)}


class Followed:
    """A job of one worker with the model `scaled`, and a source that follows it."""

    def __init__(self, params: Any = None, directory: Path | None = None) -> None:
        self.params = PARAMS if params is None else params
        self.plan = plan_of(self.params, optax.sgd(1.0))
        self.job = Job()
        self.said: list[str] = []
        self.stop = threading.Event()
        follower = Follower("ps0:1", transport=self.job.transport, timeouts=FAST, interval_s=0.02, say=self.said.append)
        predictor = Predictor(scaled, example=EXAMPLE, init=init)
        self.source = ParameterServerSource(follower, predictor, directory=directory, say=self.said.append)

    def start(self) -> None:
        """The job comes up."""
        self.job.start()
        self.client = self.job.client(self.plan, 0)
        self.now = self.client.join(first_values(self.plan, self.params))
        self.client.training.start_training(1, 10)

    def push(self, value: float) -> None:
        """One update."""
        gradient = blocks_of(
            self.plan, jax.tree.map(lambda leaf: np.full(np.shape(leaf), value, np.float32), self.params)
        )
        self.now = self.client.exchanger.push(gradient, self.now.versions, loss=0.0, examples=1, finite=True)

    def run(self, model: ServedModel) -> Any:
        """Hands versions over to the model, in a thread."""
        return in_thread(lambda: self.source.run(model.swap, self.stop), "source")

    def end(self, running: Any) -> None:
        """Ends both."""
        self.stop.set()
        running.result(20.0)
        self.job.close()


@pytest.mark.smoke
def test_new_versions_are_served_and_the_last_one_when_the_job_has_ended() -> None:
    followed = Followed()
    followed.start()
    model = followed.source.open()
    assert (model.name, model.current.number, model.current.weights["params/factor"]) == ("scaled", 0, 2.0)
    running = followed.run(model)
    followed.push(0.5)
    until(lambda: model.current.number == 1, "version 1")
    assert model.current.weights["params/factor"] == 1.5
    assert model.current.delay_s is not None
    assert model.current.delay_s < 20.0
    assert followed.source.status.state is SourceState.FOLLOWING
    for _ in range(9):
        followed.push(0.5)
    followed.client.leave("")
    followed.job.ends()
    until(lambda: followed.source.status.state is SourceState.ENDED, "the end")
    assert followed.source.status.detail == "job ended at step 10 (the job is complete)"
    assert (model.current.number, model.current.weights["params/factor"]) == (10, -3.0)
    followed.end(running)


def test_a_checkpoint_is_served_until_there_is_a_job(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        Followed(directory=tmp_path).source.open()
    commit(tmp_path, 3, 7.0)
    followed = Followed(directory=tmp_path)
    model = followed.source.open()
    assert (model.current.number, model.current.weights["params/factor"]) == (3, 7.0)
    running = followed.run(model)
    until(lambda: followed.source.status.state is SourceState.UNREACHABLE, "that nobody is there")
    followed.start()
    until(lambda: model.current.weights["params/factor"] == 2.0, "the job's first values")
    followed.client.leave("")
    followed.end(running)


def test_a_job_of_another_model_is_not_served(tmp_path: Path) -> None:
    other = {"factor": np.float32(2.0), "bias": np.zeros(3, np.float32)}
    followed = Followed(other)
    followed.start()
    with pytest.raises(ModelMismatch, match=r"it has params/bias, which scaled does not have"):
        followed.source.open()
    followed.client.leave("")
    followed.job.close()
    commit(tmp_path, 3, 7.0)
    followed = Followed(other, tmp_path)
    model = followed.source.open()
    running = followed.run(model)
    followed.start()
    until(lambda: followed.source.status.state is SourceState.FAILED, "the refusal")
    assert "it has params/bias, which scaled does not have" in followed.source.status.detail
    assert (model.current.number, model.current.weights["params/factor"]) == (3, 7.0)
    followed.client.leave("")
    followed.end(running)
