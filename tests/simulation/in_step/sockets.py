"""Simulated sockets, of TCP and within one process; see `trainband.spmd.sockets`."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from tests.simulation.network import Future, Network
from tests.simulation.process import Process, sleep
from tests.simulation.scheduler import Action
from trainband.errors import DeadlineExceeded


class Wires:
    """All that listens, on any machine.

    Args:
      network: that carries what is sent.
      hosts: the task on each machine.
    """

    def __init__(self, network: Network, hosts: dict[str, str]) -> None:
        self.network = network
        self.hosts = hosts
        self.listening: dict[tuple[str, int | str], SimulatedListener] = {}
        self.places = 0

    def carry(self, source: Process, target: Process, deliver: Action) -> None:
        """Carries something to another process, or within one. The kernel takes it, even if that process is paused."""
        if source is target:
            deliver()
        else:
            self.network.carry_surely(source.name, target.name, deliver)


class _Waits:
    """Those who wait at a socket, for as long as its timeout says."""

    def __init__(self, wires: Wires, process: Process) -> None:
        self._wires = wires
        self.process = process
        self._timeout_s: float | None = None
        self._wakes: list[Action] = []
        self._is_closed = self._is_shut = False
        process.on_death.append(self.shutdown)

    def settimeout(self, value: float | None) -> None:
        self._timeout_s = value

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Changes nothing."""

    def close(self) -> None:
        """As in Linux, does not wake those who wait: the connection ends when they have what they wait for."""
        self._is_closed = True
        self._end_if_closed()

    def _end_if_closed(self) -> None:
        if self._is_closed and not self._wakes:
            self.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def shutdown(self, how: int = 0) -> None:
        del how
        if not self._is_shut:
            self._is_shut = True
            if self.shutdown in self.process.on_death:
                self.process.on_death.remove(self.shutdown)
            self._finish()
            self.wake()

    def _finish(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """Has those who wait look again."""
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def _wait(self, come: Callable[[], Any]) -> None:
        """Returns when something has come or the socket is shut down."""
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        until = None if self._timeout_s is None else self.process.clock() + self._timeout_s
        while not come() and not self._is_shut:
            left_s = None if until is None else until - self.process.clock()
            if left_s is not None and left_s <= 0:
                raise TimeoutError if self._timeout_s else BlockingIOError
            sleep(self.process, left_s, self._wakes)
            self._end_if_closed()


class SimulatedSocket(_Waits):
    """One end of a connection."""

    def __init__(self, wires: Wires, process: Process) -> None:
        super().__init__(wires, process)
        self.other: SimulatedSocket
        self._under_way: deque[list[Any]] = deque()
        self.come = bytearray()
        self._has_ended = False

    @classmethod
    def pair(cls, wires: Wires, one: Process, other: Process) -> tuple[SimulatedSocket, SimulatedSocket]:
        """Returns two connected ends."""
        ends = cls(wires, one), cls(wires, other)
        ends[0].other, ends[1].other = ends[1], ends[0]
        return ends

    def recv(self, most: int) -> bytes:
        self._wait(lambda: self.come or self._has_ended)
        data = bytes(self.come[:most])
        del self.come[:most]
        return data

    def sendall(self, data: bytes) -> None:
        if self._is_closed or self._is_shut or self._has_ended:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self._send(lambda: self.other.come.extend(data))

    def _finish(self) -> None:
        self._send(lambda: setattr(self.other, "_has_ended", True))

    def _send(self, take: Action) -> None:
        """Carries something to the other end, which takes all in the order in which it was sent."""
        sent: list[Any] = [False, take]
        self._under_way.append(sent)

        def arrive() -> None:
            sent[0] = True
            while self._under_way and self._under_way[0][0]:
                self._under_way.popleft()[1]()
            self.other.wake()

        self._wires.carry(self.process, self.other.process, arrive)


class SimulatedListener(_Waits):
    """A socket that listens.

    Args:
      wires, process: whose it is.
      where: the address, one of the process's own.
    """

    def __init__(self, wires: Wires, process: Process, where: int | str) -> None:
        self._where = process.name, where
        if self._where in wires.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        super().__init__(wires, process)
        wires.listening[self._where] = self
        self._callers: deque[SimulatedSocket] = deque()

    def accept(self) -> tuple[SimulatedSocket, Any]:
        self._wait(lambda: self._callers)
        if self._is_shut:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._callers.popleft(), None

    def called(self, caller: Process) -> SimulatedSocket:
        """Connects a caller, and returns its end; the other end waits to be accepted."""
        ours, theirs = SimulatedSocket.pair(self._wires, self.process, caller)
        self._callers.append(ours)
        self.wake()
        return theirs

    def _finish(self) -> None:
        del self._wires.listening[self._where]
        for caller in self._callers:
            caller.shutdown()


class SimulatedPlace:
    """See `trainband.spmd.sockets.Place`."""

    def __init__(self, wires: Wires, process: Process) -> None:
        wires.places += 1
        self.address = f"place:{wires.places}"
        self._wires, self.process = wires, process
        self._is_sealed = False

    def listen(self) -> SimulatedListener:
        return SimulatedListener(self._wires, self.process, self.address)

    def connect(self, timeout_s: float) -> SimulatedSocket:
        del timeout_s
        listener = self._wires.listening.get((self.process.name, self.address))
        if self._is_sealed or listener is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return listener.called(self.process)

    def seal(self) -> None:
        self._is_sealed = True


class SimulatedSockets:
    """See `trainband.spmd.sockets.Sockets`: those of one process."""

    def __init__(self, wires: Wires, process: Process) -> None:
        self._wires = wires
        self.process = process
        self.places: dict[str, SimulatedPlace] = {}

    def listen(self, host: str, port: int) -> SimulatedListener:
        del host
        return SimulatedListener(self._wires, self.process, port)

    def private(self) -> SimulatedPlace:
        place = SimulatedPlace(self._wires, self.process)
        self.places[place.address] = place
        return place

    def connect(self, host: str, port: int, timeout_s: float) -> SimulatedSocket:
        wires, caller, future = self._wires, self.process, Future(self.process)
        task = wires.hosts[host]

        def arrive() -> None:
            listener = wires.listening.get((task, port))
            end = None if listener is None else listener.called(caller)
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            wires.network.carry_surely(task, caller.name, lambda: answer(end, refused))

        def answer(end: SimulatedSocket | None, refused: OSError) -> None:
            if end is not None and future.done:
                end.close()  # the caller has given up
            future.resolve(end, None if end else refused)

        wires.network.carry_surely(caller.name, task, arrive)
        try:
            found: SimulatedSocket = future.result(timeout_s)
        except DeadlineExceeded:
            raise TimeoutError from None
        found.settimeout(timeout_s)
        return found
