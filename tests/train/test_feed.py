"""The feed: how long it gives batches, and which it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from trainband.data import Batches, shared
from trainband.data.leases import LeaseAnswer, LeaseRequest
from trainband.errors import DataError
from trainband.model.batch import Several
from trainband.train.feed import Feed
from trainband.train.passes import Position
from trainband.train.shapes import Shapes

A, B, C = (np.full((4, 2), value, np.float32) for value in range(3))


def generator(*batches: Any) -> Iterator[Any]:
    """Everything there is, once."""
    yield from batches


class Loader:
    """Can be iterated afresh, and counts how often it was."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        return iter(self.batches)


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
        with Feed(make(), repeat=repeat, fixed_shapes=True, ahead=ahead) as batches:
            assert len(list(islice(batches, 7))) == count


def test_batches_come_in_their_order_and_as_they_are() -> None:
    loader = Loader(A, B)
    found = list(islice(Feed(loader, repeat=True, fixed_shapes=True), 5))
    assert [id(batch) for batch in found] == [id(A), id(B), id(A), id(B), id(A)]
    assert loader.epochs == 3


def test_a_batch_is_asked_for_when_it_is_wanted() -> None:
    asked: list[int] = []

    def source() -> Iterator[Any]:
        for i in range(3):
            asked.append(i)
            yield A

    batches = Feed(source(), repeat=False, fixed_shapes=True)
    assert asked == []
    next(batches)
    assert asked == [0]


@pytest.mark.parametrize("batches", [[], iter([]), Loader()], ids=["list", "iterator", "loader"])
@pytest.mark.parametrize("repeat", [False, True])
def test_no_batches(batches: Iterable[Any], repeat: bool) -> None:
    with pytest.raises(DataError, match="there are no batches to train on: the iterable is empty"):
        next(Feed(batches, repeat=repeat, fixed_shapes=True))


def test_a_loader_that_has_run_dry() -> None:
    loader = Loader(A)
    batches = Feed(loader, repeat=True, fixed_shapes=True)
    next(batches)
    loader.batches = ()
    with pytest.raises(DataError, match="no batches"):
        next(batches)


CHANGES: list[tuple[Any, Any, str]] = [
    # first, then -> the words
    (A, A[:3], r"batch 1: its array 0 is float32\[3, 2\], in the first batch it was float32\[4, 2\]; drop the last"),
    (A, A.astype(np.float64), r"is float64\[4, 2\], in the first batch it was float32"),
    ((A, np.zeros(4)), (A, np.zeros(3)), r"its array 1 is float64\[3\]"),
    ((A, B), (A,), "batch 1 has 1 arrays, the first batch had 2"),
    ({"x": A}, {"y": A}, "batch 1 has another structure than the first"),
    ((A, B), [A, B], "another structure"),
    (A, A[0], r"float32\[2\]"),
    (1, 1.0, r"is <class 'float'>\[\], in the first batch it was <class 'int'>\[\]"),
]


