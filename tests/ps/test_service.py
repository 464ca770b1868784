"""The service: one ps under a clock and streams that the test plays, with no thread."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import optax
import pytest
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.programs import until
from tests.ps.jobs import FAST, PARAMS, FakeClock, Script, gradient_of, in_thread, sgd_plan, spec_of
from tests.ps.plans import blocks_of, plan_of

from trainband.cluster import Cluster, Task
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.data.pieces import SourceSettings
from trainband.errors import (
    DataError,
    DeadlineExceeded,
    ModelError,
    ProtocolError,
    RefusalCode,
    Refused,
    TrainbandError,
)
from trainband.job.statistics import PsStatus
from trainband.model.placement import Placement, RoundRobin
from trainband.ps.membership.job_end import LINGER_S
from trainband.ps.program.update_program import UpdateProgram
from trainband.ps.rules import Async, Sync
from trainband.ps.rules.base import ALL_UPDATES_MADE, REPLAYED
from trainband.ps.service.lifecycle import DISMISSED_S
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.plan import Plan
from trainband.runtime import SystemRuntime
from trainband.runtime.signals import PREEMPTED
from trainband.version import VERSION, build, of_other_code
from trainband.wire.messages import calls as m
from trainband.wire.messages import replication as r
from trainband.wire.messages.codec import decode, encode

LEASE_S = FAST.lease_s


def life(worker: int) -> str:
    """The incarnation of a worker's first process."""
    return f"life of worker:{worker}"


class Ps:
    """A ps of a job of two workers, and short ways to talk to it."""

    def __init__(self, plan: Plan, index: int = 0, workers: int = 2) -> None:
        self.plan = plan
        self.index = index
        self.clock = FakeClock()
        self.said: list[str] = []
        cluster = Cluster(spec=spec_of(plan.description.ps_count, workers), task=Task("ps", index))
        self.service = ParameterService(
            cluster, timeouts=FAST, say=self.said.append, runtime=SystemRuntime(self.clock), incarnation="one life"
        )

    def call(self, action: str, record: Struct | None, answer: type[Any]) -> Any:
        return decode(self.service.call(action, b"" if record is None else encode(record)), answer, "the ps")

    def join(
        self, worker: int = 0, *, incarnation: str = "", description: m.Description | None = None, paused: bool = False
    ) -> int:
        task = f"worker:{worker}"
        request = m.Join(
            task,
            incarnation or life(worker),
            "here",
            100 + worker,
            description or self.plan.description,
            paused=paused,
            version=VERSION,
        )
        joined: m.Joined = self.call("join", request, m.Joined)
        return joined.worker

    def define(self, worker: int = 0, **changes: Any) -> m.Joined:
        program = changes.pop("program", None) or program_of(self.plan, self.index)
        state = self.plan.shard_optimizer(self.index).state_contents
        record = m.Define(
            worker, life(worker), self.index, self.plan.description, program.initialise, program.update, state
        )
        joined: m.Joined = self.call("define", replace(record, **changes), m.Joined)
        return joined

    def start_training(self, steps: int, fit: int = 1, worker: int = 0) -> m.JobState:
        state: m.JobState = self.call("begin", m.Begin(worker, life(worker), fit, steps), m.JobState)
        return state

    def leave(self, worker: int, failure: str = "", incarnation: str = "") -> m.JobState:
        state: m.JobState = self.call("leave", m.Leave(worker, incarnation or life(worker), failure), m.JobState)
        return state

    def heartbeat(self, worker: int) -> m.JobState:
        state: m.JobState = self.call("heartbeat", m.Heartbeat(worker, life(worker)), m.JobState)
        return state

    @property
    def state(self) -> m.JobState:
        state: m.JobState = self.call("state", None, m.JobState)
        return state

    @property
    def status(self) -> PsStatus:
        status: PsStatus = self.call("status", None, PsStatus)
        return status

    def play(self, worker: int, *items: Any, incarnation: str = "") -> Script:
        """A worker's stream from its first word to its sudden end."""
        script = Script(m.Open(worker, incarnation or life(worker)), *items)
        self.service.stream(script)
        assert script.closed
        return script

    def values(self) -> tuple[m.Initialise, tuple[NDArray[Any], ...]]:
        return m.Initialise(), blocks_of(self.plan, PARAMS)[self.index]

    def push(self, sequence: int, version: int = 0, value: float = 1.0, **changes: Any) -> Any:
        record = m.Push(sequence, version, 32, 0.5, True)
        return replace(record, **changes), gradient_of(self.plan, value)[self.index]

    def ready(self, steps: int = 100) -> Ps:
        """Two workers have joined, the chief has initialised, and a training has begun."""
        for worker in range(2):
            self.join(worker)
        self.define()
        # A script that ends has not left: the worker is lost, and back by its next word.
        self.play(0, self.values())
        self.start_training(steps)
        return self

    @property
    def weight(self) -> float:
        """The first element of the shard, which starts as 0."""
        _, values = self.service.read("w")
        return float(values[0, 0])


_programs: dict[tuple[str, int, int], UpdateProgram] = {}


def program_of(plan: Plan, index: int) -> UpdateProgram:
    """The exported program, made once."""
    key = (plan.description.update_text, plan.description.ps_count, index)
    if key not in _programs:
        _programs[key] = plan.shard_optimizer(index).export()
    return _programs[key]


@pytest.fixture
def ps() -> Ps:
    """A ps that nobody has talked to."""
    return Ps(sgd_plan())


# --- coming


def test_a_ps_before_anybody_comes(ps: Ps) -> None:
    state = replace(ps.state, replicas=())
    assert state == m.JobState(
        version=0, last_version=0, fit=0, initialised=False, live=(), chief="worker:0", clock_s=1000.0
    )
    assert [replica.role for replica in ps.state.replicas] == ["empty"]
    assert ps.service.tensors() == ()
    status = ps.status
    assert (status.task, status.address, status.incarnation) == ("ps:0", "ps0:1", "one life")
    assert (status.rule, status.workers, status.variables, status.loss) == ({}, (), (), None)
    with pytest.raises(Refused, match="ps:0 has no model yet: it waits for the chief to define one"):
        ps.service.read("w")


