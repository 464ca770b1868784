"""The simulated network, processes and locks keep the promises that real ones keep, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.simulation.job import TIMEOUTS
from tests.simulation.network import End, Network, TaskTransport, Weather
from tests.simulation.process import Process
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Scheduler
from trainband.errors import DeadlineExceeded, NobodyListens, PeerError, Refused, StreamClosed
from trainband.wire.transport import ANYBODY, Caller, Stream, Tensor

ADDRESS = "ps-0:2222"


class Echo:
    """A handler that answers with what it is asked, and keeps what comes on streams."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.frames: list[int] = []
        self.ended = 0

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:  # noqa: ARG002 - the seam has it
        self.asked.append(body)
        if action == "no":
            raise Refused("no")
        return body

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
        try:
            while True:
                frame = stream.receive(1.0)
                if frame is not None:
                    self.frames.append(int(frame.body[0].view(np.int64)[0]))
        except StreamClosed:
            self.ended += 1

    def tensors(self) -> Sequence[Tensor]:
        return ()

    def read(self, name: str) -> Any:
        raise Refused(name)


class Pair:
    """A worker, and a ps that echoes."""

    def __init__(self, seed: int = 0, weather: Weather | None = None, *, keeps: bool = False) -> None:
        self.scheduler = Scheduler()
        self.dice = random.Random(seed)
        self.network = Network(self.scheduler, self.dice)
        if weather is not None:
            self.network.weather = weather
        # Between two ps of one machine, streams keep what is sent.
        self.worker = self.process("ps:1" if keeps else "worker:0", "here")
        self.ps = self.process("ps:0", "here")
        self.echo = self.serve(self.ps)
        self.outcomes: list[tuple[float, Any]] = []

    def process(self, name: str, host: str = "here") -> Process:
        return Process(name, 1, host, self.scheduler, self.dice)

    def serve(self, process: Process) -> Echo:
        echo = Echo()
        TaskTransport(self.network, process).listen(ADDRESS, echo, TIMEOUTS)
        return echo

    def do(self, work: Callable[[], Any]) -> None:
        """Does this as the worker, and notes what comes of it."""

        def attempt() -> None:
            try:
                outcome = work()
            except PeerError as exc:
                outcome = type(exc)
            self.outcomes.append((self.scheduler.now, outcome))

        self.worker.thread(attempt, "test").start()

    def ask(self, action: str, body: bytes) -> None:
        connection = TaskTransport(self.network, self.worker).connect(ADDRESS, TIMEOUTS)
        self.do(lambda: connection.call(action, body, timeout_s=2.0))

    def open(self) -> End:
        ends: list[End] = []
        connection = TaskTransport(self.network, self.worker).connect(ADDRESS, TIMEOUTS)
        self.do(lambda: ends.append(connection.open_stream(timeout_s=2.0)))
        self.pass_time(0.5)
        return ends[0]

    def pass_time(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds, lambda: False)

    @property
    def results(self) -> list[Any]:
        return [outcome for _, outcome in self.outcomes]


def test_a_call_is_answered_or_refused() -> None:
    pair = Pair()
    pair.ask("yes", b"7")
    pair.ask("no", b"8")
    pair.pass_time(1.0)
    assert sorted(map(str, pair.results)) == sorted([str(b"7"), str(Refused)])


@pytest.mark.parametrize(("source", "target"), [("worker:0", "ps:0"), ("ps:0", "worker:0")])
def test_a_call_over_a_cut_is_not_answered_whether_it_arrived_or_not(source: str, target: str) -> None:
    pair = Pair()
    pair.network.cut(source, target, 1.0)
    pair.ask("yes", b"7")
    pair.pass_time(3.0)
    assert pair.outcomes == [(2.0, DeadlineExceeded)]
    assert len(pair.echo.asked) == (source == "ps:0")
    pair.ask("yes", b"8")
    pair.pass_time(1.0)
    assert pair.results[-1] == b"8"


def test_a_dead_process_is_unreachable_and_a_paused_one_answers_later() -> None:
    pair = Pair()
    pair.ps.pause()
    pair.ask("yes", b"7")
    pair.pass_time(1.0)
    assert not pair.outcomes
    pair.ps.go_on()
    pair.pass_time(0.5)
    assert pair.results == [b"7"]
    pair.ps.die()
    pair.ask("yes", b"8")
    pair.pass_time(0.5)
    assert pair.results[-1] is NobodyListens


