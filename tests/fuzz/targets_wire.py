"""Fuzz targets of the wire: whatever the bytes, a ps answers or raises one of trainband's errors, and goes on serving.

Each `fuzz_*` takes bytes, which choose what is sent: a record of the protocol with one field changed, or the bytes
themselves. What a target lets escape is a bug, an `AssertionError` too: after each input a worker of the job must still
be able to give a sign of life and to push.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import optax
from msgspec import Struct
from numpy.typing import NDArray

from tests.ps.jobs import FAST, PARAMS, FakeClock, Script, gradient_of, spec_of
from tests.ps.plans import blocks_of, plan_of
from trainband.cluster import Cluster, Task
from trainband.data.leases import LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import ProtocolError, TrainbandError
from trainband.model.layout import JobLayout
from trainband.ps.description import check_definition, first_difference, placement_of
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.snapshots import take_snapshot
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.plan import Plan
from trainband.runtime import SystemRuntime
from trainband.runtime.overrides import override
from trainband.version import VERSION
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m
from trainband.wire.messages import following as w
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode, decode_any, encode

Choice = TypeVar("Choice")

WORKERS = 2
LIFE = "11fe0f0000000000"
"""The incarnation of worker:0, which is alive throughout."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 255, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    *(0.0, -0.5, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\n", "\x1b]0;x\x07", "worker:-100000", "worker:1", "worker:7", "ps:0", "9" * 5000, "x" * 70_000, "\0"),
    *(b"", b"\xc1", b"\xff" * 64, [], [[]], [0] * 1000, [None] * 3, {}, {"": None}, {0: b""}, [["x", [], "float32"]]),
)
"""In place of a field."""

DELETED = object()


class Dice:
    """Choices that bytes make; 0 when there are none left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        """From 0 on."""
        taken = self._data[self._at : self._at + 2]
        self._at += 2
        return int.from_bytes(taken, "little") % below

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        """One of them."""
        return choices[self.number(len(choices))]

    def rest(self) -> bytes:
        """What is left."""
        return self._data[self._at :]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each field of nested containers; of long ones, to the first few."""
    found = [at] if at else []
    parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for _, (key, part) in zip(range(12), parts, strict=False):
        found += _paths(part, (*at, key))
    return found


def changed(record: Struct, dice: Dice) -> bytes:
    """A record as bytes, with one field replaced, deleted or doubled; now and then as it is, or cut off."""
    body = encode(record)
    kind = dice.number(16)
    if kind == 0:
        return body
    if kind == 1:
        return body[: dice.number(len(body) + 1)]
    if kind == 2:
        at = dice.number(max(1, len(body)))
        return body[:at] + dice.rest() + body[at + 1 :]
    plain = msgspec.msgpack.decode(body, strict=False)
    paths = _paths(plain)
    if not paths:
        return dice.rest()
    *way, last = dice.one_of(paths)
    holder = plain
    for key in way:
        holder = holder[key]
    value = dice.one_of([*HOSTILE, DELETED, dice.rest(), dice.number(1 << 16)])
    if value is DELETED:
        del holder[last]
    else:
        holder[last] = value
    return msgspec.msgpack.encode(plain)


class _Idle:
    """A thread that does nothing: no part of a checkpoint is read or written here."""

    def start(self) -> None: ...

    def join(self, timeout_s: float | None = None) -> None: ...

    def is_alive(self) -> bool:
        return False


class _Runtime(SystemRuntime):
    @override
    def thread(self, work: Callable[[], object], name: str) -> Any:  # noqa: ARG002 - nothing runs
        return _Idle()


class Frames(Script):
    """A stream that takes answers of all kinds."""

    peer = "a stranger"

    @override
    def send(self, header: bytes, body: Sequence[NDArray[Any]] = ()) -> None:
        del header, body


