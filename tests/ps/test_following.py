"""Reading a job's values without being a part of it, over the in-memory transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from numpy.typing import NDArray
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, Job, Script, first_values, gradient_of, in_thread, sgd_plan
from tests.ps.plans import blocks_of, plan_of
from tests.ps.test_client import train
from tests.ps.test_permissions import caller
from tests.ps.test_service import Ps

from trainband.errors import ProtocolError, RefusalCode, Unreachable
from trainband.model.layout import ShardLayout
from trainband.model.placement import RoundRobin, Slice
from trainband.model.variables import Variable
from trainband.ps.changes import applied, changes
from trainband.ps.reader.follower import Follower, FollowState
from trainband.ps.reader.job_version import JobVersion
from trainband.ps.worker.plan import Plan
from trainband.runtime.overrides import override
from trainband.wire.arena import as_bytes
from trainband.wire.limits import LIMITS
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages import following as w
from trainband.wire.messages.calls import Failure
from trainband.wire.messages.codec import decode_any
from trainband.wire.messages.following import WHOLE

SLICED = RoundRobin(max_slice_bytes=16)


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    """Makes jobs, and ends them after the test."""
    jobs: list[Job] = []

    def start(**arguments: Any) -> Job:
        jobs.append(Job(**arguments))
        return jobs[-1].start()

    yield start
    for job in jobs:
        job.close()


def follower(job: Job, ps: int = 0, **arguments: Any) -> Follower:
    """A reader that is told of one ps."""
    return Follower(
        f"ps{ps}:1", transport=job.transport, timeouts=FAST, interval_s=0.02, say=job.heard.append, **arguments
    )


def expected(versions: tuple[int, ...], plan: Plan, value: float) -> dict[str, NDArray[Any]]:
    """What SGD with rate 1 makes of `PARAMS` where every push to a shard has this value everywhere."""
    shards = blocks_of(plan, PARAMS)
    moved = [[block - n * np.float32(value) for block in blocks] for blocks, n in zip(shards, versions, strict=True)]
    names = [f"params/{variable.name}" for variable in plan.variables.entries]
    return dict(zip(names, plan.layout.gather(moved, np), strict=True))


def assert_are(version: JobVersion, plan: Plan, value: float) -> None:
    wanted = expected(version.versions, plan, value)
    assert version.tensors.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(version.tensors[name], values, rtol=1e-6)


@pytest.mark.smoke
@pytest.mark.parametrize("ps", [1, 2])
def test_a_reader_takes_versions_that_the_job_has_had_up_to_its_last(make: Callable[..., Job], ps: int) -> None:
    job, plan = make(ps=ps, workers=1), sgd_plan(ps=ps, policy=SLICED)
    reader = follower(job, ps - 1)
    first = in_thread(reader.first, "first")  # before there is a model
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    assert_are(first.result(20.0), plan, 0.5)
    client.training.start_training(1, 200)
    versions: list[JobVersion] = []

    def follow() -> None:
        while (version := reader.next(lambda: reader.status.state is FollowState.ENDED)) is not None:
            versions.append(version)

    following = in_thread(follow, "follow")
    train(client, plan, now, 0.5)
    assert [member.task for member in job.services[0].membership.members] == ["worker:0"]
    client.leave("")
    following.result(20.0)
    for version in versions:
        assert_are(version, plan, 0.5)
    steps = [version.global_step for version in versions]
    assert steps == sorted(steps)
    assert versions[-1].versions == (200,) * ps
    assert reader.status.detail.startswith("job ended at step 200 (")
    assert len(job.ends()) == ps  # no ps waits for its reader


def test_versions_are_cuts_where_shards_move_together(make: Callable[..., Job]) -> None:
    job, plan = make(ps=2, workers=1), sgd_plan(ps=2, policy=SLICED)
    client = job.client(plan, 0)
    now = client.join(first_values(plan, PARAMS))
    client.training.start_training(1, 1 << 62)
    reader = follower(job)
    reader.first()
    stopped = False

    def work() -> None:
        current = now
        while not stopped:
            current = client.exchanger.push(gradient_of(plan, 0.0), current.versions, loss=0.0, examples=8, finite=True)

    working = in_thread(work, "work")
    try:
        versions = [reader.next(lambda: False) for _ in range(20)]
    finally:
        stopped = True
        working.result(20.0)
    assert sum(version is not None and version.is_cut for version in versions) >= 10


def test_values_that_are_assigned_are_read_though_the_version_stays(make: Callable[..., Job]) -> None:
    job, plan = make(), sgd_plan()
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    reader = follower(job)
    assert reader.first().global_step == 0
    new = jax.tree.map(lambda leaf: leaf + 7, PARAMS)
    client.exchanger.assign(blocks_of(plan, new), [(range(len(plan.layout.shards[0].slices)), ())])
    version = reader.next(lambda: False)
    assert version is not None
    assert version.global_step == 0
    np.testing.assert_array_equal(version.tensors["params/b"], new["b"])


def test_nobody_there_and_a_job_of_another_model_afterwards() -> None:
    transport = MemoryTransport()
    job, plan = Job(transport=transport).start(), sgd_plan()
    client = job.client(plan, 0)
    client.join(first_values(plan, PARAMS))
    reader = follower(job)
    with pytest.raises(Unreachable):
        follower(job, 7).first()
    given = reader.first()
    client.leave("")
    job.ends()
    job.close()
    following = in_thread(lambda: reader.next(lambda: reader.status.state is FollowState.OTHER_MODEL), "follow")
    until(lambda: reader.status.state is FollowState.ENDED, "the end")
    assert reader.latest is given
    other = Job(transport=transport).start()
    try:
        params = {"w": np.zeros((3, 3), np.float32)}
        another = plan_of(params, optax.sgd(1.0))
        other.client(another, 0).join(first_values(another, params))
        assert following.result(20.0) is None
        assert "has another model: params/b is none, and b float32[2] in" in reader.status.detail
    finally:
        other.close()


TABLE = ShardLayout.of(
    [Slice(Variable("table", (40_000, 16), "float32"), 0, 40_000, 0), Slice(Variable("b", (4,), "bfloat16"), 0, 4, 0)]
)


def table_blocks() -> tuple[NDArray[Any], ...]:
    import jax.numpy as jnp

    return np.arange(640_000, dtype=np.float32), np.ones(4, jnp.bfloat16)


def through(old: tuple[NDArray[Any], ...], new: tuple[NDArray[Any], ...]) -> tuple[tuple[int, ...], int, Any]:
    """What is sent to one who has `old`, its bytes, and what that one has then."""
    counts, body = changes(TABLE, old, new)
    sent = [as_bytes(array).copy() for array in body]
    return counts, sum(array.nbytes for array in sent), applied(TABLE, old, counts, sent, "ps:0")


def test_only_rows_that_have_changed_are_sent() -> None:
    old, new = table_blocks(), table_blocks()
    rows = new[0].reshape(-1, 16)
    rows[[5, 39_999]] = np.nan
    counts, nbytes, got = through(old, new)
    assert counts == (2, 0)
    assert nbytes == 2 * (4 + 64)
    np.testing.assert_array_equal(got[0], new[0])
    assert got[1] is old[1]
    assert not np.isnan(old[0]).any()  # whoever has it keeps it
    new[1][2] = 3
    new[0][:] += 1
    counts, nbytes, got = through(old, new)
    assert counts == (WHOLE, WHOLE)
    np.testing.assert_array_equal(got[1], new[1])


@pytest.mark.parametrize(
    ("counts", "body"),
    [
        ((2,), []),
        ((WHOLE, 0), [np.zeros(4, np.uint8)]),
        ((1, 0), [np.array([40_000], np.uint32).view(np.uint8), np.zeros(64, np.uint8)]),
        ((1, 0), [np.array([1], np.uint32).view(np.uint8), np.zeros(60, np.uint8)]),
        ((0, 0), [np.zeros(4, np.uint8)]),
    ],
)
def test_changes_that_do_not_fit_are_refused(counts: tuple[int, ...], body: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="do not fit"):
        applied(TABLE, table_blocks(), counts, body, "ps:0")


class Reading(Script):
    """A reader's stream."""

    def __init__(self, *items: Any) -> None:
        super().__init__(w.Follow(0), *items)
        self.got: list[tuple[w.Values | Failure, int]] = []

    @override
    def send(self, header: bytes, body: Sequence[NDArray[Any]] = ()) -> None:
        self.got.append((decode_any(header, w.Downward, "the ps"), sum(array.nbytes for array in body)))