def test_joining_is_idempotent(ps: Ps) -> None:
    request = m.Join("worker:1", "life", "here", 7, ps.plan.description, version=VERSION)
    first = ps.call("join", request, m.Joined)
    assert first == ps.call("join", request, m.Joined)
    assert (first.worker, first.lease_s, first.defined, first.initialised) == (1, LEASE_S, False, False)
    assert ps.state.live == ("worker:1",)


@pytest.mark.parametrize(("version", "named"), [("", "an older trainband"), ("0.0.9", "trainband 0.0.9")])
def test_a_worker_of_another_version_is_refused(ps: Ps, version: str, named: str) -> None:
    request = m.Join("worker:1", "life", "here", 7, ps.plan.description, version=version)
    with pytest.raises(Refused, match=f"worker:1 runs {named}, and ps:0 runs {VERSION}: install") as refused:
        ps.call("join", request, m.Joined)
    assert refused.value.code is RefusalCode.OTHER_VERSION
    assert ps.state.live == ()


def test_a_worker_of_other_code_is_warned_of_and_shown(ps: Ps) -> None:
    for index, version in enumerate((build(), f"{VERSION}+00000000")):
        request = m.Join(f"worker:{index}", "life", "here", 7, ps.plan.description, version=version)
        assert ps.call("join", request, m.Joined).version == build()
        ps.call("join", request, m.Joined)  # again, as a worker does that waits
    warnings = [line for line in ps.said if "WARNING" in line]
    assert warnings == [of_other_code("worker:1", f"{VERSION}+00000000", "ps:0")]
    assert "worker:1 runs trainband" in warnings[0]
    assert ps.status.trainband == build()
    assert [worker.version for worker in ps.status.workers] == [build(), f"{VERSION}+00000000"]


def test_two_processes_that_claim_one_task(ps: Ps) -> None:
    ps.join(0, incarnation="one")
    with pytest.raises(Refused, match=r"worker:0 is already in the job: process 100 on here"):
        ps.join(0, incarnation="two")
    assert ps.status.workers[0].pid == 100


def test_an_heir_after_the_lease_leaves_no_trace_of_the_dead(ps: Ps) -> None:
    ps.ready()

    def inherit() -> None:
        ps.clock.now += LEASE_S  # the first is silent, and nobody has looked at the leases yet
        ps.join(1, incarnation="second life")
        assert ps.state.live.count("worker:1") == 1

    script = ps.play(1, ps.push(1), inherit, ps.push(2))  # and it was only asleep
    assert "another process has taken the place of worker:1 in the job" in script.failure
    assert ps.state.version == 1
    assert "worker:1" in ps.state.live  # the end of the old stream is no loss of the successor
    successors = ps.play(1, ps.push(2), incarnation="second life")
    assert [a.outcome for a in successors.answers if isinstance(a, m.Params)] == [m.APPLIED]


def test_a_worker_with_another_model_is_refused_and_forgotten(ps: Ps) -> None:
    ps.ready()
    before = ps.state.live
    ps.leave(1)
    other = plan_of({**PARAMS, "b": np.ones(3, np.float32)}, optax.sgd(1.0)).description
    with pytest.raises(Refused, match=r"worker:1 cannot join this job: the first variable that differs is b"):
        ps.join(1, incarnation="wrong model", description=other)
    assert "worker:1" not in ps.state.live
    # mended and started again, it need not wait for a lease to end
    ps.join(1, incarnation="right model")
    assert set(ps.state.live) == set(before)


def test_a_worker_that_waited_with_another_model_is_refused_when_there_is_one_to_compare(ps: Ps) -> None:
    other = sgd_plan(rate=0.5).description
    ps.join(0)
    ps.join(1, description=other)  # nothing to compare with yet
    ps.define()
    with pytest.raises(Refused, match="the optimizer differs"):
        ps.join(1, description=other)
    assert ps.state.live == ("worker:0",)
    (status,) = [worker for worker in ps.status.workers if worker.task == "worker:1"]
    assert status.presence == "failed"
    assert "the optimizer differs" in status.failure


# --- defining


def test_only_the_chief_defines_begins_and_initialises(ps: Ps) -> None:
    ps.join(0)
    ps.join(1)
    with pytest.raises(Refused, match="worker:1 may not define the model: only the chief, worker:0, may"):
        ps.define(1)
    ps.define(0)
    with pytest.raises(Refused, match="worker:1 may not begin a training"):
        ps.start_training(10, worker=1)
    assert "worker:1 may not initialise the variables" in ps.play(1, ps.values()).failure
    assert not ps.state.initialised


def test_defining_is_idempotent(ps: Ps) -> None:
    ps.join(0)
    assert ps.define() == m.Joined(worker=0, lease_s=LEASE_S, defined=True, initialised=False, version=build())
    ps.play(0, ps.values())
    assert ps.define().initialised


BAD_DEFINITIONS: list[tuple[Callable[[Ps], Any], type[TrainbandError], str]] = [
    (lambda ps: ps.define(9), Refused, "no worker has the number 9"),
    (lambda ps: ps.define(ps=1), Refused, "the definition has 1 ps, but calls this one number 1"),
    (lambda ps: ps.define(update=b"garbage"), ProtocolError, "cannot be loaded by JAX"),
    (
        lambda ps: ps.define(description=replace(ps.plan.description, rule={"name": "magic"})),
        Refused,
        "unknown update rule 'magic'",
    ),
    (
        lambda ps: ps.define(description=replace(ps.plan.description, slices=ps.plan.description.slices[:1])),
        ModelError,
        "leave rows out",
    ),
]


@pytest.mark.parametrize(("deed", "error", "words"), BAD_DEFINITIONS, ids=range(len(BAD_DEFINITIONS)))
def test_a_definition_that_cannot_be(
    ps: Ps, deed: Callable[[Ps], Any], error: type[TrainbandError], words: str
) -> None:
    ps.join(0)
    with pytest.raises(error, match=words):
        deed(ps)
    assert ps.define().defined  # the right one is taken afterwards


