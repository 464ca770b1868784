"""KeyValueStore: the seam to the key-value store that the tasks of a job share; one of them hosts it."""

from __future__ import annotations

from typing import Protocol


class KeyValueStore(Protocol):
    """Text by key. A call blocks while the task that hosts the store is silent.

    Every call raises `trainband.errors.Unreachable` if that task refuses to answer.
    """

    def set(self, key: str, value: str) -> None:
        """Sets a value that every task can read, replacing any earlier one."""
        ...

    def get(self, key: str) -> str | None:
        """Returns the value of a key, or `None`."""
        ...

    def list(self, prefix: str) -> dict[str, str]:
        """Returns the values of all keys with a prefix, by the rest of each key."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes all keys with a prefix."""
        ...