def test_a_ps_keeps_one_version_for_a_reader_of_a_table_and_none_where_all_changes() -> None:
    params = {"w": np.zeros((70_000, 4), np.float32)}
    ps = Ps(plan_of(params, optax.sgd(1.0)))
    ps.join()
    ps.define()
    replica = ps.service.replicas.home
    replica.initialise([params["w"].reshape(-1)])
    shard = replica.require_primary()
    kept: list[int] = []

    def update(rows: int) -> None:
        kept.append(shard.newest.readers)
        gradient = np.zeros((70_000, 4), np.float32)
        gradient[:rows] = 1
        shard.update([gradient.reshape(-1)])

    steps = [item for rows in (1, 70_000, 70_000) for item in (partial(update, rows), w.Read())]
    reading = Reading(w.Read(), w.Read(), *steps, partial(update, 1), w.Look())
    ps.service.stream(reading, caller("observer"))
    values = [told for told, _ in reading.got if isinstance(told, w.Values)]
    assert [told.changed for told in values] == [(WHOLE,), (), (1,), (WHOLE,), (WHOLE,), ()]
    assert [told.is_new for told in values] == [True, False, True, True, True, True]
    assert [nbytes for _, nbytes in reading.got] == [1_120_000, 0, 20, 1_120_000, 1_120_000, 0]
    assert kept == [1, 1, 0, 0]
    assert shard.newest.readers == 0