def test_the_first_values_are_taken_once(ps: Ps) -> None:
    ps.join(0)
    ps.define()
    again = (m.Initialise(), tuple(block + 7 for block in ps.values()[1]))
    script = ps.play(0, ps.values(), again, (m.Pull(), ()))
    assert [answer.version for answer in script.answers if isinstance(answer, m.Params)] == [0, 0, 0]
    assert [len(body) for _, body in script.sent] == [0, 0, len(ps.values()[1])], "only who asks for values gets them"
    for got, sent in zip(script.sent[2][1], ps.values()[1], strict=True):
        np.testing.assert_array_equal(got, sent)


def test_a_training_cannot_begin_without_values(ps: Ps) -> None:
    ps.join(0)
    for _ in range(2):
        with pytest.raises(Refused, match="ps:0 has no values yet, so training cannot begin"):
            ps.start_training(5)
        ps.define()


def test_beginning_is_idempotent_by_its_number(ps: Ps) -> None:
    ps.ready(steps=5)
    assert ps.start_training(5).last_version == 5
    assert ps.start_training(7, fit=1).last_version == 5  # a repeated call, whatever it says
    ps.play(0, *(ps.push(i) for i in range(1, 9)))
    assert ps.state.version == 5
    assert ps.start_training(12, fit=2).last_version == 12
    assert ps.start_training(12, fit=2).last_version == 12
    assert ps.start_training(3, fit=3).last_version == 3  # as it was asked for: it is complete already


# --- training


def test_pushes_are_applied_and_answered_with_the_new_params(ps: Ps) -> None:
    ps.ready()
    script = ps.play(0, m.Pull(), ps.push(1, value=2.0), ps.push(2, version=0), ps.push(3, version=2))
    assert [(a.version, a.outcome, a.staleness) for a in script.answers if isinstance(a, m.Params)] == [
        (0, m.APPLIED, 0),
        (1, m.APPLIED, 0),
        (2, m.APPLIED, 1),
        (3, m.APPLIED, 0),
    ]
    for (_, body), taken in zip(script.sent, [0, 2, 3, 4], strict=True):
        for got, first in zip(body, ps.values()[1], strict=True):
            np.testing.assert_array_equal(got, first - taken)


def test_exactly_the_updates_that_were_asked_for(ps: Ps) -> None:
    ps.ready(steps=3)
    script = ps.play(0, *(ps.push(i, min(i - 1, 3)) for i in range(1, 6)))
    found = [(a.version, a.outcome, a.done, a.detail) for a in script.answers if isinstance(a, m.Params)]
    assert found == [
        (1, m.APPLIED, False, ""),
        (2, m.APPLIED, False, ""),
        (3, m.APPLIED, True, ""),
        (3, m.DROPPED, True, ALL_UPDATES_MADE),
        (3, m.DROPPED, True, ALL_UPDATES_MADE),
    ]
    assert ps.weight == -3.0


def test_a_push_that_comes_twice_is_applied_once(ps: Ps) -> None:
    ps.ready()
    script = ps.play(0, ps.push(1), ps.push(1), lambda: ps.heartbeat(0), ps.push(1))
    assert [a.outcome for a in script.answers if isinstance(a, m.Params)] == [m.APPLIED] * 3
    assert script.answers[1] == m.Params(1, m.APPLIED, 1, False, REPLAYED)
    # nor on another stream, after the worker was given up
    assert [a.outcome for a in ps.play(0, ps.push(1)).answers if isinstance(a, m.Params)] == [m.APPLIED]
    assert ps.state.version == 1


NAN, INF = float("nan"), float("inf")


def test_a_gradient_that_is_not_finite_changes_nothing_and_training_goes_on(ps: Ps) -> None:
    ps.ready()
    script = ps.play(1, ps.push(1, value=NAN, loss=NAN), ps.push(2, value=-INF), ps.push(3), ps.push(4, finite=False))
    answers = [a for a in script.answers if isinstance(a, m.Params)]
    assert [(a.version, a.outcome) for a in answers] == [
        (0, m.NON_FINITE),
        (0, m.NON_FINITE),
        (1, m.APPLIED),
        (1, m.NON_FINITE),
    ]
    assert answers[0].detail == (
        "refused a gradient of worker:1 that is not finite "
        "(push 1, computed from version 0, loss nan, in b, w; 1 so far)"
    )
    assert "3 so far" in answers[3].detail
    assert " in " not in answers[3].detail  # this shard's part is finite: another's is not
    assert ps.weight == -1.0
    (worker,) = [worker for worker in ps.status.workers if worker.task == "worker:1"]
    assert (worker.pushes, worker.refused, worker.dropped, worker.loss) == (4, 3, 0, 0.5)
    assert [line for line in ps.said if "not finite" in line] == [answers[0].detail]  # one line for many


def test_it_says_so_again_after_a_while(ps: Ps) -> None:
    ps.ready()
    later = lambda: setattr(ps.clock, "now", ps.clock.now + 5.0)  # noqa: E731
    ps.play(0, ps.push(1, value=NAN), ps.push(2, value=NAN), later, ps.push(3, value=NAN))
    assert [line.rpartition("; ")[2] for line in ps.said if "not finite" in line] == ["1 so far)", "3 so far)"]


BAD_FRAMES: list[tuple[Callable[[Ps], Any], str]] = [
    # what a worker sends -> what it is told; the stream is over then
    (lambda _: b"", "sent an invalid"),
    (lambda _: b"\xc1garbage", "check that both run the same version of trainband"),
    (lambda _: encode(m.Params(0, 0, 0, False, "")), "sent an invalid"),
    (lambda _: m.Open(0, "life of worker:0"), "worker:0 opened its stream twice"),
    (lambda ps: (ps.push(1)[0], ()), "does not fit this shard (wrong size)"),
    (lambda ps: (ps.push(1)[0], [np.zeros(3, np.float32)]), "does not fit this shard (wrong size)"),
    (lambda ps: ps.push(1, version=1), "claims params of version 1, but the version is 0"),
    (lambda ps: ps.push(1, version=-1), "Expected `int` >= 0"),
]


