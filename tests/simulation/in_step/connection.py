"""Connections of simulated workers: to the chief's process and the key-value store in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.network import Future, Network
from tests.simulation.process import Process
from trainband.errors import Unreachable

LOCAL_S = 0.001
"""For one of the chief's own calls."""

Values = dict[str, str]


class Hub:
    """The chief's side of all connections.

    Attributes:
      values: the store's.
      sent: when each key was first set, on the clock of the process that set it.
      serves: whether the store answers.
    """

    def __init__(self, network: Network, processes: Sequence[Process]) -> None:
        self.network = network
        self.processes = processes
        self.values: Values = {}
        self.sent: dict[str, float] = {}
        self.serves = True
        self.ended: set[int] = set()
        """Processes whose connection the chief has seen end."""


class SimulatedStore:
    """See `trainband.runtime.key_value.KeyValueStore`.

    Args:
      hub: where the values are.
      process: whose store it is.
    """

    def __init__(self, hub: Hub, process: Process) -> None:
        self._hub = hub
        self._process = process

    def set(self, key: str, value: str) -> None:
        self._hub.sent.setdefault(key, self._process.now)
        self._call(lambda values: values.update({key: value}))

    def get(self, key: str) -> str | None:
        found: str | None = self._call(lambda values: values.get(key))
        return found

    def list(self, prefix: str) -> dict[str, str]:
        def work(values: Values) -> dict[str, str]:
            return {key[len(prefix) :].lstrip("/"): value for key, value in values.items() if key.startswith(prefix)}

        found: dict[str, str] = self._call(work)
        return found

    def delete(self, prefix: str) -> None:
        def work(values: Values) -> None:
            for key in [key for key in values if key.startswith(f"{prefix}/")]:
                del values[key]

        self._call(work)

    def _call(self, work: Callable[[Values], Any]) -> Any:
        """Hangs if the chief does not answer, as JAX's client does behind its proxy."""
        hub, caller = self._hub, self._process
        host, future = hub.processes[0], Future(caller)

        def serve() -> None:
            if hub.serves:
                value, error = work(hub.values), None
            else:
                value, error = None, Unreachable("the store is shut down.")
            if caller is host:
                future.resolve(value, error)
            else:
                hub.network.carry_surely(host.name, caller.name, lambda: future.resolve(value, error))

        if caller is host:
            host.after(LOCAL_S, serve)
        else:
            hub.network.carry_surely(caller.name, host.name, lambda: host.receive(serve))
        return future.result(None)


class SimulatedConnection:
    """See `trainband.spmd.connection.Connection`.

    Args:
      hub: of all.
      index: whose it is.
    """

    def __init__(self, hub: Hub, index: int) -> None:
        self._hub = hub
        self._index = index
        self._process = hub.processes[index]
        self._has_hung_up = False
        self.store = SimulatedStore(hub, self._process)
        self.lost = not hub.processes[0].alive
        self._process.on_death.append(self._end)
        if index:
            hub.processes[0].on_death.append(self._lose)

    def _lose(self) -> None:
        """Learns from the kernel that the chief's process has ended."""
        chief = self._hub.processes[0]
        self._hub.network.carry_surely(chief.name, self._process.name, lambda: setattr(self, "lost", True))

    def _end(self) -> None:
        if self._index:
            name, chief = self._process.name, self._hub.processes[0]
            self._hub.network.carry_surely(name, chief.name, lambda: self._hub.ended.add(self._index))

    def cut_off(self) -> frozenset[int]:
        return frozenset() if self._index or self._has_hung_up else frozenset(self._hub.ended)

    def seal(self) -> None:
        """Does nothing: no other process connects."""

    def hang_up(self) -> None:
        if not self._has_hung_up:
            self._has_hung_up = True
            self._end()

    def close(self, *, well: bool) -> None:
        if well and not self._index:
            self._hub.serves = False
