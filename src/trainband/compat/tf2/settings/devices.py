"""`tf.config`: the devices of JAX as TensorFlow shows them, and settings that change nothing here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from trainband.compat.tf2.settings.platforms import accelerators, cpu_devices, divide_cpu

_log = logging.getLogger(__name__)


class PhysicalDevice(NamedTuple):
    """A device of this machine."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device as operations see it."""

    name: str
    device_type: str


@dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """How a device is divided. This changes nothing but the number: JAX has its own settings for memory."""

    memory_limit: Any = None
    experimental_priority: Any = None
    experimental_device_ordinal: Any = None


class ClusterDeviceFilters:
    """Which devices a task sees. This changes nothing."""

    def set_device_filters(self, job_name: str, task_index: int, device_filters: Any) -> None:
        """Does nothing."""


class _Settings:
    """What has been set."""

    def __init__(self) -> None:
        self.visible: dict[str, list[PhysicalDevice]] = {}
        self.divided: dict[str, list[LogicalDeviceConfiguration]] = {}
        self.grows: dict[str, bool] = {}
        self.threads = {"inter": 0, "intra": 0}
        self.soft = True
        self.options: dict[str, Any] = {}
        self.jit: Any = ""


_SET = _Settings()


def _kind(platform: str) -> str:
    return {"cpu": "CPU", "tpu": "TPU"}.get(platform, "GPU")


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this process: `CPU`, `GPU`, `TPU`."""
    found = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    found += [
        PhysicalDevice(f"/physical_device:{_kind(platform)}:{index}", _kind(platform))
        for index, platform in enumerate(accelerators())
    ]
    return [one for one in found if device_type in (None, one.device_type)]


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Those that the script uses."""
    return [
        one
        for one in list_physical_devices(device_type)
        if one.device_type not in _SET.visible or one in _SET.visible[one.device_type]
    ]


def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
    """Say which devices the script uses: lists and strategies name no others.

    Raises:
      ValueError: there is no such device.
    """
    chosen = [devices] if isinstance(devices, PhysicalDevice) else list(devices or [])
    for one in chosen:
        if one not in list_physical_devices():
            raise ValueError(f"Unrecognized device: {one!r}")
        if device_type not in (None, one.device_type):
            raise ValueError(f"Unrecognized device: {one!r}")
    kinds = {one.device_type for one in list_physical_devices()} if device_type is None else {device_type}
    for kind in kinds:
        _SET.visible[kind] = [one for one in chosen if one.device_type == kind]


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Those that the script uses, as many as they are divided into; on a CPU, at least as many as JAX shows."""
    found: list[LogicalDevice] = []
    counts: dict[str, int] = {}
    for one in get_visible_devices(device_type):
        parts = len(_SET.divided.get(one.name, [])) or 1
        if one.device_type == "CPU":
            parts = max(parts, cpu_devices())
        for _ in range(parts):
            number = counts.get(one.device_type, 0)
            counts[one.device_type] = number + 1
            found.append(LogicalDevice(f"/device:{one.device_type}:{number}", one.device_type))
    return found


def _known(device: Any) -> PhysicalDevice:
    if device not in list_physical_devices():
        raise ValueError(f"Unrecognized device: {device!r}")
    found: PhysicalDevice = device
    return found


def set_logical_device_configuration(device: Any, logical_devices: Sequence[Any] | None) -> None:
    """Divide a device into several, as lists show them; the CPU, before anything is computed.

    Raises:
      ValueError: there is no such device, or a CPU has a limit of memory.
    """
    name = _known(device).name
    parts = list(logical_devices or [])
    if device.device_type == "CPU" and any(one.memory_limit is not None for one in parts):
        raise ValueError("Setting memory limit on CPU is currently not supported")
    _SET.divided[name] = parts
    if device.device_type == "CPU" and parts and not divide_cpu(len(parts)):
        _log.warning(
            "JAX shows %d CPU devices, and %d were asked for: set XLA_FLAGS=--xla_force_host_platform_device_count=%d "
            "before Python starts.",
            jax.local_device_count(), len(parts), len(parts),
        )  # fmt: skip


def get_logical_device_configuration(device: Any) -> list[Any] | None:
    """How a device is divided."""
    return _SET.divided.get(_known(device).name)


def set_memory_growth(device: Any, enable: bool) -> None:
    """Remember it, and change nothing: JAX has a setting of its own, XLA_PYTHON_CLIENT_PREALLOCATE.

    Raises:
      ValueError: there is no such device.
    """
    _SET.grows[_known(device).name] = bool(enable)


def get_memory_growth(device: Any) -> bool:
    """What was set."""
    return _SET.grows.get(_known(device).name, False)


def get_memory_info(device: str) -> dict[str, int]:
    """How much memory of a device is used, and was at most, in bytes."""
    number = int(str(device).rpartition(":")[2] or 0)
    found = [one for one in jax.local_devices() if one.platform != "cpu"]
    stats = (found[number].memory_stats() or {}) if number < len(found) else {}
    return {"current": int(stats.get("bytes_in_use", 0)), "peak": int(stats.get("peak_bytes_in_use", 0))}


def get_device_details(device: Any) -> dict[str, Any]:
    """The name of a GPU."""
    others = [one for one in jax.local_devices() if one.platform != "cpu"]
    number = int(_known(device).name.rpartition(":")[2])
    return {} if device.device_type == "CPU" else {"device_name": others[number].device_kind}


def reset_memory_stats(device: str) -> None:
    """Does nothing."""
    del device


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Remember it, and change nothing: XLA has threads of its own."""
    _SET.threads["inter"] = int(num_threads)


def get_inter_op_parallelism_threads() -> int:
    """What was set."""
    return _SET.threads["inter"]


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Remember it, and change nothing: XLA has threads of its own."""
    _SET.threads["intra"] = int(num_threads)


def get_intra_op_parallelism_threads() -> int:
    """What was set."""
    return _SET.threads["intra"]


def set_soft_device_placement(enabled: bool) -> None:
    """Remember it, and change nothing."""
    _SET.soft = bool(enabled)


def get_soft_device_placement() -> bool:
    """What was set."""
    return _SET.soft


def set_jit(enabled: Any) -> None:
    """Remember it, and change nothing: XLA compiles everything."""
    _SET.jit = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> Any:
    """What was set."""
    return _SET.jit


def set_experimental_options(options: Any) -> None:
    """Remember it, and change nothing: XLA optimises programs."""
    _SET.options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """What was set."""
    return dict(_SET.options)


def change_nothing(*_: Any, **__: Any) -> None:
    """Changes nothing."""


experimental_connect_to_cluster = experimental_connect_to_host = change_nothing
enable_op_determinism = enable_tensor_float_32_execution = change_nothing
set_synchronous_execution = set_device_policy = enable_mlir_bridge = disable_mlir_bridge = change_nothing


def tensor_float_32_execution_enabled() -> bool:
    """Whether products may use fewer digits: as JAX decides."""
    return True


def get_synchronous_execution() -> bool:
    """Whether operations run one by one."""
    return False


def get_device_policy() -> str:
    """What happens to tensors on other devices."""
    return "silent"
