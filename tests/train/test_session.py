"""The session: its loop, its hooks, what goes wrong in them, and resuming from a checkpoint to the same bits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.ps.jobs import FAST, in_thread, spec_of
from tests.strategies.regression import batches, init, loss
from tests.train.fakes import ONES, Failing, FakeEngine, FakeStrategy, lines_with, mean_model, reports, trainer

from trainband.checkpoint import LOCK_FILE, CheckpointDirectory, DirectoryLock
from trainband.cluster import Cluster, Task
from trainband.data import Batches, shared
from trainband.errors import CheckpointError, ClusterError, DirectoryLocked, ModelMismatch
from trainband.runtime.signals import PREEMPTED
from trainband.strategies import OneDevice, ParameterServer, StepReport
from trainband.train import CheckpointSaverHook, Hook, MonitoredSession, StopAtStepHook, Trainer
from trainband.train.hooks.session import SavingSession
from trainband.wire.memory.transport import MemoryTransport


class Dies(Hook):
    """Saves at one global step, and ends the program at another."""

    def __init__(self, save_at: int, dies_at: int) -> None:
        self.save_at = save_at
        self.dies_at = dies_at

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        if report.global_step == self.save_at:
            session.save(wait=True)
        if report.global_step == self.dies_at:
            raise Died


class Died(Exception):
    """The program ends."""


class At(Hook):
    """Calls a function after the step with a number."""

    def __init__(self, step: int, action: Callable[[MonitoredSession], Any]) -> None:
        self.step = step
        self.action = action

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        if report.global_step == self.step:
            self.action(session)


def quiet(_: str) -> None:
    """Hears nothing."""


def home(path: Path) -> CheckpointDirectory:
    """The checkpoints in a directory that nothing is to be said about."""
    return CheckpointDirectory(path, pytest.fail)


def same(one: Any, other: Any) -> bool:
    """Whether two trees are the same to the bit."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(leaves, others, strict=True)
    )


# --- the loop


def test_the_loop_of_the_documentation() -> None:
    made = mean_model()
    with MonitoredSession(made, hooks=[StopAtStepHook(num_steps=5)]) as session:
        assert (session.global_step, session.is_chief, session.task) == (0, True, "local")
        feed = session.feed([ONES, ONES * 2])
        steps = []
        while not session.should_stop():
            steps.append(session.run(next(feed)).global_step)
    assert steps == [1, 2, 3, 4, 5]
    assert session.stopped == "the job has made the requested updates"
    assert session.global_step == 5  # the job is still there
    assert float(session.params()["w"]) == 1 - 0.5 * (1 + 2 + 1 + 2 + 1)


def test_outside_its_with_statement_it_knows_nothing() -> None:
    session = MonitoredSession(mean_model())
    with pytest.raises(RuntimeError, match="used inside its with statement"):
        session.run(ONES)


def test_the_smallest_of_several_limits_counts() -> None:
    result = mean_model().fit([ONES] * 2, 9, hooks=[StopAtStepHook(last_step=4), StopAtStepHook(num_steps=6)])
    assert result.global_step == 4


@pytest.mark.parametrize(("is_chief", "calls"), [(True, ["finish"]), (False, [])])
def test_a_stop_is_the_chiefs_to_order_for_all(is_chief: bool, calls: list[str]) -> None:
    engine = FakeEngine(reports(1.0, 1.0))
    engine.is_chief = is_chief
    with MonitoredSession(trainer(strategy=FakeStrategy(engine))) as session:
        session.run(ONES)
        session.request_stop("enough")
        assert session.should_stop()
        session.request_stop("another reason")
        assert session.stopped == "enough"
    assert [call for call in engine.calls if call == "finish"] == calls * 2
    assert ("pause" in engine.calls) == (not is_chief)


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_end_of_a_session_in_parts(in_parts: bool) -> None:
    """All workers take part in what hooks do in the end, and only the chief knows of the checkpoint that it saves."""
    ends: list[str] = []

    class Saver(CheckpointSaverHook):
        def begin(self, session: SavingSession) -> None:
            pass

        def after_run(self, session: SavingSession, report: StepReport) -> None:
            pass

        def end(self, session: SavingSession) -> None:  # noqa: ARG002
            ends.append("saver")

    class Other(Hook):
        def end(self, session: MonitoredSession) -> None:  # noqa: ARG002
            ends.append("other")

    engine = FakeEngine(reports(1.0))
    engine.in_parts = in_parts
    hooks = [Saver(save_steps=100), Other()]
    with MonitoredSession(trainer(strategy=FakeStrategy(engine)), hooks=hooks) as session:
        session.run(ONES)
    assert ends == (["other", "saver"] if in_parts else ["saver", "other"])


