"""WorkerResources: a worker's device and memory use, as reported in its heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from trainband.runtime import Runtime
from trainband.runtime.formatting import printable
from trainband.runtime.memory import EACH_S, MemoryReader, by_part
from trainband.wire.arena import held_bytes
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m


def _unknown() -> tuple[int, int]:
    return 0, 0


def _nothing() -> dict[str, int]:
    return {}


class WorkerResources:
    """Resources of one worker. The heartbeat threads read them; the training thread does nothing.

    Args:
      device: what it computes on; empty if unknown.
      device_memory: bytes in use on its devices, and their capacity; 0 if unknown.
    """

    def __init__(
        self, runtime: Runtime, device: str = "", device_memory: Callable[[], tuple[int, int]] = _unknown
    ) -> None:
        self.device = printable(device, LIMITS.host_length // 6)
        """Its device, for the join message: escaping makes at most six characters of one."""
        self._runtime = runtime
        self._device_memory = device_memory
        self.held: Callable[[], dict[str, int]] = _nothing
        """Returns the bytes of its job that this worker holds, by part; set by the client."""
        self._process = MemoryReader(runtime.memory, runtime.clock)
        self._seen = float("-inf"), m.NO_MEMORY

    def memory(self) -> m.Memory:
        """Returns usage as of the last second."""
        now = self._runtime.clock()
        if now - self._seen[0] >= EACH_S:
            used, limit = self._device_memory()
            total, shared = self._process()
            held = self.held()
            buffers = max(0, held_bytes() + shared - held.get("params", 0))  # the params are in the transports' memory
            parts = tuple(by_part(total, {**held, "buffers": buffers}).values())
            self._seen = now, m.Memory(total, used, limit, parts)
        return self._seen[1]
