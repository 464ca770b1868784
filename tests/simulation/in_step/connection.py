"""The connection of a simulated worker: the shipped links, and a key-value store in place of JAX's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.in_step.sockets import SimulatedListener, SimulatedPlace, SimulatedSocket, SimulatedSockets
from tests.simulation.network import Future
from tests.simulation.process import Process, sleep
from trainband.cluster import Address
from trainband.errors import Unreachable
from trainband.runtime.base import Runtime
from trainband.runtime.waiting import Say
from trainband.spmd.coordination import CONNECT_S
from trainband.spmd.links import Links, connecting
from trainband.spmd.proof import Proof

SECRET = b"the secret of the job"

Values = dict[str, str]


class Service:
    """The chief's key-value store.

    Args:
      listener: where clients come.
      process: the chief's.
      beats: told of each heartbeat, and of which process.
    """

    def __init__(self, listener: SimulatedListener, process: Process, beats: Callable[[int], None]) -> None:
        self._beats = beats
        self._listener = listener
        self._process = process
        self._values: Values = {}
        self._serves = True
        process.thread(self._accept, "service").start()

    def shutdown(self) -> None:
        """Refuses all further calls."""
        self._serves = False

    def _accept(self) -> None:
        while True:
            caller, _ = self._listener.accept()
            self._process.thread(lambda caller=caller: self._serve(caller), "service").start()  # type: ignore[misc]

    def _serve(self, caller: SimulatedSocket) -> None:
        data = b""
        caller.settimeout(None)
        while got := caller.recv(1 << 16):
            *calls, data = (data + got).split(b"\n")
            answers = [[self._serves, self._answer(*json.loads(call))] for call in calls]
            try:
                caller.sendall(b"".join(json.dumps(answer).encode() + b"\n" for answer in answers))
            except OSError:
                return

    def _answer(self, kind: str, key: str, value: str = "") -> Any:
        values = self._values
        match kind:
            case "set":
                values[key] = value
                if key.startswith("beat/"):
                    self._beats(int(key[5:]))
            case "get":
                return values.get(key)
            case "list":
                return {one[len(key) :].lstrip("/"): value for one, value in values.items() if one.startswith(key)}
            case "delete":
                for one in [one for one in values if one.startswith(f"{key}/")]:
                    del values[one]
        return None


class SimulatedStore:
    """See `trainband.runtime.key_value.KeyValueStore`: a client of the service, like JAX's behind its proxy.

    Args:
      place: where it reaches the service.
      process: whose it is.
      sent: when each key was first set.
      breaks: called when its connection breaks, whereupon JAX ends the process.
    """

    def __init__(
        self, place: SimulatedPlace, process: Process, sent: dict[str, float], breaks: Callable[[], None]
    ) -> None:
        self._place = place
        self._process = process
        self._sent = sent
        self._breaks = breaks
        self._calls: list[Future] = []
        self._is_closed = False
        while not self._is_connected():
            sleep(process, 0.1)
        process.thread(self._read, "client").start()

    def close(self) -> None:
        """Expects no more answers."""
        self._is_closed = True

    def _is_connected(self) -> bool:
        try:
            self._connection = self._place.connect(1.0)
            self._connection.sendall(b'["hello", ""]\n')
            return bool(self._connection.recv(1 << 16))
        except OSError:
            return False

    def set(self, key: str, value: str) -> None:
        self._sent.setdefault(key, self._process.now)
        self._call("set", key, value)

    def get(self, key: str) -> str | None:
        found: str | None = self._call("get", key)
        return found

    def list(self, prefix: str) -> dict[str, str]:
        found: dict[str, str] = self._call("list", prefix)
        return found

    def delete(self, prefix: str) -> None:
        self._call("delete", prefix)

    def _call(self, *call: str) -> Any:
        """Hangs while the chief does not answer."""
        future = Future(self._process)
        self._calls.append(future)
        try:
            self._connection.sendall(json.dumps(call).encode() + b"\n")
        except OSError:
            raise Unreachable("the connection is closed.") from None
        serves, answer = future.result(None)
        if not serves:
            raise Unreachable("the store is shut down.")
        return answer

    def _read(self) -> None:
        data = b""
        while got := self._connection.recv(1 << 16):
            *answers, data = (data + got).split(b"\n")
            for answer in answers:
                self._calls.pop(0).resolve(json.loads(answer))
        if not self._is_closed:
            self._breaks()


class SimulatedConnection:
    """See `trainband.spmd.connection.Connection`, and `trainband.spmd.coordination.Coordination`.

    Args:
      sockets, runtime, process: of this process.
      sent, breaks: see `SimulatedStore`.
      beats: see `Service`.
    """

    def __init__(
        self,
        coordinator: str,
        index: int,
        tasks: Sequence[str],
        *,
        start_s: float,
        say: Say,
        sockets: SimulatedSockets,
        runtime: Runtime,
        process: Process,
        sent: dict[str, float],
        breaks: Callable[[], None],
        beats: Callable[[int], None],
    ) -> None:
        chief = Address.parse(coordinator, tasks[0])
        proof = Proof(SECRET, clock=runtime.clock)
        self._links = links = Links(chief, index, tasks, start_s, say, proof, runtime, sockets)
        sleep(process, process.dice.uniform(0.0, 1.5))  # until JAX has started
        place = sockets.places[links.connect_to]
        self._service = None if index else Service(place.listen(), process, beats)
        with connecting(f"{tasks[0]} at {chief}", CONNECT_S, say, lambda: links.lost, runtime):
            self.store = SimulatedStore(place, process, sent, breaks)
        self.seal, self.cut_off, self.hang_up = links.seal, links.cut_off, links.hang_up

    @property
    def lost(self) -> bool:
        return self._links.lost

    def close(self, *, well: bool) -> None:
        if well:
            self.store.close()
            if self._service is not None:
                self._service.shutdown()
            self._links.close()
