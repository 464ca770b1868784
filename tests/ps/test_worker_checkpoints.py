"""The chief's side of checkpoints, over the in-memory transport and over ps that are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from msgspec.structs import replace
from tests.ps.checkpoints import OnePs, saved_job, source_of
from tests.ps.jobs import PARAMS, FakeClock, Job, first_values, gradient_of
from tests.ps.plans import plan_of, tree_of

from trainband.checkpoint import CheckpointDirectory, Manifest, Part
from trainband.data.leases import LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import CheckpointError, RefusalCode, Refused
from trainband.job.checkpoints import WORKER_STATE_S, Overtaken, SavedParts
from trainband.model.placement import RoundRobin
from trainband.model.worker_state import WorkerState
from trainband.ps.worker.checkpoints import JobSaving
from trainband.ps.worker.client import JobClient
from trainband.ps.worker.exchange import Exchange
from trainband.ps.worker.shard_definer import ShardDefiner
from trainband.ps.worker.shard_link import ME
from trainband.runtime import SYSTEM, SystemRuntime
from trainband.wire.messages import calls as m
from trainband.wire.transport import Timeouts

PLAN = plan_of(PARAMS, optax.sgd(0.5, momentum=0.5), ps=2, policy=RoundRobin(max_slice_bytes=16))


class Played:
    """A ps that answers from a table."""

    def __init__(self, name: str, asked: list[str], state: m.SaveState) -> None:
        self.name = name
        self.asked = asked
        self.state = state
        self.moved = False

    def ask(self, action: str, record: Any, kind: type[Any]) -> Any:
        assert kind is m.SaveState
        self.asked.append(f"{self.name} {action}")
        del record
        if self.moved:
            raise Refused(f"{self.name} does not hold shard 0.", RefusalCode.MOVED)
        return self.state


class Reader:
    """A ps that is told to read a checkpoint, and has read it at once, or knows nothing of it."""

    def __init__(self, name: str, *, forgotten: bool) -> None:
        self.name = name
        self._forgotten = forgotten

    def ask(self, action: str, record: Any, kind: type[Any]) -> Any:
        del record
        assert action in ("restore", "restore_state"), "nothing was read that could be adopted"
        assert kind is m.RestoreState
        return m.RestoreState(done=True, forgotten=self._forgotten)


def part(ps: int, version: int = 5) -> Part:
    return Part(f"part-{ps}", 0, ps, version, ())


def test_ps_0_hears_of_an_order_last() -> None:
    asked: list[str] = []
    ps: list[Any] = [Played(f"ps:{i}", asked, m.SaveState(m.ARMED)) for i in range(3)]
    JobSaving(ps, Path("/x"), 5)
    assert asked == ["ps:2 save", "ps:1 save", "ps:0 save"]


@pytest.mark.parametrize(
    ("phases", "waits"),
    [([m.ARMED, m.ARMED], True), ([m.ARMED, m.WRITTEN], True), ([m.ARMED, m.WRITING], False), ([m.WRITTEN] * 2, False)],
)
def test_it_waits_where_one_waits_and_none_writes(phases: list[str], waits: bool) -> None:
    ps: list[Any] = [Played(f"ps:{i}", [], m.SaveState(phase)) for i, phase in enumerate(phases)]
    saving = JobSaving(ps, Path("/x"), 5)
    assert saving.waits is waits
    for one in ps:
        one.state = m.SaveState(m.ARMED)
    saving.poll()
    assert saving.waits


def test_a_reading_that_the_ps_knows_nothing_of_may_be_tried_again(tmp_path: Path) -> None:
    """Two workers were the chief for a moment, and the other one was faster: nothing is wrong with the checkpoint."""
    directory = CheckpointDirectory(tmp_path, pytest.fail)
    saved_job(directory, [OnePs(PLAN, index).initialise(PARAMS) for index in range(2)])
    source = source_of(directory)
    definer = ShardDefiner(PLAN, pytest.fail, source, timeouts=Timeouts(), say=print, runtime=SYSTEM)
    links: list[Any] = [Reader("ps:0", forgotten=False), Reader("ps:1", forgotten=True)]
    with pytest.raises(Refused, match="ps:1 died, or got its values from another worker, while reading"):
        definer.restore(links, None)


def test_a_slow_workers_state_is_not_awaited_for_ever() -> None:
    clock = FakeClock()
    states = [m.SaveState(m.WRITTEN, 5, part=part(i)) for i in range(2)]
    ps: list[Any] = [Played(f"ps:{i}", [], state) for i, state in enumerate(states)]
    saving = JobSaving(ps, Path("/x"), 5, SystemRuntime(clock))
    ps[0].state = replace(states[0], awaited=("worker:1",), worker_state={0: b"new", 1: b"old"})
    clock.now += 100.0  # it counts from when all parts are there
    assert saving.poll() is None
    clock.now += WORKER_STATE_S - 0.1
    assert saving.poll() is None
    clock.now += 0.2
    found = saving.poll()
    assert found == SavedParts((part(0), part(1)), {0: b"new", 1: b"old"}, {}, ("worker:1",))
    assert found.global_step == 5


def test_one_that_fails_is_named() -> None:
    ps: list[Any] = [
        Played("ps:0", [], m.SaveState(m.WRITING)),
        Played("ps:1", [], m.SaveState(m.FAILED, failure="full")),
    ]
    with pytest.raises(CheckpointError, match="ps:1 could not write its part of the checkpoint: full"):
        JobSaving(ps, Path("/x"), 5).poll()


def test_an_order_that_is_forgotten_before_it_is_followed_is_no_failure() -> None:
    ps: list[Any] = [Played("ps:0", [], m.SaveState(m.ARMED)), Played("ps:1", [], m.SaveState(m.ARMED))]
    saving = JobSaving(ps, Path("/x"), 5)
    assert saving.poll() is None
    ps[0].state, ps[1].state = m.SaveState(m.WRITING), m.SaveState(m.FORGOTTEN)
    with pytest.raises(Overtaken, match="ps:1 died, or gave up the save, before it began to write"):
        saving.poll()
    ps[1].state = m.SaveState(m.WRITTEN, part=part(1))
    assert saving.poll() is None
    ps[0].state = m.SaveState(m.FORGOTTEN)
    with pytest.raises(Refused, match="ps:0 died, or gave up the save, while the checkpoint was written") as refused:
        saving.poll()
    assert not isinstance(refused.value, Overtaken)


def test_an_order_does_not_move_with_its_shard() -> None:
    ps: list[Any] = [Played("ps:0", [], m.SaveState(m.ARMED)), Played("ps:1", [], m.SaveState(m.ARMED))]
    saving = JobSaving(ps, Path("/x"), 5)
    ps[1].moved = True
    with pytest.raises(Overtaken, match="ps:1 died, or gave up the save, before it began to write"):
        saving.poll()


# --- real ones


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    """Makes jobs, and ends them after the test."""
    jobs: list[Job] = []

    def start(**arguments: Any) -> Job:
        jobs.append(Job(**{"ps": 2, **arguments}))
        return jobs[-1].start()

    yield start
    for job in jobs:
        job.close()


def chief_of(job: Job, directory: CheckpointDirectory | None = None, steps: int = 100) -> JobClient:
    chief = job.client(PLAN, 0)
    chief.join(first_values(PLAN, PARAMS), source_of(directory) if directory is not None else None)
    chief.training.start_training(1, steps)
    chief.training.await_training(1)
    return chief


def values_of(now: Exchange) -> dict[str, Any]:
    """The params, copied: the next exchange overwrites them."""
    return {name: np.array(leaf) for name, leaf in tree_of(PLAN, now.params).items()}


def push(client: JobClient, count: int = 1) -> Any:
    now = client.exchanger.pull()
    for _ in range(count):
        now = client.exchanger.push(gradient_of(PLAN, 1.0), now.versions, loss=1.0, examples=1, finite=True)
    return now


def saved(chief: JobClient, directory: CheckpointDirectory, at: int = 0) -> Any:
    partial = directory.create_partial(at)
    saving = chief.checkpoints.save(partial, at)
    if at:
        push(chief, at - chief.exchanger.pull().global_step)
    chief.checkpoints.send_worker_state(WorkerState.pack("worker:0", 1, at, "", ()).to_bytes())
    while (parts := saving.poll()) is None:
        pass
    manifest = Manifest(
        global_step=parts.global_step,
        created_at=1.0,
        trainband="x",
        strategy="x",
        parts=parts.parts,
        sources=dict(parts.sources),
    )
    return directory.commit(partial, manifest)


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory(tmp_path, pytest.fail)


SOURCE = LeaseRequest("digits", SourceSettings(examples=10, piece=5, epochs=1, seed=0, shuffle=False), iterator="a")


def test_saved_and_restored_params_ledgers_and_worker_state(
    make: Callable[..., Job], directory: CheckpointDirectory
) -> None:
    first = make()
    chief = chief_of(first)
    assert chief.peers.lease(SOURCE).piece == 0
    checkpoint = saved(chief, directory, at=3)
    assert {part.version for part in checkpoint.manifest.parts} == {3}
    wanted = values_of(chief.exchanger.pull())
    after = values_of(push(chief, 2))
    second = make()
    again = chief_of(second, directory)
    assert again.checkpoints.restored is not None
    now = again.exchanger.pull()
    assert now.versions == (3, 3)
    for name, leaf in values_of(now).items():
        np.testing.assert_array_equal(leaf, wanted[name])
    for name, leaf in values_of(push(again, 2)).items():  # with the momentum
        np.testing.assert_array_equal(leaf, after[name])
    assert "digits" in second.services[0].replicas.by_shard[0].sources.record()


def test_an_early_end(make: Callable[..., Job]) -> None:
    chief = chief_of(make())
    push(chief, 3)
    chief.training.finish()
    answer = push(chief)
    assert (answer.applied, answer.done, answer.versions) == (False, True, (3, 3))
    assert [state.last_version for state in chief.training.states()] == [3, 3]
    chief.training.start_training(2, 5)
    chief.training.await_training(2)
    assert push(chief, 9).versions == (5, 5)


def test_a_chief_that_died_between_two_ps(make: Callable[..., Job], directory: CheckpointDirectory) -> None:
    """One ps has the checkpoint's values already; the other gets those of the same step, not the first ones."""
    chief = chief_of(make())
    saved(chief, directory, at=2)
    saved(chief, directory, at=4)
    wanted = values_of(chief.exchanger.pull())
    job = make()
    half = job.client(PLAN, 0)
    half._finder.find(half._links[0], lambda *_: True, "")  # noqa: SLF001 - a chief that does not get far
    half._finder.find(half._links[1], lambda *_: True, "")  # noqa: SLF001
    for link in half._links:  # noqa: SLF001
        optimizer = PLAN.shard_optimizer(link.index)
        program = optimizer.export()
        link.ask(
            "define",
            m.Define(0, ME, link.index, PLAN.description, program.initialise, program.update, optimizer.state_contents),
            m.Joined,
        )
    one, path = half._links[1], str(directory.path_of(2))  # noqa: SLF001
    one.ask("restore", m.Restore(0, ME, "token", path), m.RestoreState)
    while not one.ask("restore_state", m.RestoreQuestion(0, ME, "token"), m.RestoreState).done:
        pass
    one.ask("adopt", m.Adopt(0, ME, "token", 2), m.Joined)
    half.leave("died")
    again = chief_of(job, directory)
    assert again.checkpoints.restored is not None
    assert again.exchanger.pull().versions == (2, 2)
    push(again, 2)
    for name, leaf in values_of(again.exchanger.pull()).items():
        np.testing.assert_array_equal(leaf, wanted[name])


