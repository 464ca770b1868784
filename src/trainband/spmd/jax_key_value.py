"""JaxKeyValueStore: the key-value store of JAX's coordination service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from trainband.errors import Unreachable


class JaxKeyValueStore:
    """See `trainband.runtime.key_value.KeyValueStore`. JAX 0.10 to 0.12 let a call hang for longer than `rpc_timeout`.

    Args:
      client: of the service, connected.
      where: the task that runs the service, and its address.
    """

    def __init__(self, client: Any, where: str) -> None:
        self._client = client
        self._where = where

    def set(self, key: str, value: str) -> None:
        self._answered(lambda: self._client.key_value_set(key, value, allow_overwrite=True))

    def get(self, key: str) -> str | None:
        found: str | None = self._answered(lambda: str(self._client.key_value_try_get(key)))
        return found

    def list(self, prefix: str) -> dict[str, str]:
        found = self._answered(lambda: self._client.key_value_dir_get(prefix)) or ()
        return {key[len(prefix) :].lstrip("/"): value for key, value in found}

    def delete(self, prefix: str) -> None:
        self._answered(lambda: self._client.key_value_delete(f"{prefix}/"))

    def _answered(self, call: Callable[[], Any]) -> Any:
        """Returns the service's answer; `None` if it has no such key."""
        try:
            return call()
        except jax.errors.JaxRuntimeError as exc:
            if "NOT_FOUND" in str(exc):
                return None
            raise Unreachable(f"JAX's coordination service of {self._where} does not answer: {exc}.") from exc
