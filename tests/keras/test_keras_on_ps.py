"""`fit` on parameter servers: one worker and its ps in one process, over the in-memory transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.keras.beside import compiled, expect_same_history, fits, rows, small, trained
from tests.programs import until
from tests.ps.jobs import FAST, in_thread, spec_of

import keras
import trainband
from keras import layers
from trainband.cluster import Cluster, Task
from trainband.errors import ModelError, Unreachable
from trainband.strategies import ParameterServer
from trainband.wire.memory.transport import MemoryTransport

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X, Y = rows()
TOLERANCE = 2e-5
"""Of weights of a size about 1, after 8 updates in float32 whose sums are made elsewhere."""


class Job:
    """Some ps that serve, and one worker's strategy."""

    def __init__(self, ps: int, update: Any = None) -> None:
        self._spec = spec_of(ps, 1)
        self._transport = MemoryTransport()
        self.said: list[str] = []
        self._update = update
        self._serving: list[Future[str]] = [in_thread(self._strategy("ps", i).serve, f"keras-ps{i}") for i in range(ps)]
        self.strategy = self._strategy("worker", 0)
        self._models: list[Any] = []

    def _strategy(self, job: str, index: int) -> ParameterServer:
        cluster = Cluster(spec=self._spec, task=Task(job, index))
        return ParameterServer(
            cluster,
            transport=self._transport,
            timeouts=FAST,
            say=self.said.append,
            **({} if self._update is None else {"update": self._update}),
        )

    def trained(self, make: Callable[[], Any], fit: Callable[[Any], Any]) -> tuple[Any, Any]:
        def kept(model: Any) -> Any:
            self._models.append(model)
            return fit(model)

        return trained(make, kept, self.strategy, {"say": self.said.append})

    def close(self) -> None:
        for model in self._models:
            job = model._trainband._job  # noqa: SLF001 - a program's end closes it
            if job is not None:
                job.trainer.close()
        for task, future in zip(self._spec.ps, self._serving, strict=True):
            until(partial(self._ends, task, future), f"{task} to be asked to end")
            future.exception(20.0)

    def _ends(self, task: Task, serving: Future[str]) -> bool:
        if serving.done():
            return True
        connection = self._transport.connect(self._spec.address(task), FAST)
        try:
            connection.call("shutdown", b"\x81\xa6reason\xa0", timeout_s=5.0)
        except Unreachable:  # it may only be about to serve
            return False
        return True


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(ps: int = 1, update: Any = None) -> Job:
        jobs.append(Job(ps, update))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def normal() -> Any:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, use_bias=False),  # which the normalisation would take out: Adam would train on roundings
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    return compiled(model, optimizer=keras.optimizers.AdamW(0.02, weight_decay=0.1))


@pytest.mark.parametrize("ps", [1, 2])
def test_one_worker_is_plain_keras(make: Callable[..., Job], ps: int) -> None:
    """Batch normalisation, dropout and the optimizer's state too."""
    fit = fits(X, Y, validation_data=(X, Y))
    plain, expected = trained(normal, fit)
    ours, history = make(ps).trained(normal, fit)
    expect_same_history(expected, history, 1e-4)
    assert [v.path for v in ours.weights] == [v.path for v in plain.weights]
    for variable, value in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(variable.value, value.value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=variable.path)
    assert int(ours.optimizer.iterations) == 8


def test_fits_evaluations_and_predictions_one_after_the_other(make: Callable[..., Job]) -> None:
    def thrice(model: Any) -> Any:
        fits(X, Y, epochs=1)(model)
        model.evaluate(X, Y, verbose=0)
        fits(X, Y, epochs=1)(model)
        model.predict(X, verbose=0)
        return fits(X, Y, epochs=1)(model)

    plain, expected = trained(normal, thrice)
    ours, history = make().trained(normal, thrice)
    expect_same_history(expected, history, 1e-4)
    for value, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_early_stopping_that_restores_the_best(make: Callable[..., Job]) -> None:
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1.0, restore_best_weights=True)
    fit = fits(X, Y, epochs=4, validation_data=(X, Y), callbacks=[stop])
    plain, expected = trained(small, fit)
    ours, history = make().trained(small, fit)
    expect_same_history(expected, history, 1e-4)
    for value, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=TOLERANCE, atol=TOLERANCE)


REFUSALS: dict[str, tuple[int, Callable[[], Any], str]] = {
    "global_clipnorm": (
        2,
        lambda: small(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=1.0)),
        "computes the update of a variable from other variables too.*Use one ps",
    ),
    "use_ema": (1, lambda: small(optimizer=keras.optimizers.SGD(0.1, use_ema=True)), "has use_ema=True: its averages"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_optimizers_that_are_refused(make: Callable[..., Job], name: str) -> None:
    ps, model, words = REFUSALS[name]
    with pytest.raises(ModelError, match=words):
        make(ps).trained(model, fits(X, Y))


def test_global_clipnorm_on_one_ps(make: Callable[..., Job]) -> None:
    def model() -> Any:
        return small(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=0.1))

    plain, _ = trained(model, fits(X, Y))
    ours, _ = make().trained(model, fits(X, Y))
    for value, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=TOLERANCE, atol=TOLERANCE)


def changed(model: Any) -> None:
    model.layers[0].bias.assign(np.ones(8))


def recompiled(model: Any) -> None:
    compiled(model, optimizer="sgd")


def frozen(model: Any) -> None:
    model.layers[0].trainable = False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed, "has changed since the last training run, but the model's values are on the parameter servers"),
        (recompiled, "was compiled again.*Save the model, and continue in a new program"),
        (frozen, "its frozen layers or their values have changed.*Save the model"),
    ],
)
def test_a_model_that_is_changed_after_its_job_began(
    make: Callable[..., Job], change: Callable[[Any], None], words: str
) -> None:
    def fit(model: Any) -> Any:
        fits(X, Y, epochs=1)(model)
        change(model)
        return fits(X, Y, epochs=1)(model)

    with pytest.raises(ModelError, match=words):
        make().trained(small, fit)


def test_a_callback_that_changes_weights_is_refused(make: Callable[..., Job]) -> None:
    class Meddler(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's form
            if epoch:
                changed(self.model)

    with pytest.raises(ModelError, match=r"a callback has changed .*bias .* during the training"):
        make().trained(small, fits(X, Y, callbacks=[Meddler()]))


def test_a_job_of_ps_wants_its_model_from_a_started_optimizer(make: Callable[..., Job]) -> None:
    job = make()
    job.trained(small, lambda model: (model.optimizer.iterations.assign(7), fits(X, Y)(model))[1])
    assert [
        line
        for line in job.said
        if "has already made 7 updates; on parameter servers its averages start from scratch" in line
    ]


def test_sync_with_one_worker(make: Callable[..., Job]) -> None:
    plain, _ = trained(small, fits(X, Y))
    ours, _ = make(update=trainband.Sync()).trained(small, fits(X, Y))
    for value, other in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=TOLERANCE, atol=TOLERANCE)
