"""The collector: one ps leads to all, and however many look, each is asked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.monitor.jobs import SimulatedAsker, SimulatedJob, ps_status

from trainband.errors import Unreachable
from trainband.job.statistics import PsStatus
from trainband.monitor.collector import Collector
from trainband.monitor.live_feed import MOST_EVENTS, LiveFeed


class Watched:
    """A simulated job whose collector notes whom it asks."""

    def __init__(self, job: SimulatedJob, asked_at: int = 0) -> None:
        self.job = job
        self.feed = LiveFeed(job.address(asked_at))
        self.questions: Counter[str] = Counter()
        # However slow this machine is, each look has its answers.
        self.collector = Collector(
            job.address(asked_at), self.feed, connect=self._connect, clock=lambda: self.job.now, wait_s=60.0
        )

    def _connect(self, address: str) -> SimulatedAsker:
        asker, questions = SimulatedAsker(self.job, address), self.questions

        class Counting(SimulatedAsker):
            def __init__(self) -> None:
                """As the other one."""

            def ask(self) -> PsStatus:
                questions[address] += 1
                return asker.ask()

        return Counting()

    def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self.job.advance()
            self.collector.poll()


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Watches simulated jobs, and lets go of them."""
    made: list[Watched] = []

    def start(job: SimulatedJob, asked_at: int = 0) -> Watched:
        made.append(Watched(job, asked_at))
        return made[-1]

    yield start
    for one in made:
        one.collector.close()


@pytest.mark.smoke
def test_any_ps_leads_to_the_others(watch: Watch) -> None:
    watched = watch(SimulatedJob(workers=4, ps=3), asked_at=1)
    watched.poll(2)
    snapshot = watched.feed.snapshot
    assert [(view.task, view.up) for view in snapshot.ps] == [("ps:0", True), ("ps:1", True), ("ps:2", True)]
    assert snapshot.live_workers == 4
    assert watched.questions == {watched.job.address(n): 2 if n == 1 else 1 for n in range(3)}


def test_viewers_cost_the_job_nothing(watch: Watch) -> None:
    watched = watch(SimulatedJob(workers=2, ps=1))
    told = [0] * 50
    ends = []
    for number in range(50):

        def answer(number: int = number) -> None:
            told[number] += 1

        ends.append(watched.feed.listen(answer))
    watched.poll(3)
    assert watched.questions.total() == 3
    assert set(told) == {3}
    for end in ends:
        end()
    watched.poll()
    assert set(told) == {3}, "who has gone is told nothing"


def test_a_large_job_is_asked_for_little(watch: Watch) -> None:
    watched = watch(SimulatedJob(workers=1000, ps=32))
    watched.poll(10)
    assert watched.questions[watched.job.address(0)] == 10
    assert max(watched.questions[watched.job.address(number)] for number in range(1, 32)) <= 3


def test_a_ps_dies_another_takes_over_and_it_comes_back(watch: Watch) -> None:
    job = SimulatedJob(workers=2, ps=3)
    watched = watch(job)
    watched.poll(3)
    job.silent.add(0)
    watched.poll(2)
    assert watched.feed.snapshot.state == "running"
    job.held_by[0] = (1, 2)
    watched.poll(2)
    assert watched.feed.snapshot.global_step == job.version, "from ps:1 now"
    job.silent.clear()
    watched.poll()
    kinds = [event.kind for _, event in watched.feed.events_after()]
    for kind in ("silent", "failover", "answers"):
        assert kinds.count(kind) == 1, (kind, kinds)


def test_a_job_that_begins_late_ends_and_is_followed_by_another(watch: Watch) -> None:
    job = SimulatedJob(workers=1, ps=1, last_step=12, silent={0})
    watched = watch(job)
    watched.poll(2)
    waiting = watched.feed.snapshot
    assert waiting.state == "waiting"
    assert "nothing listens" in waiting.reason
    job.silent.clear()
    watched.poll(8)
    states = [watched.feed.snapshot.state]
    rows = len(watched.feed.columns()["at"])
    assert rows > 1
    job.silent.add(0)
    watched.poll(2)
    states.append(watched.feed.snapshot.state)
    assert len(watched.feed.columns()["at"]) == rows, "the curves stay"
    watched.job = SimulatedJob(workers=1, ps=1, now=job.now)
    watched.collector._askers.clear()  # noqa: SLF001 - as if its connection had broken
    watched.poll(2)
    states.append(watched.feed.snapshot.state)
    assert states == ["ended", "ended", "running"]


def test_another_task_at_the_address_of_a_ps_is_not_taken_for_it() -> None:
    feed = LiveFeed("a:1")

    class Asker:
        def __init__(self, address: str) -> None:
            self.address = address

        def ask(self) -> PsStatus:
            if self.address == "gone:1":
                raise Unreachable("nobody listens")
            return ps_status(0, ps_addresses=("a:1", "b:1", "gone:1"))

        def close(self) -> None:
            """Nothing is open."""

    collector = Collector("a:1", feed, connect=Asker, wait_s=60.0)
    for _ in range(2):
        collector.poll()
    collector.close()
    assert [view.up for view in feed.snapshot.ps] == [True, False, False]
    assert feed.snapshot.ps[1].reason == "ps:0 answers at b:1, where ps:1 should be."


def test_events_are_bounded(watch: Watch) -> None:
    watched = watch(SimulatedJob(workers=1, ps=1))
    for _ in range(MOST_EVENTS // 2 + 5):
        watched.job.presence = {0: "lost"}
        watched.poll()
        watched.job.presence = {}
        watched.poll()
    events = watched.feed.events_after()
    assert len(events) == MOST_EVENTS
    assert events[-1][0] > MOST_EVENTS
