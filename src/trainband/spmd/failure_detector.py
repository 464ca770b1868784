"""FailureDetector: which processes that compute in lockstep are alive, and whether they do the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from trainband.cluster.worker_group import LOST_A_PEER
from trainband.errors import ClusterError, PeerError, ResourceExhausted, Unreachable
from trainband.runtime.base import Runtime
from trainband.runtime.logs import task_logger
from trainband.spmd.connection import Connection
from trainband.spmd.peer_heartbeats import Heartbeat, Peer, PeerHeartbeats
from trainband.spmd.process_activity import OF_ALL, Activity, Wait

POLL_S = 0.05
"""Between two reads of a value."""

BEAT_S = 0.5
"""Seconds between two heartbeats."""

ALARMED_S = 2.0
"""How long a process may be silent once an exchange has failed: one has died, and the question is which."""

CROSSED_S = 2.0
"""How long to wait when two processes seem to wait for each other at different places in the program."""

COME_OUT_S = 2.0
"""How long to wait for the main thread to end by itself once a peer is known to be gone."""

LINGER_S = 3.0
"""How long to wait for the others to read why the chief has gone: the key-value store is in its process."""

LEAVE_S = LINGER_S + 2.0
"""How long telling the others and shutting JAX down may take."""

IN_ORDER = (
    "workers that compute in lockstep must make the same calls in the same order, including fit and restore and, if "
    "each holds a part of the variables, params, evaluate, predict and save"
)


class FailureDetector:
    """Sends a heartbeat every half second and checks those of the other processes, in its own thread.

    A process that is silent for `timeout_s`, or is alive but does not join the step in which all others wait, ends the
    job: `check` raises an error, and if no exception can reach the main thread, the process exits.

    Args:
      connection: of this process with the others.
      activity: of this process.
      tasks, addresses: of the processes.
      index: of this process.
      timeout_s, start_s, runtime: see `ProcessGroup`.
    """

    def __init__(
        self,
        connection: Connection,
        activity: Activity,
        tasks: Sequence[str],
        addresses: Sequence[str],
        index: int,
        *,
        timeout_s: float,
        start_s: float,
        runtime: Runtime,
    ) -> None:
        self._connection = connection
        self._store = connection.store
        self._runtime = runtime
        self._tasks = tasks
        self._addresses = addresses
        self._index = index
        self._timeout_s = timeout_s
        self._start_s = start_s
        self.peers = PeerHeartbeats()
        """The heartbeats of the others."""
        self._failure: PeerError | ClusterError | None = None
        self._alarmed_at: float | None = None
        self._beats = 0
        self._activity = activity
        self._closed = runtime.event()
        self._answered_at = runtime.clock()
        runtime.thread(self._watch, "trainband-heartbeat").start()
        runtime.thread(self._guard, "trainband-guard").start()

    def check(self) -> None:
        """Raises an error if this process can no longer compute with the others.

        Raises:
          PeerError: one of them is gone.
          ClusterError: they are doing something else.
        """
        if self._failure is not None:
            raise self._failure

    def has_lost_a_peer(self, exc: BaseException) -> bool:
        """Whether this raised the error because another process has gone."""
        return exc is self._failure and isinstance(exc, PeerError)

    def explained(self, exc: Exception) -> Exception:
        """Returns the reason why an exchange failed; waits until it is known which process has gone."""
        self._alarmed_at = self._runtime.clock()
        until = self._alarmed_at + self._timeout_s
        while self._failure is None and self._runtime.clock() < until:
            self._runtime.sleep(POLL_S)
        if self._failure is not None:
            return self._failure
        cause = str(exc).splitlines()[0]
        return PeerError(f"{self._task}: an exchange with the other workers has failed, though all are alive: {cause}")

    def close(self, failure: str = "") -> None:
        """Tells the others that this process is leaving."""
        self._closed.set()
        # A call hangs if the chief has gone, and then there is no one to tell.
        leaving = self._runtime.thread(lambda: self._leave(failure), "trainband-leaving")
        if not self._connection.lost:
            try:
                leaving.start()
            except ResourceExhausted:  # Python 3.12.0 to 3.12.2 start no thread at exit
                self._leave(failure)
            else:
                leaving.join(LEAVE_S)
        self._connection.hang_up()

    def _leave(self, failure: str) -> None:
        with contextlib.suppress(Unreachable):
            if failure and self._failure is None:
                self._publish_gone(self._index, f"{self._task} has failed: {failure}")
            self._store.set(f"left/{self._index}", "yes")
            well = not failure and self._failure is None
            if self._is_chief:
                well = self._linger() and well
            self._connection.close(well=well)

    def _linger(self) -> bool:
        """Waits for the others to read the store in this process; returns whether all have left."""
        until = self._runtime.clock() + LINGER_S
        while self._runtime.clock() < until:
            # One that is taken for gone may yet read that it is.
            if len({*map(int, self._store.list("left/")), *self._connection.cut_off()}) == len(self._tasks):
                return True
            self._runtime.sleep(POLL_S)
        return False

    @property
    def _task(self) -> str:
        return self._tasks[self._index]

    @property
    def _is_chief(self) -> bool:
        return self._index == 0

    def _watch(self) -> None:
        """Sends heartbeats; a call may hang while the chief, whose process has the store, hangs."""
        while not self._closed.wait(BEAT_S):
            with contextlib.suppress(Unreachable):  # the guard sees that there was no answer
                self._beat()

    def _guard(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._check_chief()
            if self._failure is not None:
                self._end()

    def _beat(self) -> None:
        self._beats += 1
        own = self._activity
        said = Heartbeat(self._beats, own.step, own.waits_since is not None, own.doing, own.wait)
        self._store.set(f"beat/{self._index}", json.dumps(said))
        # In this order: a leaving process first reports why it failed, then that it leaves; then its connection ends.
        cut_off = self._connection.cut_off()
        left = {int(index) for index in self._store.list("left/")}
        heartbeats = self._store.list("beat/")
        gone = {int(index): why for index, why in self._store.list("gone/").items()}
        self._answered_at = now = self._runtime.clock()
        for other, why in gone.items():
            if other != self._index:
                self._fail(why)
                return
        for key, text in heartbeats.items():
            if int(key) != self._index:
                self.peers.record(int(key), Heartbeat.from_json(text), now)
        for index in sorted(cut_off - left):
            self._lose(index, "is gone: its connection was lost")
        for index, peer in self.peers.items():
            silent = now - peer.since
            alarmed = self._alarmed_at is not None and now - self._alarmed_at >= ALARMED_S
            if index in left:
                waits_since, wait = self._activity.waits_since, self._activity.wait
                waits_long = waits_since is not None and now - waits_since >= ALARMED_S
                if waits_long and (wait is None or self._owes(index, wait)):
                    self._lose(index, f"has left the job, while {self._meanwhile()}")
            elif silent >= self._timeout_s or (alarmed and silent >= ALARMED_S):
                self._lose(index, f"is gone: no heartbeat for {silent:.0f} s")
        self._check_slow_peers(now)
        self._check_crossed_waits()

    def _meanwhile(self) -> str:
        wait = self._activity.wait
        return "others still train" if wait is None else f"{self._task} {wait.about}: {IN_ORDER}"

    def _check_slow_peers(self, now: float) -> None:
        """Checks the processes that this one waits for while all are alive."""
        since = self._activity.waits_since
        if since is None or not self.peers:
            return
        slow = [i for i, peer in self.peers.items() if not peer.said.waits]
        if self._activity.wait is None:
            # In the first call, a peer that has come may compile for long.
            settled = self._activity.settled
            missing = [i for i, peer in self.peers.items() if i in slow or (settled and self._is_elsewhere(peer, now))]
            self._activity.report_wait(", ".join(map(self._described, missing)))
        limit = self._timeout_s if self._activity.settled and self._activity.wait is None else self._start_s
        for index in slow:
            peer = self.peers[index]
            still = now - max(since, peer.moved_at)
            lives = now - peer.since < ALARMED_S  # else its silence will tell
            if still >= limit and lives and not peer.said.doing:
                self._lose(
                    index,
                    f"is stuck: it is alive but has not advanced from step {peer.said.step[1]} for {still:.0f} s",
                )
                return
        # A long step looks the same. The last process may have arrived just now.
        waited = now - max(since, *(peer.moved_at for peer in self.peers.values()))
        are_all = len(self.peers) == len(self._tasks) - 1
        if waited >= max(self._start_s, self._timeout_s) and not slow and are_all:
            self.accuse(
                self._index,
                f"{self._task}: all workers are alive and have waited for one another for {waited:.0f} s, at step "
                f"{self._activity.step[1]}: start_s is too short for what they compute, or something between them "
                "blocks their exchanges",
            )

    def _is_elsewhere(self, peer: Peer, now: float) -> bool:
        """Whether a process is not in this one's exchange, though its last heartbeat reports that it waits."""
        waits_before = peer.said.wait is not None and peer.said.step < self._activity.step
        return waits_before or now - peer.since >= ALARMED_S

    def _check_crossed_waits(self) -> None:
        """Detects a process that skipped a value it must leave, or waits for this one at another place.

        Its heartbeat must be later than the beginning of both waits: an earlier one may be of a place that it has left
        since.
        """
        mine, since = self._activity.wait, self._activity.waits_since
        if mine is None or since is None:
            return
        for index, peer in self.peers.items():
            theirs = peer.said.wait
            waited = peer.since - max(since, peer.moved_at)
            if waited < CROSSED_S or (theirs is not None and theirs.key == mine.key):
                continue
            waits_elsewhere = theirs is not None and self._owes(self._index, theirs)
            if (waits_elsewhere or peer.said.step > self._activity.step) and self._owes(index, mine):
                does = theirs.about if theirs is not None else "continues its training"
                why = f"{self._task} {mine.about}, but {self._tasks[index]} {does}: {IN_ORDER}"
                self.accuse(self._index, why, ClusterError)
                return

    def _owes(self, index: int, wait: Wait) -> bool:
        """Whether a process must leave a value and has not."""
        if wait.of == OF_ALL:
            return str(index) not in self._store.list(f"{wait.key}/")
        return wait.of == index and self._store.get(wait.key) is None

    def _described(self, index: int) -> str:
        doing = self.peers[index].said.doing
        return f"{self._tasks[index]}, which {doing}" if doing else self._tasks[index]

    def _check_chief(self) -> None:
        """Checks whether the chief still answers."""
        silent = self._runtime.clock() - self._answered_at
        if not self._is_chief and silent >= ALARMED_S and self._activity.waits_since is not None:
            self._activity.report_wait(self._tasks[0])
        if not self._is_chief and self._failure is None and (self._connection.lost or silent >= self._timeout_s):
            how = "its connection was lost" if self._connection.lost else f"no heartbeat for {silent:.0f} s"
            self._fail(self._lost(0, f"is gone: {how}"))

    def accuse(self, index: int, why: str, kind: type[PeerError] | type[ClusterError] = PeerError) -> None:
        """Ends the job because of a process, and gives all others the same reason."""
        self._publish_gone(index, why)
        self._fail(why, kind)

    def _lose(self, index: int, how: str) -> None:
        self.accuse(index, self._lost(index, how))

    def _lost(self, index: int, how: str) -> str:
        return (
            f"{self._tasks[index]} at {self._addresses[index]} {how}. Workers that compute in lockstep cannot continue "
            "without it: start the job again, and it resumes from its newest checkpoint"
        )

    def _publish_gone(self, index: int, why: str) -> None:
        with contextlib.suppress(Unreachable):  # each also detects it by itself
            self._store.set(f"gone/{index}", why)

    def _fail(self, why: str, kind: type[PeerError] | type[ClusterError] = PeerError) -> None:
        if self._failure is None:
            self._failure = kind(why + ".")
            task_logger(__name__, self._task).info("gives up: %s", why)

    def _end(self) -> None:
        """Ends the process if its main thread stays in an exchange that will never end."""
        if self._closed.wait(COME_OUT_S) or self._activity.waits_since is None:
            return
        with contextlib.suppress(Exception):  # the process ends even if this cannot be printed
            self._activity.say(f"ERROR: {self._task} ends: {self._failure}")
        if self._is_chief:
            with contextlib.suppress(Exception):
                self._linger()
        self._runtime.exit_now(LOST_A_PEER)