def test_a_reader_waits_for_a_version_that_is_to_come_and_hears_that_its_ps_ends() -> None:
    ps = Ps(sgd_plan()).ready(3)
    ps.play(0, ps.push(1))
    pushing: list[Any] = []

    def push() -> None:
        pushing.append(in_thread(lambda: ps.play(0, ps.push(2), ps.push(3)), "push"))

    def end() -> None:
        ps.service.task.ended = "the job is complete"
        ps.service.lifecycle.stop()

    reading = Reading(w.Read(1), push, w.Read(3, 5.0), end, None)
    ps.service.stream(reading, caller("observer"))
    pushing[0].result(10.0)
    told = [values for values, _ in reading.got if isinstance(values, w.Values)]
    assert [(one.version, one.is_new, one.over) for one in told] == [
        (1, True, False),
        (3, True, False),
        (3, False, True),
    ]
    assert told[-1].why == "the job is complete"
    assert ps.service.replicas.home.require_primary().newest.readers == 0


def test_a_shard_without_values_and_more_readers_than_a_ps_takes() -> None:
    ps = Ps(sgd_plan())
    reading = Reading(w.Read())
    ps.service.stream(reading)
    assert isinstance(reading.got[0][0], Failure)
    assert reading.got[0][0].code is RefusalCode.NOT_READY
    begun: list[Reading] = []

    def another() -> None:
        begun.append(Reading(another) if len(begun) < LIMITS.readers else Reading(None))
        ps.service.stream(begun[-1])

    another()
    told = [told for one in begun for told, _ in one.got if isinstance(told, Failure)]
    assert [failure.code for failure in told] == [RefusalCode.BUSY]
