"""The memory that a worker uses for its job, and whether a model fits into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.model.variables import PyTree
from trainband.ps.worker.shard_link import Link
from trainband.runtime.available_memory import require_memory
from trainband.runtime.formatting import size


class WorkerHoldings:
    """Bytes of its job that a worker holds, by part; see `runtime.memory.PARTS`."""

    def __init__(self, links: Sequence[Link], carry: Callable[[], PyTree]) -> None:
        self._links = links
        self._carry = carry

    def __call__(self) -> dict[str, int]:
        return {
            "params": sum(link.params_bytes for link in self._links),
            "state": sum(int(leaf.nbytes) for leaf in jax.tree.leaves(self._carry()) if _is_in_memory(leaf)),
            "gradients": sum(block.nbytes for link in self._links for block in link.request[1]),
        }


def require_room(task: str, params: int, available: int | None) -> None:
    """Ensures that a worker can hold the params and a gradient, before anything is allocated for them.

    Args:
      params: their bytes.
      available: memory that it may take; `None` if unknown.

    Raises:
      ResourceExhausted: it cannot.
    """
    advice = "use a machine or container with more memory, fewer workers on it, or a smaller model"
    require_memory(task, 2 * params, f"params {size(params)}, a gradient as much", advice, available)


def _is_in_memory(leaf: Any) -> bool:
    """Whether an array is in this process's memory, not a device's."""
    if isinstance(leaf, jax.Array):
        return not leaf.is_deleted() and all(device.platform == "cpu" for device in leaf.devices())
    return isinstance(leaf, np.ndarray)
