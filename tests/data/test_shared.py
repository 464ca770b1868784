"""Shared data: batches out of leased pieces."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainband.data import Batches, SharedBatches, shared
from trainband.data.leases import LeaseAnswer, LeaseRequest, PieceLedger
from trainband.data.shared_batches import SharedIterator
from trainband.errors import DataError, Unreachable

N = 103


def numbers(**options: Any) -> SharedBatches:
    """Batches that are the numbers of the examples."""
    arguments: dict[str, Any] = {"batch_size": 4, "load": lambda indices: indices.copy(), "piece": 7} | options
    return shared(arguments.pop("examples", N), **arguments)


def plain(batches: Iterator[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def flat(batches: Iterator[Any]) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


class Office:
    """A job's ledger, and what was asked of it."""

    def __init__(self) -> None:
        self.ledger: PieceLedger | None = None
        self.requests: list[tuple[int, LeaseRequest]] = []

    def door(self, worker: int) -> Callable[[LeaseRequest], LeaseAnswer]:
        def ask(request: LeaseRequest) -> LeaseAnswer:
            self.ledger = self.ledger or PieceLedger(request.settings)
            self.requests.append((worker, request))
            return self.ledger.lease(worker, request)

        return ask

    def lose(self, worker: int) -> None:
        assert self.ledger is not None
        self.ledger.release(worker)


@pytest.mark.parametrize("batch_size", [1, 4, 10, 103, 200])
@pytest.mark.parametrize("piece", [None, 1, 7, 1000])
@pytest.mark.parametrize("drop", [False, True])
def test_one_worker_visits_all(batch_size: int, piece: int | None, drop: bool) -> None:
    batches = numbers(batch_size=batch_size, piece=piece, epochs=3, drop_remainder=drop)
    found = [batch.tolist() for batch in batches]
    seen = [number for batch in found for number in batch]
    whole = [np.random.RandomState(np.random.PCG64([0, epoch])).permutation(N) for epoch in range(3)]
    expected = np.concatenate(whole).tolist()
    assert seen == expected[: len(expected) - (len(expected) % batch_size if drop else 0)]
    assert all(len(batch) == batch_size for batch in found[:-1])
    assert (batches.report.examples_visited, batches.report.repeated) == (len(seen), 0)


@pytest.mark.smoke
def test_arrays_are_batched_as_batches_does() -> None:
    rows = np.arange(N * 5, dtype=np.float32).reshape(N, 5)
    labels = np.arange(N)
    expected = Batches(rows, labels, batch_size=4, seed=3, epochs=1, drop_remainder=False)
    found = shared((rows, labels), batch_size=4, seed=3, epochs=1, piece=9)
    for (a, b), (c, d) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)
        assert c.ctypes.data % 64 == 0
    (alone,) = shared(labels, batch_size=N, epochs=1, shuffle=False)
    np.testing.assert_array_equal(alone, labels)


def test_the_default_piece_spreads_the_work() -> None:
    def piece(examples: int, batch_size: int) -> int:
        return numbers(examples=examples, batch_size=batch_size, piece=None).settings.piece

    assert piece(60000, 100) == 800
    assert piece(6400, 100) == 200
    assert piece(1000, 100) == 100
    assert shared(["a", "b"], batch_size=100, load=lambda path: [path]).settings.piece == 1


class Waiting(Exception):
    """In place of a pause."""