@pytest.mark.parametrize(("frame", "words"), BAD_FRAMES, ids=range(len(BAD_FRAMES)))
def test_a_frame_that_cannot_be(ps: Ps, frame: Callable[[Ps], Any], words: str) -> None:
    ps.ready()
    script = ps.play(0, frame(ps), ps.push(2))
    assert len(script.answers) == 1
    assert words in script.failure
    assert ps.state.version == 0
    assert any(words in line for line in ps.said)


def test_pushes_before_there_are_values(ps: Ps) -> None:
    ps.join(0)
    assert "it has no values yet" in ps.play(0, ps.push(1)).failure
    assert "ps:0 has no model yet" in ps.play(0, m.Pull()).failure
    ps.define()
    assert "it has no values yet" in ps.play(0, ps.push(1)).failure
    assert "the chief has not initialised it" in ps.play(0, m.Pull()).failure
    wrong = (m.Initialise(), [np.zeros(5, np.float32)])
    assert "worker:0 sent first values of the wrong size" in ps.play(0, wrong).failure
    assert not ps.state.initialised


FIRST_WORDS: list[tuple[Any, str]] = [
    (m.Pull(), "a script did not identify itself first"),
    (b"GET / HTTP/1.1", "a script sent an invalid"),
    (m.Open(5, "life of worker:0"), "no worker has the number 5"),
    (m.Open(0, "another life"), "worker number 0 now belongs to another process"),
]


@pytest.mark.parametrize(("word", "answer"), FIRST_WORDS, ids=range(len(FIRST_WORDS)))
def test_a_stream_that_begins_wrongly(ps: Ps, word: Any, answer: str) -> None:
    ps.join(0)
    script = Script(word)
    ps.service.stream(script)
    assert answer in script.failure
    assert script.closed
    assert ps.state.live == ("worker:0",)


def test_a_stream_that_never_says_who_it_is(ps: Ps) -> None:
    script = Script(None, lambda: setattr(ps.clock, "now", ps.clock.now + FAST.connect_s), None, m.Pull())
    ps.service.stream(script)
    assert script.closed
    assert script.answers == []


def test_a_stopped_service_takes_no_stream(ps: Ps) -> None:
    ps.ready()
    ps.service.lifecycle.stop()
    script = Script(m.Open(0, "life of worker:0"), ps.push(1))
    ps.service.stream(script)
    assert (script.answers, script.closed) == ([], True)


def test_unknown_actions_and_garbage(ps: Ps) -> None:
    with pytest.raises(Refused, match="ps:0 has no action 'dance'; check that both run the same version"):
        ps.service.call("dance", b"")
    for action in ("join", "define", "begin", "heartbeat", "leave", "shutdown"):
        with pytest.raises(ProtocolError, match="sent an invalid"):
            ps.service.call(action, b"\xc1")


# --- leases


def expire(ps: Ps) -> None:
    """Lets the service look at its leases once, as `run` does, without its loop."""
    ps.service.membership.expire()


def test_a_frame_under_way_keeps_a_lease_as_long_as_it_moves(ps: Ps) -> None:
    ps.ready()

    def travel() -> None:
        for script.moved_s in (0.1, LEASE_S / 2):
            ps.clock.now += 2 * LEASE_S
            expire(ps)
            assert ps.state.live == ("worker:0",)
        script.moved_s = math.inf  # it has arrived
        ps.clock.now += LEASE_S / 2 - 0.1
        expire(ps)
        assert ps.state.live == ("worker:0",)
        ps.clock.now += 0.2
        expire(ps)
        assert not ps.state.live

    script = Script(m.Open(0, life(0)), travel)
    ps.service.stream(script)


def test_heartbeats_keep_a_lease_and_silence_ends_it(ps: Ps) -> None:
    ps.ready()
    for _ in range(5):
        ps.clock.now += LEASE_S / 2
        ps.heartbeat(0)
        expire(ps)
    assert ps.state.live == ("worker:0",)
    assert f"worker:1 is gone: no heartbeat for {LEASE_S:g} s" in ps.said


def test_a_lost_worker_is_back_by_its_heartbeat(ps: Ps) -> None:
    ps.ready()
    ps.clock.now += LEASE_S
    expire(ps)
    assert ps.state.live == ()
    assert ps.heartbeat(0).live == ("worker:0",)
    assert ps.said[-1] == "worker:0 is back"
    assert [a.outcome for a in ps.play(0, ps.push(1)).answers if isinstance(a, m.Params)] == [m.APPLIED]


@pytest.mark.parametrize("word", ["begin", "define", "push", "join"])
def test_a_lost_worker_is_back_by_any_word(ps: Ps, word: str) -> None:
    ps.ready()
    ps.clock.now += LEASE_S
    expire(ps)
    match word:
        case "begin":
            ps.start_training(100, fit=2)
        case "define":
            ps.define()
        case "join":
            ps.join(0)
    # what it pushes is applied, so the rule knows that it is back as well
    answers = ps.play(0, ps.push(1)).answers
    assert [a.outcome for a in answers if isinstance(a, m.Params)] == [m.APPLIED], answers


def test_pushes_keep_a_lease(ps: Ps) -> None:
    ps.ready()

    def later() -> None:
        ps.clock.now += LEASE_S / 2
        expire(ps)
        assert "worker:1" in ps.state.live

    ps.heartbeat(1)
    ps.play(1, ps.push(1), later, ps.push(2), later, ps.push(3), later, None, ps.push(4))
    assert ps.state.version == 4


def test_a_stream_that_breaks_off_is_a_loss_at_once(ps: Ps) -> None:
    ps.ready()
    ps.play(1, ps.push(1))
    assert "worker:1 is gone: its stream broke off" in ps.said
    assert "worker:1" not in ps.state.live


def test_leaving_is_no_loss(ps: Ps) -> None:
    ps.ready()
    ps.play(1, ps.push(1), lambda: ps.leave(1))
    assert not [line for line in ps.said if "worker:1" in line]
    (worker,) = [worker for worker in ps.status.workers if worker.task == "worker:1"]
    assert (worker.presence, worker.failure) == ("left", "")


