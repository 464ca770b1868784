"""TensorShape, as version 2 has it: its sizes are numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainband.compat.ops.shapes import TensorShape as _TensorShape
from trainband.runtime.overrides import override


class TensorShape(_TensorShape):
    """A shape: sizes, each of which may be unknown (`None`), or of unknown rank altogether."""

    @override
    def __iter__(self) -> Iterator[Any]:
        if self._dims is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return iter(self._dims)

    @override
    def __getitem__(self, key: Any) -> Any:
        if self._dims is None:
            return TensorShape(None) if isinstance(key, slice) else None
        return TensorShape(self._dims[key]) if isinstance(key, slice) else self._dims[key]