def test_a_stop_in_parts_waits_for_the_hooks() -> None:
    """All may have something to do together in those behind, and it takes part in steps with the others."""
    engine = FakeEngine(reports(1.0, 1.0, 1.0))
    engine.in_parts = True
    finished: list[bool] = []

    def stop(session: MonitoredSession) -> None:
        session.request_stop("enough")
        finished.append("finish" in engine.calls)

    def save(session: MonitoredSession) -> None:
        with pytest.raises(ClusterError, match="cannot be waited for during the training"):
            session.save(wait=True)
        finished.append("finish" in engine.calls)
        raise OSError("a hook of the user's")

    with MonitoredSession(trainer(strategy=FakeStrategy(engine)), hooks=[At(1, stop), At(1, save)]) as session:
        with pytest.raises(OSError, match="a hook of the user's"):
            session.run(ONES)
        assert session.should_stop()
    assert finished == [False, False]
    assert [call for call in engine.calls if call in ("finish", "pause")] == ["finish"]


def test_a_stop_without_a_reason() -> None:
    result = mean_model().fit([ONES] * 9, hooks=[At(3, lambda session: session.request_stop())])
    assert (result.steps, result.stopped) == (3, "it was asked to stop")


class StopsBefore(Hook):
    """Asks for the end before the step with a number."""

    def __init__(self, step: int) -> None:
        self.step = step

    def before_run(self, session: MonitoredSession) -> None:
        if session.global_step == self.step - 1:
            session.request_stop("enough")


def test_a_stop_before_a_step_is_before_it() -> None:
    seen: list[StepReport] = []

    class Sees(Hook):
        def after_run(self, session: MonitoredSession, report: StepReport) -> None:  # noqa: ARG002
            seen.append(report)

    trains = Trainer(init=init, loss=loss, optimizer=optax.sgd(0.1), strategy=OneDevice("cpu"), console=False)
    result = trains.fit(batches(9), hooks=[StopsBefore(4), Sees()])
    assert (result.global_step, result.steps, result.stopped) == (3, 3, "enough")
    assert [(report.steps, report.done) for report in seen] == [(1, False)] * 3 + [(0, True)]
    assert trains.fit(batches(9), 2).global_step == 5


def test_a_save_does_not_wait_for_one_that_is_of_a_later_step(tmp_path: Path) -> None:
    """There may be no such step; and what is to be saved is there."""
    saved: list[int] = []

    def save(session: MonitoredSession) -> None:
        session.save(wait=True)
        session.save(at=100)
        session.save(wait=True)
        assert session.saved is not None
        saved.append(session.saved.global_step)

    fitted = in_thread(lambda: mean_model().fit([ONES] * 4, checkpoint_dir=tmp_path, hooks=[At(2, save)]), "fit")
    assert fitted.result(timeout=30.0).steps == 4
    assert saved == [2]


def test_a_hook_may_be_given_its_methods_later() -> None:
    calls: list[str] = []
    hook = Hook()
    hook.before_run = lambda session: calls.append("before")  # type: ignore[method-assign]  # noqa: ARG005
    hook.after_run = lambda session, report: calls.append("after")  # type: ignore[method-assign]  # noqa: ARG005
    mean_model().fit([ONES] * 2, hooks=[hook])
    assert calls == ["before", "after"] * 2