class Live:
    """A ps with a training under way, and the one worker that is in it throughout."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.index = index
        self.clock = FakeClock()
        self.said: list[str] = []
        ps_count = plan.description.ps_count
        self.service = ParameterService(
            Cluster(spec=spec_of(ps_count, WORKERS), task=Task("ps", index)),
            timeouts=FAST,
            say=self.said.append,
            incarnation=f"life of ps:{index}",
            runtime=_Runtime(self.clock),
        )
        self.application = m.Join("worker:0", LIFE, "here", 100, plan.description, version=VERSION)
        optimizer = plan.shard_optimizer(index)
        program = optimizer.export()
        self.define = m.Define(
            0, LIFE, index, plan.description, program.initialise, program.update, optimizer.state_contents
        )
        self.ask("join", self.application, m.Joined)
        self.ask("define", self.define, m.Joined)
        self.service.stream(Frames(m.Open(0, LIFE), (m.Initialise(), blocks_of(plan, PARAMS)[index])))
        self.check()

    def ask(self, action: str, record: Struct, kind: type[Any]) -> Any:
        """A call as it should be."""
        return decode(self.service.call(action, encode(record)), kind, "the ps")

    def check(self) -> None:
        """The job goes on: worker:0 is in it, and its push makes one more update."""
        joined: m.Joined = self.ask("join", self.application, m.Joined)
        state: m.JobState = self.ask("heartbeat", m.Heartbeat(0, LIFE), m.JobState)
        assert "worker:0" in state.live
        assert state.initialised
        if state.last_version <= state.version or state.fit == 0:
            begin = m.Begin(0, LIFE, state.fit + 1, state.version + 1000)
            state = self.ask("begin", begin, m.JobState)
        push = m.Push(joined.last_sequence + 1, state.version, 32, 0.5, True)
        self.service.stream(Frames(m.Open(0, LIFE), (push, gradient_of(self.plan, 0.0)[self.index])))
        after: m.JobState = self.ask("heartbeat", m.Heartbeat(0, LIFE), m.JobState)
        assert after.version == state.version + 1, self.said[-3:]
        membership = self.service.membership
        assert len(list(membership.members)) <= WORKERS + LIMITS.elastic_workers
        assert len(membership.accounts) <= WORKERS + LIMITS.elastic_workers
        assert not any("\x1b" in line for line in self.said)
        del self.said[:]

    def records(self) -> dict[str, Struct]:
        """A record for each action, as worker:0 could send it."""
        lease = LeaseRequest("digits", SourceSettings(10, 5, 1, 0, False), ((0, 0),), ((0, 1, 2),), iterator=LIFE)
        state = self.service.replicas.home.state()
        return {
            "join": msgspec.structs.replace(self.application, task="worker:1", incarnation="another"),
            "define": self.define,
            "invite": m.Invite(msgspec.structs.replace(state, ps=0, shard=0), self.define, VERSION, "a compiler"),
            "leave": m.Leave(0, LIFE, "", "digest"),
            "shutdown": m.Shutdown("asked to"),
            "begin": m.Begin(0, LIFE, state.fit + 1, state.version + 100, (0, 1)),
            "finish": m.Finish(0, LIFE),
            "steer": m.Steer(0, LIFE, 0, 0.5),
            "save": m.Save(0, LIFE, "token", "/nowhere", 0),
            "save_state": m.SaveQuestion(0, LIFE, "token", worker_state=True),
            "committed": m.Committed(0, LIFE, 1, 1, 1.0),
            "worker_state": m.LeftWorkerState(0, LIFE, 1, b"data"),
            "my_worker_state": m.WorkerStateQuestion(0, LIFE),
            "restore": m.Restore(0, LIFE, "token", "/nowhere"),
            "restore_state": m.RestoreQuestion(0, LIFE, "token"),
            "adopt": m.Adopt(0, LIFE, "token", 1, {0: b"data"}, {"digits": "{}"}),
            "heartbeat": m.Heartbeat(0, LIFE, ("worker:1",), paused=True, first_batch="digest"),
            "pause": m.Pause(0, LIFE),
            "lease": m.Lease(0, LIFE, lease),
            "vote": r.Vote(0, LIFE, 1, True),
            "vacancy": m.Finish(0, LIFE),
            "state": m.Finish(0, LIFE),
            "status": m.Finish(0, LIFE),
            "dance\x1b[2J": m.Finish(0, LIFE),
        }


@cache
def _alone() -> Live:
    return Live(plan_of(PARAMS, optax.adam(0.1)), 0)


@cache
def pair() -> tuple[Live, Live]:
    """Gives two ps, of which the second has a replica of the first one's shard."""
    plan = plan_of(PARAMS, optax.adam(0.1), ps=2, standbys=1)
    primary, standby = Live(plan, 0), Live(plan, 1)
    replica = primary.service.replicas.home
    assert replica.definition is not None
    invite = m.Invite(replica.state(), replica.definition.define, VERSION, "a compiler")
    standby.ask("invite/0", invite, r.ReplicaState)
    return primary, standby


def fuzz_control_call(data: bytes) -> None:
    """Any call, as worker:0 or a stranger may make it."""
    dice, live = Dice(data), _alone()
    shard = dice.one_of([*[""] * 8, "/0", "/1", "/" + "9" * 5000, "/x", "/٣"])
    action, record = dice.one_of(list(live.records().items()))
    body = changed(record, dice) if dice.number(8) else dice.rest()
    said = ""
    try:
        live.service.call(action + shard, body)
    except TrainbandError as exc:
        said = str(exc)
    assert len(said) < 5_000, said
    live.check()


def fuzz_stream(data: bytes) -> None:
    """The frames of a worker's stream."""
    dice, live = Dice(data), _alone()
    opening = m.Open(0, LIFE, -1)
    gradient = gradient_of(live.plan, 0.0)[0]
    bodies: list[Sequence[NDArray[Any]]] = [
        (),
        gradient,
        [np.full_like(block, np.nan) for block in gradient],
        [block[:-1] for block in gradient],
        [*gradient, *gradient],
        [np.frombuffer(dice.rest(), np.uint8)],
    ]
    frames: list[Any] = [changed(opening, dice) if dice.number(2) else opening]
    for _ in range(1 + dice.number(3)):
        record = dice.one_of([m.Push(1 << 20, 0, 32, 0.5, True, 1), m.Pull(), m.Initialise(), opening])
        header = changed(record, dice) if dice.number(4) else dice.rest()
        frames.append((header, dice.one_of(bodies)))
    live.service.stream(Frames(*frames))
    live.check()