def test_a_failure_is_told(ps: Ps) -> None:
    ps.ready()
    ps.leave(1, "ValueError: the disk is full")
    assert "worker:1 left the job: ValueError: the disk is full" in ps.said
    (worker,) = [worker for worker in ps.status.workers if worker.task == "worker:1"]
    assert (worker.presence, worker.failure) == ("failed", "ValueError: the disk is full")
    assert "worker:1 has left the job" in ps.play(1, ps.push(1)).failure


# --- the end


def verdict(ps: Ps) -> tuple[str, str, float | None]:
    """(why it has ended or "", for whom it waits or "", for how long)."""
    return dataclasses.astuple(ps.service.lifecycle.verdict())


def test_the_verdicts(ps: Ps) -> None:
    assert verdict(ps) == ("", "the first worker to join", None)
    ps.join(0)
    assert verdict(ps) == ("", "", None)  # somebody is at work
    ps.define()
    ps.play(0, ps.values())
    ps.start_training(1)
    ps.leave(0)
    # not complete: worker:1 has never come
    assert verdict(ps) == ("", "a worker to come back, as none is left (worker:1)", FAST.start_s)
    ps.join(1)
    ps.play(1, ps.push(1))  # complete, and lost
    assert verdict(ps) == ("the job is complete", "", None)


def test_a_complete_job_waits_a_while_for_who_never_came(ps: Ps) -> None:
    ps.join(0)
    ps.define()
    ps.play(0, ps.values(), lambda: ps.start_training(1), ps.push(1), lambda: ps.leave(0))
    assert verdict(ps) == ("", "worker:1 to check in at the end of the job", LINGER_S)


def test_a_complete_job_waits_a_while_for_who_died_before(ps: Ps) -> None:
    ps.join(0)
    ps.define()
    ps.play(0, ps.values())
    ps.start_training(2)
    ps.join(1)
    ps.play(1, ps.push(1))  # its stream breaks off before the job is complete
    ps.clock.now += 10.0
    ps.play(0, ps.push(0), lambda: ps.leave(0))
    assert verdict(ps) == ("", "worker:1 to check in at the end of the job", LINGER_S)
    ps.clock.now += LINGER_S - 10.0
    assert verdict(ps) == ("the job is complete", "", None)


def test_workers_that_leave_an_incomplete_job_end_it(ps: Ps) -> None:
    ps.ready()
    ps.leave(0)
    ps.leave(1)
    assert verdict(ps) == ("every worker has left", "", None)


def test_a_lost_worker_is_waited_for(ps: Ps) -> None:
    ps.ready()
    ps.leave(0)
    ps.play(1, ps.push(1))
    assert verdict(ps) == ("", "a worker to come back, as none is left (worker:1)", FAST.start_s)


def test_one_that_was_asked_to_end_is_waited_for_unless_others_have_ended_the_job_since(ps: Ps) -> None:
    ps.ready()
    ps.leave(1)
    ps.clock.now += 1.0
    ps.leave(0, PREEMPTED)
    assert verdict(ps) == ("", "a worker to come back, as none is left (worker:0)", FAST.start_s)
    assert [one.presence for one in ps.status.workers] == ["preempted", "left"]
    ps.clock.now += 1.0
    ps.join(1, incarnation="second life")
    ps.leave(1, incarnation="second life")
    assert verdict(ps) == ("every worker has left", "", None)


def test_a_failed_worker_is_waited_for(ps: Ps) -> None:
    ps.ready()
    ps.leave(0, "KeyError: 'x'")
    ps.leave(1)
    assert verdict(ps) == ("", "a worker to come back, as none is left (worker:0)", FAST.start_s)


@pytest.mark.parametrize(("reason", "words"), [("enough for today", "enough for today"), ("", "asked to")])
def test_a_shutdown_ends_at_once(ps: Ps, reason: str, words: str) -> None:
    ps.ready()
    ps.call("shutdown", m.Shutdown(reason), m.JobState)
    assert verdict(ps) == (f"shut down: {words}", "", None)
    assert ps.service.lifecycle.run() == f"shut down: {words}"
    assert ps.status.ended


