"""ConfigProto and its parts: what a script may say about devices. Most of it has no effect."""

from __future__ import annotations

from typing import Any


class Message:
    """A record with any fields, as a script sets them."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        inner = Message()
        self.__dict__[name] = inner
        return inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.__dict__.items())})"


class GPUOptions(Message):
    """How GPUs are used. This changes nothing: JAX decides."""


class GraphOptions(Message):
    """How graphs are optimised. This changes nothing: XLA decides."""


class OptimizerOptions(Message):
    """How graphs are optimised. This changes nothing: XLA decides."""

    L0 = 0
    L1 = -1
    ON_1 = 1
    ON_2 = 2
    OFF = -1


class RunOptions(Message):
    """How a run is executed: `timeout_in_ms`, and `trace_level`, with which `RunMetadata` gets the run's time."""

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3


class ConfigProto(Message):
    """How a session runs.

    Args:
      allow_soft_placement: use the CPU if a device does not exist.
      log_device_placement: print each operation's device.
      device_count: how many devices of each type a process is said to have.
      fields: `operation_timeout_in_ms`, of runs that do not say otherwise; `gpu_options`,
        `inter_op_parallelism_threads` and others change nothing.
    """

    def __init__(
        self,
        allow_soft_placement: bool = False,
        log_device_placement: bool = False,
        device_count: dict[str, int] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self.allow_soft_placement = allow_soft_placement
        self.log_device_placement = log_device_placement
        self.device_count = dict(device_count or {})