@pytest.mark.parametrize(
    ("action", "record"),
    [
        ("save", m.Save(1, ME, "t", "/x", 0)),
        ("save_state", m.SaveQuestion(1, ME, "t", False)),
        ("restore", m.Restore(1, ME, "t", "/x")),
        ("restore_state", m.RestoreQuestion(1, ME, "t")),
        ("adopt", m.Adopt(1, ME, "t", 0)),
        ("begin", m.Begin(1, ME, 2, 9)),
        ("finish", m.Finish(1, ME)),
    ],
)
def test_only_the_chief_may(make: Callable[..., Job], action: str, record: Any) -> None:
    job = make(ps=2, workers=2)
    chief_of(job)
    other = job.client(PLAN, 1)
    other.join(pytest.fail)
    with pytest.raises(Refused, match=r"worker:1 may not .*: only the chief, worker:0, may"):
        other._links[0].ask(action, record, m.JobState)  # noqa: SLF001


def test_a_state_that_does_not_fit_its_program_is_refused(make: Callable[..., Job]) -> None:
    job = make()
    chief = job.client(PLAN, 0)
    link = chief._links[0]  # noqa: SLF001
    chief._finder.find(link, lambda *_: True, "")  # noqa: SLF001
    program = PLAN.shard_optimizer(0).export()
    with pytest.raises(Refused, match="sizes of the optimizer state differ from its program's"):
        link.ask("define", m.Define(0, ME, 0, PLAN.description, program.initialise, program.update, ()), m.Joined)
    assert not link.ask("heartbeat", m.Heartbeat(0, ME), m.JobState).initialised


def test_one_that_has_left_gets_no_piece_that_nobody_would_take_back(make: Callable[..., Job]) -> None:
    job = make()
    chief = chief_of(job)
    link = chief._links[0]  # noqa: SLF001
    link.ask("leave", m.Leave(0, ME, ""), m.JobState)
    with pytest.raises(Refused, match="worker:0 has left the job and gets no more pieces of 'digits'"):
        chief.peers.lease(SOURCE)
