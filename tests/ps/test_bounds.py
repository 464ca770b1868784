"""What a stranger who can reach the port sends: each is refused, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import optax
import pytest
from msgspec.structs import replace
from tests.fuzz.targets_wire import Frames, pair, snapshot_of
from tests.ps.jobs import PARAMS, Script, sgd_plan
from tests.ps.plans import plan_of
from tests.ps.test_service import Ps, life, worker_state

from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import DataError, ProtocolError, RefusalCode, Refused, TrainbandError
from trainband.ps.membership.members import FORMER, Members, Presence
from trainband.ps.rules import Async, Sync
from trainband.ps.rules.registry import rule_of
from trainband.runtime.step_recording import StepRecording
from trainband.version import VERSION
from trainband.wire.limits import LIMITS, Limits
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode, decode_any, encode
from trainband.wire.messages.fields import ELASTIC_BASE, UNLIMITED
from trainband.wire.messages.recording import Recorded

STRANGER = "5717a96e5717a96e"
OTHER_MODEL = plan_of({**PARAMS, "b": np.ones(3, np.float32)}, optax.sgd(1.0)).description


@pytest.fixture
def ps() -> Ps:
    """A training of two workers is under way."""
    return Ps(sgd_plan()).ready()


def application(ps: Ps, **changes: Any) -> m.Join:
    join = m.Join("worker:1", STRANGER, "there", 7, ps.plan.description, version=VERSION)
    return replace(join, **changes)


def trace(ps: Ps) -> Any:
    """All that is known of the job."""
    status = ps.status
    workers = [(one.task, one.presence, one.pid, one.failure) for one in status.workers]
    return workers, ps.state, set(ps.service.membership.accounts)


# --- joining


JOINS: list[tuple[dict[str, Any], str]] = [
    # who could not join, and nevertheless changed something
    ({"task": "worker:-100000", "description": OTHER_MODEL}, "sent an invalid Join"),
    ({"task": f"worker:{10**26}"}, "sent an invalid Join"),
    ({"task": "worker:7", "description": OTHER_MODEL}, "worker:7 cannot join this job"),
    ({"task": "worker:07"}, "sent an invalid Join"),
    ({"task": "worker:7\n"}, "sent an invalid Join"),
    ({"task": "ps:0"}, "sent an invalid Join"),
    ({"task": "chief:0"}, "chief:0 is not a worker of this cluster"),
    ({"task": "chief:7"}, "chief:7 is not a worker of this cluster"),
    ({"task": "worker:7", "incarnation": ""}, "sent an invalid Join"),
    ({"task": "worker:7", "incarnation": "x" * 65}, "sent an invalid Join"),
    ({"task": "worker:7", "host": "\x1b]0;owned\x07"}, "sent an invalid Join"),
    ({"task": "worker:7", "host": "x" * 256}, "sent an invalid Join"),
    ({"task": "worker:7", "pid": -1}, "sent an invalid Join"),
    ({"task": "worker:7", "version": "0.0"}, "install the same version on both"),
    ({"task": "worker:1", "job": "of another one"}, "worker:1 is already in the job"),
]


@pytest.mark.parametrize(("changes", "words"), JOINS, ids=range(len(JOINS)))
def test_a_refused_join_leaves_no_trace(ps: Ps, changes: dict[str, Any], words: str) -> None:
    before = trace(ps)
    with pytest.raises((Refused, ProtocolError), match=words):
        ps.call("join", application(ps, **changes), m.Joined)
    assert trace(ps) == before


def test_thousands_of_refused_joins_are_remembered_nowhere(ps: Ps) -> None:
    before = trace(ps)
    for index in range(2, 500):
        with pytest.raises(Refused, match="cannot join this job"):
            ps.call("join", application(ps, task=f"worker:{index}", description=OTHER_MODEL), m.Joined)
    assert trace(ps) == before


def test_elastic_workers_have_a_bound_and_those_that_have_gone_make_room() -> None:
    members = Members(10.0, ["worker:0"], limits=Limits(elastic_workers=3))
    for index in (1, 2, 3):
        members.join(f"worker:{index}", f"life {index}", "host", 1, float(index))
    with pytest.raises(Refused, match="there is no room for worker:4: 3 elastic workers are in the job"):
        members.join("worker:4", "life 4", "host", 1, 4.0)
    assert [one.task for one in members] == ["worker:1", "worker:2", "worker:3"]
    members.join("worker:0", "planned", "host", 1, 4.0)
    members.leave(members.get(ELASTIC_BASE + 2), "")
    members.lose(members.get(ELASTIC_BASE + 1))
    members.join("worker:4", "life 4", "host", 1, 5.0)
    assert [one.task for one in members] == ["worker:2", "worker:3", "worker:0", "worker:4"]
    with pytest.raises(Refused, match="no worker has the number"):
        members.get(ELASTIC_BASE + 1)
    assert members.join("worker:1", "life 1", "host", 1, 6.0)[1], "which may come back, in place of the other"
    assert [one.task for one in members] == ["worker:3", "worker:0", "worker:4", "worker:1"]


def test_processes_that_were_replaced_have_a_bound() -> None:
    members = Members(10.0, ["worker:0"], limits=Limits(replaced=5))
    for turn in range(3 * FORMER):
        member, _ = members.join("worker:0", f"life {turn}", "host", 1, 100.0 * turn)
        assert len(member.replaces) <= FORMER
    members.pushed(member)
    assert len(members._replaced) == 5  # noqa: SLF001
    members.leave(member, "")
    with pytest.raises(Refused, match="another process has taken the place of worker:0"):
        members.join("worker:0", f"life {3 * FORMER - 2}", "host", 1, 1e6)


def test_a_name_for_one_more_worker_is_always_one_that_can_join(ps: Ps) -> None:
    given = [ps.call("vacancy", None, m.Vacancy).worker for _ in range(3)]
    assert given == [2, 3, 4]
    vacancy: Any = ps.service.control.calls["vacancy"].handler
    vacancy.__self__._next_worker = LIMITS.worker_index  # noqa: SLF001
    given = [ps.call("vacancy", None, m.Vacancy).worker for _ in range(3)]
    assert given == [LIMITS.worker_index, 2, 3]


# --- in another's name


def records(who: str) -> dict[str, Any]:
    """Every record in which worker:0 speaks of itself, from the process `who`."""
    program = m.Define(0, who, 0, sgd_plan().description, b"", b"")
    lease = LeaseRequest("digits", SourceSettings(10, 5, 1, 0, False), iterator="life")
    return {
        "begin": m.Begin(0, who, 2, 50),
        "finish": m.Finish(0, who),
        "steer": m.Steer(0, who, 0, 1e9),
        "save": m.Save(0, who, "token", "/nowhere", 0),
        "save_state": m.SaveQuestion(0, who, "token", worker_state=True),
        "committed": m.Committed(0, who, 1, 1, 1.0),
        "worker_state": m.LeftWorkerState(0, who, 1, b"data"),
        "my_worker_state": m.WorkerStateQuestion(0, who),
        "restore": m.Restore(0, who, "token", "/nowhere"),
        "restore_state": m.RestoreQuestion(0, who, "token"),
        "adopt": m.Adopt(0, who, "token", 1),
        "define": program,
        "heartbeat": m.Heartbeat(0, who, paused=True),
        "pause": m.Pause(0, who),
        "lease": m.Lease(0, who, lease),
        "vote": r.Vote(0, who, 1, True),
        "recorded": Recorded(0, who, "order", StepRecording("worker:0", "here", 1, 0.0)),
    }


def test_every_record_of_a_worker_about_itself_is_known_here() -> None:
    calls = Ps(sgd_plan()).service.control.calls
    assert set(records(STRANGER)) == {name for name, call in calls.items() if call.by.is_member}


@pytest.mark.parametrize("action", records(STRANGER))
def test_nobody_speaks_for_another_process(ps: Ps, action: str) -> None:
    ps.play(0)  # worker:0 is lost, and no sign of life of another brings it back
    before = trace(ps)
    with pytest.raises(Refused, match="another process has taken the place of worker:0") as refused:
        ps.call(action, records(STRANGER)[action], m.JobState)
    assert refused.value.code is RefusalCode.REPLACED
    assert trace(ps) == before


@pytest.mark.parametrize("action", [*records(STRANGER), "leave"])
@pytest.mark.parametrize("claimed", [None, "", "a\nb"])
def test_nobody_speaks_without_saying_who_it_is(ps: Ps, action: str, claimed: str | None) -> None:
    before = trace(ps)
    record = {**records(STRANGER), "leave": m.Leave(0, STRANGER, "evicted")}[action]
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    fields.pop("incarnation")
    if claimed is not None:
        fields["incarnation"] = claimed
    with pytest.raises(ProtocolError, match="incarnation"):
        ps.service.call(action, msgspec.msgpack.encode(fields))
    assert trace(ps) == before


def test_nobody_reads_at_a_ps_what_he_must_know_to_speak_for_a_worker(ps: Ps) -> None:
    shown = [ps.service.call(action, b"") for action in ("state", "status", "vacancy")]
    (replica,) = ps.state.replicas
    assert not any(life(worker).encode() in answer for worker in range(2) for answer in shown)
    term = r.Term(2, 0, 1, r.arbiter_name(life(1)))
    assert life(1) not in str(replace(replica, term=term))
    members = ps.service.membership.members
    assert members.arbiter(term.arbiter) is members.get(1)
    assert members.arbiter(life(1)) is None


def test_nobody_makes_another_leave(ps: Ps) -> None:
    before = trace(ps)
    ps.call("leave", m.Leave(0, STRANGER, "evicted"), m.JobState)
    assert trace(ps) == before


def test_a_worker_that_has_left_changes_nothing_by_what_comes_late(ps: Ps) -> None:
    ps.leave(1)
    ps.clock.now += 1.0
    (member,) = [one for one in ps.service.membership.members if one.task == "worker:1"]
    before, heard_at = trace(ps), member.heard_at
    ps.call("heartbeat", m.Heartbeat(1, life(1), ("worker:0",), paused=True, first_batch="x"), m.JobState)
    ps.call("pause", m.Pause(1, life(1)), m.JobState)
    assert trace(ps) == before
    assert (member.heard_at, member.paused, member.presence) == (heard_at, False, Presence.LEFT)
    assert "worker:1 has left the job" in ps.play(1, ps.push(1)).failure


def test_one_that_may_not_is_not_heard_either(ps: Ps) -> None:
    ps.play(1)
    before = trace(ps)
    with pytest.raises(Refused, match="worker:1 may not end the training"):
        ps.call("finish", m.Finish(1, life(1)), m.JobState)
    assert trace(ps) == before


# --- numbers without sense


CALLS: list[tuple[str, Callable[[str], Any], str]] = [
    ("begin", lambda who: m.Begin(0, who, 99, 200), "is in training 1; training 99 cannot follow it"),
    ("begin", lambda who: m.Begin(0, who, 2, 1 << 61), "a training run cannot end at version"),
    ("begin", lambda who: m.Begin(0, who, 2, UNLIMITED + 1), "sent an invalid Begin"),
    ("begin", lambda who: m.Begin(0, who, 0, 5), "sent an invalid Begin"),
    ("begin", lambda who: m.Begin(0, who, 2, 5, (3, 1)), "must not decrease"),
    ("begin", lambda who: m.Begin(0, who, 2, 5, (0,) * (LIMITS.trainings + 1)), "sent an invalid Begin"),
    ("steer", lambda who: m.Steer(0, who, 0, float("inf")), "is not finite"),
    ("steer", lambda who: m.Steer(0, who, 0, float("nan")), "is not finite"),
    ("steer", lambda who: m.Steer(0, who, -1, 1.0), "sent an invalid Steer"),
    ("save", lambda who: m.Save(0, who, "t", "/x", 1 << 60), "cannot reach"),
    ("save", lambda who: m.Save(0, who, "t", "/x\0y", 1), "sent an invalid Save"),
    ("save", lambda who: m.Save(0, who, "t", "", 1), "sent an invalid Save"),
    ("committed", lambda who: m.Committed(0, who, 1, 1, float("nan")), "cannot have taken"),
    ("committed", lambda who: m.Committed(0, who, -1, 1, 1.0), "sent an invalid Committed"),
    ("adopt", lambda who: m.Adopt(0, who, "t", 1 << 60), "no checkpoint has version"),
    ("heartbeat", lambda who: m.Heartbeat(0, who, ("\x1b[2J",)), "sent an invalid Heartbeat"),
    ("heartbeat", lambda who: m.Heartbeat(0, who, first_batch="x" * 65), "sent an invalid Heartbeat"),
    ("heartbeat", lambda who: m.Heartbeat(0, who, memory=m.Memory(-1)), "sent an invalid Heartbeat"),
    ("worker_state", lambda who: m.LeftWorkerState(0, who, -1, b""), "sent an invalid LeftWorkerState"),
    ("leave", lambda who: m.Leave(-1, who, ""), "sent an invalid Leave"),
    ("leave", lambda who: m.Leave(0, who, "x" * (LIMITS.text_length + 1)), "sent an invalid Leave"),
]


@pytest.mark.parametrize(("action", "record", "words"), CALLS, ids=range(len(CALLS)))
def test_numbers_without_sense_are_refused(ps: Ps, action: str, record: Callable[[str], Any], words: str) -> None:
    before = trace(ps)
    with pytest.raises((Refused, ProtocolError), match=words):
        ps.call(action, record(life(0)), m.JobState)
    assert trace(ps) == before


@pytest.mark.parametrize("value", [1e10, -1e300])
def test_a_number_that_its_dtype_cannot_hold_is_refused(value: float) -> None:
    ps = Ps(plan_of(PARAMS, optax.adam(0.1))).ready()
    shapes = ps.service.replicas.home.require_updater().shard.state_shapes
    with pytest.raises(Refused, match="is of int32, which cannot be"):
        ps.call("steer", m.Steer(0, life(0), shapes.index(()), value), m.JobState)


def test_a_training_has_an_end_or_none() -> None:
    ps = Ps(sgd_plan()).ready()
    assert ps.start_training(UNLIMITED, fit=2).last_version == UNLIMITED
    assert ps.start_training(50, fit=3).last_version == 50


def test_a_worker_state_is_of_no_more_pushes_than_were_seen(ps: Ps) -> None:
    ps.play(0, ps.push(3))
    ps.call("worker_state", m.LeftWorkerState(0, life(0), 1 << 60, worker_state()), m.JobState)
    saver = ps.service.replicas.home.require_saver()
    assert saver.all_worker_states() == {0: (3, worker_state())}


def test_a_push_does_not_use_up_all_numbers_of_its_worker(ps: Ps) -> None:
    assert "claims to be number" in ps.play(0, ps.push(1 << 62)).failure
    assert "claims to be number" in ps.play(0, ps.push(1 << 41)).failure
    ps.play(0, ps.push(1))
    assert ps.state.version == 1


def test_reports_on_pieces_that_are_not_there_leave_no_ledger(ps: Ps) -> None:
    sources = ps.service.replicas.home.sources
    request = LeaseRequest("digits", SourceSettings(10, 5, 1, 0, False), finished=((0, 9),), iterator="life")
    with pytest.raises(DataError, match="there are no"):
        ps.call("lease", m.Lease(0, life(0), request), LeaseAnswer)
    assert sources.record() == {}
    assert ps.call("lease", m.Lease(0, life(0), replace(request, finished=())), LeaseAnswer).kind == "piece"
    before = sources.copy()
    longer = replace(request, settings=SourceSettings(10, 5, 9, 0, False), number=2)
    with pytest.raises(DataError, match=r"there are no|differs from that of the other workers"):
        ps.call("lease", m.Lease(0, life(0), longer), LeaseAnswer)
    assert sources.copy() == before


def test_shared_sources_have_a_bound(ps: Ps) -> None:
    settings = SourceSettings(10, 5, 1, 0, False)
    sources = ps.service.replicas.home.sources
    for number in range(LIMITS.sources):
        sources.lease(0, LeaseRequest(f"source {number}", settings, iterator="life"))
    with pytest.raises(DataError, match="at most 1,024 shared data sources"):
        ps.call("lease", m.Lease(0, life(0), LeaseRequest("one more", settings, iterator="life")), LeaseAnswer)


# --- the form of a call


@pytest.mark.parametrize("shard", ["9" * 5000, "-1", "1", "x", "٣", "\x1b[2J", "999999"])
def test_a_shard_that_is_not_there(ps: Ps, shard: str) -> None:
    with pytest.raises(Refused, match="ps:0 has no replica of shard") as refused:
        ps.service.call(f"state/{shard}", b"")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_an_unknown_action_is_not_echoed_as_it_came(ps: Ps) -> None:
    with pytest.raises(Refused, match=r"has no action") as refused:
        ps.service.call("\x1b[2J" + "x" * 10_000, b"")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_body_that_is_too_large_is_not_looked_at(ps: Ps) -> None:
    with pytest.raises(Refused, match="takes at most 1,048,576 bytes for 'heartbeat' but got 1,048,577"):
        ps.service.call("heartbeat", bytes(LIMITS.control_bytes + 1))


HOSTILE: list[bytes] = [
    b"",
    b"\xc1",
    b"\x81\xa6\xff\xfe\xfd\xfc\xfb\xfa\x00",
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    msgspec.msgpack.encode({"worker": 1 << 63}),
    msgspec.msgpack.encode({"worker\x1b[2J": 0, "task": "\x1b[2J" * 1000}),
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", [m.Join, m.Define, m.Heartbeat, m.Upward, r.Upward, r.InstallSnapshot])
def test_whatever_decoding_raises_is_one_error(body: bytes, kind: Any) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_any(body, kind, "somebody")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1_000


def test_words_of_a_failure_hold_no_escape_sequences(ps: Ps) -> None:
    ps.leave(1, "ValueError: \x1b]0;owned\x07 of\ntwo lines")
    (worker,) = [one for one in ps.status.workers if one.task == "worker:1"]
    assert worker.failure == "ValueError: \\x1b]0;owned\\x07 of | two lines"
    assert not any("\x1b" in line for line in ps.said)


def test_a_header_has_a_bound(ps: Ps) -> None:
    assert "a header of 1,048,577 bytes" in ps.play(0, bytes(LIMITS.control_bytes + 1)).failure


def test_whoever_looks_at_the_ps_reads_why_a_worker_that_is_awaited_cannot_join(ps: Ps) -> None:
    for _ in range(3):
        with pytest.raises(Refused):
            ps.call("join", application(ps, description=OTHER_MODEL), m.Joined)
    (line,) = [line for line in ps.said if line.startswith("refused: ")]
    assert "worker:1 cannot join this job: the first variable that differs is b" in line


def test_a_refusal_is_logged_once(ps: Ps, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainband")
    for _ in range(100):
        with pytest.raises(Refused):
            ps.call("heartbeat", m.Heartbeat(0, STRANGER), m.JobState)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    assert "another process has taken the place of worker:0" in lines[0]
    ps.clock.now += 61.0
    with pytest.raises(Refused):
        ps.call("heartbeat", m.Heartbeat(0, STRANGER), m.JobState)
    assert sum("refused" in record.getMessage() for record in caplog.records) == 2


def test_many_different_refusals_do_not_fill_the_log(ps: Ps, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainband")
    for number in range(1_000):
        with pytest.raises(Refused):
            ps.service.call(f"action {number}", b"")
    assert len(caplog.records) <= 20
    assert len(ps.service.task.refusals._logged_at) <= 1_024  # noqa: SLF001


# --- the description


def described(**changes: Any) -> m.Description:
    return replace(sgd_plan().description, **changes)


def variable(**changes: Any) -> m.Description:
    first, *others = sgd_plan().description.variables
    return described(variables=(replace(first, **changes), *others))


DESCRIPTIONS: list[tuple[m.Description, str]] = [
    (described(ps_count=9_999), "the definition is for 9999 ps, and this cluster has 1"),
    (described(ps_count=1 << 40), "sent an invalid Define"),
    (described(variables=sgd_plan().description.variables * 2), "two variables with one name"),
    (variable(name="b\x1b[2J"), "sent an invalid Define"),
    (variable(name="x" * 1025), "sent an invalid Define"),
    (variable(dtype="object"), "has the dtype 'object'; use one of"),
    (variable(shape=(1 << 40, 1 << 40)), "more than 32 dimensions or more than"),
    (variable(shape=(1,) * 33), "sent an invalid Define"),
    (variable(shape=(-1,)), "sent an invalid Define"),
    (described(push_dtype="object"), "blocks cannot be sent as 'object'"),
    (described(pull_dtype="int8"), "blocks cannot be sent as 'int8'"),
    (described(state_merge="sum"), "state_merge is 'sum'"),
    (described(stall_s=float("nan")), "stall_s must be a finite number of seconds"),
    (described(stall_s=-1.0), "stall_s must be a finite number of seconds"),
    (described(standbys=1), "this cluster has one"),
    (described(standbys=7), "sent an invalid Define"),
    (described(rule={"name": "sync", "aggregate": 1 << 60}), "does not accept aggregate"),
    (described(rule={"name": "bounded", "staleness": float("nan")}), "does not accept staleness"),
    (described(rule={"name": "bounded", "staleness": True}), "does not accept staleness"),
    (described(rule={"name": "async", "staleness_scale": float("inf")}), "does not accept staleness_scale"),
    (described(rule={"name": "async", "staleness_scale": "x"}), "does not accept staleness_scale"),
    (described(rule={f"key {i}": 0 for i in range(17)}), "sent an invalid Define"),
]


@pytest.mark.parametrize(("description", "words"), DESCRIPTIONS, ids=range(len(DESCRIPTIONS)))
def test_a_description_that_cannot_be_is_refused_before_anything_is_made_of_it(
    description: m.Description, words: str
) -> None:
    ps = Ps(sgd_plan())
    ps.join(0)
    before = trace(ps)
    with pytest.raises((Refused, ProtocolError), match=words):
        ps.define(description=description)
    assert trace(ps) == before
    assert ps.define().defined


def test_rules_of_users_travel_as_before() -> None:
    assert rule_of({"name": "sync", "backups": 1, "aggregate": None}) == Sync(backups=1)
    assert rule_of({"name": "async", "staleness_scale": 1}) == Async(staleness_scale=1)


def test_a_long_text_of_digits_is_compared_at_once(ps: Ps) -> None:
    text = "1-" * 500_000
    with pytest.raises(Refused, match="the optimizer differs") as refused:
        ps.call("join", application(ps, task="worker:7", description=described(update_text=text)), m.Joined)
    assert len(str(refused.value)) < 2_000


# --- replicas


def invitation(asked: Ps, **changes: Any) -> m.Invite:
    home = asked.service.replicas.home
    assert home.definition is not None
    return m.Invite(replace(home.state(), **changes), home.definition.define, VERSION, "a compiler")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "ps:0 has no replica of shard 0"),
        ({"ps": 1}, "ps:1 has no replica of shard 0"),
        ({"shard": 1}, "ps:0 has no replica of shard 0"),
        ({"ps": 1 << 40}, "sent an invalid Invite"),
        ({"role": "tsar"}, "sent an invalid Invite"),
        ({"position": -1}, "sent an invalid Invite"),
    ],
)
def test_an_invitation_out_of_range_changes_nothing(ps: Ps, changes: dict[str, Any], words: str) -> None:
    before = trace(ps)
    with pytest.raises((Refused, ProtocolError), match=words):
        ps.call("invite", invitation(ps, **changes), r.ReplicaState)
    assert trace(ps) == before
    assert ps.service.replicas.home.invited_at == float("-inf")


@pytest.mark.parametrize(
    "word",
    [
        m.Open(1 << 40, STRANGER),
        m.Open(0, ""),
        m.Open(0, STRANGER, 1 << 40),
        r.ReplicationHello(1 << 40, 0, STRANGER),
        r.ReplicationHello(7, 0, STRANGER),
        r.Records("lineage", 1, 1, 1, ()),
        b"\x91" * 1000,
    ],
)
def test_first_words_of_strangers_end_their_streams(ps: Ps, word: Any) -> None:
    before = trace(ps)
    script = Script(word if isinstance(word, bytes) else encode(word))
    ps.service.stream(script)
    assert script.closed
    assert script.failure
    assert trace(ps) == before
    ps.play(0, ps.push(1))
    assert ps.state.version == 1


SNAPSHOTS: list[tuple[dict[str, Any], slice, str]] = [
    # what is changed in the snapshot, which buffers come with it, the words
    ({"version": 1 << 20}, slice(None), "contradicts the rest of its snapshot"),
    ({"version": -1}, slice(None), "sent an invalid"),
    ({"rule": msgspec.Raw(b"\x90")}, slice(None), "sent an invalid AsyncState"),
    ({"rule": msgspec.Raw(b"\xc0")}, slice(None), "sent an invalid AsyncState"),
    ({"sources": {"digits": b"\x90"}}, slice(None), "this is not the copy of a ledger of pieces"),
    ({"held": (r.HeldPush(0, 1, 32, 0),)}, slice(None), "buffers, which do not fit the model"),
    ({"worker_state": {-1: (0, b"")}}, slice(None), "sent an invalid"),
    ({}, slice(1), "buffers, which do not fit the model"),
    ({}, slice(None, None, -1), "sent values of another size than it defined"),
]


@pytest.mark.parametrize(("changes", "buffers", "words"), SNAPSHOTS, ids=range(len(SNAPSHOTS)))
def test_a_snapshot_that_contradicts_itself_leaves_the_standby_as_it_was(
    changes: dict[str, Any], buffers: slice, words: str
) -> None:
    primary, standby = pair()
    replica = standby.service.replicas.get(0)
    install, body = snapshot_of(primary.service.replicas.home)
    hello = r.ReplicationHello(0, 0, "life of ps:0", 1)
    standby.service.stream(Frames(hello, (install, body)))
    taught, failover = replica.updater, msgspec.structs.asdict(replica.state())
    assert failover["role"] == "learner"
    standby.clock.now += 100.0  # so that a refusal is told again
    standby.service.stream(Frames(hello, (replace(install, **changes), body[buffers])))
    assert any(words in line for line in standby.said), standby.said
    assert replica.updater is taught
    assert msgspec.structs.asdict(replica.state()) == failover
    standby.service.stream(Frames(hello, (install, body)))
    assert replica.updater is not taught
    standby.clock.now += 100.0
    standby.check()


def test_what_decodes_is_within_its_bounds() -> None:
    """The messages of today's tasks pass."""
    plan = sgd_plan()
    for record in records(life(0)).values():
        assert decode(encode(record), type(record), "worker:0") == record
    assert decode(encode(plan.description), m.Description, "worker:0") == plan.description
    assert issubclass(ProtocolError, TrainbandError)
