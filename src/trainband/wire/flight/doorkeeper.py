"""Doorkeeper: bounds what strangers can take of a Flight server.

gRPC's server, as pyarrow offers it, takes any number of connections, waits for silent ones for ever, and reads a
request of any size before it calls us. So a thread of our own looks at the connections: those on which nobody has yet
made a call that was let in are strangers', and may be there only for a while, in a bounded number, and send only so
much.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass

from trainband.runtime.limits import start_thread
from trainband.runtime.waiting import Say
from trainband.wire import port as ports
from trainband.wire.flight.sockets import connections, received_bytes

_BUSY_LOOK_S = 0.05
"""Between two looks while strangers are there: as long as one can send before it is noticed."""
_LOOK_S = 0.2
_SAY_EVERY_S = 60.0
_RESERVE = 8
"""Descriptors that are kept for looking around when there is none left."""
_MOST_SAID = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """What a listener lets one peer, or all strangers together, take.

    Attributes:
      stranger_s: seconds until the first call of a new connection must have been let in.
      stranger_bytes: what may come in on a connection until then, where calls need a proof: whoever has one proves
        itself first, in some hundred bytes. gRPC unpacks what comes compressed, to a thousand times as much.
      strangers: how many such connections there may be at a time; the oldest go first.
      strangers_per_host: as `strangers`, from one host.
      unopened_streams_per_host: streams from one host that have not yet said whose they are.
      calls_per_s: calls a second on one connection, on average.
      call_burst: calls that may come at once beyond that.
      greetings_per_s, greeting_burst: the same for a host's proofs of who it is, over all its connections.
    """

    stranger_s: float = 10.0
    stranger_bytes: int = 32 << 10
    strangers: int = 512
    strangers_per_host: int = 256
    unopened_streams_per_host: int = 256
    calls_per_s: float = 500.0
    call_burst: int = 1000
    greetings_per_s: float = 200.0
    greeting_burst: int = 2000


class Refusals:
    """Says of each host once a minute, and for each reason, that it was refused. Thread-safe."""

    def __init__(self, say: Say, address: str) -> None:
        self._say = say
        self.address = address
        """Of the listener, for messages."""
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], float] = {}

    def note(self, peer: str, why: str) -> None:
        """Somebody was refused."""
        key = ports.host_of(peer), why[:80]
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(key, -_SAY_EVERY_S) < _SAY_EVERY_S:
                return
            if len(self._said) >= _MOST_SAID:
                self._said = {one: at for one, at in self._said.items() if now - at < _SAY_EVERY_S}
            if len(self._said) >= _MOST_SAID:
                return
            self._said[key] = now
        self._say(f"WARNING: {self.address} refused {peer}: {why}")


class Allowance:
    """Token buckets, one for each of many callers. Thread-safe."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str, now: float) -> bool:
        """Whether one more is allowed."""
        with self._lock:
            left, at = self._left.get(who, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            self._left[who] = (max(0.0, left - 1.0), now)
            if len(self._left) > 8192:  # those that are full again need not be remembered
                full = self._burst / self._rate
                self._left = {one: entry for one, entry in self._left.items() if now - entry[1] < full}
            return left >= 1.0


class Doorkeeper:
    """Looks after the connections of one port.

    Args:
      port: of the server.
      limits: what strangers may take.
      refusals: where to say that one was cut off.
    """

    def __init__(self, port: int, limits: ConnectionLimits, refusals: Refusals) -> None:
        self._port = port
        self._limits = limits
        self._refusals = refusals
        self._lock = threading.Lock()
        self._admitted: set[str] = set()
        self._since: dict[str, float] = {}
        self._reserve = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_RESERVE)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"trainband-door-{port}", daemon=True)
        atexit.register(self.close)
        start_thread(self._thread)

    def admit(self, peer: str) -> None:
        """A call on this connection was let in: it is no stranger's any more."""
        if peer not in self._admitted:
            with self._lock:
                self._admitted.add(peer)

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._over.set()
        atexit.unregister(self.close)
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)
        self._release()

    def _run(self) -> None:
        wait_s = _LOOK_S
        while not self._over.wait(wait_s):
            try:
                wait_s = _BUSY_LOOK_S if self._look() else _LOOK_S
                while len(self._reserve) < _RESERVE and not self._over.is_set():
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # no descriptor is left to look with: strangers may have taken them
                self._release()
                wait_s = 0.0

    def _release(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def _look(self) -> bool:
        """Cuts off strangers that take too much; returns whether any are left."""
        now = time.monotonic()
        with self._lock:
            admitted = set(self._admitted)
        here: set[str] = set()
        strangers: dict[str, int] = {}
        for peer, connection in connections(self._port):
            here.add(peer)
            if peer not in admitted:
                with contextlib.suppress(OSError):  # it has just been closed
                    strangers[peer] = received_bytes(connection)
        with self._lock:
            self._admitted -= admitted - here
        self._since = {peer: self._since.get(peer, now) for peer in strangers}
        guilty = self._guilty(strangers, now)
        if guilty:
            for peer, connection in connections(self._port):
                if peer in guilty:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
            for peer, why in guilty.items():
                self._refusals.note(peer, why)
        return len(guilty) < len(strangers)

    def _guilty(self, strangers: dict[str, int], now: float) -> dict[str, str]:
        """Which connections are cut off, and why."""
        limits = self._limits
        found: dict[str, str] = {}
        by_host: Counter[str] = Counter()
        newest_first = sorted(strangers, key=lambda peer: self._since[peer], reverse=True)
        for rank, peer in enumerate(newest_first):
            host = ports.host_of(peer)
            by_host[host] += 1
            if strangers[peer] > limits.stranger_bytes:
                found[peer] = f"it sent more than {limits.stranger_bytes:,} bytes before a call of its was let in"
            elif now - self._since[peer] > limits.stranger_s:
                found[peer] = f"no call of its was let in for {limits.stranger_s:g} s"
            elif rank >= limits.strangers or by_host[host] > limits.strangers_per_host:
                found[peer] = f"it opened more than {limits.strangers_per_host} connections without a call"
        return found
