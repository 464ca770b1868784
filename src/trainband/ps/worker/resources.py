"""WorkerResources: what a worker computes on and how much memory it uses, as its heartbeats tell it."""

from __future__ import annotations

from collections.abc import Callable

from trainband.runtime import Runtime
from trainband.runtime.formatting import printable
from trainband.wire import messages as m
from trainband.wire.limits import LIMITS

EACH_S = 1.0
"""Memory is looked at this often at most, however many ps are told of it."""


def _unknown() -> tuple[int, int]:
    return 0, 0


class WorkerResources:
    """What one worker uses. The threads of its heartbeats ask; the thread that trains does nothing for it.

    Args:
      runtime: this task's.
      device: what it computes on; empty where that is not known.
      device_memory: bytes in use on its devices, and how many they have; 0 where they don't say.
    """

    def __init__(
        self, runtime: Runtime, device: str = "", device_memory: Callable[[], tuple[int, int]] = _unknown
    ) -> None:
        self.device = printable(device, LIMITS.host_length // 6)
        """What it computes on, for the record that it joins with: escaping a character makes six of it at most."""
        self._runtime = runtime
        self._device_memory = device_memory
        self._seen = float("-inf"), m.NO_MEMORY

    def memory(self) -> m.Memory:
        """What is in use, as of the last second."""
        now = self._runtime.clock()
        if now - self._seen[0] >= EACH_S:
            used, limit = self._device_memory()
            self._seen = now, m.Memory(self._runtime.memory_bytes(), used, limit)
        return self._seen[1]