def test_a_worker_whose_batches_are_used_up_waits_for_nobody_but_says_so() -> None:
    engine = FakeEngine(reports(1.0))
    result = trainer(strategy=FakeStrategy(engine)).fit([ONES])
    assert result.stopped == "its batches are used up"
    assert [call for call in engine.calls if isinstance(call, str)] == ["pause"]


@pytest.mark.parametrize(
    ("asked", "chiefs", "words"),
    [
        (10, 500, "10 steps and the chief for 500; the chief's number counts: this training ends at global step 500"),
        (10, None, "10 steps and the chief for no limit; the chief's number counts: this training continues past that"),
        (500, 500, ""),
        (None, 500, ""),
    ],
)
def test_a_worker_that_asks_for_other_steps_than_the_chief_says_so(
    asked: int | None, chiefs: int | None, words: str
) -> None:
    engine, said = FakeEngine(reports(1.0)), list[str]()
    engine.is_chief, engine.has_another_end, engine.chiefs_end = False, True, chiefs
    trainer(strategy=FakeStrategy(engine), say=said.append).fit(iter([ONES]), asked)
    warnings = [line for line in said if "the chief for" in line]
    assert len(warnings) == bool(words), said
    assert all(f"WARNING: worker:9 was asked for {words}" in line for line in warnings)


class Losing(FakeEngine):
    """Its ps has died when all updates were made, and has come back without the last of them."""

    def __init__(self, lost: int) -> None:
        super().__init__(reports(1.0, 1.0, done=True) + reports(1.0, 1.0, 1.0, first=3, done=False))
        self.lost = lost

    def step(self, batch: Any) -> StepReport:
        if self.calls and ("step", ONES) in self.calls:
            self.lost -= 1
        return super().step(batch)


def test_updates_that_are_lost_at_the_end_are_made_anew() -> None:
    said: list[str] = []
    engine = Losing(2)
    result = trainer(strategy=FakeStrategy(engine), say=said.append).fit([ONES] * 9, 1)
    assert engine.lost == 0
    assert len([call for call in engine.calls if call == ("step", ONES)]) == 3
    assert result.stopped
    assert said == ["a ps has lost its last 2 updates; worker:9 repeats them"]


def test_they_are_made_anew_though_the_task_is_asked_to_end() -> None:
    engine = Losing(2)
    asked = At(1, lambda session: setattr(session._stop, "request", PREEMPTED))  # noqa: SLF001
    assert trainer(strategy=FakeStrategy(engine), say=quiet).fit([ONES] * 9, 1, hooks=[asked]).stopped
    assert engine.lost == 0


def sigterm(_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_loop_that_does_not_ask_whether_to_stop_ends_after_a_step(tmp_path: Path) -> None:
    made: list[StepReport] = []

    def train() -> None:
        with MonitoredSession(mean_model(say=quiet), checkpoint_dir=tmp_path, hooks=[At(3, sigterm)]) as session:
            made.extend(session.run(ONES) for _ in range(9))

    with pytest.raises(SystemExit, match="143"):
        train()
    assert len(made) == 3


def test_ctrl_c_saves_says_where_and_ends_as_ctrl_c_does(tmp_path: Path) -> None:
    said: list[str] = []

    def ctrl_c(session: MonitoredSession) -> None:
        del session
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # a second one kills

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="130"):
        mean_model(say=said.append).fit([ONES], 9, checkpoint_dir=tmp_path, hooks=[At(3, ctrl_c)])
    assert signal.getsignal(signal.SIGINT) == before
    assert said == [
        "local: Ctrl-C asked this task to end; it leaves the job at global step 3",
        f"the training resumes from {home(tmp_path).path_of(3)} when restarted",
    ]
    assert home(tmp_path).steps() == [3]
    assert CheckpointDirectory(tmp_path, quiet).steps() == [3]


