"""The feed: how long it gives batches, and which it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from tests.train.fakes import A, B, C, Loader, feed_of

from trainband.data import Batches, shared
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DataError
from trainband.model.batch import Several
from trainband.train.passes import Position


def generator(*batches: Any) -> Iterator[Any]:
    """Everything there is, once."""
    yield from batches


LENGTHS: list[tuple[Callable[[], Iterable[Any]], bool, int]] = [
    # batches, repeat -> how many come, of at most 7 asked for
    (lambda: [A, B, C], False, 3),
    (lambda: [A, B, C], True, 7),
    (lambda: Loader(A, B), True, 7),
    (lambda: generator(A, B, C), False, 3),
    (lambda: generator(A, B, C), True, 3),  # a generator is everything there is
    (lambda: iter([A]), True, 1),
    (lambda: {"a": A}.values(), True, 7),
]


@pytest.mark.parametrize(("make", "repeat", "count"), LENGTHS, ids=range(len(LENGTHS)))
def test_how_long_it_gives(make: Callable[[], Iterable[Any]], repeat: bool, count: int) -> None:
    for ahead in (None, 0, 1, 3):
        with feed_of(make(), repeat=repeat, ahead=ahead) as batches:
            assert len(list(islice(batches, 7))) == count


def test_batches_come_in_their_order_and_as_they_are() -> None:
    loader = Loader(A, B)
    found = list(islice(feed_of(loader, repeat=True), 5))
    assert [id(batch) for batch in found] == [id(A), id(B), id(A), id(B), id(A)]
    assert loader.epochs == 3


def test_a_batch_is_asked_for_when_it_is_wanted() -> None:
    asked: list[int] = []

    def source() -> Iterator[Any]:
        for i in range(3):
            asked.append(i)
            yield A

    batches = feed_of(source())
    assert asked == []
    next(batches)
    assert asked == [0]


def test_micro_batches_come_in_groups_and_a_rest_is_left_out() -> None:
    feed = feed_of(range(7), fixed_shapes=False, accumulate=3)
    assert list(feed) == [(0, 1, 2), (3, 4, 5)]


def test_too_few_batches_for_one_step_are_refused() -> None:
    with pytest.raises(DataError, match="there are 2 batches, too few for one step of accumulate=3"):
        list(feed_of(iter([0, 1]), fixed_shapes=False, accumulate=3))


def test_groups_go_over_the_ends_of_epochs() -> None:
    feed = feed_of([0, 1], repeat=True, fixed_shapes=False, accumulate=3)
    assert list(islice(feed, 2)) == [(0, 1, 0), (1, 0, 1)]
    feed.trained()
    assert feed.position == Position(passes=2, batches=2)


class Counting:
    """An iterator that hears what was trained on."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.heard: list[int] = []
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return A

    def trained(self, count: int) -> None:
        self.heard.append(count)

    def close(self) -> None:
        self.closed += 1


def test_an_iterator_hears_what_was_trained_on() -> None:
    passes = [Counting(2), Counting(2)]

    class Source:
        def __iter__(self) -> Iterator[Any]:
            return passes[begun.append(1) or len(begun) - 1]  # type: ignore[func-returns-value]

    begun: list[int] = []
    with feed_of(Source(), repeat=True, ahead=0) as feed:
        next(feed)
        assert passes[0].heard == [0]
        feed.trained()
        next(feed)
        next(feed)
        feed.trained()
        assert [one.heard for one in passes] == [[0, 1, 2], [0, 1]]
    assert [one.closed for one in passes] == [1, 1]


