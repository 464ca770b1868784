"""ConnectionGuard: limits the resources that strangers can take from a Flight server.

gRPC's server, as exposed by pyarrow, accepts any number of connections, waits for silent ones forever, and reads a
request of any size before it calls us. So a thread of our own watches the connections. A connection belongs to a
stranger until a call on it is accepted: until then, its time, calls and bytes are limited, and so is the number of such
connections.

This authenticates no one: every call proves by itself who makes it. A connection's address only limits what it may
take.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainband.runtime.formatting import MOST_OF_A_LINE, one_line
from trainband.runtime.limits import start_thread
from trainband.runtime.waiting import Say
from trainband.wire import port as ports
from trainband.wire.flight.sockets import ConnectionKey, connections, received_bytes

_BUSY_LOOK_S = 0.05
"""Interval between checks while strangers are there: they can send this long before it is noticed."""
_LOOK_S = 0.2
_SPACING_S = 0.01
"""Minimum interval between checks: one check serves all calls that were accepted since the last."""
_SAY_EVERY_S = 60.0
_RESERVE = 8
"""Descriptors reserved for the check when no others are left."""
_MOST_SAID = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """Limits on what one peer, or all strangers together, may take from a listener.

    Attributes:
      stranger_s: seconds that a new connection has until its first call is accepted.
      stranger_bytes: bytes that a connection may receive until then, if calls need a proof: a client first proves its
        identity, in a few hundred bytes. Decompression by gRPC may make a message a thousand times larger.
      stranger_calls: calls on a connection until then; a client proves its identity with its second call.
      strangers: number of such connections at a time. Beyond that, random ones are cut off: a task of the job that
        connects meanwhile gets in after a few attempts.
      strangers_per_host: as `strangers`, from one host.
      unopened_streams_per_host: streams from one host that have not yet identified their owner.
      calls_per_s: average calls per second of an authenticated client.
      call_burst: calls that may come at once beyond that.
    """

    stranger_s: float = 10.0
    stranger_bytes: int = 32 << 10
    stranger_calls: int = 64
    strangers: int = 512
    strangers_per_host: int = 256
    unopened_streams_per_host: int = 256
    calls_per_s: float = 500.0
    call_burst: int = 1000


class Refusals:
    """Reports refusals, at most once a minute for each host and reason. Thread-safe."""

    def __init__(self, say: Say, address: str) -> None:
        self._say = say
        self.address = address
        """Address of the listener, for messages."""
        self._lock = threading.Lock()
        self._reported_at: dict[tuple[str, str], float] = {}

    def report_refusal(self, peer: str, why: str) -> None:
        """Reports that a call was refused."""
        self._report(peer, why, f"refused {peer}")

    def report_closed(self, peer: str, why: str) -> None:
        """Reports that a connection was cut off."""
        self._report(peer, why, f"closed a connection from {peer}")

    def _report(self, peer: str, why: str, done: str) -> None:
        why = one_line(why, MOST_OF_A_LINE)  # which may quote data from a stranger
        key = ports.host_of(peer), why[:80]
        now = time.monotonic()
        with self._lock:
            if now - self._reported_at.get(key, -_SAY_EVERY_S) < _SAY_EVERY_S:
                return
            if len(self._reported_at) >= _MOST_SAID:
                self._reported_at = {one: at for one, at in self._reported_at.items() if now - at < _SAY_EVERY_S}
            if len(self._reported_at) >= _MOST_SAID:
                return
            self._reported_at[key] = now
        self._say(f"WARNING: {self.address} {done}: {why}")


class Allowance:
    """Token buckets, one per caller. Thread-safe."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._lock = threading.Lock()
        self._left: dict[str | bytes, tuple[float, float]] = {}

    def admit(self, who: str | bytes, now: float) -> bool:
        """Whether another call is allowed."""
        with self._lock:
            left, at = self._left.get(who, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            self._left[who] = (max(0.0, left - 1.0), now)
            if len(self._left) > 8192:  # full buckets need not be remembered
                full = self._burst / self._rate
                self._left = {one: entry for one, entry in self._left.items() if now - entry[1] < full}
            return left >= 1.0


class Taken(NamedTuple):
    """Resources taken by a stranger's connection."""

    nbytes: int
    calls: int
    seconds: float


def to_close(
    strangers: Mapping[ConnectionKey, Taken], limits: ConnectionLimits, dice: random.Random
) -> dict[ConnectionKey, str]:
    """Returns the strangers' connections to cut off, and why."""
    found: dict[ConnectionKey, str] = {}
    left: list[ConnectionKey] = []
    for key, taken in strangers.items():
        if taken.nbytes > limits.stranger_bytes:
            found[key] = f"it sent more than {limits.stranger_bytes:,} bytes before a call on it was accepted."
        elif taken.calls > limits.stranger_calls:
            found[key] = f"it made more than {limits.stranger_calls} calls, and none was accepted."
        elif taken.seconds > limits.stranger_s:
            found[key] = (
                f"no call on it was accepted in {limits.stranger_s:g} s. If it was a slow task of this job, that task "
                "connects again by itself."
            )
        else:
            left.append(key)
    # Random: if the oldest or the newest had to go, a fast connector could keep all others out.
    dice.shuffle(left)
    kept, by_host = 0, Counter[str]()
    for key in left:
        host = ports.host_of(key.peer)
        if by_host[host] >= limits.strangers_per_host:
            most = f"{limits.strangers_per_host} connections from {host}"
        elif kept >= limits.strangers:
            most = f"{limits.strangers} connections"
        else:
            kept += 1
            by_host[host] += 1
            continue
        found[key] = (
            f"no call was accepted on more than {most}. If it was a task of this job, that task connects again by "
            "itself."
        )
    return found


class ConnectionGuard:
    """Guards the connections of one port.

    Args:
      refusals: reports connections that are cut off.
    """

    def __init__(self, port: int, limits: ConnectionLimits, refusals: Refusals) -> None:
        self._port = port
        self._limits = limits
        self._refusals = refusals
        self._lock = threading.Lock()
        self._accepted: set[str] = set()  # since the last check
        self._admitted: frozenset[ConnectionKey] = frozenset()
        self._known: frozenset[str] = frozenset()  # the addresses of those
        self._calls: Counter[str] = Counter()  # of strangers
        self._since: dict[ConnectionKey, float] = {}
        self._dice = random.Random()
        self._reserve = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_RESERVE)]
        self._over = threading.Event()
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"trainband-guard-{port}", daemon=True)
        atexit.register(self.close)
        start_thread(self._thread)

    def admit(self, peer: str, *, is_new: bool = False) -> None:
        """Records that a call on this connection was accepted: it does not belong to a stranger.

        Args:
          is_new: whether the caller has just authenticated: another connection may have had the same address.
        """
        if is_new or peer not in self._known:
            with self._lock:
                self._accepted.add(peer)
            # At once, while the call is being answered: only a check can tell which connection has the address.
            self._news.set()

    def charge(self, peer: str) -> None:
        """Counts an unauthenticated call on this connection. After a few of them, a stranger is cut off."""
        with self._lock:
            if peer in self._known or peer in self._accepted:
                return
            self._calls[peer] += 1
            is_too_many = self._calls[peer] > self._limits.stranger_calls
        if is_too_many:
            self._news.set()

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._over.set()
        self._news.set()
        atexit.unregister(self.close)
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)
        self._release()

    def _run(self) -> None:
        wait_s = _LOOK_S
        while not self._over.wait(_SPACING_S):
            self._news.wait(wait_s)
            self._news.clear()
            if self._over.is_set():
                return
            try:
                wait_s = _BUSY_LOOK_S if self._poll() else _LOOK_S
                while len(self._reserve) < _RESERVE and not self._over.is_set():
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # no descriptor is left for the check: strangers may have taken them
                self._release()
                wait_s = 0.0

    def _release(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def _poll(self) -> bool:
        """Cuts off strangers that take too much; returns whether any are left."""
        now = time.monotonic()
        with self._lock:
            accepted, self._accepted = self._accepted, set()
            calls = dict(self._calls)
        here: set[ConnectionKey] = set()
        strangers: dict[ConnectionKey, int] = {}
        try:
            for key, connection in connections(self._port):
                here.add(key)
                if key not in self._admitted and key.peer not in accepted:
                    with contextlib.suppress(OSError):  # it has just been closed
                        strangers[key] = received_bytes(connection)
        except OSError:
            with self._lock:
                self._accepted |= accepted
            raise
        with self._lock:
            self._admitted = frozenset(key for key in here if key in self._admitted or key.peer in accepted)
            self._known = frozenset(key.peer for key in self._admitted)
            peers = {key.peer for key in strangers}
            self._calls = Counter({peer: count for peer, count in self._calls.items() if peer in peers})
        self._since = {key: self._since.get(key, now) for key in strangers}
        taken = {
            key: Taken(received, calls.get(key.peer, 0), now - self._since[key]) for key, received in strangers.items()
        }
        closed = to_close(taken, self._limits, self._dice)
        if closed:
            for key, connection in connections(self._port):
                if key in closed:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
            for key, why in closed.items():
                self._refusals.report_closed(key.peer, why)
        return len(closed) < len(strangers)