def test_who_is_asked_to_end_at_a_trainings_end_does_not_make_another(tmp_path: Path) -> None:
    class Asked(Hook):
        def end(self, session: MonitoredSession) -> None:
            sigterm(session)

    made = mean_model(say=quiet)
    assert made.fit([ONES] * 3, 3, checkpoint_dir=tmp_path, hooks=[Asked()]).steps == 3
    with pytest.raises(SystemExit, match="143"):
        made.fit([ONES] * 9, 9, checkpoint_dir=tmp_path)
    assert CheckpointDirectory(tmp_path, quiet).steps()[-1] == 4


def test_lost_updates_that_cannot_be_made_anew_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="there are no batches left to repeat them; restart the job"):
        trainer(strategy=FakeStrategy(Losing(9)), say=quiet).fit(iter([ONES] * 3), 1)


# --- hooks


def test_the_order_of_hooks() -> None:
    log: list[str] = []

    class Named(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self, session: MonitoredSession) -> None:
            log.append(f"{self.name} begins at {session.global_step}")

        def before_run(self, session: MonitoredSession) -> None:
            log.append(f"{self.name} before {session.global_step}")

        def after_run(self, session: MonitoredSession, report: StepReport) -> None:
            log.append(f"{self.name} after {report.global_step}, stops: {session.should_stop()}")

        def end(self, session: MonitoredSession) -> None:
            log.append(f"{self.name} ends at {session.global_step}")

        def close(self) -> None:
            log.append(f"{self.name} closes")

    mean_model().fit([ONES], 1, hooks=[Named("a"), Named("b")])
    assert log == [
        *("a begins at 0", "b begins at 0", "a before 0", "b before 0"),
        *("a after 1, stops: True", "b after 1, stops: True", "a ends at 1", "b ends at 1"),
        *("b closes", "a closes"),
    ]


METHODS: list[tuple[str, list[str]]] = [
    # the method that raises -> what the hook after it is called for
    ("begin", ["close"]),
    ("before_run", ["begin", "close"]),
    ("after_run", ["begin", "before_run", "close"]),
    ("end", ["begin", "before_run", "after_run", "before_run", "after_run", "close"]),
    ("close", ["begin", "before_run", "after_run", "before_run", "after_run", "end", "close"]),
]


@pytest.mark.parametrize(("method", "later"), METHODS)
def test_an_error_of_a_hook_is_that_of_the_session(method: str, later: list[str], tmp_path: Path) -> None:
    error = OSError("mine")
    log: list[str] = []
    engine = FakeEngine(reports(1.0, 1.0))
    closed = [Failing(log=log), Failing(error, method), Failing(log=log)]
    engine.is_chief = False  # it is another that saves
    with pytest.raises(OSError, match="mine") as caught:
        trainer(strategy=FakeStrategy(engine)).fit([ONES] * 2, hooks=closed[1:])
    assert caught.value is error
    assert log == later
    assert engine.calls[-1] == ("close", "OSError: mine")
    made = mean_model(say=quiet)
    with pytest.raises(OSError, match="mine"):
        made.fit([ONES] * 2, checkpoint_dir=tmp_path, hooks=[Failing(error, method)])
    assert not (tmp_path / LOCK_FILE).exists()
    made.fit([ONES] * 2, checkpoint_dir=tmp_path)  # nothing stands in the way of another


def test_the_first_error_is_the_one() -> None:
    said: list[str] = []
    engine = FakeEngine(reports(1.0))
    hooks = [Failing(KeyError("second"), "close"), Failing(OSError("first"), "after_run")]
    with pytest.raises(OSError, match="first"):
        trainer(strategy=FakeStrategy(engine), say=said.append).fit([ONES], hooks=hooks)
    assert said == ["WARNING: closing the session also failed: KeyError: 'second'"]
    assert engine.calls[-1] == ("close", "OSError: first")


