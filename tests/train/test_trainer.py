"""The trainer: what a user drives."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.ps.jobs import FAST, in_thread, spec_of
from tests.strategies.regression import batches, by_hand
from tests.train.fakes import ONES, FakeEngine, FakeStrategy, mean_model, trainer

from trainband.cluster import Cluster, Task
from trainband.errors import ClusterError, DataError, ModelError, NonFiniteGradient, YourError
from trainband.ps.rules import Bounded, Sync
from trainband.strategies import Mirrored, OneDevice, ParameterServer, StepReport
from trainband.train import Trainer
from trainband.train.hooks import Hook, NanHook
from trainband.train.session import MonitoredSession
from trainband.wire.memory.transport import MemoryTransport


def test_it_is_the_loop_by_hand() -> None:
    with trainer() as made:
        result = made.fit(batches(12))
        params, losses = by_hand(optax.adam(1e-2), 12)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), made.params, params)
        assert (made.global_step, made.is_chief) == (12, True)
    assert (result.task, result.global_step, result.steps, result.examples) == ("local", 12, 12, 192)
    assert (result.updates, result.timed_updates, result.refused, result.mean_staleness) == (12, 11, 0, 0.0)
    assert result.stopped == "its batches are used up"
    np.testing.assert_array_equal(result.history[:, 0], np.arange(1, 13))
    np.testing.assert_allclose(result.history[:, 1], losses, rtol=1e-5)
    assert result.steps_per_second > 0


def test_a_long_training_holds_no_more_on_the_device_than_a_short_one() -> None:
    """Of every step, there is a loss."""

    class Counted(Hook):
        held: ClassVar[dict[int, int]] = {}

        def after_run(self, session: MonitoredSession, report: StepReport) -> None:
            del session
            if report.global_step in (300, 900):
                self.held[report.global_step] = len(jax.live_arrays())

    with trainer() as made:
        result = made.fit(batches(900), hooks=[Counted()])
        _, losses = by_hand(optax.adam(1e-2), 900)
    assert Counted.held[900] - Counted.held[300] < 8
    np.testing.assert_allclose(result.history[:, 1], losses, rtol=1e-4)


@pytest.mark.parametrize("per_call", [1, 4])
def test_the_history_has_a_refused_step_where_it_was(per_call: int) -> None:
    data = list(batches(11))
    data[5][0][:] = np.nan
    with trainer(steps_per_execution=per_call) as made:
        result = made.fit(data)
    assert (result.refused, result.steps, result.global_step) == (1, 11, 10)
    np.testing.assert_array_equal(result.history[:, 0], [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(result.history[:, 1])), [5])


FITS: list[tuple[int, int | None, int, str]] = [
    # batches in the list, steps asked for -> steps made, why it stopped
    (3, 7, 7, "the job has made the requested updates"),
    (3, 3, 3, "the job has made the requested updates"),
    (3, None, 3, "its batches are used up"),
    (3, 0, 0, "the job has made the requested updates"),
]


@pytest.mark.parametrize(("count", "steps", "made", "stopped"), FITS)
def test_how_long_it_trains(count: int, steps: int | None, made: int, stopped: str) -> None:
    result = mean_model().fit([ONES] * count, steps)
    assert (result.steps, result.global_step, result.stopped) == (made, made, stopped)
    assert result.history.shape == (made, 2)


def test_a_generator_that_ends_early() -> None:
    said: list[str] = []
    result = mean_model(say=said.append).fit(iter([ONES] * 4), steps=10)
    assert (result.steps, result.stopped) == (4, "its batches are used up")
    (line,) = said
    assert line.startswith("the batches of local are used up at global step 4, after 4 of 10 updates;")


def test_training_goes_on_where_it_was() -> None:
    made = mean_model()
    first = made.fit([ONES] * 3)
    second = made.fit([ONES] * 3, steps=2)
    assert (first.global_step, second.global_step) == (3, 5)
    np.testing.assert_array_equal(second.history[:, 0], [4, 5])


BEGINNERS: list[tuple[dict[str, Any], str]] = [
    ({"steps": -1}, "fit: steps must be a whole number, 0 or more, got -1"),
    ({"steps": 1.5}, "fit: steps must be a whole number, 0 or more, got 1.5"),
    ({"hooks": NanHook()}, r"hooks must be a sequence of hooks, such as hooks=\[NanHook\(...\)\], got <"),
    ({"hooks": [NanHook]}, r"hooks must be a sequence of hooks, such as hooks=\[NanHook\(...\)\], got \[<class"),
    ({"checkpoint_dir": __file__}, "checkpoint_dir must be a directory, but .* is a file"),
    ({"batches": (ONES, ONES)}, r"fit: .* got a tuple of arrays, .* write \[batch\] for a single one"),
    ({"batches": {"x": ONES}}, "fit: .* got a dict, .*"),
    ({"batches": ONES}, "fit: .* got an array, .*"),
]


@pytest.mark.parametrize(("given", "words"), BEGINNERS)
def test_what_cannot_be_meant_is_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(YourError, match=words):
        mean_model().fit(**{"batches": [ONES], **given})


def test_a_training_without_an_update_is_warned_of() -> None:
    said: list[str] = []
    strategy = OneDevice("cpu", say=lambda _: None)
    mean_model(strategy=strategy, say=said.append).fit([ONES * np.nan] * 4)
    assert said == ["WARNING: 4 of 4 gradients of local were not finite and were dropped"]


def test_the_model_is_checked_at_birth() -> None:
    with pytest.raises(ModelError, match="loss must be a function"):
        trainer(loss=None)


def test_a_result_counts_what_its_steps_reported() -> None:
    reports = [
        StepReport(2.0, 5, applied=True, staleness=2, done=False),
        StepReport(np.float32(1.0), 6, applied=False, staleness=0, done=False, refusal="refused a gradient"),
        StepReport(jnp.float32(0.5), 9, applied=True, staleness=4, done=True),
    ]
    engine = FakeEngine(list(reports))
    result = trainer(strategy=FakeStrategy(engine)).fit([np.zeros((7, 2))], steps=100)
    assert (result.task, result.global_step, result.updates, result.timed_updates) == ("worker:9", 9, 9, 4)
    assert result.steps == 3
    assert (result.examples, result.refused, result.mean_staleness) == (21, 1, 3.0)
    assert (result.memory_bytes, result.memory_parts) == (3_000, {"params": 1_000, "rest": 2_000})
    np.testing.assert_array_equal(result.history, [[5, 2.0], [6, 1.0], [9, 0.5]])


def test_a_training_that_is_over_before_it_begins() -> None:
    engine = FakeEngine(more=False)
    asked: list[int] = []

    def source() -> Iterator[Any]:
        asked.append(1)
        yield np.zeros(1)

    result = trainer(strategy=FakeStrategy(engine)).fit(source(), steps=5)
    assert (result.steps, asked, engine.calls) == (0, [], [("begin", 5)])


def test_the_job_is_joined_once_and_when_it_is_needed() -> None:
    engine = FakeEngine([StepReport(0.0, 1, applied=True, staleness=0, done=True)])
    strategy = FakeStrategy(engine)
    made = trainer(strategy=strategy)
    assert strategy.starts == 0
    assert made.is_chief
    made.fit([np.zeros(1)], steps=1)
    assert made.params["w"].shape == (3,)
    assert strategy.starts == 1


def broken(exc: BaseException) -> Iterator[Any]:
    """One batch and then an exception, as from a reader of files."""
    yield np.zeros((2, 6)), np.zeros(2)
    raise exc


ENDS: list[tuple[BaseException, str]] = [
    (OSError("the disk is gone"), "OSError: the disk is gone"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (ValueError(), "ValueError"),
]


@pytest.mark.parametrize(("exc", "failure"), ENDS, ids=[failure for _, failure in ENDS])
def test_an_exception_leaves_the_job_and_says_why(exc: BaseException, failure: str) -> None:
    engine = FakeEngine([StepReport(0.0, 1, applied=True, staleness=0, done=False)])
    with pytest.raises(type(exc)):
        trainer(strategy=FakeStrategy(engine)).fit(broken(exc))
    assert engine.calls[-1] == ("close", failure)


def test_a_context_leaves_the_job() -> None:
    engine = FakeEngine()
    with trainer(strategy=FakeStrategy(engine)) as made:
        assert made.is_chief
    assert engine.calls == [("close", "")]
    engine.calls.clear()
    made = trainer(strategy=FakeStrategy(engine))
    assert made.is_chief

    def fail() -> None:
        with made:
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert engine.calls == [("close", "KeyError: 'x'")]
    with trainer(strategy=FakeStrategy(FakeEngine())):
        pass  # it has never joined, so there is nothing to leave


def test_a_program_that_just_ends_leaves_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(
        atexit, "unregister", lambda function: at_exit.remove(function) if function in at_exit else None
    )
    engine = FakeEngine()
    made = trainer(strategy=FakeStrategy(engine))
    assert made.is_chief
    (leave,) = at_exit
    leave()
    assert engine.calls == [("close", "")]
    made.close()
    assert at_exit == []


# --- evaluation


def test_an_evaluation_weights_batches_by_their_size() -> None:
    made = mean_model()
    found = made.evaluate([np.full(30, 1.0, np.float32), np.full(10, 5.0, np.float32)])
    assert (found.loss, found.metrics, found.examples, found.global_step) == (2.0, {"largest": 2.0}, 40, 0)


def test_an_evaluation_sees_the_params_as_they_are() -> None:
    made = mean_model()
    made.fit([ONES])
    found = made.evaluate([ONES])
    assert (found.loss, found.global_step) == (0.5, 1)


def test_an_empty_batch_counts_for_nothing_in_an_evaluation() -> None:
    found = mean_model().evaluate([np.full(30, 1.0, np.float32), np.zeros(0, np.float32)])
    assert (found.loss, found.metrics, found.examples) == (1.0, {"largest": 1.0}, 30)


@pytest.mark.parametrize("nothing", [[], iter(())], ids=["list", "iterator"])
def test_nothing_to_evaluate_on(nothing: Any) -> None:
    with pytest.raises(DataError, match="evaluate: there are no batches to evaluate on"):
        mean_model().evaluate(nothing)


def test_a_model_without_metrics() -> None:
    made = trainer(init=lambda _: {"w": jnp.ones(())}, loss=lambda params, batch: params["w"] * batch.mean())
    assert made.evaluate([np.ones(3, np.float32)]).metrics == {}


# --- shapes, seeds and refusals


def test_shapes_may_change_where_that_is_wanted() -> None:
    uneven = [ONES, ONES, ONES[:3]]
    with pytest.raises(DataError, match="batch 2: array 0 is float32"):
        mean_model().fit(uneven)
    assert mean_model(fixed_shapes=False).fit(uneven).examples == 4 + 4 + 3


def test_seeds() -> None:
    def random(key: jax.Array) -> Any:
        return {"w": jax.random.normal(key, (3,))}

    one, same, other = (mean_model(init=random, seed=seed).params["w"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_gradients_that_are_never_finite_end_the_training() -> None:
    made = mean_model(strategy=OneDevice("cpu", say=lambda _: None))
    with pytest.raises(NonFiniteGradient):
        made.fit([ONES * np.nan], steps=1000)


def test_gradients_that_are_not_finite_are_counted() -> None:
    result = mean_model(strategy=OneDevice("cpu", say=lambda _: None)).fit([ONES, ONES * np.nan, ONES, ONES])
    assert (result.refused, result.steps, result.global_step) == (1, 4, 3)


# --- one program on every task


def test_the_same_program_on_a_ps_and_a_worker() -> None:
    spec, transport = spec_of(1, 1), MemoryTransport()
    said: list[str] = []

    def program(job: str) -> Any:
        strategy = ParameterServer(
            Cluster(spec=spec, task=Task(job, 0)), device="cpu", transport=transport, timeouts=FAST, say=said.append
        )
        with trainer(strategy=strategy, say=said.append) as made:
            result = made.fit(list(batches(3)), steps=10)
            return result, made.evaluate(batches(2))

    tasks = [in_thread(lambda job=job: program(job), job) for job in ("ps", "worker")]  # type: ignore[misc]
    result, evaluation = tasks[1].result(30.0)
    end = tasks[0].exception(30.0)
    assert isinstance(end, SystemExit)
    assert end.code == 0
    assert (result.task, result.global_step, result.steps) == ("worker:0", 10, 10)
    assert (evaluation.global_step, evaluation.examples) == (10, 32)
    assert "ps:0 ends: the job is complete" in said


def test_a_failing_worker_tells_its_ps() -> None:
    spec, transport = spec_of(1, 1), MemoryTransport()
    said: list[str] = []
    serving = in_thread(
        ParameterServer(
            Cluster(spec=spec, task=Task("ps", 0)), transport=transport, timeouts=FAST, say=said.append
        ).serve,
        "ps",
    )
    strategy = ParameterServer(
        Cluster(spec=spec, task=Task("worker", 0)), device="cpu", transport=transport, timeouts=FAST, say=said.append
    )
    with pytest.raises(OSError, match="the disk is gone"):
        trainer(strategy=strategy, say=said.append).fit(broken(OSError("the disk is gone")))
    connection = transport.connect("ps0:1", FAST)
    connection.call("shutdown", b"\x81\xa6reason\xa0", timeout_s=5.0)
    connection.close()
    assert serving.result(20.0) == "shut down: asked to"
    assert "worker:0 left the job: OSError: the disk is gone" in said


def test_a_worker_that_is_asked_to_end_while_it_joins_tells_its_ps() -> None:
    """Else the ps waits for its lease to end, though the job is stopped."""
    spec, transport = spec_of(1, 2), MemoryTransport()
    said: list[str] = []
    served = in_thread(
        ParameterServer(
            Cluster(spec=spec, task=Task("ps", 0)), transport=transport, timeouts=FAST, say=said.append
        ).serve,
        "ps",
    )

    def say(line: str) -> None:
        said.append(line)
        if "waiting for worker:0 to initialise" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    strategy = ParameterServer(
        Cluster(spec=spec, task=Task("worker", 1)), device="cpu", transport=transport, timeouts=FAST, say=say
    )
    with pytest.raises(SystemExit) as ended:
        trainer(strategy=strategy, say=say).fit(batches(3))
    assert ended.value.code == 143
    connection = transport.connect("ps0:1", FAST)
    connection.call("shutdown", b"\x81\xa6reason\xa0", timeout_s=5.0)
    connection.close()
    served.result(20.0)
    assert "worker:1 left the job: SIGTERM asked this task to end" in said


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("mirrored", r"strategy must be a strategy, such as trainband\.Mirrored\(\), got 'mirrored'"),
        (Mirrored, r"strategy must be a strategy, such as Mirrored\(\), got the class; call it"),
    ],
)
def test_what_is_no_strategy(strategy: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        trainer(strategy=strategy)


def test_a_loss_that_is_no_number_is_warned_of_and_counted() -> None:
    """Its gradient may be finite all the same, and nothing else would tell."""
    said: list[str] = []

    def loss(params: Any, batch: Any) -> Any:
        x, _ = batch
        return jnp.mean(x @ params["w"]) + jnp.where(x[0, 0] == 7.0, jnp.nan, 0.0)

    x = np.ones((4, 2), np.float32)
    bad = np.full((4, 2), 7.0, np.float32)
    made = Trainer(
        init=lambda _: {"w": jnp.zeros(2)}, loss=loss, optimizer=optax.sgd(0.1), console=False, say=said.append
    )
    with made:
        result = made.fit([(x, x), (bad, bad), (x, x), (bad, bad)])
    assert result.refused == 0
    assert result.non_finite_losses == 2
    assert [line for line in said if line.startswith("WARNING: the loss of local is nan at global step 2;")]
    assert said[-1] == "WARNING: 2 of 4 losses of local were NaN or infinite"
    assert len(said) == 2


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (Sync, r"update must be an update rule, got the class; write update=Sync\(\)\."),
        (Bounded, r"got the class; write update=Bounded\(staleness=4\)\."),
        ("sync", r"update must be an update rule, such as Sync\(\), got 'sync'\."),
    ],
)
def test_what_is_no_update_rule(update: Any, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        ParameterServer(None, update=update)


IN_A_CLUSTER = '{"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "%s", "index": 0}}'


@pytest.mark.parametrize("task", ["worker", "ps"])
@pytest.mark.parametrize("make", [None, OneDevice, Mirrored, lambda: ParameterServer(None)])
def test_a_task_of_a_cluster_does_not_train_by_itself(
    make: Callable[[], Any] | None, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would train a model of its own, and exit with 0."""
    monkeypatch.setenv("TF_CONFIG", IN_A_CLUSTER % task)
    made = mean_model(strategy=None if make is None else make())
    with pytest.raises(
        ClusterError, match=rf"{task}:0 of a cluster of 3 tasks, but fakes.py:\d+ trains with \w+, without"
    ):
        made.fit([ONES])


@pytest.mark.parametrize("strategy", [OneDevice, Mirrored])
def test_a_task_of_a_cluster_may_train_by_itself_where_that_is_meant(
    strategy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", IN_A_CLUSTER % "worker")
    said = lambda _: None  # noqa: E731
    assert mean_model(strategy=strategy("cpu", standalone=True, say=said), say=said).fit([ONES]).steps == 1


class Serving(FakeStrategy):
    """As a ps sees it."""

    serves = True
    told: tuple[Path, ...] = ()

    def serve(self, checkpoint_dirs: Sequence[Path] = ()) -> str:
        self.told = tuple(checkpoint_dirs)
        return "the job is over"


@pytest.mark.parametrize(
    "call",
    [
        lambda one, path: one.fit([ONES], steps=1, checkpoint_dir=path),
        lambda one, path: one.save(path),
    ],
    ids=["fit", "save"],
)
def test_a_ps_hears_where_the_programs_checkpoints_are(call: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    strategy = Serving(None)
    with pytest.raises(SystemExit):
        call(trainer(strategy=strategy), tmp_path / "runs")
    assert strategy.told == (tmp_path / "runs",)