def waits(_: float) -> None:
    raise Waiting


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("drop", [False, True])
def test_workers_share_and_end(count: int, drop: bool) -> None:
    """In turn, each batch trained on at once: the inline way."""
    office = Office()
    seen: list[int] = []
    running: dict[int, SharedIterator] = {}
    for worker in range(count):
        batches = numbers(epochs=2, drop_remainder=drop)
        batches.bind(office.door(worker))
        running[worker] = iterator = iter(batches)
        iterator.trained(0)
        iterator.pause = waits
    done = dict.fromkeys(running, 0)
    while running:
        stuck = 0
        for worker, iterator in list(running.items()):
            try:
                batch = next(iterator, None)
            except Waiting:
                stuck += 1
                continue
            if batch is None:
                del running[worker]
                continue
            seen += batch.tolist()
            done[worker] += 1
            iterator.trained(done[worker])
        assert stuck < count, "each waits for another"
    if drop:
        assert 2 * N - len(seen) < 4 * count
    else:
        assert sorted(seen) == sorted([*range(N)] * 2)
    assert office.ledger is not None
    assert office.ledger.repeated == 0
    assert all(office.ledger.held_by(worker) == () for worker in range(count))


def test_a_lost_workers_piece_comes_after_the_wait_and_the_wait_is_spoken_of() -> None:
    office, lines, waits = Office(), list[str](), list[int]()
    other = numbers(examples=16, piece=8, epochs=1)
    other.bind(office.door(1))
    theirs = iter(other)
    theirs.trained(0)
    lost = next(theirs).tolist() + next(theirs).tolist()
    theirs.trained(1)

    batches = numbers(examples=16, piece=8, epochs=1)
    batches.bind(office.door(0), lines.append)
    iterator = iter(batches)
    idle: list[bool] = []
    iterator.on_wait = lambda: idle.append(True)

    def pause(seconds: float) -> None:
        waits.append(1)
        assert seconds == 0.05
        if len(waits) == 250:
            office.lose(1)

    iterator.pause = pause
    seen = flat(iterator)
    assert sorted(seen + lost) == sorted([*range(16), *lost])
    assert batches.report.repeated == 8  # nothing was reported of it
    assert idle == [True]
    assert lines == [
        "waiting for worker number 1 to train on the last pieces of 'data', which this worker takes over "
        f"if it is lost ({seconds} s)"
        for seconds in (5, 10)
    ]


def test_close_ends_a_wait_at_once() -> None:
    office = Office()
    other = numbers(examples=4, piece=4, epochs=1)
    other.bind(office.door(1))
    theirs = iter(other)
    theirs.trained(0)
    next(theirs)
    batches = numbers(examples=4, piece=4, epochs=1)
    batches.bind(office.door(0))
    iterator = iter(batches)
    waits = threading.Event()
    iterator.on_wait = waits.set
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(next(iterator, "end")))
    thread.start()
    assert waits.wait(10)
    iterator.close()
    thread.join(10)
    assert ended == ["end"]
    theirs.trained(1)
    assert office.requests[-1][1].finished == ()
    assert next(theirs, None) is None
    assert office.requests[-1][1].finished in (((0, 0),), ())
    assert office.ledger is not None
    assert office.ledger.held_by(1) == ()


def test_what_was_trained_on_is_reported_and_nothing_else() -> None:
    office = Office()
    batches = numbers(piece=4)
    batches.bind(office.door(0))
    iterator = iter(batches)
    iterator.trained(0)
    for _ in range(3):
        next(iterator)
    iterator.trained(2)
    next(iterator)
    assert office.requests[-1][1].finished == ((0, 0), (0, 1))
    assert office.requests[-1][1].progress == ((0, 2, 0),)
    assert batches.report.examples_visited == 8
    iterator.close()
    assert office.requests[-1][1].want is False
    assert office.ledger is not None
    assert office.ledger.held_by(0) == ()
    count = len(office.requests)
    iterator.close()
    assert len(office.requests) == count
    assert next(iterator, None) is None


def test_a_request_is_sent_again_when_the_way_to_the_office_broke() -> None:
    office = Office()
    broken = [True]

    def ask(request: LeaseRequest) -> LeaseAnswer:
        answer = office.door(0)(request)
        if broken.pop():
            raise Unreachable("no way")
        broken.append(False)
        return answer

    batches = numbers(epochs=1)
    batches.bind(ask)
    iterator = iter(batches)
    with pytest.raises(Unreachable):
        next(iterator)
    broken.append(False)
    assert sorted(flat(iterator)) == list(range(N))
    assert [request.number for _, request in office.requests[:3]] == [1, 1, 2]


