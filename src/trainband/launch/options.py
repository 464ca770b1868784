"""How long a launcher waits for tasks to exit, and how often it restarts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Grace:
    """How long to wait for tasks to exit, in seconds."""

    ps_s: float = 10.0
    """How long to wait for the ps after every worker has succeeded."""
    stop_s: float = 20.0
    """Between SIGTERM and SIGKILL: time for the current step and a last checkpoint."""
    kill_s: float = 5.0
    """After SIGKILL, before giving up on a process that the kernel cannot end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"Grace.{name} must be > 0 seconds, got {value}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Restarts:
    """How often, and after what delay, a failed task is restarted."""

    limit: int = 0
    """Restarts of each task, or of a worker group as a whole, since it last ran for `settled_s`."""
    first_delay_s: float = 1.0
    """Before the first restart; it doubles with each one."""
    max_delay_s: float = 30.0
    settled_s: float = 60.0
    """A task that has run for this long starts with a clean record."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"Restarts.limit must be 0 or more, got {self.limit}.")
        for name in ("first_delay_s", "max_delay_s", "settled_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Restarts.{name} must be > 0 seconds, got {getattr(self, name)}.")

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
