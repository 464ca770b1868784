"""The simulated network and processes keep the promises that real ones keep, and no others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.simulation.network import End, Network, Weather
from tests.simulation.process import Process
from tests.simulation.scheduler import Scheduler
from trainband.errors import DeadlineExceeded, PeerError, Refused, StreamClosed, Unreachable


class Echo:
    """A server that answers with what it is asked, and keeps what comes on streams."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.asked: list[Any] = []
        self.frames: list[Any] = []
        self.ends: list[End] = []
        self.ended = 0

    def call(self, seat: int, action: str, letter: Any) -> Any:
        self.asked.append((seat, action, letter))
        if action == "no":
            raise Refused("no")
        return letter

    def accept(self, seat: int, end: End) -> None:  # noqa: ARG002 - one seat here
        self.ends.append(end)
        end.on_frame = self.frames.append
        end.on_end = self._end

    def _end(self) -> None:
        self.ended += 1


class Pair:
    """A worker, and a ps that echoes."""

    def __init__(self, seed: int = 0, weather: Weather | None = None) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(seed))
        if weather is not None:
            self.network.weather = weather
        self.worker = Process("worker:0", "w", self.scheduler)
        self.echo = Echo(Process("ps:0", "p", self.scheduler))
        self.network.serve("ps:0", self.echo)
        self.outcomes: list[tuple[float, Any]] = []

    def ask(self, action: str, letter: Any) -> None:
        self.worker.spawn(self._ask(action, letter))

    async def _ask(self, action: str, letter: Any) -> None:
        try:
            outcome: Any = await self.network.call(self.worker, "ps:0", 0, action, letter, 2.0)
        except PeerError as exc:
            outcome = type(exc)
        self.outcomes.append((self.scheduler.now, outcome))

    def pass_time(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds, lambda: False)

    @property
    def results(self) -> list[Any]:
        return [outcome for _, outcome in self.outcomes]


def test_a_call_is_answered_or_refused() -> None:
    pair = Pair()
    pair.ask("yes", 7)
    pair.ask("no", 8)
    pair.pass_time(1.0)
    assert sorted(map(str, pair.results)) == sorted(["7", str(Refused)])


@pytest.mark.parametrize(("source", "target"), [("worker:0", "ps:0"), ("ps:0", "worker:0")])
def test_a_call_over_a_cut_is_not_answered_whether_it_arrived_or_not(source: str, target: str) -> None:
    pair = Pair()
    pair.network.cut(source, target, 1.0)
    pair.ask("yes", 7)
    pair.pass_time(3.0)
    assert pair.outcomes == [(2.0, DeadlineExceeded)]
    assert len(pair.echo.asked) == (source == "ps:0")
    pair.ask("yes", 8)
    pair.pass_time(1.0)
    assert pair.results[-1] == 8


def test_a_dead_process_is_unreachable_and_a_paused_one_answers_later() -> None:
    pair = Pair()
    pair.echo.process.pause()
    pair.ask("yes", 7)
    pair.pass_time(1.0)
    assert not pair.outcomes
    pair.echo.process.resume()
    pair.pass_time(0.5)
    assert pair.results == [7]
    pair.echo.process.die()
    pair.ask("yes", 8)
    pair.pass_time(0.5)
    assert pair.results[-1] is Unreachable


def test_a_paused_process_does_nothing_until_it_goes_on() -> None:
    pair = Pair()
    pair.ask("yes", 7)
    pair.worker.pause()
    pair.pass_time(5.0)
    assert not pair.outcomes
    pair.worker.resume()
    assert pair.results == [7]


def test_what_is_sent_to_one_life_never_comes_to_the_next() -> None:
    pair = Pair()
    pair.ask("yes", 7)
    pair.echo.process.die()
    heir = Echo(Process("ps:0", "q", pair.scheduler))
    pair.network.serve("ps:0", heir)
    pair.pass_time(3.0)
    assert not heir.asked
    assert pair.results == [Unreachable]


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_brings_a_beginning_of_what_was_sent_in_order(seed: int) -> None:
    pair = Pair(seed)
    near: list[End] = []

    async def talk() -> None:
        near.append(await pair.network.open_stream(pair.worker, "ps:0", 0, 2.0))

    pair.worker.spawn(talk())
    pair.pass_time(1.0)
    pair.network.weather = Weather(broken_stream=0.05, slow=0.2)
    ends: list[float] = []
    near[0].on_end = lambda: ends.append(pair.scheduler.now)
    sent = 0
    for number in range(30):
        try:
            near[0].send(number)
        except StreamClosed:
            break
        sent += 1
        pair.pass_time(0.05)
    pair.pass_time(60.0)
    frames = pair.echo.frames
    assert frames == list(range(len(frames)))
    assert len(frames) <= sent
    if len(frames) < sent:
        assert (len(ends), pair.echo.ended) == (1, 1)  # both ends learn of a break
    else:
        assert pair.echo.ended == len(ends)


def test_the_other_end_learns_of_a_death() -> None:
    pair = Pair()

    async def talk() -> None:
        end = await pair.network.open_stream(pair.worker, "ps:0", 0, 2.0)
        end.send("last words")

    pair.worker.spawn(talk())
    pair.pass_time(0.045)
    pair.worker.die()
    pair.pass_time(1.0)
    assert pair.echo.frames == ["last words"]
    assert pair.echo.ended == 1
