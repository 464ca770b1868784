"""DeviceSpec: what a string such as `/job:ps/task:0/device:GPU:1` says, and how scopes merge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


class Placed(Protocol):
    """An operation, as far as devices are concerned."""

    device: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A full or partial device specification."""

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def from_string(cls, text: str) -> DeviceSpec:
        """Parse a device string.

        Raises:
          ValueError: the text is not a device string.
        """
        spec = cls()
        for part in filter(None, text.split("/")):
            key, *rest = part.split(":")
            try:
                if key == "job" and len(rest) == 1 and rest[0]:
                    spec = replace(spec, job=rest[0])
                elif key in ("replica", "task") and len(rest) == 1:
                    spec = replace(spec, replica=int(rest[0])) if key == "replica" else replace(spec, task=int(rest[0]))
                elif key == "device" and len(rest) in (1, 2) and rest[0].isalpha():
                    spec = replace(spec, device_type=rest[0].upper(), device_index=_index(rest[1:]))
                elif key.upper() in ("CPU", "GPU", "TPU") and len(rest) == 1:
                    spec = replace(spec, device_type=key.upper(), device_index=_index(rest))
                else:
                    raise ValueError(part)
            except ValueError as exc:
                raise ValueError(
                    f"Unknown attribute '{part}' is encountered while parsing the device spec '{text}'. A device reads "
                    "like /job:worker/task:0/device:GPU:0, /gpu:0 or /cpu:0."
                ) from exc
        if spec == cls() and text.strip("/"):
            raise ValueError(f"Failed to parse the device spec '{text}'.")
        return spec

    def to_string(self) -> str:
        """Return the device string as TensorFlow writes it."""
        parts = [
            f"/{key}:{value}" for key, value in (("job", self.job), ("replica", self.replica)) if value is not None
        ]
        if self.task is not None:
            parts.append(f"/task:{self.task}")
        if self.device_type is not None:
            parts.append(f"/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}")
        return "".join(parts)

    def under(self, outer: DeviceSpec) -> DeviceSpec:
        """Merge with an outer specification, which fills in what this one leaves open."""
        kind, index = self.device_type, self.device_index
        if kind is None:
            kind, index = outer.device_type, outer.device_index
        elif index is None and outer.device_type == kind:
            index = outer.device_index
        return DeviceSpec(
            job=outer.job if self.job is None else self.job,
            replica=outer.replica if self.replica is None else self.replica,
            task=outer.task if self.task is None else self.task,
            device_type=kind,
            device_index=index,
        )


def _index(parts: Sequence[str]) -> int | None:
    return None if not parts or parts[0] == "*" else int(parts[0])


DeviceFunction = Callable[[Any], "str | DeviceSpec | None"]


def resolve(stack: Sequence[str | DeviceFunction], operation: Placed) -> str:
    """The device for an operation made under these scopes, the outermost first."""
    spec = DeviceSpec()
    for scope in reversed(stack):
        if callable(scope):
            said = scope(operation)
            wanted = said if isinstance(said, DeviceSpec) else DeviceSpec.from_string(said or "")
        else:
            wanted = DeviceSpec.from_string(scope)
        spec = spec.under(wanted)
        operation.device = spec.to_string()
    return spec.to_string()
