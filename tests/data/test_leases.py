"""Leases: every example is visited once an epoch, and none is lost with a worker."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainband.data.leases import LeaseAnswer, LeaseRequest, PieceLedger
from trainband.data.pieces import SourceSettings
from trainband.errors import DataError

SETTINGS = SourceSettings(examples=10, piece=4, epochs=2, seed=0, shuffle=True)


def ask(
    ledger: PieceLedger,
    worker: int,
    number: int,
    *,
    finished: tuple[tuple[int, int], ...] = (),
    progress: tuple[tuple[int, int, int], ...] = (),
    want: bool = True,
    iterator: str = "a",
) -> LeaseAnswer:
    """One request, of the settings that the ledger has."""
    request = LeaseRequest("data", ledger.settings, finished, progress, want, iterator, number)
    return ledger.lease(worker, msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=LeaseRequest))


def where(answer: LeaseAnswer) -> tuple[int, int, int, int]:
    assert answer.kind == "piece"
    return answer.epoch, answer.piece, answer.start, answer.stop


def test_pieces_come_in_order_and_nobody_idles_at_an_epochs_end() -> None:
    ledger = PieceLedger(SETTINGS)
    assert where(ask(ledger, 0, 1)) == (0, 0, 0, 4)
    assert where(ask(ledger, 1, 1)) == (0, 1, 4, 8)
    assert where(ask(ledger, 0, 2, finished=((0, 0),))) == (0, 2, 8, 10)
    assert where(ask(ledger, 0, 3, finished=((0, 2),))) == (1, 0, 0, 4)  # while worker 1 is still in epoch 0
    assert ledger.held_by(0) == ((1, 0),)
    assert ledger.held_by(1) == ((0, 1),)


def test_the_end_waits_for_what_may_come_back() -> None:
    ledger = PieceLedger(SourceSettings(examples=8, piece=4, epochs=1, seed=0, shuffle=False))
    ask(ledger, 0, 1)
    ask(ledger, 1, 1)
    answer = ask(ledger, 0, 2, finished=((0, 0),))
    assert (answer.kind, answer.holders) == ("wait", (1,))
    assert ask(ledger, 1, 2, progress=((0, 1, 2),)).kind == "end"  # only its own is left
    ledger.release(1)
    assert where(ask(ledger, 0, 3)) == (0, 1, 6, 8)  # without what is known to be trained on
    answer = ask(ledger, 0, 4, finished=((0, 1),))
    assert (answer.kind, answer.repeated) == ("end", 2)


def test_a_request_that_is_sent_again_gets_its_answer() -> None:
    ledger = PieceLedger(SETTINGS)
    first = ask(ledger, 0, 1)
    assert ask(ledger, 0, 1) == first
    second = ask(ledger, 0, 2, progress=((0, 0, 1),))
    assert ask(ledger, 0, 2, progress=((0, 0, 3),)) == second
    assert ask(ledger, 0, 1).kind == "wait"  # a belated copy changes nothing
    assert ledger.held_by(0) == ((0, 0), (0, 1))
    third = ask(ledger, 0, 1, iterator="b")
    assert where(third) == (0, 0, 1, 4)
    assert ask(ledger, 0, 3, iterator="a").kind == "wait"  # nor does one of an earlier life
    assert ask(ledger, 0, 1, iterator="b") == third


def test_a_report_on_leaving_is_exact() -> None:
    ledger = PieceLedger(SETTINGS)
    ask(ledger, 0, 1)
    ask(ledger, 0, 2, progress=((0, 0, 0),))
    assert ask(ledger, 0, 3, progress=((0, 0, 3), (0, 1, 0)), want=False).kind == "end"
    assert where(ask(ledger, 1, 1)) == (0, 0, 3, 4)
    answer = ask(ledger, 1, 2, progress=((0, 0, 0),))
    assert (where(answer), answer.repeated) == ((0, 1, 4, 8), 0)


def test_who_was_thought_lost_and_comes_back_keeps_what_nobody_else_has() -> None:
    ledger = PieceLedger(SETTINGS)
    ask(ledger, 0, 1)
    ask(ledger, 0, 2, progress=((0, 0, 0),))
    ledger.release(0)
    assert where(ask(ledger, 1, 1)) == (0, 0, 0, 4)
    assert where(ask(ledger, 0, 3, progress=((0, 0, 2), (0, 1, 1)))) == (0, 2, 8, 10)
    assert ledger.held_by(0) == ((0, 1), (0, 2))
    assert ledger.repeated == 4


def test_what_is_reserved_for_one_that_asks_no_more_goes_to_others() -> None:
    ledger = PieceLedger(SourceSettings(examples=8, piece=4, epochs=1, seed=0, shuffle=False))
    ask(ledger, 0, 1)
    ask(ledger, 1, 1)
    again = PieceLedger.from_record(ledger.record())
    assert ask(again, 1, 2).kind == "piece"
    assert ask(again, 1, 3, finished=((0, 1),)).kind == "wait"
    assert again.release_reserved(0)
    assert where(ask(again, 1, 4)) == (0, 0, 0, 4)
    assert not again.release_reserved(1), "it is in its hands"
    assert again.held_by(1) == ((0, 0),)


def test_a_record_holds_everything() -> None:
    ledger = PieceLedger(SETTINGS)
    ask(ledger, 0, 1)
    ask(ledger, 1, 1)
    ask(ledger, 1, 2, progress=((0, 1, 3),))
    ledger.release(1)
    again = PieceLedger.from_record(ledger.record())
    assert again.record() == ledger.record()
    assert again.held_by(0) == ((0, 0),)
    assert where(ask(again, 2, 1)) == (0, 1, 7, 8)
    assert where(ask(again, 0, 1, progress=((0, 0, 2),))) == (0, 0, 2, 4)
    assert again.repeated == 1  # worker 0 said how far it was, worker 1 could not
    assert where(ask(again, 2, 2, progress=((0, 1, 0),))) == (0, 2, 8, 10)


def test_a_restored_ledger_that_is_older_than_a_workers_state() -> None:
    ledger = PieceLedger.from_record(PieceLedger(SETTINGS).record())
    answer = ask(ledger, 0, 1, finished=((0, 0),), progress=((0, 1, 2),))
    assert where(answer) == (0, 1, 6, 8)
    assert where(ask(ledger, 1, 1)) == (0, 2, 8, 10)
    assert where(ask(ledger, 1, 2, finished=((0, 2),))) == (1, 0, 0, 4)
    assert ledger.repeated == 0


def test_pieces_of_workers_that_are_no_more() -> None:
    ledger = PieceLedger(SETTINGS)
    for worker in range(3):
        ask(ledger, worker, 1)
    again = PieceLedger.from_record(ledger.record())
    again.release_all_but([0])
    assert again.held_by(0) == ((0, 0),)
    assert [where(ask(again, 0, number, progress=())) for number in (1, 2)] == [(0, 0, 0, 4), (0, 0, 0, 4)]
    progress = ((0, 0, 0),)
    assert where(ask(again, 0, 3, progress=progress)) == (0, 1, 4, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"examples": 11}, "examples=11 where another worker has 10; give every worker"),
        ({"piece": 5, "seed": 1}, "piece=5 where another worker has 4, seed=1 where another worker has 0"),
        ({"epochs": None}, "epochs=None where another worker has 2"),
        ({"shuffle": False}, "shuffle=False"),
    ],
)
def test_other_settings(changes: dict[str, int | None], words: str) -> None:
    other = msgspec.structs.replace(SETTINGS, **changes)
    ledger = PieceLedger(SETTINGS)
    ledger.lease(0, LeaseRequest("mine", SETTINGS))
    with pytest.raises(DataError, match=f"the data 'mine' differs from that of the other workers: .*{words}"):
        ledger.lease(1, LeaseRequest("mine", other))


def test_the_first_to_ask_after_a_restore_may_have_more_epochs() -> None:
    ledger = PieceLedger.from_record(PieceLedger(SETTINGS).record())
    more = msgspec.structs.replace(SETTINGS, epochs=5)
    ledger.lease(0, LeaseRequest("mine", more))
    assert ledger.settings == more
    with pytest.raises(DataError, match="epochs=2 where another worker has 5"):
        ledger.lease(1, LeaseRequest("mine", SETTINGS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ask(PieceLedger(SETTINGS), 0, 1, finished=((0, 3),)),
        lambda: ask(PieceLedger(SETTINGS), 0, 1, finished=((2, 0),)),
        lambda: ask(PieceLedger(SETTINGS), 0, 1, progress=((0, 2, 3),)),
        lambda: ask(PieceLedger(SETTINGS), 0, 1, progress=((-1, 0, 0),)),
        lambda: PieceLedger.from_record("{}"),
        lambda: PieceLedger.from_record(PieceLedger(SETTINGS).record().replace("[]", "[[0,9,9,0,0]]", 1)),
        lambda: SourceSettings(examples=0, piece=1, epochs=1, seed=0, shuffle=True),
        lambda: SourceSettings(examples=1, piece=0, epochs=1, seed=0, shuffle=True),
        lambda: SourceSettings(examples=1, piece=1, epochs=0, seed=0, shuffle=True),
        lambda: SourceSettings(examples=1, piece=1, epochs=1, seed=-1, shuffle=True),
    ],
)
def test_refuses(make: Callable[[], object]) -> None:
    with pytest.raises((DataError, msgspec.ValidationError)):
        make()


@dataclass
class Worker:
    """A worker as it might be: it trains on examples one by one, and reports."""

    iterator: str
    number: int = 1
    hands: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # piece -> [next, stop]
    finished: list[tuple[int, int]] = field(default_factory=list)
    claims: tuple[tuple[int, int, int], ...] = ()
    ended: bool = False


class Job:
    """Workers, a ledger, and the truth about what was trained on."""

    def __init__(self, settings: SourceSettings, workers: int, dice: random.Random, ledger: PieceLedger) -> None:
        self.settings, self.dice, self.ledger = settings, dice, ledger
        self.lives = 0
        self.workers = {number: self.born() for number in range(workers)}
        self.trained: Counter[tuple[int, int]] = Counter()
        self.deaths = 0
        self.lost: list[tuple[int, LeaseRequest]] = []

    def born(self) -> Worker:
        self.lives += 1
        return Worker(f"life {self.lives}")

    def progress(self, worker: Worker) -> tuple[tuple[int, int, int], ...]:
        size = self.settings.piece
        return worker.claims or tuple((e, p, at - p * size) for (e, p), (at, _) in worker.hands.items())

    def asks(self, number: int) -> None:
        worker = self.workers[number]
        request = LeaseRequest(
            "data", self.settings, tuple(worker.finished), self.progress(worker), True, worker.iterator, worker.number
        )
        answer = self.ledger.lease(number, request)
        for _ in range(self.dice.choice([0, 0, 1])):  # the answer was lost on the way
            assert self.ledger.lease(number, request) == answer
        if self.dice.random() < 0.2:
            self.lost.append((number, request))
        worker.number += 1
        worker.finished, worker.claims = [], ()
        if answer.kind == "piece":
            assert (answer.epoch, answer.piece) not in worker.hands
            worker.hands[answer.epoch, answer.piece] = [answer.start, answer.stop]
        worker.ended = answer.kind == "end" and not worker.hands

    def trains(self, number: int) -> None:
        worker = self.workers[number]
        if not worker.hands:
            return
        piece, hand = self.dice.choice(list(worker.hands.items()))
        for _ in range(self.dice.randint(1, self.settings.piece)):
            self.trained[piece[0], hand[0]] += 1
            hand[0] += 1
            if hand[0] == hand[1]:
                del worker.hands[piece]
                worker.finished.append(piece)
                return

    def dies(self, number: int) -> None:
        self.ledger.release(number)
        self.workers[number] = self.born()
        self.deaths += 1

    def is_thought_lost(self, number: int) -> None:
        self.ledger.release(number)
        self.deaths += 1

    def leaves(self, number: int) -> None:
        worker = self.workers[number]
        if worker.number > 1:
            request = LeaseRequest(
                "data",
                self.settings,
                tuple(worker.finished),
                self.progress(worker),
                False,
                worker.iterator,
                worker.number,
            )
            assert self.ledger.lease(number, request).kind == "end"
            self.workers[number] = self.born()

    def receives_a_late_copy(self, _: int) -> None:
        if self.lost:
            number, request = self.lost.pop(self.dice.randrange(len(self.lost)))
            worker = self.workers[number]
            if self.deaths == 0 and (worker.iterator != request.iterator or worker.number > request.number):
                self.ledger.lease(number, request)

    def is_restored(self, _: int) -> None:
        """All processes end, and begin again with what a checkpoint of this moment holds."""
        self.ledger = type(self.ledger).from_record(self.ledger.record())
        self.lost.clear()
        for number, old in self.workers.items():
            self.workers[number] = new = self.born()
            new.finished, new.claims = old.finished, self.progress(old)

    def run(self, deaths: bool) -> None:
        events = [self.asks, self.asks, self.trains, self.trains, self.trains]
        rare = [self.leaves, self.is_restored, self.receives_a_late_copy]
        rare += [self.dies, self.is_thought_lost] if deaths else []
        for _ in range(2000):
            event = self.dice.choice(rare) if self.dice.random() < 0.05 else self.dice.choice(events)
            event(self.dice.choice(list(self.workers)))
        for _ in range(500):  # and now without trouble
            for number in self.workers:
                while self.workers[number].hands:
                    self.trains(number)
                self.asks(number)
            if all(worker.ended for worker in self.workers.values()):
                break
        else:
            raise AssertionError("the job does not end")
        assert self.settings.epochs is not None
        wanted = {(epoch, i) for epoch in range(self.settings.epochs) for i in range(self.settings.examples)}
        assert self.trained.keys() == wanted, "examples were left out"
        repeats = sum(self.trained.values()) - len(wanted)
        assert repeats <= self.ledger.repeated, "more repeats than were counted"
        if self.deaths == 0:
            assert self.ledger.repeated == 0, "repeats were counted although nobody died"


@given(
    seed=st.integers(0, 10**9),
    workers=st.integers(1, 4),
    examples=st.integers(1, 60),
    piece=st.integers(1, 9),
    epochs=st.integers(1, 4),
    deaths=st.booleans(),
)
def test_every_example_is_visited(
    seed: int, workers: int, examples: int, piece: int, epochs: int, deaths: bool
) -> None:
    settings = SourceSettings(examples, piece, epochs, 0, shuffle=True)
    Job(settings, workers, random.Random(seed), PieceLedger(settings)).run(deaths)


class ForgetsTheDead(PieceLedger):
    """Keeps a dead worker's pieces for ever."""

    def release(self, worker: int) -> None:
        self._book.held.pop(worker, None)


