"""Which role may ask a ps for what, and that a worker speaks for itself alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import optax
import pytest
from tests.ps.jobs import PARAMS, Script
from tests.ps.plans import plan_of
from tests.ps.test_service import Ps, life

from trainband.cluster.identity import Identity
from trainband.errors import RefusalCode, Refused
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import encode
from trainband.wire.transport import Caller

LOOKS = ("status", "state", "layout", "record_steps", "recordings")
STRANGE = {
    "observer": {*LOOKS},
    "evaluator:0": {*LOOKS},
    "admin": {*LOOKS, "shutdown"},
    "ps:1": {*LOOKS, "invite"},
}
"""What each of those that are no workers may ask for."""
WORKERS_OWN = (
    *("join", "define", "begin", "finish", "steer", "save", "save_state", "committed", "worker_state"),
    *("my_worker_state", "recorded"),
    *("restore", "restore_state", "adopt", "heartbeat", "pause", "lease", "leave", "vote", "vacancy"),
)


def caller(name: str, incarnation: str = "") -> Caller:
    return Caller("10.0.0.9:40000", Identity(name, incarnation))


@pytest.fixture
def ps() -> Ps:
    return Ps(plan_of(PARAMS, optax.sgd(1.0))).ready()


def code(ask: Callable[[], object]) -> RefusalCode | None:
    """The code of the refusal; `None` where there is none."""
    try:
        ask()
    except Refused as exc:
        return exc.code
    except Exception:  # it got past the permissions, to what was wrong with it
        return None
    return None


@pytest.mark.parametrize("name", STRANGE)
def test_those_that_are_no_workers_may_do_little(ps: Ps, name: str) -> None:
    actions = set(ps.service.control.calls)
    assert actions == {*LOOKS, "shutdown", "invite", *WORKERS_OWN}
    may = {one for one in actions if code(lambda: ps.service.call(one, b"", caller(name))) is not RefusalCode.FORBIDDEN}  # noqa: B023
    assert may == STRANGE[name]


@pytest.mark.parametrize("action", ["invite", "shutdown"])
def test_a_worker_neither_ends_the_job_nor_invites(ps: Ps, action: str) -> None:
    assert code(lambda: ps.service.call(action, b"", caller("worker:0", life(0)))) is RefusalCode.FORBIDDEN


RECORDS: dict[str, Callable[[int], msgspec.Struct]] = {
    "leave": lambda worker: m.Leave(worker, life(worker), "because"),
    "heartbeat": lambda worker: m.Heartbeat(worker, life(worker)),
    "pause": lambda worker: m.Pause(worker, life(worker)),
    "finish": lambda worker: m.Finish(worker, life(worker)),
    "begin": lambda worker: m.Begin(worker, life(worker), 2, 1000),
    "steer": lambda worker: m.Steer(worker, life(worker), 0, 1e9),
    "save": lambda worker: m.Save(worker, life(worker), "token", "/tmp", 0),
    "worker_state": lambda worker: m.LeftWorkerState(worker, life(worker), 1, b"x"),
    "vote": lambda worker: r.Vote(worker, life(worker), 1, True),
}


@pytest.mark.parametrize("action", RECORDS)
def test_nobody_speaks_for_another_worker(ps: Ps, action: str) -> None:
    before = ps.state
    record = encode(RECORDS[action](0))
    for thief in (caller("worker:1", life(1)), caller("worker:0", "another process")):
        assert code(lambda: ps.service.call(action, record, thief)) is RefusalCode.FORBIDDEN  # noqa: B023
    assert ps.state == before


@pytest.mark.parametrize("action", ["finish", "begin", "steer", "save"])
def test_a_worker_that_is_not_the_chief_does_not_do_what_the_chief_does(ps: Ps, action: str) -> None:
    before = ps.state
    record = encode(RECORDS[action](1))
    assert code(lambda: ps.service.call(action, record, caller("worker:1", life(1)))) is RefusalCode.NOT_CHIEF
    assert ps.state == before


def test_a_worker_joins_and_opens_a_stream_under_its_own_name_only(ps: Ps) -> None:
    me = caller("worker:1", "a new process")
    with pytest.raises(Refused, match="worker:1 may not join in the name of worker:0"):
        ps.service.call("join", encode(msgspec.structs.replace(_application(ps), task="worker:0")), me)
    script = Script(m.Open(0, life(0)), ps.push(1))
    ps.service.stream(script, me)
    assert any("may not open a stream in the name of worker:0" in line for line in ps.said)
    assert ps.state.version == 0


def _application(ps: Ps) -> m.Join:
    return m.Join("worker:1", "a new process", "here", 1, ps.plan.description)


@pytest.mark.parametrize("name", ["ps:2", "worker:1"])
def test_a_primary_is_the_ps_that_it_says_it_is(ps: Ps, name: str) -> None:
    ps.service.stream(Script(r.ReplicationHello(0, 1, "life")), caller(name))
    assert any(f"{name} may not send" in line for line in ps.said)
