"""The checks of ids and gradients, made before anything changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError, NonFiniteGradient
from trainband.ps.tables.records import LAST_STEP
from trainband.rows.table import Table


def checked_ids(ids: NDArray[Any], table: Table) -> NDArray[np.uint64]:
    """The ids as unsigned integers.

    Raises:
      DataError: they have another type or shape, or are not ids of the table.
    """
    if ids.ndim != 1 or ids.dtype not in (np.int64, np.uint64):
        raise DataError(
            f"ids of table {table.name!r} must be a vector of int64 or uint64, not {ids.dtype} of shape {ids.shape}."
        )
    unsigned = np.ascontiguousarray(ids).view(np.uint64)
    if table.ids is not None and table.ids < 2**64:
        beyond = unsigned >= np.uint64(table.ids)
        if beyond.any():
            found = ids[int(np.argmax(beyond))]
            raise DataError(f"table {table.name!r} has ids from 0 to {table.ids - 1}, and {found} is not one of them.")
    return unsigned


def check_update(ids: NDArray[np.uint64], gradients: NDArray[Any], step: int, table: Table) -> None:
    """Checks the arguments of an update.

    Raises:
      DataError: the gradients have another type or shape, an id is given twice, or the step is out of range.
      NonFiniteGradient: a gradient contains NaN or infinity.
    """
    if gradients.dtype != np.float32 or gradients.shape != (len(ids), table.dim):
        raise DataError(
            f"gradients of table {table.name!r} must be float32 of shape {(len(ids), table.dim)}, "
            f"not {gradients.dtype} of shape {gradients.shape}."
        )
    if not 0 <= step <= LAST_STEP:
        raise DataError(f"the step of an update of table {table.name!r} must be from 0 to {LAST_STEP}, not {step}.")
    check_distinct(ids, table)
    if not np.isfinite(gradients).all():
        bad = ids[int(np.argmin(np.isfinite(gradients).all(1)))]
        raise NonFiniteGradient(f"the gradient of row {bad} of table {table.name!r} contains NaN or infinity.")


def check_distinct(ids: NDArray[np.uint64], table: Table) -> None:
    """Raises DataError if an id is given twice."""
    if not (ids[1:] > ids[:-1]).all():
        ordered = np.sort(ids)
        again = ordered[1:] == ordered[:-1]
        if again.any():
            raise DataError(
                f"an update of table {table.name!r} has id {ordered[int(np.argmax(again))]} twice; "
                "sum the gradients of each id."
            )
