"""ReduceOp: how the values of several replicas become one."""

from __future__ import annotations

import enum
from typing import Any


class ReduceOp(enum.Enum):
    """The sum, or the mean."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, value: Any) -> ReduceOp:
        """The one that is meant by a member or by its name.

        Raises:
          ValueError: it is none.
        """
        if isinstance(value, cls):
            return value
        name = str(value).upper()
        if name not in cls.__members__:
            raise ValueError(f"`reduce_op` must be a `tf.distribute.ReduceOp` or 'SUM' or 'MEAN', got {value!r}.")
        return cls[name]
