"""The strategies of one process: on one device, or on several, each with all the variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.tf2.distribute.strategy import Strategy
from trainband.strategies import Mirrored
from trainband.strategies.devices import find_device


class MirroredStrategy(Strategy):
    """Several devices of this process compute in step.

    Args:
      devices: their names, such as `["/gpu:0", "/gpu:1"]`; all that there are by default.
      cross_device_ops: how they exchange values, which is left to JAX.

    Raises:
      ClusterError: the same device is named twice, or a name cannot be read.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        del cross_device_ops
        # A list of no GPUs means the CPU, as when there are none.
        names = [plain_name(getattr(one, "name", one)) for one in devices] if devices else None
        self._begin(Mirrored(names, standalone=True))

    def _begin(self, trainband: Mirrored) -> None:
        several = trainband.num_replicas > 1
        Strategy.__init__(self, trainband if several else None, list(trainband.mesh().devices.flat))


class CentralStorageStrategy(MirroredStrategy):
    """Like `MirroredStrategy`, with the variables on the CPU while a Keras model is trained by `fit`.

    Args:
      compute_devices: which devices compute; all that there are by default.
      parameter_device: where the variables are, which is the CPU.
    """

    def __init__(self, compute_devices: Sequence[str] | None = None, parameter_device: Any = None) -> None:
        del parameter_device
        names = None if compute_devices is None else [plain_name(one) for one in compute_devices]
        self._begin(Mirrored(names, central_storage=True, standalone=True))


class OneDeviceStrategy(Strategy):
    """One device computes.

    Args:
      device: its name, such as `/gpu:0`.

    Raises:
      ValueError: there is no such device.
    """

    def __init__(self, device: str) -> None:
        found = find_device(plain_name(device))
        if found is None:
            raise ValueError(f"OneDeviceStrategy: there is no device {device!r}.")
        super().__init__(None, [found])


def plain_name(device: str) -> str:
    """A device's name as trainband has it: `gpu:1` for `/job:localhost/replica:0/task:0/device:GPU:1`."""
    last = str(device).rpartition("/")[2].lower()
    return last.removeprefix("device:").removesuffix(":*")