class Pair:
    """A ps, the chief and another worker as threads of this process, each with a trainer."""

    def __init__(self, ps: int = 1) -> None:
        self.spec = spec_of(ps, 2)
        self.transport = MemoryTransport()
        self.said: list[str] = []
        self.serving = [in_thread(self.strategy("ps", i).serve, f"ps{i}") for i in range(ps)]

    def strategy(self, job: str, index: int) -> ParameterServer:
        """A task's."""
        return ParameterServer(
            Cluster(spec=self.spec, task=Task(job, index)),
            device="cpu",
            transport=self.transport,
            timeouts=FAST,
            say=self.said.append,
        )

    def trainer(self, index: int, **changes: Any) -> Trainer:
        """A worker's."""
        return trainer(strategy=self.strategy("worker", index), say=self.said.append, **changes)

    def shut_down(self) -> None:
        """Ends the ps, if they have not ended."""
        for i in range(len(self.serving)):
            try:
                connection = self.transport.connect(f"ps{i}:1", FAST)
                connection.call("shutdown", b"\x81\xa6reason\xa0", timeout_s=5.0)
                connection.close()
            except Exception:
                pass


@pytest.mark.parametrize("method", ["begin", "before_run", "after_run", "end", "close"])
@pytest.mark.parametrize("whose", [0, 1], ids=["chief", "worker"])
def test_an_error_of_a_hook_leaves_the_job(whose: int, method: str, tmp_path: Path) -> None:
    pair = Pair()
    error = OSError("mine")
    left = threading.Event()

    class Waits(Hook):
        """Makes no step before the other has left: else there may be none for it to make."""

        def before_run(self, session: MonitoredSession) -> None:
            del session
            assert method in ("end", "close") or left.wait(60.0)

    def train(index: int) -> Any:
        hooks = [Failing(error, method)] if index == whose else [Waits()]
        with pair.trainer(index) as made:
            return made.fit(list(batches(4)), 20, checkpoint_dir=tmp_path / "runs", hooks=hooks)

    futures = [in_thread(lambda i=i: train(i), f"worker{i}") for i in (0, 1)]  # type: ignore[misc]
    assert futures[whose].exception(60.0) is error
    left.set()
    if whose == 1 or method in ("end", "close"):
        other = futures[1 - whose].result(60.0)
        assert other.global_step == 20
    else:
        # Without its chief, the job has nobody to say that it is complete; who is at it may go on by himself.
        futures[1].exception(60.0)
    pair.shut_down()
    assert all(one.result(60.0) for one in pair.serving)
    assert f"worker:{whose} left the job: OSError: mine" in pair.said
    assert not (tmp_path / "runs" / LOCK_FILE).exists()


# --- checkpoints


def test_checkpoints_at_exact_steps_and_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    saved: list[Any] = []
    made = mean_model(say=said.append)

    # The next order is given after a step, once the checkpoint before it was committed: each step waits for that here.
    class Lands(Hook):
        def after_run(self, session: MonitoredSession, report: StepReport) -> None:
            if report.global_step % 3 == 0:
                assert session._checkpoints.checkpointer is not None  # noqa: SLF001
                session._checkpoints.checkpointer.wait()  # noqa: SLF001

        def end(self, session: MonitoredSession) -> None:
            saved.append(session.saved)

    made.fit([ONES], 8, checkpoint_dir=tmp_path, save_steps=3, hooks=[Lands(), CheckpointSaverHook(save_steps=3)])
    assert home(tmp_path).steps() == [3, 6, 8]
    assert saved[0].global_step == 6
    checkpoint = home(tmp_path).newest()
    assert checkpoint is not None
    assert (checkpoint.manifest.complete, checkpoint.manifest.trainings) == (True, (0,))
    assert [entry.task for entry in checkpoint.manifest.workers.values()] == ["local"]


