"""Together: the processes of a job that compute in step, what they tell one another, and whether all still live."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax

from trainband.cluster import Cluster
from trainband.cluster.team import LOST_A_PEER
from trainband.errors import ClusterError, ModelMismatch, PeerError
from trainband.figures import OWN_WORDS
from trainband.strategies.runtime import POLL_S, Runtime
from trainband.version import VERSION
from trainband.wire.patience import EVERY_S, FIRST_WORD_S, Say

SOON_S = 0.001
"""Between the first two looks for the others' words, and twice as long each time, up to `POLL_S`."""

BEAT_S = 0.5
"""Between two signs of life."""

ALARMED_S = 2.0
"""How long a process may be silent once an exchange has failed: then somebody has died, and the question is who."""

COME_OUT_S = 2.0
"""For the main thread to end by itself, once it is known that a peer is gone."""

LINGER_S = 3.0
"""For the others to read the chief's last words: they are in its process."""

GOODBYE_S = LINGER_S + 2.0
"""For the last words to the others, and for JAX to let go."""

HURT = ("gloo", "nccl", "connection", "unavailable", "deadline", "collective", "socket", "peer", "broken pipe")
"""Words in the errors of XLA's exchanges, when a peer has gone."""


TOGETHER = "where each worker holds a part of the variables, all must do so together, at the same point of the program"


@dataclass(slots=True)
class _Peer:
    """What is known of another process.

    Attributes:
      word: its last sign of life.
      since: when that came, on this process's clock.
      moved_at: when it last said something else of itself.
      state: in which step it is, and the rest below.
      waits: whether it is in an exchange with the others, or computes for one.
      doing: what else it does, in words.
    """

    word: str
    since: float
    moved_at: float = 0.0
    state: tuple[Any, ...] = ()
    waits: bool = False
    doing: str = ""


def _is_of_an_exchange(exc: Exception) -> bool:
    """Whether XLA says that an exchange has failed: with a code first, such as UNKNOWN; sometimes as a ValueError."""
    text = str(exc)
    is_xlas = isinstance(exc, jax.errors.JaxRuntimeError | ValueError) and text.partition(":")[0].isupper()
    return is_xlas and any(word in text.lower() for word in HURT)


class _Watched:
    """See `Together.watched`. A class, because a step enters it twice, and a generator takes a microsecond more."""

    __slots__ = ("_together",)

    def __init__(self, together: Together) -> None:
        self._together = together

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        together = self._together
        try:
            if isinstance(exc, Exception) and _is_of_an_exchange(exc):
                raise together.explained(exc) from exc
        finally:
            together.left()


