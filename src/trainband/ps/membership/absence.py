"""Absence: whether a ps was away itself, stopped or cut off, when its workers went. Pure: the time is an argument."""

from __future__ import annotations

LEASES = 2
"""For so many leases a worker must be there without a break before an absence is past: what was under way to this ps as
it went away arrives late, and looks like a sign of life."""


class Absence:
    """What a ps knows of its own absence from when it looks now and then.

    Args:
      lease_s: without a look for so long, the others have lost this ps.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.stood_still = False
        """Whether this process was stopped."""
        self.was_cut_off = False
        """Whether another ps was silent when no worker was left: not gone, as where its process has ended."""
        self._looked_at: float | None = None
        self._live: bool | None = None
        self._live_since = 0.0

    def note(self, now: float, *, live: bool, silent: bool) -> None:
        """A look.

        Args:
          now: seconds.
          live: whether there is a worker.
          silent: whether another ps gives no answer, and nothing says that its process has ended.
        """
        if self._looked_at is not None and now - self._looked_at >= self._lease_s:
            self.stood_still, self._live = True, None
        if live is not self._live:
            self._live, self._live_since = live, now
        if not live and silent:
            self.was_cut_off = True
        elif live and now - self._live_since >= LEASES * self._lease_s:
            self.stood_still = self.was_cut_off = False
        self._looked_at = now

    def is_deserted(self, now: float) -> bool:
        """Whether no worker has been there for a lease."""
        return self._live is False and now - self._live_since >= self._lease_s
