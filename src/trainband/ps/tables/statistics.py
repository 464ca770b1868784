"""Figures of a table on one ps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TableStatistics:
    """Figures of one ps's part of a table; counts are since it was made.

    Attributes:
      rows: that exist.
      bytes: of the records, the index and the counts for admission.
      hits: ids looked up that had a row.
      misses: ids looked up that had none.
      admitted: rows made by training.
      refused: updates of ids without a row that were dropped because of the rule of admission.
      refused_for_room: those dropped because `max_rows` or the memory did not allow another row.
      evicted: rows removed.
    """

    rows: int
    bytes: int
    hits: int
    misses: int
    admitted: int
    refused: int
    refused_for_room: int
    evicted: int

    @property
    def bytes_per_row(self) -> float:
        """Memory of a row, its part of the index included."""
        return self.bytes / max(self.rows, 1)