class Ticking(FakeClock):
    """Moves a little at each look, so that a wait of minutes takes as many looks as it has steps."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def run_with_ticks(ps: Ps, step_s: float) -> str:
    """`run`, with a clock that hurries and nothing that waits."""
    ps.clock = Ticking(step_s)
    ps.service.task.clock = ps.clock
    ps.service.task.wake.wait = lambda timeout=None: True  # type: ignore[method-assign]  # noqa: ARG005
    return ps.service.lifecycle.run()


def test_run_gives_up_when_nobody_comes_back(ps: Ps) -> None:
    ps.ready()
    ps.leave(0)
    ps.play(1)
    with pytest.raises(
        DeadlineExceeded, match=r"waited .* s for a worker to come back.*worker:1.*; restart the workers"
    ):
        run_with_ticks(ps, 1.0)
    assert any(line.startswith("waiting for a worker to come back") for line in ps.said)
    assert ps.status.ended


def test_run_ends_well_when_who_never_came_does_not_look_in(ps: Ps) -> None:
    ps.join(0)
    ps.define()
    ps.play(0, ps.values(), lambda: ps.start_training(1), ps.push(1), lambda: ps.leave(0))
    assert run_with_ticks(ps, 1.0) == "the job is complete"
    assert any("worker:1 to check in" in line for line in ps.said)


def test_run_ends_leases(ps: Ps) -> None:
    ps.ready(steps=0)
    assert run_with_ticks(ps, 1.0) == "the job is complete"
    assert f"worker:1 is gone: no heartbeat for {LEASE_S:g} s" in ps.said


def test_run_ends_when_the_last_worker_leaves(ps: Ps) -> None:
    ps.ready(steps=0)
    running = in_thread(ps.service.lifecycle.run, "run")
    ps.leave(0)
    assert not running.done()
    ps.leave(1)
    assert running.result(10.0) == "the job is complete"


def test_a_ps_that_was_stopped_after_its_last_update_does_not_wait_for_its_workers(ps: Ps) -> None:
    """They have left, and could not say so. The chief alone would be waited for, were it known to have died."""
    ps.ready(steps=0)
    running = in_thread(ps.service.lifecycle.run, "run")
    absence = ps.service.lifecycle._absence  # noqa: SLF001
    until(lambda: absence._checked_at is not None, "its first look")  # noqa: SLF001
    ps.clock.now += 100.0
    until(lambda: absence.stood_still, "the look after it")
    for _ in range(2):
        ps.clock.now += LEASE_S / 2
        until(lambda: absence._checked_at == ps.clock.now or running.done(), "another look")  # noqa: SLF001
    assert running.result(5.0) == "the job is complete"


def test_a_ps_that_is_dismissed_serves_until_the_workers_have_left(ps: Ps) -> None:
    ps.ready(steps=10)
    running = in_thread(ps.service.lifecycle.run, "run")
    ps.service.lifecycle.dismiss()
    said = "; it serves worker:0, worker:1 until they leave, 15 s at most"
    until(lambda: any(said in line for line in ps.said), "its word")
    ps.play(0, ps.push(1))
    assert ps.status.version == 1
    ps.leave(0)
    assert not running.done()
    ps.leave(1)
    assert running.result(10.0) == "every worker has left"
    assert ps.service.lifecycle.cut_short


def test_a_ps_that_is_dismissed_does_not_serve_for_ever(ps: Ps) -> None:
    ps.ready(steps=10)
    ps.service.lifecycle.dismiss()
    ps.service.membership.expire = lambda: None  # type: ignore[method-assign]
    assert run_with_ticks(ps, 1.0) == "SIGTERM asked this task to end"
    assert DISMISSED_S <= ps.clock.now - FakeClock().now < 2 * DISMISSED_S
    assert ps.service.lifecycle.cut_short


def test_a_ps_that_is_dismissed_at_the_end_of_its_job_has_ended_with_it(ps: Ps) -> None:
    ps.ready(steps=0)
    ps.service.lifecycle.dismiss()
    ps.leave(0)
    ps.leave(1)
    assert ps.service.lifecycle.run() == "the job is complete"
    assert not ps.service.lifecycle.cut_short


# --- the public face


def test_status(ps: Ps) -> None:
    ps.ready(steps=50)
    ps.clock.now += 1.0
    ps.play(1, ps.push(1, loss=1.5), ps.push(2, version=0, loss=0.25), lambda: ps.heartbeat(0))
    ps.heartbeat(1)
    ps.clock.now += 2.0
    status = ps.status
    assert status.rule == dict(Async().settings())
    assert (status.initialised, status.version, status.last_version, status.ended) == (True, 2, 50, False)
    assert status.uptime_s == 3.0
    assert (status.staleness_median, status.staleness_p99, status.staleness_max) == (0.0, 1.0, 1)
    nbytes = 4 * 14
    assert status.shard_bytes == nbytes
    assert status.bytes_in == 2 * nbytes
    assert status.bytes_out == 2 * nbytes  # the answers to two pushes
    assert status.waiting_for == ()
    assert status.loss == 0.25
    assert [(w.task, w.presence, w.pushes, w.pid, w.host, w.heard_s) for w in status.workers] == [
        ("worker:0", "live", 0, 100, "here", 2.0),
        ("worker:1", "live", 2, 101, "here", 2.0),
    ]
    assert (status.workers[1].transport, status.workers[1].examples, status.workers[1].loss) == ("script", 64, 0.25)
    assert [(v.name, v.shape, v.dtype, v.nbytes) for v in status.variables] == [
        ("b", (2,), "float32", 8),
        ("w", (6, 2), "float32", 48),
    ]
    assert [(s.ps, s.start, s.stop) for s in status.variables[1].slices] == [("ps:0", 0, 6)]
    assert os.getpid() != 100


def test_reading_and_assigning(ps: Ps) -> None:
    ps.ready()
    ps.play(0, ps.push(1))
    start, values = ps.service.read("w")
    assert start == 0
    np.testing.assert_array_equal(values, PARAMS["w"] - 1)
    values[:] = 7  # a copy
    assert ps.weight == -1.0
    with pytest.raises(Refused, match="ps:0 holds no variable 'nothing'"):
        ps.service.read("nothing")
    assert [(t.name, t.shape, t.slices) for t in ps.service.tensors()] == [
        ("b", (2,), ((0, 2, "ps0:1"),)),
        ("w", (6, 2), ((0, 6, "ps0:1"),)),
    ]


def test_reading_slices() -> None:
    # b on ps:0; w in three slices of two rows, on ps 0, 1, 2
    plan = sgd_plan(3, policy=RoundRobin(max_slice_bytes=16))
    rows = {0: (0, 2), 1: (2, 4), 2: (4, 6)}
    for index, (start, stop) in rows.items():
        ps = Ps(plan, index).ready()
        first, values = ps.service.read("w")
        assert first == start
        np.testing.assert_array_equal(values, PARAMS["w"][start:stop])
        (tensor,) = [t for t in ps.service.tensors() if t.name == "w"]
        assert tensor.slices == ((0, 2, "ps0:1"), (2, 4, "ps1:1"), (4, 6, "ps2:1"))


def test_rows_that_do_not_lie_together_are_not_read_as_if_they_did() -> None:
    class Scattered:
        """A user's own policy: w's rows 0-2 and 4-6 on ps:1, 2-4 on ps:0."""

        def place(self, variables: Any, ps_count: int, *, keep_whole: Any = ()) -> Placement:
            plan = RoundRobin(max_slice_bytes=16).place(variables, ps_count, keep_whole=keep_whole)
            places = iter([0, 1, 0, 1])
            return Placement(tuple(dataclasses.replace(s, ps=next(places)) for s in plan.slices), ps_count)

    plan = sgd_plan(2, policy=Scattered())
    ps = Ps(plan, 1).ready()
    with pytest.raises(Refused, match="ps:1 holds rows 0-2, 4-6 of 'w', which cannot be read as one piece"):
        ps.service.read("w")


def test_one_that_came_and_went_before_the_model_was_there_is_waited_for_by_nobody() -> None:
    plan = Plan.of(sgd_plan().variables, optax.sgd(1.0), RoundRobin(), Sync(), 1)
    ps = Ps(plan)
    gone = ps.join(1)
    ps.leave(gone, "crashed")
    ps.join(0)
    ps.define()
    ps.play(0, ps.values(), lambda: ps.start_training(5), ps.push(1))
    assert ps.service.status().version == 1


# --- what an older process says


def test_a_process_that_was_replaced_does_not_take_its_heir_along_when_it_leaves(ps: Ps) -> None:
    ps.ready()
    ps.clock.now += LEASE_S
    ps.join(1, incarnation="second life")
    ps.call("leave", m.Leave(1, life(1), "too late"), m.JobState)
    assert "worker:1" in ps.state.live
    with pytest.raises(Refused, match="another process has taken the place of worker:1"):
        ps.call("heartbeat", m.Heartbeat(1, "life of worker:1"), m.JobState)
    assert ps.call("leave", m.Leave(1, "second life", ""), m.JobState).live == ()


def test_a_process_in_whose_place_another_has_pushed_does_not_come_back(ps: Ps) -> None:
    """Its push that is under way has a number under which that one has pushed: it would be told to be applied."""
    ps.ready()
    ps.clock.now += LEASE_S
    ps.join(1, incarnation="second life")
    ps.play(1, ps.push(2), incarnation="second life")
    ps.call("leave", m.Leave(1, "second life", ""), m.JobState)
    with pytest.raises(Refused, match="another process has taken the place of worker:1"):
        ps.join(1, incarnation="life of worker:1")


def test_a_worker_of_an_older_job_is_refused(ps: Ps) -> None:
    ps.ready()
    ps.service.replicas.by_shard[0].job = "this one"
    request = m.Join("worker:1", "life of worker:1", "here", 101, ps.plan.description, "another one", version=VERSION)
    with pytest.raises(Refused, match="worker:1 belongs to a job that has ended; ps:0 now serves another one"):
        ps.call("join", request, m.Joined)
    assert ps.call("join", replace(request, job="this one"), m.Joined).job == "this one"


def test_a_worker_of_an_older_job_does_not_keep_its_name_from_the_new_ones(ps: Ps) -> None:
    """It was there before the chief said which job this is."""
    plan = ps.plan.description
    old = m.Join("worker:1", "an old life", "here", 101, plan, "another one", version=VERSION)
    ps.call("join", old, m.Joined)
    ps.join(0)
    ps.define(job="this one")
    assert ps.state.live == ("worker:0",)
    assert any(
        line.startswith("worker:1 belongs to a job that has ended; ps:0 now serves another one") for line in ps.said
    )
    with pytest.raises(Refused, match="worker:1 belongs to a job that has ended; ps:0 now serves another one"):
        ps.call("join", old, m.Joined)
    ps.join(1)
    assert set(ps.state.live) == {"worker:0", "worker:1"}


# --- whoever is chief


def test_the_lowest_live_worker_has_the_duties_of_a_chief_that_is_gone(ps: Ps) -> None:
    ps.join(1)
    assert ps.state.chief == "worker:0"  # which may yet come
    ps.join(0)
    ps.define()
    ps.play(0, ps.values())
    assert ps.state.chief == "worker:1"  # its stream broke off
    assert ps.start_training(10, worker=1).last_version == 10
    ps.heartbeat(0)
    assert ps.state.chief == "worker:0"
    with pytest.raises(Refused, match="only the chief, worker:0, may"):
        ps.start_training(20, fit=2, worker=1)


def test_nobody_inherits_duties_that_are_done(ps: Ps) -> None:
    ps.ready(steps=1)
    ps.heartbeat(1)
    ps.play(1, ps.push(1))
    ps.heartbeat(0)
    ps.heartbeat(1)
    assert ps.state.version == 1
    ps.leave(0)
    assert ps.state.chief == "worker:0"


# --- what a checkpoint has reserved


def test_data_is_handed_out_by_a_ps_that_has_values_only(ps: Ps) -> None:
    ps.join(0)
    settings = SourceSettings(10, 5, 1, 0, False)
    request = m.Lease(0, life(0), LeaseRequest("digits", settings, iterator="life"))
    with pytest.raises(Refused, match="ps:0 does not hold shard 0"):
        ps.call("lease", request, LeaseAnswer)
    ps.define()
    ps.play(0, ps.values())
    assert ps.call("lease", request, LeaseAnswer).kind == "piece"


def test_pieces_of_workers_that_do_not_come_back_go_to_others(ps: Ps) -> None:
    ps.ready()
    replica = ps.service.replicas.by_shard[0]
    settings = SourceSettings(10, 5, 1, 0, False)
    replica.record(r.Leased(0, LeaseRequest("digits", settings, iterator="one")))
    replica.record(r.Leased(1, LeaseRequest("digits", settings, iterator="two")))
    reserved = replica.sources.copy()
    ps.leave(1)
    replica.sources.replace_ledgers(reserved)  # as from a checkpoint
    ps.service.reserved_pieces._adopted[0] = ps.clock.now  # noqa: SLF001
    ps.service.reserved_pieces.free()
    assert replica.sources.holders() == {0, 1}
    ps.clock.now += LEASE_S
    ps.service.reserved_pieces.free()
    assert replica.sources.holders() == {0}


@pytest.mark.parametrize("late", [True, False])
def test_pieces_of_a_worker_whose_data_is_used_up_go_to_others(late: bool) -> None:
    """It asks for no more, so they would be reserved for ever; what another has yet to ask for stays its own."""
    ps = Ps(sgd_plan())
    for worker in range(2):
        ps.join(worker, paused=late and worker == 1)
    ps.define()
    ps.play(0, ps.values())
    ps.start_training(10)
    replica = ps.service.replicas.by_shard[0]
    for worker, iterator in enumerate(("one", "two")):
        request = LeaseRequest("digits", SourceSettings(10, 5, 1, 0, False), iterator=iterator)
        replica.record(r.Leased(worker, request))
    replica.sources.restore(replica.sources.record(), 2)
    ps.service.reserved_pieces._adopted[0] = ps.clock.now  # noqa: SLF001
    if late:
        ps.clock.now += LEASE_S
        ps.service.reserved_pieces.free()
    else:
        ps.call("pause", m.Pause(1, life(1)), m.JobState)
    assert replica.sources.holders() == {0}


# --- who has paused


def sync_ps() -> Ps:
    return Ps(Plan.of(sgd_plan().variables, optax.sgd(1.0), RoundRobin(), Sync(), 1))


def test_a_ps_that_is_new_does_not_wait_for_one_that_has_paused() -> None:
    ps = sync_ps()
    ps.join(0)
    ps.join(1, paused=True)
    ps.define()
    in_thread(lambda: ps.play(0, ps.values(), lambda: ps.start_training(10), ps.push(1)), "alone").result(20.0)
    assert ps.status.version == 1


def test_one_that_has_paused_is_awaited_no_more_after_a_silence() -> None:
    ps = sync_ps()
    ps.ready()
    ps.call("pause", m.Pause(1, life(1)), m.JobState)
    ps.clock.now += LEASE_S
    ps.service.membership.expire()
    ps.heartbeat(1)  # it is back, and has no more data than before
    ps.heartbeat(0)
    in_thread(lambda: ps.play(0, ps.push(1)), "alone").result(20.0)
    assert ps.status.version == 1


def test_a_ps_that_holds_nothing_learns_from_heartbeats_who_has_paused(ps: Ps) -> None:
    ps.join(0)
    ps.join(1)
    at_work = [
        ps.call("heartbeat", m.Heartbeat(1, life(1), paused=paused), m.JobState).at_work for paused in (True, False)
    ]
    assert at_work == [("worker:0",), ("worker:0", "worker:1")]


def test_a_ps_that_sees_the_pushes_does_not_believe_one_heartbeat_which_may_be_belated(ps: Ps) -> None:
    ps.ready()

    def at_work() -> tuple[str, ...]:
        state: m.JobState = ps.call("heartbeat", m.Heartbeat(1, life(1), paused=True), m.JobState)
        return state.at_work

    assert at_work() == ("worker:0", "worker:1")
    ps.play(1, ps.push(1))
    assert at_work() == ("worker:0", "worker:1")
    assert at_work() == ("worker:0",)


def test_a_rule_that_has_begun_hears_of_a_pause_by_heartbeat() -> None:
    ps = sync_ps()
    ps.join(0)
    ps.join(1)
    ps.define()
    ps.call("heartbeat", m.Heartbeat(1, life(1), paused=True), m.JobState)
    in_thread(lambda: ps.play(0, ps.values(), lambda: ps.start_training(10), ps.push(1)), "alone").result(20.0)
    assert ps.status.version == 1


def test_workers_that_train_on_the_same_data_are_told_so_once(ps: Ps) -> None:
    ps.ready()
    for worker, digest in ((0, "one"), (1, "other"), (0, "one")):
        ps.call("heartbeat", m.Heartbeat(worker, life(worker), first_batch=digest), m.JobState)
    assert not [line for line in ps.said if "the same batch" in line]
    ps.call("leave", m.Leave(1, life(1), "", first_batch="one"), m.JobState)
    ps.call("heartbeat", m.Heartbeat(0, life(0), first_batch="two"), m.JobState)
    (line,) = [line for line in ps.said if "the same batch" in line]
    assert line.startswith("WARNING: worker:0 and worker:1 began with the same batch. ")


KEY = ("uint32", (2,), b"12345678")


def worker_state(task: str = "worker:0", position: str = "", array: tuple[Any, ...] = KEY) -> bytes:
    return msgspec.msgpack.encode({"task": task, "training": 1, "steps": 3, "position": position, "carry": [array]})


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"",
        worker_state("worker:1"),
        worker_state(position="no JSON"),
        worker_state(position="[" * 100_000),
        worker_state(array=("object", (1,), b"12345678")),
        worker_state(array=("uint32", (3,), b"12345678")),
        worker_state(array=("uint32", (1 << 62, 1 << 62), b"12345678")),
        worker_state(array=("uint32", (-1, -2), b"12345678")),
    ],
    ids=["garbage", "nothing", "another's", "position", "depth", "dtype", "size", "overflow", "negative"],
)
def test_a_worker_state_that_no_checkpoint_can_hold_is_refused_and_not_kept(ps: Ps, data: bytes) -> None:
    ps.ready()
    ps.call("worker_state", m.LeftWorkerState(0, life(0), 1, worker_state()), m.JobState)
    with pytest.raises((ProtocolError, Refused)):
        ps.call("worker_state", m.LeftWorkerState(0, life(0), 2, data), m.JobState)
    kept = ps.call("my_worker_state", m.WorkerStateQuestion(0, life(0)), m.WorkerStateAnswer)
    assert kept.data == worker_state()


def test_a_worker_state_larger_than_any_is_refused(ps: Ps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.ps.service.checkpoint_calls.MOST_BESIDE_THE_MODEL_BYTES", 0)
    ps.ready()
    nbytes = 8 * sum(leaf.nbytes for leaf in PARAMS.values())
    array = ("uint8", (nbytes,), bytes(nbytes))
    with pytest.raises(Refused, match=f"this model's limit is {nbytes:,} bytes"):
        ps.call("worker_state", m.LeftWorkerState(0, life(0), 2, worker_state(array=array)), m.JobState)


@pytest.mark.parametrize(
    "changes",
    [{"worker_state": {0: b"garbage"}}, {"worker_state": {-1: worker_state()}}, {"sources": {"digits": "garbage"}}],
    ids=["worker state", "worker", "source"],
)
def test_a_chief_adopts_nothing_that_is_garbage(ps: Ps, changes: dict[str, Any]) -> None:
    for worker in range(2):
        ps.join(worker)
    ps.define()
    with pytest.raises((ProtocolError, DataError)):
        ps.call("adopt", replace(m.Adopt(0, life(0), "token", 0), **changes), m.Joined)
    assert not ps.state.initialised