def test_an_iterator_of_the_callers_own_is_not_closed() -> None:
    own = Counting(3)
    with feed_of(own, repeat=True) as feed:
        next(feed)
    assert own.closed == 0
    assert list(feed) == []


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("trained", [0, 1, 3, 4, 10])
def test_a_position_without_a_state_is_found_by_counting(ahead: int, trained: int) -> None:
    data = [0, 1, 2]
    with feed_of(data, repeat=True, fixed_shapes=False, ahead=ahead) as feed:
        for _ in range(trained):
            next(feed)
            feed.trained()
        expected = list(islice(feed, 5))
        position = Position.from_json(feed.position.to_json())
    assert position == (Position((trained - 1) // 3, (trained - 1) % 3 + 1) if trained else Position())
    with feed_of(data, repeat=True, fixed_shapes=False, ahead=ahead, start=position) as again:
        assert again.position == position
        assert list(islice(again, 5)) == expected


def numbers(batches: Iterable[Any]) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


SOURCES: list[Callable[[], Any]] = [
    lambda: Batches(np.arange(50), batch_size=4, seed=3),
    lambda: shared(np.arange(50), batch_size=4, seed=3, piece=6),
]


@pytest.mark.parametrize("make", SOURCES, ids=["Batches", "SharedBatches"])
@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("trained", [0, 1, 7, 12, 13, 30])
def test_our_own_batches_go_on_exactly(make: Callable[[], Any], ahead: int, accumulate: int, trained: int) -> None:
    options: dict[str, Any] = {"repeat": True, "fixed_shapes": True, "ahead": ahead, "accumulate": accumulate}

    def shown(items: Iterable[Any]) -> list[Any]:
        return numbers(items) if accumulate == 1 else [numbers(item) for item in items]

    with feed_of(make(), **options) as feed:
        for _ in range(trained):
            next(feed)
            feed.trained()
        position = Position.from_json(feed.position.to_json())
        expected = shown(islice(feed, 9))
    assert position.batches == trained * accumulate
    assert position.beyond == 0
    assert (position.state is None) == (trained == 0)
    with feed_of(make(), start=position, **options) as again:
        assert shown(islice(again, 9)) == expected
        again.trained()
        assert again.position.batches == (trained + 9) * accumulate


def test_without_tracking_no_state_is_taken() -> None:
    feed = feed_of(SOURCES[0](), repeat=True, track=False)
    next(feed)
    feed.trained()
    assert feed.position == Position(0, 1)


class Stateful:
    """An iterable whose iterator gives one and the same object as its state."""

    def __init__(self, count: int, state: Any = None) -> None:
        self.count = count
        self.state = {"at": 0} if state is None else state
        self.asked = 0

    def __iter__(self) -> Stateful:
        other = Stateful(self.count, None if isinstance(self.state, dict) else self.state)
        self.iterator = other
        return other

    def __next__(self) -> int:
        if self.state["at"] == self.count:
            raise StopIteration
        self.state["at"] += 1
        return int(self.state["at"])

    def get_state(self) -> Any:
        self.asked += 1
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def test_a_state_that_the_iterator_goes_on_with_is_kept_as_it_was() -> None:
    with feed_of(Stateful(9), fixed_shapes=False, ahead=3) as feed:
        next(feed)
        feed.trained()
        next(feed)
        position = feed.position
        assert position == Position(0, 1, {"at": 1})
    assert next(feed_of(Stateful(9), fixed_shapes=False, start=position)) == 2


def test_a_costly_state_is_taken_seldom_and_the_rest_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Costly(Stateful):
        def __iter__(self) -> Stateful:
            self.iterator = Costly(self.count)
            return self.iterator

        def get_state(self) -> Any:
            clock[0] += 0.01
            return super().get_state()

    monkeypatch.setattr("trainband.train.passes.perf_counter", lambda: clock[0])
    source = Costly(2000)
    with feed_of(source, fixed_shapes=False, ahead=0) as feed:
        for _ in range(1000):
            next(feed)
            feed.trained()
            clock[0] += 0.001
        position = Position.from_json(feed.position.to_json())
    assert 3 <= source.iterator.asked <= 7
    assert position.beyond > 0
    assert position.state == {"at": 1000 - position.beyond}
    again = feed_of(Costly(2000), fixed_shapes=False, start=position)
    assert next(again) == 1001
    again.trained()
    assert again.position == Position(0, 1001, {"at": 1001})


@pytest.mark.parametrize("state", [{"at": 0, "x": np.zeros(2)}, {"at": 0, "x": b"nested"}])
def test_a_state_that_cannot_be_saved(state: Any) -> None:
    class Unfit(Stateful):
        def __iter__(self) -> Stateful:
            return self

    feed = feed_of(Unfit(3, state), fixed_shapes=False)
    next(feed)  # who wants no position is not troubled
    feed.trained()
    with pytest.raises(DataError, match=r"cannot be saved \(.*must return bytes, or dicts"):
        _ = feed.position


def broken() -> Iterator[Any]:
    yield A
    yield A
    raise LookupError("a file is missing")


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(("task", "words"), [("worker:1", "the data of worker:1, batch 2"), ("", "the data, batch 2")])
def test_an_error_of_the_data_is_its_own(ahead: int, task: str, words: str) -> None:
    feed = feed_of(broken(), ahead=ahead, task=task)
    next(feed)
    next(feed)
    with pytest.raises(LookupError, match="a file is missing") as caught:
        next(feed)
    assert caught.value.__notes__ == [f"raised by {words}"]
    assert caught.traceback[-1].name == "broken"
    assert list(feed) == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_so_many_are_got_ready(ahead: int) -> None:
    taken = threading.Semaphore(0)
    count = [0]

    def source() -> Iterator[Any]:
        while True:
            count[0] += 1
            taken.release()
            yield A

    with feed_of(source(), ahead=ahead) as feed:
        assert count == [0]
        next(feed)
        for _ in range(ahead + 1):
            assert taken.acquire(timeout=10)
        assert feed.reads_ahead
    assert count[0] == ahead + 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the feed, which stands still until it is moved."""
    now = [0.0]
    monkeypatch.setattr("trainband.train.passes.perf_counter", lambda: now[0])
    monkeypatch.setattr("trainband.train.batch_feed.SYSTEM.clock", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("give_s", "train_s", "owned", "threaded"),
    [
        (0.001, 0.001, True, True),
        (0.001, 0.001, False, False),  # what is read ahead of the caller's own iterator would be missing there
        (0.0001, 0.0, True, False),
        (0.001, 0.1, True, False),
    ],
)
def test_it_reads_ahead_where_that_pays(
    clock: list[float], give_s: float, train_s: float, owned: bool, threaded: bool
) -> None:
    class Slow:
        def __iter__(self) -> Iterator[Any]:
            for value in range(100):
                clock[0] += give_s
                yield value

    source: Any = Slow() if owned else iter(Slow())
    found = []
    with feed_of(source, fixed_shapes=False) as feed:
        for value in feed:
            clock[0] += train_s
            found.append(value)
            assert feed.reads_ahead == (threaded and len(found) >= 20)
    assert found == list(range(100))


def test_a_thread_ends_with_the_data_and_without_a_close() -> None:
    feed = feed_of([A, B], ahead=5)
    assert len(list(feed)) == 2


def test_a_feed_that_is_never_asked_has_no_thread() -> None:
    feed_of([A], repeat=True, ahead=2).close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_waiting_for_other_workers_is_told_when_nothing_is_left(ahead: int) -> None:
    settings: list[Any] = []
    told: list[str] = []

    def office(request: LeaseRequest) -> LeaseAnswer:
        settings.append(request)
        kinds = ["piece", "wait", "wait", "end"]
        kind: Any = kinds[min(len(settings), 4) - 1]
        return LeaseAnswer(kind, 0, 0, 0, 4, 0, (7,))

    batches = shared(np.arange(8), batch_size=4, piece=4, epochs=1)
    batches.bind(office)
    with feed_of(batches, repeat=True, ahead=ahead, idle=lambda: told.append("idle")) as feed:
        for _ in feed:
            told.append("batch")
            feed.trained()
    assert told == ["batch", "idle"]


def test_a_worker_that_comes_when_all_is_done_has_nothing_to_do() -> None:
    batches = shared(np.arange(8), batch_size=4, epochs=1)
    batches.bind(lambda _: LeaseAnswer("end"))
    assert list(feed_of(batches, repeat=True)) == []


def test_close_ends_a_thread_that_waits_for_other_workers() -> None:
    batches = shared(np.arange(8), batch_size=4, epochs=1)
    batches.bind(lambda _: LeaseAnswer("wait", holders=(1,)))
    waits = threading.Event()
    feed = feed_of(batches, repeat=True, ahead=1, idle=waits.set)
    consumer = threading.Thread(target=lambda: list(feed))
    consumer.start()
    assert waits.wait(10)
    feed.close()
    consumer.join(10)
    assert not consumer.is_alive()


@pytest.mark.parametrize(
    "settings",
    [{"ahead": 2}, {"accumulate": 3}, {"steps_per_execution": 3}],
    ids=["read ahead", "micro-batches", "steps"],
)
def test_what_waits_is_not_written_over(settings: dict[str, Any]) -> None:
    """A loader may write its next batch into the same memory."""

    class Reuses:
        def __iter__(self) -> Iterator[Any]:
            room = np.empty(4, np.float32)
            for value in range(12):
                room[:] = value
                yield room

    given: list[Any] = []
    with feed_of(Reuses(), **settings) as feed:
        for item in feed:
            batches = item.batches if isinstance(item, Several) else item if isinstance(item, tuple) else (item,)
            given += [float(batch[0]) for batch in batches]
    assert given == list(range(12))