def fuzz_reader(data: bytes) -> None:
    """The frames of a reader's stream."""
    dice, live = Dice(data), _alone()
    frames: list[Any] = [changed(w.Follow(0), dice) if dice.number(2) else w.Follow(0)]
    for _ in range(1 + dice.number(3)):
        record = dice.one_of([w.Read(), w.Look(), w.Follow(0), m.Pull()])
        frames.append(changed(record, dice) if dice.number(4) and not isinstance(record, w.Read) else record)
    live.service.stream(Frames(*frames))
    live.check()


def fuzz_replication(data: bytes) -> None:
    """What a primary sends to its standby: a snapshot, then records."""
    dice, (primary, standby) = Dice(data), pair()
    replica = standby.service.replicas.get(0)
    install, body = snapshot_of(primary.service.replicas.home)
    if dice.number(3) == 0:
        header: Any = changed(install, dice)
        rule = changed_rule(install, dice) if dice.number(2) else None
        frames: list[Any] = [(encode(rule) if rule is not None else header, body[: dice.number(len(body) + 2)] or body)]
    else:
        frames = [(install, body)]
    push = r.Pushed(0, 1 << 30, install.version, 32)
    term = r.Term(install.term.number + 1, 0, 1, LIFE)
    request = LeaseRequest("digits", SourceSettings(10, 5, 1, 0, False), iterator=LIFE)
    log: list[r.LogRecord] = [
        r.Joined(0),
        term,
        push,
        r.Left(0),
        r.Began(9, 1 << 40, (1,)),
        r.Leased(0, request),
        r.Released(0),
        r.Kept(0, 1, b"data"),
        r.Steered(0, 0.5),
    ]
    first = install.position + 1
    for _ in range(1 + dice.number(2)):
        records = tuple(dice.one_of(log) for _ in range(1 + dice.number(3)))
        sent = r.Records(install.lineage, install.term.number, first, install.version, records)
        blocks = gradient_of(primary.plan, 0.0)[0] if dice.number(4) else ()
        frames.append((changed(sent, dice), tuple(blocks) * sum(isinstance(one, r.Pushed) for one in records)))
    hello = r.ReplicationHello(0, 0, "life of ps:0", 1)
    frames.insert(0, changed(hello, dice) if dice.number(8) == 0 else hello)
    try:
        standby.service.stream(Frames(*frames))
        standby.check()
    finally:
        with standby.service.task.lock:  # as if another process had come: the next input finds it the same
            definition = replica.definition
            assert definition is not None
            replica.failover.step_down()
            replica.failover.lineage, replica.failover.term = "", r.Term()
            replica.forget()
            replica.install(definition)
            standby.service.replicas.replicators.clear()


def changed_rule(install: r.InstallSnapshot, dice: Dice) -> r.InstallSnapshot:
    """A snapshot whose rule has another value somewhere."""
    plain = msgspec.msgpack.decode(install.rule)
    *way, last = dice.one_of(_paths(plain))
    holder = plain
    for key in way:
        holder = holder[key]
    holder[last] = dice.one_of(HOSTILE)
    return msgspec.structs.replace(install, rule=msgspec.Raw(msgspec.msgpack.encode(plain)))


def snapshot_of(replica: ShardReplica) -> tuple[r.InstallSnapshot, list[NDArray[Any]]]:
    """What a primary teaches its standby, and the buffers that go with it."""
    install, body, snapshot = take_snapshot(replica, "life of ps:1")
    copies = [np.array(block) for block in body]
    assert replica.shard is not None
    replica.shard.release_snapshot(snapshot)
    replica.failover.log.forget()
    return install, copies


def fuzz_description(data: bytes) -> None:
    """A description of a model, up to what is made of it."""
    dice, live = Dice(data), _alone()
    body = changed(live.plan.description, dice) if dice.number(8) else dice.rest()
    try:
        description = decode(body, m.Description, "a stranger")
        assert len(first_difference(live.plan.description, description, "worker:1") or "") < 5_000
        define = msgspec.structs.replace(live.define, description=description)
        check_definition(define, 0, 1)
    except TrainbandError:
        return
    layout = JobLayout.of(placement_of(description))
    assert 0 <= sum(shard.nbytes for shard in layout.shards) <= LIMITS.elements * LIMITS.variables * 16


def fuzz_decode(data: bytes) -> None:
    """Bytes as any record: it decodes to what encodes again, or is refused in a short line."""
    dice = Dice(data)
    kinds = [m.Upward, m.Downward, m.Join, m.Define, m.Invite, m.JobState, m.SaveState, m.Joined, m.Vacancy, r.Upward]
    kind = dice.one_of([*kinds, r.Taken, r.ReplicaState, LeaseRequest])
    try:
        record = decode_any(dice.rest(), kind, "a stranger")
    except ProtocolError as exc:
        said = str(exc)
    else:
        said = ""
        encode(record)
    assert said.isprintable()
    assert len(said) < 1_000