class ForgetsItsAnswers(PieceLedger):
    """Takes each request for a new one."""

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        self._last.clear()
        return super().lease(worker, request)


class CountsTooFew(PieceLedger):
    """Believes that a lost worker was as far as it said last."""

    @property
    def repeated(self) -> int:
        return 0


class HandsOutTwice(PieceLedger):
    """Takes back what its holder still has."""

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        answer = super().lease(worker, request)
        if request.number == 3:
            self._book.return_pieces(worker)
        return answer


@pytest.mark.parametrize("broken", [ForgetsTheDead, ForgetsItsAnswers, CountsTooFew, HandsOutTwice])
def test_the_check_finds_what_is_wrong(broken: type[PieceLedger]) -> None:
    settings = SourceSettings(40, 5, 3, 0, shuffle=True)
    found = 0
    for seed in range(20):
        try:
            Job(settings, 3, random.Random(seed), broken(settings)).run(deaths=seed % 2 == 0)
        except AssertionError:
            found += 1
    assert found > 0


def test_memory_stays_small_when_one_worker_is_slow() -> None:
    settings = SourceSettings(1000, 1, None, 0, shuffle=True)
    ledger = PieceLedger(settings)
    ask(ledger, 1, 1)
    last: tuple[tuple[int, int], ...] = ()
    for number in range(1, 5000):
        answer = ask(ledger, 0, number, finished=last)
        last = ((answer.epoch, answer.piece),)
    assert len(ledger.record()) < 250
    assert ledger.held_by(1) == ((0, 0),)