def test_the_last_of_the_checkpoints_by_steps_is_that_of_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    mean_model(say=said.append, console=True).fit([ONES], 6, checkpoint_dir=tmp_path, save_steps=6)
    assert len([line for line in said if "checkpoint of global step 6" in line]) == 1
    checkpoint = home(tmp_path).newest()
    assert checkpoint is not None
    assert (checkpoint.global_step, checkpoint.manifest.complete) == (6, True)


@pytest.mark.parametrize("data", [Batches, shared])
def test_more_epochs_continue_a_training_that_was_over(tmp_path: Path, data: Callable[..., Any]) -> None:
    x = np.arange(12, dtype=np.float32)

    def fit(epochs: int, directory: Path | None = tmp_path) -> tuple[Any, list[str], list[float]]:
        said: list[str] = []
        with mean_model(say=said.append, loss=lambda params, batch: params["w"] * batch[0].mean()) as made:
            result = made.fit(data(x, batch_size=4, epochs=epochs), checkpoint_dir=directory)
            return result, said, made.params["w"]

    assert fit(2)[0].steps == 6
    again, said, _ = fit(2)
    assert (again.steps, again.global_step) == (0, 6)
    assert "the batches are used up at global step 6. To continue, pass more epochs= to Batches or shared" in said[-1]
    more, _, params = fit(3)
    assert (more.steps, more.global_step) == (3, 9)
    assert params == fit(3, None)[2]


