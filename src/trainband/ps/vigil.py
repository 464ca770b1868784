"""Vigil: a look, now and then, at workers that live and do not get on. Called under the service's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainband.ps.accounts import Account
from trainband.ps.members import Member, Members
from trainband.ps.seat import Seat
from trainband.wire.patience import Say
from trainband.wire.transport import Clock

CIRCLE_S = 1.0
"""How long a circle of workers that wait for one another must have been seen: what they say of it may be old."""

SILENT_S = 30.0
"""Without a push after which a worker that others wait for is named."""


class Vigil:
    """Looks after the workers of one ps.

    Args:
      members: who is in the job.
      accounts: what each worker has done, by number.
      seats: of the ps, by shard.
      set_aside: counts a worker no more until its next push.
      say: where lines for people go.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        members: Members,
        accounts: Mapping[int, Account],
        seats: Mapping[int, Seat],
        set_aside: Callable[[Member], None],
        say: Say,
        clock: Clock,
    ) -> None:
        self._members = members
        self._accounts = accounts
        self._seats = seats
        self._set_aside = set_aside
        self._say = say
        self._clock = clock

    def stalled(self, after_s: float | None = None) -> dict[int, float]:
        """The workers that others wait for, and that live but have pushed nothing for so long: by number, seconds."""
        awaited_since: dict[str, float] = {}
        for seat in self._seats.values():
            for task in seat.waiting_for():
                awaited_since[task] = min(seat.held_since, awaited_since.get(task, seat.held_since))
        silent_s = {
            member.number: self._clock()
            - max(self._accounts[member.number].pushed_at, member.joined_at, awaited_since[member.task])
            for member in self._members.live()
            if member.task in awaited_since
        }
        return {number: s for number, s in silent_s.items() if s >= (SILENT_S if after_s is None else after_s)}

    def see_to_stalled(self, limit_s: float) -> None:
        """Names the workers that are stuck, and counts them no more after `limit_s` seconds, if that is not 0."""
        for number, silent_s in self.stalled(min(SILENT_S, limit_s or SILENT_S)).items():
            member, account = self._members.get(number), self._accounts[number]
            if limit_s and silent_s >= limit_s:
                self._say(
                    f"{member.task} lives, but has pushed nothing for {silent_s:.0f} s: it counts no more until it does"
                )
                self._set_aside(member)
            elif silent_s >= SILENT_S and self._clock() - account.said_at >= SILENT_S:
                account.said_at = self._clock()
                self._say(f"{member.task} lives, but has pushed nothing for {silent_s:.0f} s; others wait for it")

    def see_to_circles(self) -> None:
        """Lets workers go on that wait for one another, each at another ps.

        That comes of a worker which one ps has lost for a moment, and the others have not.
        """
        numbers = {member.task: member.number for member in self._members}
        blocked_by = {
            member.number: [numbers[task] for task in self._accounts[member.number].blocked_by if task in numbers]
            for member in self._members.live()
        }
        circle = {number for seat in self._seats.values() for number in seat.circle(blocked_by)}
        for member in self._members.live():
            account, now = self._accounts[member.number], self._clock()
            if member.number not in circle:
                account.circled_at = None
            elif account.circled_at is None:
                account.circled_at = now
            elif now - account.circled_at >= CIRCLE_S:
                self._say(f"{member.task} waits elsewhere for a worker that waits for it here: this step goes without")
                self._set_aside(member)
                account.circled_at = None
