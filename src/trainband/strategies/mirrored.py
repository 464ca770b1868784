"""Mirrored: several devices of one process, each with all the variables and a part of every batch."""

from __future__ import annotations

from collections.abc import Iterable

import jax
from jax.sharding import Mesh

from trainband.errors import ClusterError
from trainband.model.mesh_context import DATA
from trainband.model.optimizer import Optimizer
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.spmd.batch_sharding import REMAINDERS
from trainband.spmd.sharding import mesh_of, names_of, require_one_platform
from trainband.strategies.description import Description
from trainband.strategies.devices import choose_device, cpu_instead, find_device, shown_devices
from trainband.strategies.mesh_strategy import MeshStrategy


class Mirrored(MeshStrategy):
    """Trains in this process on several devices: the batch is split over them, and the params are on each.

    The result is that of one device on the whole batch, except for rounding.

    Args:
      devices: such as `["gpu:0", "gpu:1"]` or some of `jax.devices()`, or a platform's name for all of its devices;
        default: all devices of this process. Named devices that do not exist are left out.
      central_storage: keep and update the params on the CPU, and send them to the devices for each step: for devices
        without a fast link, or whose memory the optimizer's state would fill.
      remainder: how to handle a batch whose examples do not divide evenly among the devices: `pad` fills it up and
        removes the padding before anything is computed from it; `refuse` raises `DataError`.
      standalone: whether this process trains alone although it is a task of a cluster, otherwise an error.
      strict: refuse to compute on the CPU in place of a requested device that does not exist.
      say: receives lines for people.

    Raises:
      ClusterError: `remainder` is unknown, `devices` is empty, or, from `fit`, they are of several platforms.
    """

    def __init__(
        self,
        devices: Iterable[str | jax.Device] | jax.Device | str | None = None,
        *,
        central_storage: bool = False,
        remainder: str = "pad",
        standalone: bool = False,
        strict: bool = False,
        say: Say = say_on_stderr,
    ) -> None:
        super().__init__(say)
        check_remainder("Mirrored", remainder)
        if isinstance(devices, str | jax.Device | None):
            self._devices = devices
        elif isinstance(devices, Iterable):
            self._devices = list(devices)
        else:
            raise ClusterError(
                f"Mirrored: devices must name them, such as ['gpu:0', 'gpu:1'], or be some of jax.devices(), got "
                f"{devices!r}."
            )
        self.central_storage = central_storage
        self.remainder = remainder
        self.standalone = standalone
        self._strict = strict

    def _make_mesh(self) -> Mesh:
        return mesh_of({DATA: -1}, choose_devices(self._devices, self._say, strict=self._strict))

    def describe(self, params: PyTree, optimizer: Optimizer | None = None) -> Description:
        if not self.central_storage:
            return super().describe(params, optimizer)
        storage = mesh_of({DATA: 1}, jax.local_devices(backend="cpu")[:1])
        name = f"Mirrored on {self.num_replicas} devices, with its central storage"
        return self._described(name, params, optimizer, storage)

    @property
    def uses_all_devices(self) -> bool:
        """Whether it trains on whatever devices this process has."""
        return self._devices is None


def choose_devices(
    wanted: Iterable[str | jax.Device] | jax.Device | str | None, say: Say, *, strict: bool
) -> list[jax.Device]:
    """Returns the requested devices of this process; all of them by default.

    Raises:
      ClusterError: a device is listed twice, they are of several platforms, or with `strict` one does not exist.
    """
    if wanted is None:
        devices = list(jax.local_devices())
        if len(devices) == 1 and devices[0].platform == "cpu":
            say("this process computes on the CPU: JAX sees no accelerator")
        return _told(devices, say)
    if isinstance(wanted, str):
        first = choose_device(wanted, 0, "this process", say, strict=strict)
        return _told([first] if ":" in wanted else list(jax.local_devices(backend=first.platform)), say)
    wanted = [wanted] if isinstance(wanted, jax.Device) else list(wanted)
    asked = [find_device(name) for name in wanted]
    found = [device for device in asked if device is not None]
    missing = [str(name) for name, device in zip(wanted, asked, strict=True) if device is None]
    if missing and (strict or not found):
        return [cpu_instead(missing, "this process", say, strict=strict)]
    if missing:
        say(f"this process computes on {', '.join(map(str, found))} only: there is no {', '.join(missing)}")
    if len(set(found)) < len(found) or not found:
        raise ClusterError(
            f"Mirrored: devices={wanted} selects {', '.join(map(str, found)) or 'none'}; name each device once, "
            "such as ['gpu:0', 'gpu:1']."
        )
    require_one_platform(found)
    return found if missing else _told(found, say)


def _told(devices: list[jax.Device], say: Say) -> list[jax.Device]:
    if len({device.device_kind for device in devices}) > 1:
        require_one_platform(devices)
        kinds = zip(devices, names_of(devices), strict=True)
        say(
            "WARNING: the devices are of different kinds: "
            + ", ".join(f"{name} is a {device.device_kind}" for device, name in kinds)
            + ". Each gets an equal part of every batch, so all wait for the slowest; one worker for each kind under "
            "ParameterServer(update=Sync(balance='speed')) would divide the examples by speed."
        )
    if len(devices) > 1 or devices[0].platform != "cpu":
        say(f"this process computes on {shown_devices(devices)}")
    return devices


def check_remainder(strategy: str, remainder: str) -> None:
    """Raises `ClusterError` if `remainder` is unknown."""
    if remainder not in REMAINDERS:
        raise ClusterError(f"{strategy}: remainder must be {' or '.join(map(repr, REMAINDERS))}, got {remainder!r}.")
