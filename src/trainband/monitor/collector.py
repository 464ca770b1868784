"""Collector: asks all ps of a job once a second, however many viewers there are."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from msgspec.structs import replace

from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import TrainbandError
from trainband.job.statistics import PsStatus
from trainband.monitor.assembly import Answer, assemble, holder_of_global_step
from trainband.monitor.inquiry import Inquiry
from trainband.monitor.live_feed import LiveFeed
from trainband.runtime import Clock

EVERY_S = 1.0
ANSWER_S = 2.0
"""Time that a ps has to answer; until then, its last answer stands."""
AT_ONCE = 8
"""Concurrent requests, so that silent ps do not delay the others."""
MOST_ROWS = 4000
"""Worker rows requested per second: every ps reports every worker, so 32 ps of a job of 1,000 would send 32,000 rows a
second. Above this, all ps but the holder of the global step are asked less often."""


class Asker(Protocol):
    """Asks one ps."""

    def ask(self) -> PsStatus:
        """Returns its status. Raises `TrainbandError`."""
        ...

    def close(self) -> None:
        """Ends the asking."""
        ...


class Collector:
    """Keeps a feed up to date with a running job, from its own thread, while it is open.

    It starts with one ps, which reports the addresses of the others. It keeps asking a ps that does not answer.

    Args:
      address: of any ps of the job.
      connect: how to ask a ps at an address.
      clock: seconds since 1970.
      wait_s: seconds that a look waits for answers; later ones count for the next look.
    """

    def __init__(
        self,
        address: str,
        feed: LiveFeed,
        *,
        connect: Callable[[str], Asker] | None = None,
        clock: Clock = time.time,
        wait_s: float = EVERY_S / 2,
    ) -> None:
        self._address = address
        self._feed = feed
        self._connect = connect or self._inquiry
        self._clock = clock
        self._wait_s = wait_s
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

    def poll(self) -> None:
        """Asks once and publishes the result."""
        self._round += 1
        asked = {self._address} if not self._addresses else set(self._due().values())
        for address in asked - self._pending.keys():
            self._pending[address] = self._pool.submit(self._ask, address)
        wait(self._pending.values(), timeout=self._wait_s)
        came = {address: future for address, future in self._pending.items() if future.done()}
        for address, future in came.items():
            del self._pending[address]
            self._record_answer(address, future)
        if not self._addresses:
            self._publish({0: self._answers[0]} if 0 in self._answers else {})
        else:
            self._publish(self._answers)

    def statuses(self) -> list[PsStatus]:
        """Returns the last statuses of the ps that answer, for metrics. Thread-safe."""
        answers = sorted(self._answers.copy().items())
        return [answer.status for _, answer in answers if answer.status is not None]

    def end(self) -> None:
        """Marks the job as ended, when its owner reports so."""
        self._ended = True
        now = self._clock()
        before = self._feed.snapshot
        if before.state not in ("ended", "waiting"):
            self._feed.publish(replace(before, at=now, state="ended", since=now, rate=0.0, left_s=None))

    def close(self) -> None:
        """Closes all connections, after pending answers."""
        self._pool.shutdown(cancel_futures=True)
        for asker in self._askers.values():
            asker.close()

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self.poll()
            due = max(due + EVERY_S, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _due(self) -> Mapping[int, str]:
        """Returns the ps to ask in this round."""
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

    def _record_answer(self, address: str, future: Future[PsStatus]) -> None:
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
        """Learns the addresses of the job's ps. The one asked first keeps the address that was given."""
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
