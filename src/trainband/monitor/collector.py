"""Collector: asks all ps of a job once a second, however many look."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Protocol

from msgspec.structs import replace

from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import TrainbandError
from trainband.monitor.assembly import Answer, assemble, holder_of_global_step
from trainband.monitor.feed import Feed
from trainband.monitor.inquiry import Inquiry
from trainband.ps.statistics import PsStatus
from trainband.runtime import Clock

EVERY_S = 1.0
ANSWER_S = 2.0
"""That a ps has to answer; meanwhile, it counts as it was."""
AT_ONCE = 8
"""Questions at the same time, so that ps that are silent delay nobody else's."""
MOST_ROWS = 4000
"""Rows about workers that are asked for in a second: every ps tells of every worker, and 32 ps of a job of 1,000 would
tell 32,000 rows a second. All but the one whose version is the global step are then asked less often."""


class Asker(Protocol):
    """Asks one ps."""

    def ask(self) -> PsStatus:
        """Its status. Raises `TrainbandError`."""
        ...

    def close(self) -> None:
        """Nobody asks any more."""
        ...


class Collector:
    """Keeps a feed up to date with a job that runs, from a thread of its own, for as long as it is open.

    It begins with one ps, which tells the addresses of the others. A ps that does not answer is asked again and again.

    Args:
      address: of any ps of the job.
      feed: what takes the snapshots.
      connect: how to ask a ps at an address.
      clock: seconds since 1970.
    """

    def __init__(
        self, address: str, feed: Feed, *, connect: Callable[[str], Asker] | None = None, clock: Clock = time.time
    ) -> None:
        self._address = address
        self._feed = feed
        self._connect = connect or self._inquiry
        self._clock = clock
        self._addresses: dict[int, str] = {}
        self._askers: dict[str, Asker] = {}
        self._pending: dict[str, Future[PsStatus]] = {}
        self._answers: dict[int, Answer] = {}
        self._round = 0
        self._every = 1
        self._ended = False
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="trainband-monitor-ask")
        self._thread = threading.Thread(target=self._run, name="trainband-monitor", daemon=True)

    def look(self) -> None:
        """Asks once and publishes what came of it."""
        self._round += 1
        asked = {self._address} if not self._addresses else set(self._due().values())
        for address in asked - self._pending.keys():
            self._pending[address] = self._pool.submit(self._ask, address)
        wait(self._pending.values(), timeout=EVERY_S / 2)
        came = {address: future for address, future in self._pending.items() if future.done()}
        for address, future in came.items():
            del self._pending[address]
            self._note(address, future)
        if not self._addresses:
            self._publish({0: self._answers[0]} if 0 in self._answers else {})
        else:
            self._publish(self._answers)

    def statuses(self) -> list[PsStatus]:
        """What the ps that answer said last, for metrics. Any thread may ask."""
        answers = sorted(self._answers.copy().items())
        return [answer.status for _, answer in answers if answer.status is not None]

    def end(self) -> None:
        """Somebody who knows says that the job has ended."""
        self._ended = True
        now = self._clock()
        before = self._feed.snapshot
        if before.state not in ("ended", "waiting"):
            self._feed.publish(replace(before, at=now, state="ended", since=now, rate=0.0, left_s=None))

    def close(self) -> None:
        """Lets go of all connections; an answer that is awaited is awaited."""
        self._pool.shutdown(cancel_futures=True)
        for asker in self._askers.values():
            asker.close()

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.look()
            due = max(due + EVERY_S, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _due(self) -> Mapping[int, str]:
        """The ps to be asked in this round."""
        statuses = {number: one.status for number, one in self._answers.items() if one.status is not None}
        holder = holder_of_global_step(statuses) if statuses else 0
        return {
            number: address
            for number, address in self._addresses.items()
            if number == holder or number not in statuses or (number + self._round) % self._every == 0
        }

    def _ask(self, address: str) -> PsStatus:
        asker = self._askers.get(address)
        if asker is None:
            asker = self._askers[address] = self._connect(address)
        try:
            return asker.ask()
        except TrainbandError:
            self._askers.pop(address, None)
            asker.close()
            raise

    def _inquiry(self, address: str) -> Inquiry:
        return Inquiry(address, ANSWER_S, credentials=credentials_for(self._address))

    def _note(self, address: str, future: Future[PsStatus]) -> None:
        try:
            status = future.result()
        except TrainbandError as exc:
            number = next((number for number, one in self._addresses.items() if one == address), 0)
            self._answers[number] = Answer(address, None, str(exc))
            return
        number = int(status.task.partition(":")[2])
        if address == self._address:
            self._place(number, status)
        if self._addresses.get(number) != address:
            wrong = next((place for place, one in self._addresses.items() if one == address), None)
            if wrong is not None:
                reason = f"{status.task} answers at {address}, where ps:{wrong} should be."
                self._answers[wrong] = Answer(address, None, reason)
            return
        self._answers[number] = Answer(address, status, at=self._clock())
        rows = len(status.workers) * len(self._addresses)
        self._every = max(1, math.ceil(rows / MOST_ROWS))

    def _place(self, number: int, status: PsStatus) -> None:
        """Learns where the ps of the job are. The one that was asked first stays where it was asked."""
        addresses = dict(enumerate(status.ps_addresses)) or {number: self._address}
        addresses[number] = self._address
        if addresses != self._addresses:
            self._addresses = addresses
            kept = {place: one for place, one in self._answers.items() if addresses.get(place) == one.address}
            unknown = {place: Answer(one, None, "not asked yet") for place, one in addresses.items()}
            self._answers = {**unknown, **kept}
            for gone in self._askers.keys() - set(addresses.values()):
                self._askers.pop(gone).close()

    def _publish(self, answers: Mapping[int, Answer]) -> None:
        if self._ended:
            return
        known = {number: one for number, one in answers.items() if one.reason != "not asked yet"}
        self._feed.publish(assemble(self._feed.snapshot, known, self._clock()))
