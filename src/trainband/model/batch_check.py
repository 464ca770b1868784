"""A check for batches that JAX silently accepts but should not: integers it would truncate, and non-numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from trainband.errors import DataError
from trainband.model.tables import BatchWithIds
from trainband.model.variables import PyTree

_NO_NUMBERS = "USOMm"
"""NumPy's kinds of text, bytes, Python objects, dates and durations."""


def check_batch(batch: PyTree, where: str) -> None:
    """Checks that JAX would compute with the numbers that a batch holds.

    By default JAX has no 64-bit integers and silently keeps the lower 32 bits of each: an id such as 2**32 + 7
    becomes 7, and another row is trained.

    Args:
      batch: any pytree; only NumPy's arrays are checked. A batch without 64-bit integers costs less than 1 us.
      where: the start of the message, such as `batch 3` or `predict, batch 0`.

    Raises:
      DataError: an array holds integers that do not fit into 32 bits while `jax_enable_x64` is off, or no numbers.
    """
    if isinstance(batch, BatchWithIds):
        batch = batch.batch
    if not all(map(_is_sound, _parts(batch))):
        _refuse(batch, where)


def _parts(batch: PyTree) -> Iterable[Any]:
    # Flattening a batch costs some microseconds of every step; most are flat.
    kind = type(batch)
    parts = batch if kind is tuple else tuple(batch.values()) if kind is dict else (batch,)
    return parts if all(isinstance(part, np.ndarray | jax.Array) for part in parts) else jax.tree.leaves(batch)


def _is_sound(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray | np.generic):
        return not isinstance(leaf, str | bytes)
    kind = leaf.dtype.kind
    if kind in "iu":
        if leaf.dtype.itemsize < 8 or jax.config.jax_enable_x64 or not leaf.size:
            return True
        narrow = np.iinfo(np.int32 if kind == "i" else np.uint32)
        return bool(leaf.max() <= narrow.max and (kind == "u" or leaf.min() >= narrow.min))
    return kind not in _NO_NUMBERS


def _refuse(batch: PyTree, where: str) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
        if _is_sound(leaf):
            continue
        name = f"array {jax.tree_util.keystr(path)}" if path else "the array"
        if not isinstance(leaf, np.ndarray | np.generic):
            raise DataError(f"{where}: {name} is {leaf!r}; JAX computes only with numbers; encode text as integers.")
        shown = f"{name} ({leaf.dtype}{list(leaf.shape)})"
        if leaf.dtype.kind in _NO_NUMBERS:
            raise DataError(
                f"{where}: {shown} holds {_contents(leaf.dtype.kind)}, but JAX computes only with numbers; encode it "
                "as integers or floats before it goes into a batch."
            )
        worst, bits = (leaf.max(), "uint32") if leaf.dtype.kind == "u" else (_furthest(leaf), "int32")
        raise DataError(
            f"{where}: {shown} holds {worst}, which JAX would truncate to 32 bits, as {worst.astype(bits)}. Use "
            f"numbers that fit into {bits}, look ids up in a trainband.Table (by a function that returns this array or "
            "a part of it), or keep 64 bits with "
            'jax.config.update("jax_enable_x64", True) at the top of the script.'
        )


def _furthest(array: Any) -> Any:
    return array.max() if array.max() > np.iinfo(np.int32).max else array.min()


def _contents(kind: str) -> str:
    return {"U": "text", "S": "bytes", "O": "Python objects", "M": "dates", "m": "durations"}[kind]
