"""Follower: reads new versions of a running job's values from its ps without joining the job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

from trainband.errors import ModelMismatch, PeerError, RefusalCode, Refused, StreamClosed, Unreachable
from trainband.model.variables import Variable
from trainband.ps.reader.job_layout import FoundJob, find_job
from trainband.ps.reader.job_version import Assembler, JobVersion
from trainband.ps.reader.shard_reader import ShardReader
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting, say_on_stderr
from trainband.wire.transport import Timeouts, Transport

T = TypeVar("T")

INTERVAL_S = 0.5
"""Default seconds between polls for a newer version."""

READING_SHARE = 0.2
"""Share of its time that a reader reads: large models are polled less often, to spare the job."""

RETRY_S = 1.0
MOST_RETRY_S = 5.0
"""Seconds between attempts to reach a job: doubled on each failure, up to the second."""

CUT_WAIT_S = 1.0
"""Seconds that shards wait for the version at which all are to be read."""

_MOST_LEAD_S = 0.5
_HEAR_S = 0.1
_LEAST_S = 1e-3


class FollowState(StrEnum):
    """State of a follower."""

    WAITING = "waiting"
    """The job has no values yet."""
    FOLLOWING = "following"
    UNREACHABLE = "unreachable"
    """No ps returns values; the reader keeps asking."""
    ENDED = "ended"
    """The job has ended. The reader keeps asking, as another job may begin at these addresses."""
    OTHER_MODEL = "other model"
    """A job of another model has begun at these addresses."""


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """`detail`: text for people. `since`: when the state began, by the reader's clock."""

    state: FollowState
    detail: str
    since: float


