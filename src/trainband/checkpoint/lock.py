"""DirectoryLock: one job at a time writes into a directory, over any number of machines.

The lock is a file, `LOCK`, that names its holder. Its time stamp is a lease, which the holder renews. All times are
compared by the file system's own clock, because machines that share a file system need not agree on the time.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trainband.checkpoint.disk import refusal, remove_quietly
from trainband.checkpoint.manifest import LATEST_S, MOST_NUMBER, is_plain_name
from trainband.errors import DirectoryLocked
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.regular_files import new_regular, open_regular, read_regular

LOCK_FILE = "LOCK"
MOST_LOCK_BYTES = 64 << 10

_PATIENCE_S = 5.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Holder(msgspec.Struct, frozen=True):
    """Content of the lock file.

    Attributes:
      owner: the holder's task, such as `worker:0`.
      process_start: when its process was started, in clock ticks since the machine was; 0 if unknown.
      machine: the machine and the process namespace in which `pid` is valid; empty if unknown.
      acquired_at: seconds since 1970 by the holder's clock.
      token: unique to this acquisition.
      job: the id of its job; empty until the holder has joined one, and for a process without a job.
    """

    owner: str
    host: str
    pid: int
    process_start: int
    machine: str
    acquired_at: float
    lease_s: float
    token: str
    job: str = ""

    def __post_init__(self) -> None:
        """Checks what the types cannot: the file may come from an untrusted user."""
        if not is_plain_name(self.token):
            raise ValueError("token is not a plain name")
        if not 0 <= self.pid <= MOST_NUMBER or not 0 <= self.process_start <= MOST_NUMBER:
            raise ValueError("pid and process_start do not describe a process")
        if not 0 <= self.acquired_at < LATEST_S or not 0 < self.lease_s < math.inf:
            raise ValueError("acquired_at and lease_s are not valid times")


class DirectoryLock:
    """The right to write into a checkpoint directory; a context manager. May be used from several threads.

    Tasks of one job pass the lock on: a task of the holder's job acquires it at once, and the former holder finds out
    when it renews.
    """

    def __init__(
        self, directory: Path, owner: str, *, lease_s: float = 20.0, job: str = "", runtime: Runtime = SYSTEM
    ) -> None:
        """Does not take the lock yet.

        Args:
          directory: the directory; created if missing.
          owner: the task that takes it, such as `worker:0`.
          lease_s: seconds after the last `renew` until another job may take it over.
          job: the id of the job, if it is known; see `name_job`.
          runtime: this task's.

        Raises:
          ValueError: `lease_s` is not more than 0 seconds.
        """
        if not lease_s > 0:
            raise ValueError(f"DirectoryLock.lease_s must be > 0 seconds, got {lease_s}.")
        self.directory = directory
        self.path = directory / LOCK_FILE
        self._runtime = runtime
        start = runtime.started_at(runtime.pid)
        self._me = Holder(
            owner=owner,
            host=runtime.host,
            pid=runtime.pid,
            process_start=start or 0,
            machine=_machine() if start else "",
            acquired_at=time.time(),
            lease_s=lease_s,
            token=runtime.token(16),
            job=job,
        )
        self._successor = ""
        self._rival_job = ""
        self._held = False
        self._mutex = runtime.lock()

    @property
    def held(self) -> bool:
        """Whether it is held, as far as is known: `renew` finds out if another has taken it over."""
        return self._held

    @property
    def successor(self) -> str:
        """The task of the same job that has taken the lock over, as found by `renew`; empty if none has."""
        return self._successor

    @property
    def rival_job(self) -> str:
        """The job of the holder that blocked the last `acquire`; empty if none did, or it names none."""
        return self._rival_job

    def name_job(self, job: str) -> None:
        """Sets the job once it is known; also in the lock file, if the lock is held.

        Raises:
          DirectoryLocked, CheckpointError: as `renew`, which writes the job later if the disk is full now.
        """
        with self._mutex:
            self._me = msgspec.structs.replace(self._me, job=job)
            if self._held:
                self._renew()

    def acquire(self) -> None:
        """Takes the lock, also from a holder whose process is dead, whose lease has expired, or whose job is this one.

        Raises:
          DirectoryLocked: another job holds it; the message names it.
          CheckpointError: a file system error.
        """
        with self._mutex:
            self._me = msgspec.structs.replace(self._me, acquired_at=time.time(), token=self._runtime.token(16))
            self._successor = self._rival_job = ""
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with self._signed() as mine:
                    self._install(mine)
            except OSError as exc:
                raise refusal("lock", self.directory, exc) from exc
            self._held = True

    def renew(self) -> None:
        """Renews the lease; call this several times per lease.

        Raises:
          DirectoryLocked: another task has the lock, because the lease expired or a `successor` took it; abandon what
            is being written.
          CheckpointError: a file system error.
        """
        with self._mutex:
            self._renew()

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held or has been taken over.

        Raises:
          CheckpointError: a file system error.
        """
        with self._mutex:
            self._held = False
            try:
                seen = _Seen.at(self.path)
                if seen.token == self._me.token:
                    self._remove(self.path, seen, self.path)  # already signed; a full disk allows no new file
            except FileNotFoundError:
                return
            except OSError as exc:
                raise refusal("unlock", self.directory, exc) from exc

    def __enter__(self) -> DirectoryLock:
        """Takes the lock; see `acquire`."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the lock; see `release`."""
        self.release()

    def _renew(self) -> None:
        try:
            seen = _Seen.at(self.path)
            if seen.token == self._me.token:
                os.utime(self.path)
                if seen.job != self._me.job:
                    with contextlib.suppress(OSError), self._signed() as mine:  # a full disk must not cost the lease
                        self._remove(self.path, seen, mine, instead=mine)
                return
        except FileNotFoundError:
            self._held = False
            raise DirectoryLocked(
                f"{self.path}, which {self._me.owner} held, has been removed; check that no other job writes there, "
                "and restart."
            ) from None
        except OSError as exc:
            raise refusal("renew", self.path, exc) from exc
        self._held = False
        if seen.holder is not None and self._is_own_job(seen):
            self._successor = seen.holder.owner
            raise DirectoryLocked(f"{self.directory} was taken over from {self._me.owner} by {seen}, of the same job.")
        raise DirectoryLocked(
            f"{self.directory} was taken over by {seen}, because {self._me.owner} had not renewed its lease "
            f"for over {self._me.lease_s:g} s; end one of the two jobs, or give one another directory."
        )

    def _is_own_job(self, seen: _Seen) -> bool:
        return bool(seen.job) and seen.job == self._me.job

    def _install(self, mine: Path) -> None:
        """Makes `mine` the lock file, after removing one that is no longer valid."""
        deadline = self._runtime.clock() + _PATIENCE_S
        while not _make_exclusively(mine, self.path):
            try:
                seen = _Seen.at(self.path)
            except FileNotFoundError:
                continue
            idle_s = _idle_s(seen, mine)
            if self._counts(seen, idle_s) and not self._is_own_job(seen):
                raise self._locked(seen, idle_s)
            if not self._remove(self.path, seen, mine):
                if self._runtime.clock() > deadline:
                    raise self._locked(seen, idle_s)
                self._runtime.sleep(0.002)  # another process is taking it over right now

    def _remove(self, path: Path, seen: _Seen, mine: Path, *, instead: Path | None = None) -> bool:
        """Removes a file if it is still the one in `seen`; returns whether it did or the file had already gone.

        `instead`: a file that atomically takes its place.

        Another process may replace the file between the check and the unlink. So a process first creates a claim file
        named after its token, which only one can do. A claim left by a dead process is removed the same way.
        """
        claim = self.directory / f".LOCK.{seen.token}.removal"
        if not _make_exclusively(mine, claim):
            with contextlib.suppress(FileNotFoundError):
                other = _Seen.at(claim)
                if not self._counts(other, _idle_s(other, mine)):
                    self._remove(claim, other, mine)
            return False
        try:
            if _Seen.at(path).token == seen.token:
                if instead is not None:
                    instead.replace(path)
                else:
                    path.unlink()
        except FileNotFoundError:
            return True
        finally:
            claim.unlink(missing_ok=True)
        return True

    @contextlib.contextmanager
    def _signed(self) -> Iterator[Path]:
        """Yields a temporary file with this holder's record; a lock appears whole by being a second link to it."""
        mine = self.directory / f".LOCK.{self._me.token}.tmp"
        try:
            mine.unlink(missing_ok=True)  # another user, who can know the name, may have put it there
            with new_regular(mine) as file:
                file.write(msgspec.json.encode(self._me) + b"\n")
            yield mine
        finally:
            remove_quietly(mine)

    def _counts(self, seen: _Seen, idle_s: float) -> bool:
        """Whether a lock last renewed `idle_s` seconds ago is valid."""
        holder, me = seen.holder, self._me
        if holder is None:
            return idle_s <= me.lease_s
        is_here = holder.machine and holder.machine == me.machine
        if is_here and self._runtime.started_at(holder.pid) != holder.process_start:
            return False
        return idle_s <= holder.lease_s

    def _locked(self, seen: _Seen, idle_s: float) -> DirectoryLocked:
        self._rival_job = seen.job
        return DirectoryLocked(
            f"{self.directory} is in use by {seen}, last renewed {idle_s:.0f} s ago; "
            "use another directory, or end that job."
        )


