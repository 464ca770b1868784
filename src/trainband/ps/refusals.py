"""Refusals: logs the requests that a ps refuses. One line for each reason, however often a request is repeated."""

from __future__ import annotations

from logging import Logger, LoggerAdapter
from typing import Any

from trainband.errors import Refused
from trainband.runtime import Clock
from trainband.runtime.formatting import printable
from trainband.runtime.waiting import NOTICE_EVERY_S

AGAIN_S = 60.0
"""Seconds after which the same refusal of the same task is logged again."""

MOST = 20
"""Lines in `NOTICE_EVERY_S`; further refusals are only counted."""

KNOWN = 1_024
"""How many of the newest refusals are remembered."""


class Refusals:
    """The refusals of one ps. Called with or without the service's lock; a line too many or too few does no harm."""

    def __init__(self, log: Logger | LoggerAdapter[Any], clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged_at: dict[tuple[str, str, str], float] = {}
        self._since = clock()
        self._lines = 0
        self._unreported = 0

    def record(self, who: str, what: str, error: Exception) -> bool:
        """Records a refused request; returns whether it was logged.

        `who`: the task's place, as far as is known; `what`: its request.
        """
        who, what, why = printable(who, 100), printable(what, 40), printable(str(error), 500)
        code = error.code.value if isinstance(error, Refused) else type(error).__name__
        now, key = self._clock(), (who, what, code or why)
        if now - self._logged_at.pop(key, float("-inf")) < AGAIN_S:
            self._logged_at[key] = now
            return False
        if now - self._since >= NOTICE_EVERY_S:
            if self._unreported:
                self._log.info("%d more requests were refused", self._unreported)
            self._since, self._lines, self._unreported = now, 0, 0
        self._logged_at[key] = now
        if len(self._logged_at) > KNOWN:
            del self._logged_at[next(iter(self._logged_at))]
        if self._lines >= MOST:
            self._unreported += 1
            return False
        self._lines += 1
        self._log.info("refused %s to %s: %s", what, who, why)
        return True
