"""SaveSliceInfo: which slice of a whole a part of a partitioned variable is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """Which slice of a whole variable a part of it is."""

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]

    @classmethod
    def of(cls, told: Any) -> SaveSliceInfo:
        """The slice that a `SaveSliceInfoDef` describes."""
        return cls(told.full_name, list(told.full_shape), list(told.var_offset), list(told.var_shape))

    def fill(self, told: Any) -> None:
        """Describes it in a `SaveSliceInfoDef`."""
        told.full_name = self.full_name
        told.full_shape.extend(self.full_shape)
        told.var_offset.extend(self.var_offset)
        told.var_shape.extend(self.var_shape)

    @property
    def spec(self) -> str:
        """The whole's shape, and of each axis where the slice begins and how long it is: `4 2 0,2:0,2`."""
        slices = ":".join(f"{start},{size}" for start, size in zip(self.var_offset, self.var_shape, strict=True))
        return " ".join([*map(str, self.full_shape), slices])
