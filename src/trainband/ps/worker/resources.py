"""WorkerResources: a worker's device and memory use, as reported in its heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from trainband.runtime import Runtime
from trainband.runtime.formatting import printable
from trainband.wire.limits import LIMITS
from trainband.wire.messages import calls as m

EACH_S = 1.0
"""Minimum seconds between memory readings, however many ps get them."""


def _unknown() -> tuple[int, int]:
    return 0, 0


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
        self._seen = float("-inf"), m.NO_MEMORY

    def memory(self) -> m.Memory:
        """Returns usage as of the last second."""
        now = self._runtime.clock()
        if now - self._seen[0] >= EACH_S:
            used, limit = self._device_memory()
            self._seen = now, m.Memory(self._runtime.memory_bytes(), used, limit)
        return self._seen[1]