def test_a_paused_process_does_nothing_until_it_goes_on() -> None:
    pair = Pair()
    pair.ask("yes", b"7")
    pair.pass_time(0.0)
    pair.worker.pause()
    pair.pass_time(5.0)
    assert not pair.outcomes
    pair.worker.go_on()
    pair.pass_time(0.1)
    assert pair.results == [b"7"]


def test_what_is_sent_to_one_life_never_comes_to_the_next() -> None:
    pair = Pair()
    pair.ask("yes", b"7")
    pair.pass_time(0.0)
    pair.ps.die()
    successor = pair.serve(pair.process("ps:0"))
    pair.pass_time(3.0)
    assert not successor.asked
    assert pair.results == [NobodyListens]


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_brings_a_beginning_of_what_was_sent_in_order(seed: int) -> None:
    pair = Pair(seed)
    near = pair.open()
    pair.network.weather = Weather(broken_stream=0.05, slow=0.2)
    sent = 0
    for number in range(30):
        try:
            near.send(b"", [np.array([number])])
        except StreamClosed:
            break
        sent += 1
        pair.pass_time(0.05)
    pair.pass_time(60.0)
    frames = pair.echo.frames
    assert frames == list(range(len(frames)))
    assert len(frames) <= sent
    assert pair.echo.ended == (len(frames) < sent)
    assert near.alive == (len(frames) == sent)  # both ends learn of a break


def test_the_other_end_learns_of_a_death_after_all_that_was_sent() -> None:
    pair = Pair()
    near = pair.open()
    near.send(b"", [np.array([1])])
    pair.worker.die()
    pair.pass_time(1.0)
    assert pair.echo.frames == [1]
    assert pair.echo.ended == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_a_stream_that_keeps_takes_all_that_was_sent_before_it_was_told_to_take_no_more(keeps: bool) -> None:
    pair = Pair(keeps=keeps)
    near = pair.open()
    for number in range(3):
        near.send(b"", [np.array([number])])
    near.other.refuse_more()
    if keeps:
        with pytest.raises(StreamClosed):
            near.send(b"", [np.array([3])])
    pair.pass_time(1.0)
    assert pair.echo.frames == ([0, 1, 2] if keeps else [])
    assert pair.echo.ended == 1
    assert not near.alive


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    pair = Pair()
    near = pair.open()
    seen: list[float] = []
    pair.do(lambda: near.receive(10.0))
    pair.pass_time(1.0)
    seen.append(near.silent_s)
    pair.network.cut("ps:0", "worker:0", pair.scheduler.now + 5.0)
    pair.pass_time(2.0)
    seen.append(near.silent_s)
    assert seen == [0.0, pytest.approx(2.0)]


@pytest.mark.parametrize("seed", range(20))
def test_a_lock_is_held_by_one_thread_and_waits_end(seed: int) -> None:
    pair = Pair(seed)
    runtime = SimulatedRuntime(pair.worker, lambda _: None)
    lock, recursive = runtime.lock(), runtime.recursive_lock()
    changed, event = runtime.condition(lock), runtime.event()
    inside: list[int] = []
    order: list[Any] = []

    def work(number: int) -> None:
        for _ in range(5):
            with lock:
                inside.append(number)
                runtime.sleep(0.01)
                assert inside == [number]
                inside.clear()
        with recursive, recursive:
            order.append(number)
        with lock:
            changed.notify_all()

    def wait() -> None:
        with lock:
            assert changed.wait_for(lambda: len(order) == 4, 10.0)
        event.set()

    for number in range(4):
        runtime.thread(lambda number=number: work(number), "work").start()  # type: ignore[misc]
    runtime.thread(wait, "wait").start()
    pair.do(lambda: (event.wait(0.05), event.wait(20.0), event.wait(0.0)))
    pair.pass_time(30.0)
    assert sorted(order) == [0, 1, 2, 3]
    assert pair.results == [(False, True, True)]


def test_an_error_of_one_of_several_is_raised() -> None:
    pair = Pair()
    runtime = SimulatedRuntime(pair.worker, lambda _: None)
    done: list[int] = []

    def fail() -> None:
        raise NobodyListens("gone")

    pair.do(lambda: runtime.run_all([lambda: done.append(1), fail, lambda: done.append(2)], "some"))
    pair.pass_time(1.0)
    assert pair.results == [NobodyListens]
    assert sorted(done) == [1, 2]
