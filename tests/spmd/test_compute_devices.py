"""The description of the devices that a task computes on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from trainband.spmd.compute_devices import ComputeDevices, DeviceMemory


@dataclass(frozen=True)
class Device:
    """The parts of a JAX device that are used."""

    device_kind: str
    statistics: dict[str, int] | None = None
    process_index: int = 0

    @property
    def client(self) -> Any:
        """Of this process."""
        return SimpleNamespace(process_index=lambda: 0)

    def memory_stats(self) -> dict[str, int] | None:
        if self.device_kind == "mute":
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: GetAllocatorStats is not supported")
        return self.statistics


H100 = Device("NVIDIA H100 80GB HBM3", {"bytes_in_use": 3, "bytes_limit": 60, "peak_bytes_in_use": 9})

SAID: list[tuple[list[Device], str, DeviceMemory]] = [
    ([H100], "NVIDIA H100 80GB HBM3", DeviceMemory(3, 60)),
    ([H100] * 8, "8 × NVIDIA H100 80GB HBM3", DeviceMemory(24, 480)),
    ([H100, Device("cpu")], "NVIDIA H100 80GB HBM3, cpu", DeviceMemory(3, 60)),
    ([H100, Device("NVIDIA H100 80GB HBM3", {"bytes_in_use": 1}, 1)], "NVIDIA H100 80GB HBM3", DeviceMemory(3, 60)),
    ([Device("mute")], "mute", DeviceMemory(0, 0)),
]


@pytest.mark.parametrize(("devices", "description", "memory"), SAID, ids=range(len(SAID)))
def test_devices(devices: list[Any], description: str, memory: DeviceMemory) -> None:
    found = ComputeDevices(devices)
    assert (found.description, found.memory()) == (description, memory)


def test_those_of_this_machine() -> None:
    found = ComputeDevices(jax.local_devices())
    assert jax.local_devices()[0].device_kind in found.description
    assert found.memory().used <= found.memory().limit