def test_what_continues_a_training_that_has_made_its_steps(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        mean_model(say=said.append).fit([ONES], 3, checkpoint_dir=tmp_path)
    assert "3 updates of the 3 requested are made at global step 3. To continue, pass larger steps=" in said[-1]


def test_checkpoints_by_seconds(tmp_path: Path) -> None:
    now = [0.0]

    def tick(session: MonitoredSession) -> None:
        del session
        now[0] += 11.0

    hooks = [At(2, tick), CheckpointSaverHook(save_secs=10.0, clock=lambda: now[0])]
    mean_model(say=quiet).fit([ONES], 4, checkpoint_dir=tmp_path, hooks=hooks)
    assert home(tmp_path).steps() == [2, 4]


def test_saving_is_for_the_chief_with_a_directory() -> None:
    with MonitoredSession(mean_model()) as session, pytest.raises(ClusterError, match="with a checkpoint_dir"):
        session.save()


def test_save_and_wait(tmp_path: Path) -> None:
    with MonitoredSession(mean_model(say=quiet), checkpoint_dir=tmp_path) as session:
        assert (session.checkpoint_dir, session.saved) == (tmp_path, None)
        session.run(ONES)
        session.save(wait=True)
        assert home(tmp_path).steps() == [1]
        states = [session.saving]
        session.save(at=3)
        states.append(session.saving)
        session.run(ONES)
        states.append(session.saving)
        assert states == [False, True, True]
        assert session.saved is not None
        assert session.saved.global_step == 1
        session.run(ONES)
        session.run(ONES)
    assert home(tmp_path).steps() == [1, 3, 4]


def epochs() -> Batches:
    """Shuffled, six batches an epoch."""
    x, y = next(batches(1, size=50))
    return Batches(x, y, batch_size=8, seed=3)


def dropout_loss(params: Any, batch: Any, key: jax.Array) -> Any:
    """The regression, with half of its inputs left out."""
    x, y = batch
    return loss(params, (x * jax.random.bernoulli(key, 0.5, x.shape), y))


def averaged_loss(params: Any, state: Any, batch: Any, key: jax.Array) -> Any:
    """The regression, with a running mean as its state."""
    x, y = batch
    mean = 0.9 * state["mean"] + 0.1 * x.mean(axis=0)
    value, metrics = dropout_loss(params, (x - mean, y), key)
    return value, ({"mean": mean, "count": state["count"] + 1}, metrics)


RESUMED: list[tuple[str, dict[str, Any], Callable[[], Iterable[Any]]]] = [
    # name, what the model has, its data
    ("adam", {}, lambda: list(batches(5))),
    ("the middle of an epoch", {}, epochs),
    ("shared data", {}, lambda: shared(next(batches(1, size=50)), batch_size=8, seed=3)),
    ("random keys", {"loss": dropout_loss}, epochs),
    ("micro-batches", {"loss": dropout_loss, "accumulate": 3}, epochs),
    (
        "a worker's transform with a state",
        {"worker_transform": optax.chain(optax.clip_by_global_norm(0.5), optax.trace(0.9))},
        epochs,
    ),
    (
        "a model state",
        {"loss": averaged_loss, "init_state": lambda _: {"mean": jnp.zeros(6), "count": jnp.zeros((), jnp.int32)}},
        epochs,
    ),
    ("bfloat16", {"compute_dtype": jnp.bfloat16, "loss": dropout_loss}, epochs),
    ("a schedule", {"optimizer": optax.adamw(optax.cosine_decay_schedule(0.1, 20))}, epochs),
]


@pytest.mark.parametrize(("model", "data"), [row[1:] for row in RESUMED], ids=[row[0] for row in RESUMED])
def test_going_on_to_the_same_bits(model: dict[str, Any], data: Callable[[], Iterable[Any]], tmp_path: Path) -> None:
    save_at, dies_at = 5, 8
    made = trainer(**model)
    whole = made.fit(data(), 12)
    with pytest.raises(Died):
        trainer(**model, say=quiet).fit(data(), 12, checkpoint_dir=tmp_path, hooks=[Dies(save_at, dies_at)])
    said: list[str] = []
    again = trainer(**model, say=said.append)
    rest = again.fit(data(), 12, checkpoint_dir=tmp_path)
    assert lines_with(said, "resumes from") == [
        f"resumes from {tmp_path / f'step-{save_at:012}'} (global step {save_at})"
    ]
    assert rest.history[0, 0] == save_at + 1
    np.testing.assert_array_equal(rest.history, whole.history[save_at:])
    assert same((again.params, again.model_state), (made.params, made.model_state))
    assert rest.global_step == 12


def test_a_finished_training_that_is_started_again_makes_no_step(tmp_path: Path) -> None:
    mean_model(say=quiet).fit([ONES] * 4, checkpoint_dir=tmp_path)
    made = "the job has made the requested updates"
    for steps, stopped in ((None, "its batches are used up"), (4, made), (3, made)):
        result = mean_model(say=quiet).fit([ONES] * 4, steps, checkpoint_dir=tmp_path)
        assert (result.steps, result.global_step, result.stopped) == (0, 4, stopped)
        assert home(tmp_path).steps() == [4]


def test_a_training_is_made_longer(tmp_path: Path) -> None:
    whole = mean_model().fit([ONES] * 2, 9)
    mean_model(say=quiet).fit([ONES] * 2, 4, checkpoint_dir=tmp_path)
    result = mean_model(say=quiet).fit([ONES] * 2, 9, checkpoint_dir=tmp_path)
    assert (result.steps, result.global_step) == (5, 9)
    np.testing.assert_array_equal(result.history, whole.history[4:])


def script(directory: Path | None, *dies: Hook, second: int = 9) -> tuple[Trainer, list[Any]]:
    """A program that trains on one thing and then on another."""
    made = trainer(loss=dropout_loss, say=quiet)
    first = made.fit(epochs(), 7, checkpoint_dir=directory)
    return made, [first, made.fit(list(batches(4, seed=5)), second, checkpoint_dir=directory, hooks=dies)]


def test_a_script_with_two_trainings_goes_on_in_the_second(tmp_path: Path) -> None:
    made, whole = script(None)
    with pytest.raises(Died):
        script(tmp_path, Dies(12, 13))
    with pytest.raises(Died):
        script(tmp_path, Dies(99, 14))  # it is over before there is another checkpoint
    again, rest = script(tmp_path)
    assert (rest[0].steps, rest[1].steps) == (0, 4)
    np.testing.assert_array_equal(rest[1].history, whole[1].history[5:])
    assert same(again.params, made.params)
    newest = home(tmp_path).newest()
    assert newest is not None
    assert newest.manifest.trainings == (0, 7)
    assert newest.manifest.complete


def test_a_replayed_training_does_not_make_the_script_complete(tmp_path: Path) -> None:
    with pytest.raises(Died):
        script(tmp_path, Dies(12, 13))
    made = trainer(loss=dropout_loss, say=quiet)
    made.fit(epochs(), 7, checkpoint_dir=tmp_path)
    newest = home(tmp_path).newest()
    assert newest is not None
    assert (newest.global_step, newest.manifest.complete) == (12, False)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    trainer(say=quiet).fit(batches(2), checkpoint_dir=tmp_path)

    def other(key: jax.Array) -> Any:
        params = init(key)
        params["hidden"]["bias"] = jnp.zeros(9)
        return params

    with pytest.raises(
        ModelMismatch, match=r"the model has params/hidden/bias float32\[9\], the checkpoint has .*\[8\]"
    ):
        trainer(init=other, say=quiet).fit(batches(2), checkpoint_dir=tmp_path)
    with pytest.raises(ModelMismatch, match="optimizer/"):
        trainer(optimizer=optax.sgd(0.1, momentum=0.9), say=quiet).fit(batches(2), checkpoint_dir=tmp_path)
    assert not (tmp_path / LOCK_FILE).exists()


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    ("a byte", lambda path: flip(path / "part-00000-of-00001.safetensors")),
    ("no manifest", lambda path: (path / "manifest.json").unlink()),
    ("cut short", lambda path: cut(path / "part-00000-of-00001.safetensors")),
    ("the worker's", lambda path: flip(path / "workers.safetensors")),
]


