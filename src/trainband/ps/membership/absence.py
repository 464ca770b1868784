"""Absence: whether this ps was itself stopped or cut off when its workers went. Pure: the time is an argument."""

from __future__ import annotations

LEASES = 2
"""Leases for which workers must be present without a break before an absence is over: messages that were under way to
this ps when it went away arrive late and look like signs of life."""


class Absence:
    """A ps's record of its own absences, from regular checks.

    Args:
      lease_s: seconds without a check after which the others have lost this ps.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.stood_still = False
        """Whether this process was stopped."""
        self.was_cut_off = False
        """Whether another ps was silent, but not known to be dead, when no worker was left."""
        self._checked_at: float | None = None
        self._live: bool | None = None
        self._live_since = 0.0

    def record_check(self, now: float, *, live: bool, silent: bool) -> None:
        """Records a check.

        Args:
          now: seconds.
          live: whether a worker is live.
          silent: whether another ps gives no answer and is not known to be dead.
        """
        if self._checked_at is not None and now - self._checked_at >= self._lease_s:
            self.stood_still, self._live = True, None
        if live is not self._live:
            self._live, self._live_since = live, now
        if not live and silent:
            self.was_cut_off = True
        elif live and now - self._live_since >= LEASES * self._lease_s:
            self.stood_still = self.was_cut_off = False
        self._checked_at = now

    def is_deserted(self, now: float) -> bool:
        """Whether no worker has been live for a lease."""
        return self._live is False and now - self._live_since >= self._lease_s
