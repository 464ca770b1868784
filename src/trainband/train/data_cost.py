"""DataCost: whether batches take enough of the time for a thread to pay off."""

from __future__ import annotations

_WINDOW = 20  # steps over which the cost is judged
_LEAST_COST_S = 0.0002  # handing a batch from one thread to another costs about a tenth of that
_LEAST_SHARE = 0.05


class DataCost:
    """Judges, every 20 batches, how much time they took."""

    def __init__(self) -> None:
        self._batches = 0  # in this window
        self._since = self._cost_s = self._most_s = 0.0

    def is_high(self, begin: float, end: float) -> bool:
        """Records when a batch was requested and when it came, in seconds; returns whether the last 20 took too long.

        The longest wait does not count: the first batch takes some preparation, and a busy machine delays any.
        """
        if self._batches == 0:
            self._since, self._cost_s, self._most_s = begin, 0.0, 0.0
        self._batches += 1
        self._cost_s += end - begin
        self._most_s = max(self._most_s, end - begin)
        if self._batches < _WINDOW:
            return False
        self._batches = 0
        cost_s, all_s = self._cost_s - self._most_s, end - self._since - self._most_s
        return cost_s > _LEAST_COST_S * (_WINDOW - 1) and cost_s > _LEAST_SHARE * all_s
