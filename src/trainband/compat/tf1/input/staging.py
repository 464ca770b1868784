"""StagingArea: a buffer between a stage of a pipeline and the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainband.compat.ops.dtypes import int32
from trainband.compat.tf1.graphs.graph import Operation
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.input.buffers import Buffer, Fifo
from trainband.compat.tf1.input.queues import QueueBase


class StagingArea(QueueBase):
    """Elements in the order in which they were put.

    Args:
      dtypes, shapes, names, shared_name: see `QueueBase`.
      capacity: how many elements there may be before those that put wait; 0: any number.
      memory_limit: how many bytes they may have; 0: any number.

    Raises:
      ValueError: a limit is negative.
    """

    _kind = "StagingArea"

    def __init__(
        self,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        if capacity < 0 or memory_limit < 0:
            raise ValueError("'capacity' and 'memory_limit' must be >= 0")
        super().__init__(
            lambda label: Fifo(self._kind, label, capacity or _most(self, memory_limit)),
            dtypes,
            shapes,
            names,
            shared_name,
            self._kind,
        )
        self._capacity, self._memory_limit = capacity, memory_limit

    @property
    def capacity(self) -> int:
        """How many elements there may be; 0: any number."""
        return self._capacity

    @property
    def memory_limit(self) -> int:
        """How many bytes they may have; 0: any number."""
        return self._memory_limit

    def put(self, values: Any, name: str | None = None) -> Operation:
        """Record the adding of one element. It waits while there are too many.

        Raises:
          ValueError: they do not have the components or shapes of this area.
        """
        return self.enqueue(values, name=name or f"{self._name}_put")

    def get(self, name: str | None = None) -> Any:
        """Record the removal of the oldest element. It waits until there is one."""
        return self.dequeue(name=name or f"{self._name}_get")

    def peek(self, index: Any, name: str | None = None) -> Any:
        """Record a look at the element at a place, which stays. It waits until it is there."""

        def look(buffer: Buffer, place: Any) -> list[Any]:
            return list(buffer.look(int(place)))

        return self._taken("StagePeek", look, [convert(index, int32)], self._shapes, name or f"{self._name}_peek")

    def clear(self, name: str | None = None) -> Operation:
        """Record the removal of all elements."""

        def drop(buffer: Buffer) -> Sequence[Any]:
            buffer.drop()
            return []

        return self._record("StageClear", drop, name=name or f"{self._name}_clear")


def _most(area: StagingArea, memory_limit: int) -> int:
    """How many elements of known shapes have no more bytes than the limit."""
    if not memory_limit or not all(shape.is_fully_defined() for shape in area.shapes):
        return -1
    sizes = [math.prod(size or 0 for size in shape.as_list()) for shape in area.shapes]
    each = sum(dtype.size * size for dtype, size in zip(area.dtypes, sizes, strict=True))
    return max(1, memory_limit // max(1, each))
