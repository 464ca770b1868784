"""The seam between a process group and what connects its processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trainband.cluster.credentials import Credentials
from trainband.runtime.key_value import KeyValueStore
from trainband.runtime.waiting import Say


class Connection(Protocol):
    """A process's connection with the others; the first process, the chief, keeps the store."""

    @property
    def store(self) -> KeyValueStore:
        """Holds the processes' messages."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the chief's process has gone; never true on the chief."""
        ...

    def cut_off(self) -> frozenset[int]:
        """Returns the processes whose connection to the chief has ended; empty except on the chief."""
        ...

    def seal(self) -> None:
        """Stops taking connections: all have connected."""
        ...

    def hang_up(self) -> None:
        """Closes the connections that show the chief that this process is alive. Idempotent."""
        ...

    def close(self, *, well: bool) -> None:
        """Ends this process's part of the store; unless `well`, it ends with the process."""
        ...


class Connect(Protocol):
    """Connects a process with the others, see `trainband.spmd.coordination.Coordination`."""

    def __call__(
        self,
        coordinator: str,
        own_host: str,
        index: int,
        tasks: Sequence[str],
        *,
        start_s: float,
        say: Say,
        credentials: Credentials,
    ) -> Connection: ...
