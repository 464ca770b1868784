"""The description of a table of embeddings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from trainband.errors import ModelError
from trainband.rows.admission import Admission
from trainband.rows.eviction import Eviction
from trainband.rows.initializers import RowInitializer, Uniform
from trainband.rows.optimizers import RowOptimizer

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
ValueType = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of rows by 64-bit ids, without a vocabulary: a row appears when it is first trained.

    Attributes:
      name: of the table, part of the key of a row's first value.
      dim: values of a row.
      optimizer: how a gradient changes a row.
      initializer: the values of a row before it is trained.
      admit: which ids get a row; all if None.
      evict: which rows are removed; none if None.
      max_rows: of one ps; to stay within it, each new row removes the least used of some others.
      keep: which rows `max_rows` keeps: those updated most recently, or most often.
      dtype: of the values in memory. Optimizer state is float32.
      rounding: to that dtype: to the nearest, or up or down at random so that the mean of many updates is kept.
      seed: of the first values.
      ids: one more than the largest id; any 64-bit integer is an id if None.
    """

    name: str = field(kw_only=False)
    dim: int
    optimizer: RowOptimizer
    initializer: RowInitializer = field(default_factory=Uniform)
    admit: Admission | None = None
    evict: Eviction | None = None
    max_rows: int | None = None
    keep: Literal["recent", "frequent"] = "recent"
    dtype: ValueType = "float32"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: int = 0
    ids: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ModelError(f"the name of a table has letters, digits, '.', '_' and '-' only, not {self.name!r}")
        for what, given, method in (
            ("optimizer", self.optimizer, "state"),
            ("initializer", self.initializer, "rows"),
            ("evict", self.evict, "expired"),
        ):
            if given is not None and not hasattr(type(given), method):
                raise ModelError(f"{what} of table {self.name!r} must be one of trainband.rows, not {given!r}")
        if not isinstance(self.admit, Admission | None):
            raise ModelError(f"admit of table {self.name!r} must be one of trainband.rows, not {self.admit!r}")
        if self.dim < 1:
            raise ModelError(f"table {self.name!r} needs at least 1 value in a row, not {self.dim}")
        if self.max_rows is not None and self.max_rows < 1:
            raise ModelError(f"table {self.name!r} needs room for at least 1 row, not {self.max_rows}")
        if self.ids is not None and not 1 <= self.ids <= 2**64:
            raise ModelError(f"the ids of table {self.name!r} must end between 1 and 2**64, not at {self.ids}")
        for name, value, known in (
            ("keep", self.keep, ("recent", "frequent")),
            ("dtype", self.dtype, ("float32", "bfloat16", "int8")),
            ("rounding", self.rounding, ("nearest", "stochastic")),
        ):
            if value not in known:
                raise ModelError(f"{name} of table {self.name!r} must be one of {', '.join(known)}, not {value!r}")