class Together:
    """The workers of a cluster as processes of one JAX program.

    A thread tells the others every half second that this process lives, in which step it is and what it does, and looks
    at theirs. Whoever is silent for `timeout_s`, or lives and does not take the step that all others wait in, ends the
    job: `failure` is set, and a main thread that no exception can reach ends with the process.

    Args:
      cluster: whose workers they are, and which this one is.
      timeout_s: seconds of silence, or of standing still, after which a process counts as gone.
      start_s: for all to come up; also for the first step, which is compiled.
      say: where lines for people go.

    Raises:
      ClusterError: see `Runtime`; or the workers have different numbers of devices.
      DeadlineExceeded: not all came up.
    """

    def __init__(self, cluster: Cluster, *, timeout_s: float, start_s: float, say: Say) -> None:
        self._tasks = [str(task) for task in cluster.spec.workers]
        self._addresses = [cluster.spec.address(task) for task in cluster.spec.workers]
        self.index = cluster.training_index
        """Which of the processes this is."""
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._say = say
        self._peers: dict[int, _Peer] = {}
        self._failure: PeerError | None = None
        self._alarmed_at: float | None = None
        self._beats = 0
        self._step = (0, 0)
        self._replica = 0
        self._patient = False
        self._waits_since: float | None = None
        self._said_at = 0.0
        self._doing = ""
        self._meetings = 0
        self._meets_for = ""
        self._settled = False
        self._watched = _Watched(self)
        self._closed = threading.Event()
        self._left_because: str | None = None
        self._last_word_at = time.monotonic()
        own_host = cluster.address.rpartition(":")[0].strip("[]")
        self._runtime = Runtime(
            self._addresses[0],
            own_host,
            self.index,
            self._tasks,
            start_s=start_s,
            say=say,
        )
        self._last_word_at = time.monotonic()  # those that came late were waited for until now
        for target, name in ((self._watch, "trainband-together"), (self._guard, "trainband-guard")):
            threading.Thread(target=target, name=name, daemon=True).start()
        with self.busy("starts"):
            here = self.gather("here", {"version": VERSION, "job": secrets.token_hex(8)})
        atexit.register(self._close_at_exit)
        self.job: str = here[0]["job"]
        """A random id, the same for all."""
        for task, other in zip(self._tasks, here, strict=True):
            if other["version"] != VERSION:
                self._give_up(
                    f"{task} runs trainband {other['version']}, and {self.task} {VERSION}: install one version"
                )

    @property
    def task(self) -> str:
        """The name of this process."""
        return self._tasks[self.index]

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._tasks)

    @property
    def is_chief(self) -> bool:
        """Whether this process speaks for all."""
        return self.index == 0

    def name(self, index: int) -> str:
        """The task of a process."""
        return self._tasks[index]

    def check_devices(self) -> None:
        """Starts JAX's backends, which all must do at the same time.

        Raises:
          ClusterError: the workers have different numbers of devices.
        """
        with self.busy("starts"), self.watched():
            counts = [0] * self.count
            for device in jax.devices():
                counts[device.process_index] += 1
        if len(set(counts)) > 1:
            seen = ", ".join(f"{task} {count}" for task, count in zip(self._tasks, counts, strict=True))
            self._give_up(f"the workers must have as many devices each to compute in step, but they have: {seen}")

    # --- words

    def begin_replica(self) -> None:
        """From now on, words are about another replica: none of the one before is heard any more."""
        self._replica += 1

    def _place_of(self, key: str) -> str:
        return f"words/{self._replica}/{key}"

    def tell(self, key: str, value: Any) -> None:
        """Leaves a word that all can read."""
        self._runtime.set(self._place_of(key), json.dumps(value))

    def look(self, key: str) -> Any:
        """The word there; `None` if there is none."""
        word = self._runtime.get(self._place_of(key))
        return None if word is None else json.loads(word)

    def forget_before(self, key: str, number: int) -> None:
        """Deletes the words of all processes at `key/n/...` for every n below a number: nobody reads them any more."""
        numbers = {int(rest.partition("/")[0]) for rest in self._runtime.list(f"{self._place_of(key)}/")}
        for old in sorted(n for n in numbers if n < number):
            self._runtime.delete(f"{self._place_of(key)}/{old}")

    def hear(self, key: str, index: int = 0) -> Any:
        """Waits for a word that a process must leave there.

        Raises:
          PeerError: a process is gone.
        """
        with self.waiting():
            while (word := self.look(key)) is None:
                self.check()
                self._speak(f"{self._tasks[index]}")
                time.sleep(POLL_S)
        return word

    def gather(self, key: str, value: Any, unless: str = "", about: str = "") -> list[Any]:
        """The words of all processes, in order, each of which must leave one; none if any has left one at `unless`.

        `about`: what this process does meanwhile, see `come_together`.

        Raises:
          PeerError: a process is gone, or has not come after `start_s`.
        """
        self.tell(f"{key}/{self.index}", value)
        until = time.monotonic() + self._start_s
        pause_s = SOON_S
        with self.waiting():
            while True:
                words = self._runtime.list(f"{self._place_of(key)}/")
                missing = [task for i, task in enumerate(self._tasks) if str(i) not in words]
                if missing and unless and self._runtime.list(f"{self._place_of(unless)}/"):
                    words = self._runtime.list(f"{self._place_of(key)}/")  # one that came late may have ended since
                    missing = [task for i, task in enumerate(self._tasks) if str(i) not in words]
                    if missing:
                        return []
                if not missing:
                    return [json.loads(words[str(i)]) for i in range(self.count)]
                self.check()
                self._speak(", ".join(missing))
                if time.monotonic() >= until and not (about and self._are_doing(missing)):
                    self._give_up(self._why_not_come(missing, about), PeerError)
                time.sleep(pause_s)
                pause_s = min(POLL_S, 2 * pause_s)

    def come_together(self, what: str, value: Any = None) -> list[Any]:
        """Waits until all processes are about to do the same thing together; what each says of it, in order.

        Exchanges that do not fit one another would end a process from C++, or never end.

        Args:
          what: as in «worker:0, which {what}».

        Raises:
          ClusterError: another process is about to do something else.
          PeerError: a process is gone, or has not come after `start_s` and does nothing that may take long.
        """
        self._meetings += 1
        self._meets_for = what
        words = self.gather(f"meetings/{self._meetings}", [what, value], about=what)
        self._meets_for = ""
        self.forget_before("meetings", self._meetings)
        for task, (other, _) in zip(self._tasks, words, strict=True):
            if other != what:
                self._give_up(f"{self.task} {what}, but {task} {other}: {TOGETHER}")
        return [value for _, value in words]

    def _are_doing(self, tasks: Sequence[str]) -> bool:
        """Whether all of these live and do something for which the others have patience."""
        peers = [self._peers.get(self._tasks.index(task)) for task in tasks]
        return all(peer is not None and peer.doing for peer in peers)

    def _why_not_come(self, missing: Sequence[str], about: str) -> str:
        lives = [task for index, task in enumerate(self._tasks) if task in missing and index in self._peers]
        if len(lives) < len(missing):
            gone = ", ".join(task for task in missing if task not in lives)
            return (
                f"{gone} did not come up within {self._start_s:g} s; are they running, and is "
                f"{self._addresses[0]} to be reached from there"
            )
        if about:
            return (
                f"{self.task} {about}, but {', '.join(lives)} did not come to it within {self._start_s:g} s: {TOGETHER}"
            )
        return f"{', '.join(lives)} lives, but did not come to its first step within {self._start_s:g} s (start_s=)"

    def require_same(self, what: str, mine: Mapping[str, Any]) -> None:
        """Compares something with what the others have.

        Raises:
          ModelMismatch: they differ, and in what.
        """
        for task, other in zip(self._tasks, self.gather(what, mine), strict=True):
            for name in {**mine, **other}:
                here, there = mine.get(name, "missing"), other.get(name, "missing")
                if here != there:
                    self._give_up(
                        f"{self.task} and {task} have different {what}: {name} is {here} here and {there} there; run "
                        "the same program with the same settings on all",
                        ModelMismatch,
                    )

    # --- who lives

    def check(self) -> None:
        """Raises an error if this process can compute nothing more with the others.

        Raises:
          PeerError: one of them is gone.
          ClusterError: this process has left the job.
        """
        if self._failure is not None:
            raise self._failure
        if self._left_because is not None:
            raise ClusterError(
                f"{self.task} has left the job{self._left_because}. Workers that compute in step take part in one job "
                "a process: start the script again, or let one Trainer do all that is to be done in it."
            )

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which this process waits for others."""
        waited, self._waits_since = self._waits_since, time.monotonic()
        self._said_at = self._waits_since
        self._patient = True
        try:
            yield
        finally:
            self._waits_since = None if waited is None else time.monotonic()
            self._patient = False

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A context in which this process does something for which the others have patience."""
        before, self._doing = self._doing, what
        try:
            yield
        finally:
            self._doing = before

    def watched(self, training: int = 0, step: int = 0) -> _Watched:
        """A context for an exchange with all others, in a step of a training.

        Raises:
          PeerError: it has failed because one of them is gone.
        """
        self._step = (training, step) if training else self._step
        self._waits_since = self._said_at = time.monotonic()
        return self._watched

    def left(self) -> None:
        """Says that this process waits for nobody any more."""
        self._waits_since = None

    def settled(self) -> None:
        """A step is computed: what is compiled is compiled, and the next ones are as fast as this one."""
        self._settled = True

    def close(self, failure: str = "") -> None:
        """Says goodbye. Idempotent."""
        if self._closed.is_set():
            return
        self._left_because = failure and f" ({failure})"
        self._closed.set()
        atexit.unregister(self._close_at_exit)
        # A call hangs where the chief has gone, and then there is nobody to say goodbye to.
        goodbye = threading.Thread(target=self._say_goodbye, args=(failure,), name="trainband-goodbye", daemon=True)
        if not self._runtime.lost:
            goodbye.start()
            goodbye.join(GOODBYE_S)

    def _close_at_exit(self) -> None:
        """Says goodbye for a script that has ended before it trained; the others may wait for it."""
        exc = getattr(sys, "last_value", None)
        self.close("its script ended before it trained" if exc is None else f"{type(exc).__name__}: {exc}")

    def _say_goodbye(self, failure: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if failure and self._failure is None:
                self._note_gone(self.index, f"{self.task} has failed: {failure}")
            self._runtime.set(f"left/{self.index}", "yes")
            well = not failure and self._failure is None
            if self.is_chief:
                well = self._linger() and well
            self._runtime.close(well=well)

    def _linger(self) -> bool:
        """The words are in this process: the others shall have read them. Whether all have gone."""
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until:
            if len({*self._runtime.list("left/"), *self._runtime.list("gone/")}) == self.count:
                return True
            time.sleep(POLL_S)
        return False

    def _give_up(self, why: str, kind: type[Exception] | None = None) -> None:
        """Raises an error that all processes find by themselves."""
        raise (kind or ClusterError)(why + ".")

    def explained(self, exc: Exception) -> PeerError:
        """The reason why an exchange has failed; waits until it is known who is gone."""
        self._alarmed_at = time.monotonic()
        until = self._alarmed_at + self._timeout_s
        while self._failure is None and time.monotonic() < until:
            time.sleep(POLL_S)
        if self._failure is not None:
            return self._failure
        cause = str(exc).splitlines()[0]
        return PeerError(
            f"{self.task}: an exchange with the other workers has failed, though all of them live: {cause}"
        )

    def _watch(self) -> None:
        """Tells and asks; a call may hang as long as the chief does, in whose process the words are."""
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
        waits = self._waits_since is not None
        self._runtime.set(f"beat/{self.index}", json.dumps([self._beats, self._step, waits, self._doing]))
        gone = {int(index): why for index, why in self._runtime.list("gone/").items()}
        for other, why in gone.items():
            if other != self.index:
                self._fail(why)
                return
        left = {int(index) for index in self._runtime.list("left/")}
        beats = {int(index): word for index, word in self._runtime.list("beat/").items()}
        self._last_word_at = now = time.monotonic()
        for index, word in beats.items():
            known = self._peers.get(index)
            if index == self.index or (known is not None and known.word == word):
                continue
            _, step, waits, doing = json.loads(word)
            state = (*step, waits, doing)
            moved_at = known.moved_at if known is not None and known.state == state else now
            self._peers[index] = _Peer(word, now, moved_at, state, waits, doing)
        for index, peer in self._peers.items():
            silent = now - peer.since
            alarmed = self._alarmed_at is not None and now - self._alarmed_at >= ALARMED_S
            if index in left:
                if self._waits_since is not None and now - self._waits_since >= ALARMED_S:
                    meanwhile = (
                        f"{self.task} {self._meets_for}, and {TOGETHER}" if self._meets_for else "others still train"
                    )
                    self._lose(index, f"has left the job, while {meanwhile}")
            elif silent >= self._timeout_s or (alarmed and silent >= ALARMED_S):
                self._lose(index, f"is gone: not heard for {silent:.0f} s")
        self._look_at_the_slow(now)

    def _look_at_the_slow(self, now: float) -> None:
        """Whom this process waits for, while all of them live."""
        since = self._waits_since
        if since is None or not self._peers:
            return
        slow = [i for i, peer in self._peers.items() if not peer.waits]
        waited = now - since
        if waited >= FIRST_WORD_S and now - self._said_at >= EVERY_S and slow and self._settled:
            self._said_at = now
            self._say(f"waiting for {', '.join(map(self._described, slow))} ({waited:.0f} s)")
        limit = self._timeout_s if self._settled and not self._patient else self._start_s
        for index in slow:
            peer = self._peers[index]
            still = now - max(since, peer.moved_at)
            if still >= limit and not peer.doing:
                self._lose(
                    index, f"is stuck: it lives, but has not gone on from step {peer.state[1]} for {still:.0f} s"
                )
                return
        # A long step looks like this, too.
        if waited < max(self._start_s, self._timeout_s) or slow:
            return
        doing = self._doing or next((peer.doing for peer in self._peers.values() if peer.doing), "")
        if not doing:
            self._fail(
                f"{self.task}: all workers live and wait for one another since {waited:.0f} s, at step "
                f"{self._step[1]}: something between them does not let their exchanges through"
            )
        elif now - self._said_at >= EVERY_S:
            self._said_at = now
            self._say(f"waiting for the job, which {doing} ({waited:.0f} s)")

    def _described(self, index: int) -> str:
        doing = self._peers[index].doing
        return f"{self._tasks[index]}, which {doing}" if doing else self._tasks[index]

    def _speak(self, whom: str) -> None:
        """Says whom this process waits for, now and then."""
        now = time.monotonic()
        since = self._waits_since or now
        if now - since >= FIRST_WORD_S and now - self._said_at >= (FIRST_WORD_S if self._said_at == since else EVERY_S):
            self._said_at = now
            self._say(f"waiting for {whom} ({now - since:.0f} s)")

    def _look_at_the_chief(self) -> None:
        """Whether the chief still answers."""
        silent = time.monotonic() - self._last_word_at
        if not self.is_chief and self._failure is None and (self._runtime.lost or silent >= self._timeout_s):
            how = "its connection broke off" if self._runtime.lost else f"not heard for {silent:.0f} s"
            self._fail(self._lost(0, f"is gone: {how}"))

    def _lose(self, index: int, how: str) -> None:
        why = self._lost(index, how)
        self._note_gone(index, why)
        self._fail(why)

    def _lost(self, index: int, how: str) -> str:
        return (
            f"{self._tasks[index]} at {self._addresses[index]} {how}. Workers that compute in step cannot go on "
            "without it: start the job again, and it goes on from its newest checkpoint"
        )

    def _note_gone(self, index: int, why: str) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # each finds it by itself, too
            self._runtime.set(f"gone/{index}", why)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = PeerError(why + ".")

    def _end(self) -> None:
        """Ends the process, if its main thread does not come out of an exchange that will never end."""
        if self._closed.wait(COME_OUT_S) or self._waits_since is None:
            return
        with contextlib.suppress(Exception):  # this is the end, whatever the terminal says
            sys.stderr.write(f"{OWN_WORDS}ERROR: {self.task} ends: {self._failure}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        if self.is_chief:
            with contextlib.suppress(Exception):
                self._linger()
        os._exit(LOST_A_PEER)
