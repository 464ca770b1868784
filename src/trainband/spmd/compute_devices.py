"""ComputeDevices: the devices that a task computes on, and their memory in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import jax


class DeviceMemory(NamedTuple):
    """Memory of one or several devices, in bytes; 0 if unknown."""

    used: int = 0
    limit: int = 0
    """How much of it the process can use."""


class ComputeDevices:
    """The devices of this process that an engine computes on.

    Args:
      devices: of a mesh; those of other processes are left out.
    """

    def __init__(self, devices: Iterable[jax.Device]) -> None:
        # Each by its own platform: on a mesh of CPUs beside accelerators, `jax.process_index` is another number.
        self._devices = [device for device in devices if device.process_index == device.client.process_index()]

    @property
    def description(self) -> str:
        """The kind of the devices: `cpu`, `NVIDIA H100 80GB HBM3`, `8 × TPU v5e`."""
        kinds = Counter(str(device.device_kind) for device in self._devices)
        return ", ".join(kind if count == 1 else f"{count} × {kind}" for kind, count in kinds.items())

    def memory(self) -> DeviceMemory:
        """Returns the sum over the devices. Asks their allocators, without waiting for computations."""
        memories = [_memory_of(device) for device in self._devices]
        return DeviceMemory(sum(one.used for one in memories), sum(one.limit for one in memories))


def _memory_of(device: jax.Device) -> DeviceMemory:
    try:
        statistics = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # raised by platforms without such statistics
        statistics = {}
    return DeviceMemory(int(statistics.get("bytes_in_use", 0)), int(statistics.get("bytes_limit", 0)))