def flip(path: Path) -> None:
    """Alters the last byte, which is of a tensor."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Leaves half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [row[1] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_where_the_newest_is_damaged_the_one_before_it_is_used(damage: Callable[[Path], None], tmp_path: Path) -> None:
    made = trainer(loss=dropout_loss)
    whole = made.fit(batches(9), 9)
    with pytest.raises(Died):
        trainer(loss=dropout_loss, say=quiet).fit(
            list(batches(9)), 9, checkpoint_dir=tmp_path, hooks=[Dies(3, 99), Dies(6, 7)]
        )
    damage(home(tmp_path).path_of(6))
    said: list[str] = []
    again = trainer(loss=dropout_loss, say=said.append, strategy=OneDevice("cpu", say=said.append))
    rest = again.fit(list(batches(9)), 9, checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(rest.history, whole.history[3:])
    assert same(again.params, made.params)
    assert lines_with(said, "resumes from") == [f"resumes from {tmp_path / 'step-000000000003'} (global step 3)"]
    (line,) = lines_with(said, "is damaged")
    assert "step-000000000006" in line


def test_another_job_in_the_directory(tmp_path: Path) -> None:
    with (
        DirectoryLock(tmp_path, "worker:7"),
        pytest.raises(DirectoryLocked, match=r"is in use by worker:7 \(process \d+ on "),
    ):
        mean_model().fit([ONES], checkpoint_dir=tmp_path)
    mean_model(say=quiet).fit([ONES], checkpoint_dir=tmp_path)


def test_params_can_be_read_though_they_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise CheckpointError("cannot write: No space left on device")

    pair = Pair(ps=2)
    made = pair.trainer(0)

    def train() -> Any:
        with pair.trainer(1) as other:
            return other.fit(list(batches(4)), 8)

    other = in_thread(train, "worker1")
    monkeypatch.setattr(CheckpointDirectory, "create_partial", full)
    with pytest.raises(CheckpointError, match="the training is done, but its last checkpoint is not in"):
        made.fit(list(batches(4)), 8, checkpoint_dir=tmp_path)
    assert made.global_step == 8
    assert made.params["hidden"]["kernel"].shape == (6, 8)
    other.result(60.0)
    made.close()
    pair.shut_down()
    assert all(one.result(60.0) for one in pair.serving)