def test_leaving_unheard_is_no_error() -> None:
    batches = numbers()
    office = Office()
    batches.bind(office.door(0))
    iterator = iter(batches)
    next(iterator)

    def gone(_: LeaseRequest) -> LeaseAnswer:
        raise Unreachable("no way")

    batches.bind(gone)
    iterator.close()


@pytest.mark.parametrize("trained", [0, 1, 20, 33, 51])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_state_continues_exactly(trained: int, ahead: int) -> None:
    expected = plain(iter(numbers(epochs=2)))
    iterator = iter(numbers(epochs=2))
    iterator.trained(0)
    for _ in range(min(trained + ahead, len(expected))):
        next(iterator)
    iterator.trained(trained)
    state = json.loads(json.dumps(iterator.get_state()))
    batches = numbers(epochs=2)
    again = iter(batches)
    again.set_state(state)
    assert json.loads(json.dumps(again.get_state()))["progress"] == state["progress"]
    assert plain(again) == expected[trained:]
    assert (batches.report.examples_visited, batches.report.repeated) == (2 * N, 0)


def test_a_state_without_trained_is_that_after_the_last_batch() -> None:
    iterator = iter(numbers(epochs=1))
    list(islice(iterator, 5))
    again = iter(numbers(epochs=1))
    again.set_state(iterator.get_state())
    assert plain(again) == plain(iterator)


def test_states_of_a_job_go_on_with_its_ledger() -> None:
    office = Office()
    expected: dict[int, list[list[int]]] = {}
    states = {}
    seen: list[int] = []
    iterators = {}
    for worker in (0, 1):
        batches = numbers()
        batches.bind(office.door(worker))
        iterators[worker] = iter(batches)
        iterators[worker].trained(0)
    for step in range(1, 9):
        for iterator in iterators.values():
            seen += next(iterator).tolist()
            iterator.trained(step)
    for worker, iterator in iterators.items():
        states[worker] = json.loads(json.dumps(iterator.get_state()))
        assert "ledger" not in states[worker]
        expected[worker] = []
    assert office.ledger is not None
    record = office.ledger.record()
    for _ in range(3):
        for worker, iterator in iterators.items():
            expected[worker].append(next(iterator).tolist())
    office.ledger = PieceLedger.from_record(record)
    for worker, state in states.items():
        batches = numbers()
        batches.bind(office.door(worker))
        iterators[worker] = iter(batches)
        iterators[worker].set_state(state)
    found: dict[int, list[list[int]]] = {0: [], 1: []}
    for _ in range(3):
        for worker, iterator in iterators.items():
            found[worker].append(next(iterator).tolist())
    assert found == expected
    assert office.ledger.repeated == 0
    with pytest.raises(DataError, match="is that of one worker of a job"):
        iter(numbers()).set_state(states[0])


def test_a_stream_ends_once() -> None:
    batches = numbers(epochs=1)
    assert len(flat(islice(iter(batches), 5))) == 20
    first = iter(batches)
    assert len(flat(first)) > 80
    with pytest.raises(DataError, match=r"the shared data 'data' has ended after 1 epoch"):
        iter(batches)


def test_a_closed_iterator_is_followed_by_the_next() -> None:
    batches = numbers(epochs=1)
    first = iter(batches)
    seen = flat(islice(first, 5))
    first.close()
    assert sorted(seen + flat(iter(batches))) == list(range(N))
    assert batches.report.repeated == 0


def file_sizes(folder: Path) -> list[Path]:
    """Files of 0 to 12 rows, whose numbers continue from file to file."""
    paths, start = [], 0
    for i, size in enumerate([5, 0, 12, 1, 9, 3]):
        paths.append(folder / f"{i}.npy")
        np.save(paths[-1], np.arange(start, start + size))
        start += size
    return paths