@pytest.mark.parametrize(("first", "then", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_batch_of_another_shape(first: Any, then: Any, words: str) -> None:
    batches = Feed([first, then], repeat=False, fixed_shapes=True)
    next(batches)
    with pytest.raises(DataError, match=words) as caught:
        next(batches)
    assert "pass Trainer(fixed_shapes=False)" in str(caught.value)
    assert len(list(Feed([first, then], repeat=False, fixed_shapes=False))) == 2


@pytest.mark.parametrize("batch", [[1.0, 2.0], (A, [0, 1]), {"x": A.tolist()}], ids=["bare", "labels", "rows"])
def test_lists_of_numbers_are_no_arrays(batch: Any) -> None:
    with pytest.raises(DataError, match=r"batch\S* is a Python list of numbers, .* give np.asarray\(...\) of it"):
        next(Feed([batch], repeat=False, fixed_shapes=True))


def test_the_next_epoch_is_compared_with_the_first() -> None:
    loader = Loader(A)
    batches = Feed(loader, repeat=True, fixed_shapes=True)
    next(batches)
    loader.batches = (A[:2],)
    with pytest.raises(DataError, match="batch 1"):
        next(batches)


def sizes(*first: int) -> list[Any]:
    return [np.zeros((size, 2), np.float32) for size in first]


def test_shorter_batches_of_a_source_that_has_them() -> None:
    class Short(Loader):
        short_last = True

    assert len(list(Feed(Short(*sizes(4, 4, 3, 4, 1)), repeat=False, fixed_shapes=True))) == 5
    for batch in (np.zeros((5, 2), np.float32), np.zeros((3, 3), np.float32), np.zeros((3, 2)), A[0]):
        with pytest.raises(DataError, match="batch 1: its array 0"):
            list(Feed(Short(A, batch), repeat=False, fixed_shapes=True))


def test_micro_batches_come_in_groups_and_a_rest_is_left_out() -> None:
    feed = Feed("abcdefg", repeat=False, fixed_shapes=False, accumulate=3)
    assert list(feed) == [("a", "b", "c"), ("d", "e", "f")]


def test_too_few_batches_for_one_step_are_refused() -> None:
    with pytest.raises(DataError, match="there are 2 batches, too few for one step of accumulate=3"):
        list(Feed(iter("ab"), repeat=False, fixed_shapes=False, accumulate=3))


def test_groups_go_over_the_ends_of_epochs() -> None:
    feed = Feed("ab", repeat=True, fixed_shapes=False, accumulate=3)
    assert list(islice(feed, 2)) == [("a", "b", "a"), ("b", "a", "b")]
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
    with Feed(Source(), repeat=True, fixed_shapes=True, ahead=0) as feed:
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
    with Feed(own, repeat=True, fixed_shapes=True) as feed:
        next(feed)
    assert own.closed == 0
    assert list(feed) == []


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("trained", [0, 1, 3, 4, 10])
def test_a_position_without_a_state_is_found_by_counting(ahead: int, trained: int) -> None:
    data = list("abc")
    with Feed(data, repeat=True, fixed_shapes=False, ahead=ahead) as feed:
        for _ in range(trained):
            next(feed)
            feed.trained()
        expected = list(islice(feed, 5))
        position = Position.from_json(feed.position.to_json())
    assert position == (Position((trained - 1) // 3, (trained - 1) % 3 + 1) if trained else Position())
    with Feed(data, repeat=True, fixed_shapes=False, ahead=ahead, start=position) as again:
        assert again.position == position
        assert list(islice(again, 5)) == expected


def test_a_position_beyond_the_end() -> None:
    with pytest.raises(DataError, match="the data ends after 3 batches, but the training was at batch 5 of it"):
        next(Feed("abc", repeat=True, fixed_shapes=False, start=Position(0, 5)))


def test_at_the_very_end_nothing_follows() -> None:
    assert list(Feed("abc", repeat=False, fixed_shapes=False, start=Position(0, 3))) == []


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

    with Feed(make(), **options) as feed:
        for _ in range(trained):
            next(feed)
            feed.trained()
        position = Position.from_json(feed.position.to_json())
        expected = shown(islice(feed, 9))
    assert position.batches == trained * accumulate
    assert position.beyond == 0
    assert (position.state is None) == (trained == 0)
    with Feed(make(), start=position, **options) as again:
        assert shown(islice(again, 9)) == expected
        again.trained()
        assert again.position.batches == (trained + 9) * accumulate


def test_without_tracking_no_state_is_taken() -> None:
    feed = Feed(SOURCES[0](), repeat=True, fixed_shapes=True, track=False)
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
    with Feed(Stateful(9), repeat=False, fixed_shapes=False, ahead=3) as feed:
        next(feed)
        feed.trained()
        next(feed)
        position = feed.position
        assert position == Position(0, 1, {"at": 1})
    assert next(Feed(Stateful(9), repeat=False, fixed_shapes=False, start=position)) == 2


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
    with Feed(source, repeat=False, fixed_shapes=False, ahead=0) as feed:
        for _ in range(1000):
            next(feed)
            feed.trained()
            clock[0] += 0.001
        position = Position.from_json(feed.position.to_json())
    assert 3 <= source.iterator.asked <= 7
    assert position.beyond > 0
    assert position.state == {"at": 1000 - position.beyond}
    again = Feed(Costly(2000), repeat=False, fixed_shapes=False, start=position)
    assert next(again) == 1001
    again.trained()
    assert again.position == Position(0, 1001, {"at": 1001})


@pytest.mark.parametrize("state", [{"at": 0, "x": np.zeros(2)}, {"at": 0, "x": b"nested"}])
def test_a_state_that_cannot_be_saved(state: Any) -> None:
    class Unfit(Stateful):
        def __iter__(self) -> Stateful:
            return self

    feed = Feed(Unfit(3, state), repeat=False, fixed_shapes=False)
    next(feed)  # who wants no position is not troubled
    feed.trained()
    with pytest.raises(DataError, match=r"cannot be saved \(.*must give bytes, or dicts"):
        _ = feed.position


def test_bytes_are_a_state() -> None:
    position = Position(1, 2, b"\x00\xff", 3)
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"passes":-1,"batches":0,"beyond":0,"state":{"value":null}}'])
def test_no_position(text: str) -> None:
    with pytest.raises(DataError, match="this is no position"):
        Position.from_json(text)


def test_batches_are_placed_after_the_check() -> None:
    feed = Feed([A, B, A[:2]], repeat=False, fixed_shapes=True, place=lambda batch: batch.sum())
    assert [float(next(feed)), float(next(feed))] == [0.0, 8.0]
    with pytest.raises(DataError, match="batch 2"):
        next(feed)


def broken() -> Iterator[Any]:
    yield A
    yield A
    raise LookupError("a file is missing")


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(("task", "words"), [("worker:1", "the data of worker:1, batch 2"), ("", "the data, batch 2")])
def test_an_error_of_the_data_is_its_own(ahead: int, task: str, words: str) -> None:
    feed = Feed(broken(), repeat=False, fixed_shapes=True, ahead=ahead, task=task)
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

    with Feed(source(), repeat=False, fixed_shapes=True, ahead=ahead) as feed:
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
    monkeypatch.setattr("trainband.train.feed.SYSTEM.clock", lambda: now[0])
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
    with Feed(source, repeat=False, fixed_shapes=False) as feed:
        for value in feed:
            clock[0] += train_s
            found.append(value)
            assert feed.reads_ahead == (threaded and len(found) >= 20)
    assert found == list(range(100))


def test_a_thread_ends_with_the_data_and_without_a_close() -> None:
    feed = Feed([A, B], repeat=False, fixed_shapes=True, ahead=5)
    assert len(list(feed)) == 2


def test_a_feed_that_is_never_asked_has_no_thread() -> None:
    Feed([A], repeat=True, fixed_shapes=True, ahead=2).close()


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
    with Feed(batches, repeat=True, fixed_shapes=True, ahead=ahead, idle=lambda: told.append("idle")) as feed:
        for _ in feed:
            told.append("batch")
            feed.trained()
    assert told == ["batch", "idle"]


def test_a_worker_that_comes_when_all_is_done_has_nothing_to_do() -> None:
    batches = shared(np.arange(8), batch_size=4, epochs=1)
    batches.bind(lambda _: LeaseAnswer("end"))
    assert list(Feed(batches, repeat=True, fixed_shapes=True)) == []


def test_close_ends_a_thread_that_waits_for_other_workers() -> None:
    batches = shared(np.arange(8), batch_size=4, epochs=1)
    batches.bind(lambda _: LeaseAnswer("wait", holders=(1,)))
    waits = threading.Event()
    feed = Feed(batches, repeat=True, fixed_shapes=True, ahead=1, idle=waits.set)
    consumer = threading.Thread(target=lambda: list(feed))
    consumer.start()
    assert waits.wait(10)
    feed.close()
    consumer.join(10)
    assert not consumer.is_alive()


def test_one_batch_that_takes_long_is_no_reason_to_read_ahead(clock: list[float]) -> None:
    """Such as the first: what is found out about it then is known for all others."""

    class SlowAtFirst:
        def __iter__(self) -> Iterator[Any]:
            for value in range(100):
                clock[0] += 0.00005 if value else 1.0
                yield value

    with Feed(SlowAtFirst(), repeat=False, fixed_shapes=False) as feed:
        for _ in feed:
            clock[0] += 0.001
        assert not feed.reads_ahead


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
    with Feed(Reuses(), repeat=False, fixed_shapes=True, **settings) as feed:
        for item in feed:
            batches = item.batches if isinstance(item, Several) else item if isinstance(item, tuple) else (item,)
            given += [float(batch[0]) for batch in batches]
    assert given == list(range(12))


def test_a_batch_without_examples_is_refused() -> None:
    shapes = Shapes(shorter=True)
    shapes.check((np.zeros((4, 3)), np.zeros(4)), 0)
    with pytest.raises(DataError, match=r"^batch 1 has no examples"):
        shapes.check((np.zeros((0, 3)), np.zeros(0)), 1)