class Follower:
    """Follower of one job. Any thread may read `status`; the rest is for one.

    The values of a shard come from one version of it. Several shards are all asked for the same version, slightly ahead
    of what they have: see `JobVersion.is_cut`.

    Args:
      address: of any ps of the job, `host:port`.
      transport: how to reach the ps, with the job's credentials.
      timeouts: of calls and waits.
      interval_s: seconds between polls for a newer version.
      say: takes lines for the user.
      runtime: of this task.
    """

    def __init__(
        self,
        address: str,
        *,
        transport: Transport,
        timeouts: Timeouts | None = None,
        interval_s: float = INTERVAL_S,
        say: Say = say_on_stderr,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._address = address
        self._transport = transport
        self._timeouts = timeouts or Timeouts()
        self._interval_s = interval_s
        self._say = say
        self._runtime = runtime
        self._clock = runtime.clock
        self.status = FollowStatus(FollowState.WAITING, f"The job at {address} has not been asked.", runtime.clock())
        self._variables: dict[str, Variable] | None = None
        self._addresses: list[str] = [address]
        self._job: FoundJob | None = None
        self._shards: list[ShardReader] = []
        self._assembler: Assembler | None = None
        self._latest: JobVersion | None = None
        self._round_started_at = 0.0
        """When the last round began."""
        self._retry_s = 0.0
        self._lead_s = 0.02
        self._seen: tuple[float, int] | None = None
        """Time and number of the last version seen, for the training's rate."""

    @property
    def address(self) -> str:
        """The given address."""
        return self._address

    def wall_time(self, at: float) -> float:
        """Converts the reader's clock to seconds since 1970."""
        return time.time() - (self._clock() - at)

    @property
    def latest(self) -> JobVersion | None:
        """The last version returned."""
        return self._latest

    def first(self, stop: Callable[[], bool] = lambda: False) -> JobVersion:
        """Returns the first version. Waits `Timeouts.start_s` while the job has a ps but no values.

        Raises:
          PeerError: no answer, or not that of a ps that accepts readers; or it was told to stop.
          DeadlineExceeded: no values came in time.
          ClusterError: the job's addresses are unreachable from here.
        """
        waiting = Waiting(self._timeouts.start_s, self._say, self._clock)
        while not stop():
            try:
                version = self._round()
            except PeerError as exc:
                # Once a ps has named the others, they may still be starting.
                is_early = self._job is not None and isinstance(exc, Unreachable | StreamClosed)
                if not is_early and not (isinstance(exc, Refused) and exc.is_for_another):
                    raise
                self._set_status(FollowState.WAITING, str(exc))
            else:
                if version is not None:
                    return version
            waiting.check(f"the job at {self._address} to have values", "start its workers")
            self._runtime.sleep(self._interval_s)
        raise Refused(f"stopped following {self._address} before the job had values.")

    def next(self, stop: Callable[[], bool]) -> JobVersion | None:
        """Waits for the next version; `None` when it is told to stop.

        If no versions come, `status` has the reason, which is printed once.
        """
        while not stop():
            self._pause(stop)
            if stop():
                break
            version = self._round_or_status()
            if version is not None:
                return version
        return None

    def close(self) -> None:
        """Leaves the job."""
        for shard in self._shards:
            shard.close()

    # --- a round of questions

    def _round_or_status(self) -> JobVersion | None:
        version = self._assembled(self._round_started_at)  # a ps may have sent one as it ended
        if version is not None:
            return version
        try:
            version = self._round()
        except ModelMismatch as exc:
            self._missed(FollowState.OTHER_MODEL, str(exc))
            self._forget_job()
        except PeerError as exc:
            if isinstance(exc, Unreachable) and any(shard.ended is not None for shard in self._shards):
                self._all([shard.wait_for_end for shard in self._shards])
            version = self._assembled(self._round_started_at)
            if version is None:
                self._missed(*self._meaning(exc))
        return version

    def _round(self) -> JobVersion | None:
        """Asks once; returns a new version if there is one."""
        self._round_started_at = self._clock()
        if not self._shards or any(shard.was_left for shard in self._shards):  # the ps may have changed
            found = find_job(self._addresses, self._transport, self._timeouts)
            if self._job is None or not found.is_same(self._job):
                self._start_reading(found)
        self._read()
        if any(shard.is_of_another_job for shard in self._shards):
            self._forget_job()
            return None
        self._retry_s = 0.0
        step = self._shards[0].values.version if self._shards[0].values is not None else 0
        if not any(shard.ended for shard in self._shards):
            self._set_status(
                FollowState.FOLLOWING, f"following the job at {self._address}, now at global step {step:,}"
            )
        return self._assembled(self._round_started_at)

    def _start_reading(self, found: FoundJob) -> None:
        """Starts reading a job.

        Raises:
          ModelMismatch: its model is not the one followed before.
        """
        tensors = found.tensors()
        if self._variables is None:
            self._variables = tensors
        elif tensors != self._variables:
            name = next(
                name for name in {**self._variables, **tensors} if self._variables.get(name) != tensors.get(name)
            )
            raise ModelMismatch(
                f"the job now at {self._address} has another model: {name} is "
                f"{_shown(tensors.get(name))}, and {_shown(self._variables.get(name))} in the one followed."
            )
        self.close()
        self._job = found
        self._addresses = list(dict.fromkeys([self._address, *found.addresses]))
        self._assembler = Assembler(found)
        self._shards = [
            ShardReader(number, layout, found.places(number), self._transport, self._timeouts, self._runtime)
            for number, layout in enumerate(found.shards)
        ]
        self._latest, self._seen = None, None

    def _forget_job(self) -> None:
        """Makes the next round look the job up again."""
        self.close()
        self._job, self._shards, self._assembler = None, [], None

    def _read(self) -> None:
        """Reads new values from all shards, of the same version if possible."""
        if len(self._shards) == 1:
            self._shards[0].read()
            return
        looks = self._all([shard.read_current for shard in self._shards])
        if not any(values.is_new for values in looks):
            return
        at = self._version_ahead([values.version for values in looks], min(values.last_version for values in looks))
        read = self._all([partial(shard.read, at, CUT_WAIT_S) for shard in self._shards])
        if len({values.version for values in read}) > 1:
            self._lead_s = min(_MOST_LEAD_S, 2 * self._lead_s)
        else:
            self._lead_s = max(0.02, 0.9 * self._lead_s)

    def _version_ahead(self, versions: Sequence[int], last: int) -> int:
        """Picks a version that no shard has passed and all will soon have."""
        now, newest = self._clock(), max(versions)
        rate = 0.0
        if self._seen is not None and now > self._seen[0]:
            rate = max(0.0, (newest - self._seen[1]) / (now - self._seen[0]))
        self._seen = (now, newest)
        ahead = newest + math.floor(rate * (self._lead_s + now - self._round_started_at) + 0.5)
        return max(newest, min(ahead, last)) if last else ahead

    def _all(self, questions: Sequence[Callable[[], T]]) -> list[T]:
        answers: dict[int, T] = {}

        def ask(number: int, question: Callable[[], T]) -> None:
            answers[number] = question()

        works = [partial(ask, number, question) for number, question in enumerate(questions)]
        self._runtime.run_all(works, "trainband-read")
        return [answers[number] for number in range(len(works))]

    def _assembled(self, asked_at: float) -> JobVersion | None:
        """Returns what all shards have if it is new."""
        if self._assembler is None or self._job is None:
            return None
        versions = [shard.values.version for shard in self._shards if shard.values is not None]
        if len(versions) < len(self._shards):
            return None
        tensors, changed = self._assembler.assemble([shard.blocks for shard in self._shards])
        if not changed and self._latest is not None and self._latest.versions == tuple(versions):
            return None
        self._latest = JobVersion(tuple(versions), tensors, changed, self._job.job, asked_at)
        return self._latest

    # --- when no versions come

    def _meaning(self, exc: PeerError) -> tuple[FollowState, str]:
        """Interprets a failed round."""
        have_ended = [shard for shard in self._shards if shard.ended is not None]
        gone = isinstance(exc, Unreachable)
        over = bool(have_ended) and (gone or len(have_ended) == len(self._shards))
        complete = bool(self._shards) and all(shard.is_complete for shard in self._shards)
        if over or (gone and complete):
            step = self._shards[0].values.version if self._shards[0].values is not None else 0
            why = f" ({have_ended[0].ended})" if have_ended else ""
            return FollowState.ENDED, f"job ended at step {step}{why}"
        if self.status.state is FollowState.ENDED and gone:
            return FollowState.ENDED, self.status.detail
        if self.status.state is FollowState.OTHER_MODEL and gone:
            return FollowState.UNREACHABLE, str(exc)
        if isinstance(exc, Refused) and exc.code is RefusalCode.NOT_READY:
            return FollowState.WAITING, str(exc)
        return FollowState.UNREACHABLE, str(exc)

    def _missed(self, state: FollowState, detail: str) -> None:
        self._retry_s = min(MOST_RETRY_S, max(RETRY_S, 2 * self._retry_s))
        self._set_status(state, detail)

    def _set_status(self, state: FollowState, detail: str) -> None:
        if state is self.status.state:
            self.status = FollowStatus(state, detail, self.status.since)
            return
        was = self.status.state
        self.status = FollowStatus(state, detail, self._clock())
        if state is not FollowState.FOLLOWING or was is not FollowState.WAITING:
            self._say(f"--follow {self._address}: {detail}")

    def _pause(self, stop: Callable[[], bool]) -> None:
        """Waits until the next round is due, or until a ps reports its end."""
        took_s = max((shard.took_s for shard in self._shards), default=0.0)
        until = self._round_started_at + max(self._interval_s, took_s / READING_SHARE)
        if self._retry_s:
            until = self._clock() + self._retry_s
        while not stop():
            left_s = until - self._clock()
            if left_s < _LEAST_S:
                return
            if not self._shards:
                self._runtime.sleep(min(_HEAR_S, left_s))
                continue
            slice_s = min(_HEAR_S, left_s) / len(self._shards)
            have_heard = [shard.poll_end(slice_s) for shard in self._shards]
            if any(have_heard) and not self._retry_s:
                return


def _shown(variable: Variable | None) -> str:
    return "none" if variable is None else str(variable)
