"""Devices: which one a task computes on, and what it says when it cannot have what was wanted."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import pytest

from trainband.errors import ClusterError
from trainband.strategies.devices import choose_device, on_device


@dataclass(frozen=True)
class Device:
    """As much of a device as the choice needs."""

    platform: str
    number: int


CPU = Device("cpu", 0)
GPUS = [Device("gpu", i) for i in range(2)]
WITHOUT, WITH = {"cpu": [CPU]}, {"gpu": GPUS, "cpu": [CPU]}

CHOICES: list[tuple[dict[str, list[Device]], str | None, int, Device, str]] = [
    # what the machine has, what is wanted, the how-manieth task -> device, words
    (WITHOUT, None, 0, CPU, "worker:3 computes on the CPU: JAX sees no accelerator"),
    (WITHOUT, "cpu", 0, CPU, ""),
    (WITHOUT, "cpu:0", 5, CPU, ""),
    (WITHOUT, "gpu", 0, CPU, "worker:3 computes on the CPU: there is no device gpu"),
    (WITHOUT, "gpu:1", 0, CPU, "there is no device gpu:1"),
    (WITHOUT, "tpu", 0, CPU, "there is no device tpu"),
    (WITH, None, 0, GPUS[0], ""),
    (WITH, None, 1, GPUS[1], ""),
    (WITH, None, 2, GPUS[0], ""),  # more tasks than devices
    (WITH, "gpu", 3, GPUS[1], ""),
    (WITH, "gpu:0", 3, GPUS[0], ""),  # a number is a wish of its own
    (WITH, "gpu:2", 0, CPU, "there is no device gpu:2"),
    (WITH, "cpu", 1, CPU, ""),
]


@pytest.mark.parametrize(("machine", "wanted", "index", "device", "words"), CHOICES, ids=range(len(CHOICES)))
def test_the_choice(
    machine: dict[str, list[Device]],
    wanted: str | None,
    index: int,
    device: Device,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def local_devices(backend: str | None = None) -> list[Device]:
        if backend is None:
            return next(iter(machine.values()))
        if backend not in machine:
            raise RuntimeError(f"Unknown backend {backend}")
        return machine[backend]

    said: list[str] = []
    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert choose_device(wanted, index, "worker:3", said.append) == device
    assert len(said) == bool(words)
    assert words in "".join(said)


@pytest.mark.parametrize("wanted", ["gpu:", "gpu:x", "gpu:-1", "gpu:1:2", ":", "gpu: 1"])
def test_a_device_that_does_not_read_as_one(wanted: str) -> None:
    with pytest.raises(ClusterError, match="device must read like cpu, gpu or gpu:1, got"):
        choose_device(wanted, 0, "worker:0", pytest.fail)


def test_the_first_device_needs_no_context() -> None:
    device = jax.local_devices()[0]
    with on_device(device):
        assert jax.numpy.ones(3).device == device
