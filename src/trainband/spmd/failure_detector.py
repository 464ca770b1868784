"""FailureDetector: who of the processes that compute in step lives, and whether they do the same."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from trainband.errors import ClusterError, PeerError
from trainband.launch.worker_group import LOST_A_PEER
from trainband.runtime.formatting import LINE_PREFIX
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import FIRST_NOTICE_S, NOTICE_EVERY_S, Say
from trainband.spmd.activity import OF_ALL, Activity, Wait
from trainband.spmd.coordination import POLL_S, Coordination

BEAT_S = 0.5
"""Between two heartbeats."""

ALARMED_S = 2.0
"""How long a process may be silent once an exchange has failed: then somebody has died, and the question is who."""

CROSSED_S = 2.0
"""For two processes that seem to wait for each other at two places of the program."""

COME_OUT_S = 2.0
"""For the main thread to end by itself, once it is known that a peer is gone."""

LINGER_S = 3.0
"""For the others to read why the chief has gone: the key-value store is in its process."""

LEAVE_S = LINGER_S + 2.0
"""To tell the others, and for JAX to let go."""

IN_ORDER = (
    "workers that compute in step make the same calls in the same order, fit and restore among them; where each holds "
    "a part of the variables, that goes for params, evaluate, predict and save too"
)


class Heartbeat(NamedTuple):
    """What a process says of itself.

    Attributes:
      number: of this heartbeat.
      step: in which training it is, and at which call of it.
      waits: whether it is in an exchange with the others, or computes for one.
      doing: what else it does, in words.
      wait: what it waits for, if for a value.
    """

    number: int
    step: tuple[int, int]
    waits: bool
    doing: str
    wait: Wait | None

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        number, (training, call), waits, doing, wait = json.loads(text)
        return cls(number, (training, call), waits, doing, wait and Wait(*wait))


@dataclass(slots=True)
class _Peer:
    """What is known of another process.

    Attributes:
      said: its last heartbeat.
      since: when that came, on this process's clock.
      moved_at: when it last said something else of itself.
    """

    said: Heartbeat
    since: float
    moved_at: float


class FailureDetector:
    """Sends a heartbeat every half second, and looks at those of the other processes, in a thread of its own.

    Whoever is silent for `timeout_s`, or lives and does not take the step that all others wait in, ends the job: then
    `check` raises an error, and a main thread that no exception can reach ends with the process.

    Args:
      coordination: the key-value store by which the processes speak.
      tasks, addresses: of the processes.
      index: which of them this is.
      timeout_s, start_s, say: see `ProcessGroup`.
    """

    def __init__(
        self,
        coordination: Coordination,
        tasks: Sequence[str],
        addresses: Sequence[str],
        index: int,
        *,
        timeout_s: float,
        start_s: float,
        say: Say,
    ) -> None:
        self._coordination = coordination
        self._tasks = tasks
        self._addresses = addresses
        self._index = index
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._say = say
        self._peers: dict[int, _Peer] = {}
        self._failure: PeerError | ClusterError | None = None
        self._alarmed_at: float | None = None
        self._beats = 0
        self.activity = Activity(self.explained, say)
        """What this process does."""
        self._closed = threading.Event()
        self._answered_at = time.monotonic()
        for target, name in ((self._watch, "trainband-heartbeat"), (self._guard, "trainband-guard")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def check(self) -> None:
        """Raises an error if this process can compute nothing more with the others.

        Raises:
          PeerError: one of them is gone.
          ClusterError: they do not do what this one does.
        """
        if self._failure is not None:
            raise self._failure

    def has_lost_a_peer(self, exc: BaseException) -> bool:
        """Whether an error is that which this raises because another process has gone."""
        return exc is self._failure and isinstance(exc, PeerError)

    # --- what the others do

    def are_doing(self, indices: Sequence[int]) -> bool:
        """Whether all of these live and do something for which this one waits longer."""
        peers = [self._peers.get(index) for index in indices]
        return all(peer is not None and peer.said.doing for peer in peers)

    def has_heard_from(self, index: int) -> bool:
        """Whether a heartbeat of a process has come."""
        return index in self._peers

    def explained(self, exc: Exception) -> Exception:
        """The reason why an exchange has failed; waits until it is known who is gone."""
        self._alarmed_at = time.monotonic()
        until = self._alarmed_at + self._timeout_s
        while self._failure is None and time.monotonic() < until:
            time.sleep(POLL_S)
        if self._failure is not None:
            return self._failure
        cause = str(exc).splitlines()[0]
        return PeerError(
            f"{self._task}: an exchange with the other workers has failed, though all of them live: {cause}"
        )

    # --- the end

    def close(self, failure: str = "") -> None:
        """Tells the others that this process leaves."""
        self._closed.set()
        # A call hangs where the chief has gone, and then there is nobody to be told.
        leaving = threading.Thread(target=self._leave, args=(failure,), name="trainband-leaving", daemon=True)
        if not self._coordination.lost:
            try:
                leaving.start()
            except RuntimeError:  # Python 3.12.0 to 3.12.2 start no thread at exit
                self._leave(failure)
            else:
                leaving.join(LEAVE_S)
        self._coordination.hang_up()

    def _leave(self, failure: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if failure and self._failure is None:
                self._note_gone(self._index, f"{self._task} has failed: {failure}")
            self._coordination.set(f"left/{self._index}", "yes")
            well = not failure and self._failure is None
            if self._is_chief:
                well = self._linger() and well
            self._coordination.close(well=well)

    def _linger(self) -> bool:
        """Waits for the others to read what is in this process. Whether all have gone."""
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until:
            if len({*self._coordination.list("left/"), *self._coordination.list("gone/")}) == len(self._tasks):
                return True
            time.sleep(POLL_S)
        return False

    # --- the threads

    @property
    def _task(self) -> str:
        return self._tasks[self._index]

    @property
    def _is_chief(self) -> bool:
        return self._index == 0

    def _watch(self) -> None:
        """Sends heartbeats; a call may hang as long as the chief does, in whose process the store is."""
        while not self._closed.wait(BEAT_S):
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the guard sees that there was no answer
                self._beat()

    def _guard(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._look_at_the_chief()
            if self._failure is not None:
                self._end()

    def _beat(self) -> None:
        self._beats += 1
        own = self.activity
        said = Heartbeat(self._beats, own.step, own.waits_since is not None, own.doing, own.wait)
        self._coordination.set(f"beat/{self._index}", json.dumps(said))
        cut_off = self._coordination.cut_off()  # before the values: who leaves says so first
        gone = {int(index): why for index, why in self._coordination.list("gone/").items()}
        for other, why in gone.items():
            if other != self._index:
                self._fail(why)
                return
        left = {int(index) for index in self._coordination.list("left/")}
        heartbeats = self._coordination.list("beat/")
        self._answered_at = now = time.monotonic()
        for key, text in heartbeats.items():
            if int(key) != self._index:
                self._note(int(key), Heartbeat.from_json(text), now)
        for index in sorted(cut_off - left):
            self._lose(index, "is gone: its connection broke off")
        for index, peer in self._peers.items():
            silent = now - peer.since
            alarmed = self._alarmed_at is not None and now - self._alarmed_at >= ALARMED_S
            if index in left:
                if self.activity.waits_since is not None and now - self.activity.waits_since >= ALARMED_S:
                    self._lose(index, f"has left the job, while {self._meanwhile()}")
            elif silent >= self._timeout_s or (alarmed and silent >= ALARMED_S):
                self._lose(index, f"is gone: not heard for {silent:.0f} s")
        self._look_at_the_slow(now)
        self._look_at_the_crossed()

    def _note(self, index: int, said: Heartbeat, now: float) -> None:
        known = self._peers.get(index)
        if known is None or known.said != said:
            moved = known is None or known.said[1:] != said[1:]
            self._peers[index] = _Peer(said, now, now if moved or known is None else known.moved_at)

    def _meanwhile(self) -> str:
        wait = self.activity.wait
        return "others still train" if wait is None else f"{self._task} {wait.about}: {IN_ORDER}"

    def _look_at_the_slow(self, now: float) -> None:
        """Whom this process waits for, while all of them live."""
        since = self.activity.waits_since
        if since is None or not self._peers:
            return
        slow = [i for i, peer in self._peers.items() if not peer.said.waits]
        waited = now - since
        if (
            waited >= FIRST_NOTICE_S
            and now - self.activity.said_at >= NOTICE_EVERY_S
            and slow
            and self.activity.settled
        ):
            self.activity.said_at = now
            self._say(f"waiting for {', '.join(map(self._described, slow))} ({waited:.0f} s)")
        limit = self._timeout_s if self.activity.settled and self.activity.wait is None else self._start_s
        for index in slow:
            peer = self._peers[index]
            still = now - max(since, peer.moved_at)
            lives = now - peer.since < ALARMED_S  # else its silence will tell
            if still >= limit and lives and not peer.said.doing:
                self._lose(
                    index, f"is stuck: it lives, but has not advanced from step {peer.said.step[1]} for {still:.0f} s"
                )
                return
        # A long step looks like this, too.
        if waited >= max(self._start_s, self._timeout_s) and not slow:
            self._fail(
                f"{self._task}: all workers live and wait for one another since {waited:.0f} s, at step "
                f"{self.activity.step[1]}: start_s is too short for what they compute, or something between them does "
                "not let their exchanges through"
            )

    def _look_at_the_crossed(self) -> None:
        """Whether a process that must leave a value has gone past that, or waits for this one at another place.

        What is known of it must be later than the beginning of both waits: an earlier heartbeat may be of a place
        that it has left since.
        """
        mine, since = self.activity.wait, self.activity.waits_since
        if mine is None or since is None:
            return
        for index, peer in self._peers.items():
            theirs = peer.said.wait
            waited = peer.since - max(since, peer.moved_at)
            if waited < CROSSED_S or (theirs is not None and theirs.key == mine.key):
                continue
            waits_elsewhere = theirs is not None and self._owes(self._index, theirs)
            if (waits_elsewhere or peer.said.step > self.activity.step) and self._owes(index, mine):
                does = theirs.about if theirs is not None else "goes on with its training"
                why = f"{self._task} {mine.about}, but {self._tasks[index]} {does}: {IN_ORDER}"
                self._note_gone(self._index, why)
                self._fail(why, ClusterError)
                return

    def _owes(self, index: int, wait: Wait) -> bool:
        """Whether a process must leave a value and has not."""
        if wait.of == OF_ALL:
            return str(index) not in self._coordination.list(f"{wait.key}/")
        return wait.of == index and self._coordination.get(wait.key) is None

    def _described(self, index: int) -> str:
        doing = self._peers[index].said.doing
        return f"{self._tasks[index]}, which {doing}" if doing else self._tasks[index]

    def _look_at_the_chief(self) -> None:
        """Whether the chief still answers."""
        silent = time.monotonic() - self._answered_at
        if not self._is_chief and self._failure is None and (self._coordination.lost or silent >= self._timeout_s):
            how = "its connection broke off" if self._coordination.lost else f"not heard for {silent:.0f} s"
            self._fail(self._lost(0, f"is gone: {how}"))

    def _lose(self, index: int, how: str) -> None:
        why = self._lost(index, how)
        self._note_gone(index, why)
        self._fail(why)

    def _lost(self, index: int, how: str) -> str:
        return (
            f"{self._tasks[index]} at {self._addresses[index]} {how}. Workers that compute in step cannot go on "
            "without it: start the job again, and it resumes from its newest checkpoint"
        )

    def _note_gone(self, index: int, why: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # each finds it by itself, too
            self._coordination.set(f"gone/{index}", why)

    def _fail(self, why: str, kind: type[PeerError] | type[ClusterError] = PeerError) -> None:
        if self._failure is None:
            self._failure = kind(why + ".")
            task_logger(__name__, self._task).info("gives up: %s", why)

    def _end(self) -> None:
        """Ends the process, if its main thread does not come out of an exchange that will never end."""
        if self._closed.wait(COME_OUT_S) or self.activity.waits_since is None:
            return
        with contextlib.suppress(Exception):  # this is the end, whatever the terminal says
            sys.stderr.write(f"{LINE_PREFIX}ERROR: {self._task} ends: {self._failure}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        if self._is_chief:
            with contextlib.suppress(Exception):
                self._linger()
        os._exit(LOST_A_PEER)