def holder_of(data: bytes) -> Holder | None:
    """Decodes a lock file; returns `None` if it is invalid."""
    try:
        return msgspec.json.decode(data, type=Holder)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lock file at one moment; `holder` is None if the file is invalid."""

    holder: Holder | None
    token: str
    renewed_at: float

    @property
    def job(self) -> str:
        """The job of the holder; empty if it names none."""
        return self.holder.job if self.holder is not None else ""

    @classmethod
    def at(cls, path: Path) -> _Seen:
        with os.fdopen(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MOST_LOCK_BYTES)
        holder = holder_of(data)
        if holder is None:
            return cls(None, f"{status.st_ino:x}-{status.st_mtime_ns:x}", status.st_mtime)
        return cls(holder, holder.token, status.st_mtime)

    def __str__(self) -> str:
        if self.holder is None:
            return "a job that its lock file does not name"
        since = datetime.fromtimestamp(self.holder.acquired_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.holder.owner} (process {self.holder.pid} on {self.holder.host}) since {since}"


def _idle_s(seen: _Seen, mine: Path) -> float:
    """Seconds since a file was renewed, by the clock that stamped both: `mine` has just been written."""
    return max(0.0, mine.stat().st_mtime - seen.renewed_at)


def _make_exclusively(mine: Path, path: Path) -> bool:
    """Creates a file with the content of `mine`; returns False if it exists already."""
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        try:
            with path.open("xb") as file:
                file.write(read_regular(mine, MOST_LOCK_BYTES))
        except FileExistsError:
            return False
    return True


def _machine() -> str:
    """Boot id of the machine and process namespace; empty if the kernel does not report them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