LOADS: list[Callable[[Path], Any]] = [
    lambda path: (np.load(path), {"twice": 2 * np.load(path)}),
    lambda path: ((row, {"twice": 2 * row}) for row in np.load(path)),
    lambda path: [(row, {"twice": 2 * row}) for row in np.load(path)],
]


@pytest.mark.parametrize("load", LOADS, ids=["table", "generator", "list"])
@pytest.mark.parametrize("piece", [1, 4])
@pytest.mark.parametrize("trained", [0, 1, 2, 6, 11, 14])
def test_files(tmp_path: Path, load: Callable[[Path], Any], piece: int, trained: int) -> None:
    def make() -> SharedIterator:
        return iter(shared(file_sizes(tmp_path), batch_size=4, load=load, epochs=2, piece=piece, seed=1))

    batches = list(make())
    for numbers_, more in batches:
        np.testing.assert_array_equal(2 * numbers_, more["twice"])
    assert [len(batch) for batch, _ in batches] == [4] * 15
    assert sorted(flat(batch for batch, _ in batches)) == sorted([*range(30)] * 2)
    iterator = make()
    iterator.trained(0)
    list(islice(iterator, trained + 1))
    iterator.trained(trained)
    again = make()
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert plain(batch for batch, _ in again) == plain(batch for batch, _ in batches[trained:])


def fails(_: Any) -> Any:
    raise KeyError("broken")


def test_an_error_of_load_is_its_own_and_loses_nothing() -> None:
    office = Office()
    batches = numbers(load=fails)
    batches.bind(office.door(0))
    iterator = iter(batches)
    with pytest.raises(KeyError, match="broken"):
        next(iterator)
    assert next(iterator, None) is None
    iterator.close()
    healthy = numbers(epochs=None)
    healthy.bind(office.door(1))
    assert len(set(flat(islice(iter(healthy), 25)))) == 100


array: NDArray[Any] = np.zeros((8, 2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: shared(10, batch_size=2), "a number of examples needs load="),
        (lambda: shared(["a"], batch_size=2), "files need load="),
        (lambda: shared(array, batch_size=2, load=len), "rows are taken from arrays"),
        (lambda: shared((array, array[1:]), batch_size=2), r"have \[8, 7\] rows"),
        (lambda: shared([], batch_size=2), "got nothing"),
        (lambda: shared("file", batch_size=2, load=len), "got str"),
        (lambda: shared(3.5, batch_size=2, load=len), "got float"),  # type: ignore[arg-type]
        (lambda: shared(array, batch_size=0), "batch_size must be at least 1"),
        (lambda: shared(array, batch_size=1, epochs=0), "epochs must be at least 1"),
        (lambda: shared(0, batch_size=1, load=len), "examples must be at least 1"),
        (lambda: shared(array, batch_size=9, epochs=1, drop_remainder=True), "has 8 examples in all, too few"),
        (lambda: list(shared(["a", "b"], batch_size=2, load=lambda _: 7)), "load returned int for a"),
        (lambda: list(shared(["a", "b"], batch_size=2, load=lambda _: ())), "the result of load for a has arrays of"),
        (lambda: list(shared(["a", "b"], batch_size=2, load=lambda _: [])), "no example for any of"),
        (
            lambda: list(shared(["a"], batch_size=2, load=lambda _: [{"x": 1}, {"y": 1}])),
            "examples of a are not alike: they have different keys",
        ),
        (lambda: list(shared(["a"], batch_size=2, load=lambda _: [array, array[1:]])), "not alike"),
        (lambda: iter(numbers()).set_state({"progress": 3}), "not a position in shared data"),
        (lambda: iter(numbers()).set_state(iter(numbers(piece=8)).get_state()), "is of other data"),
    ],
)
def test_refuses(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make()
