"""ProcessGroup: the processes that compute in step, and what they tell one another; or one process alone."""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import jax

from trainband.cluster import Cluster
from trainband.cluster.credentials import NO_CREDENTIALS, Credentials
from trainband.cluster.resolvers.joined import note_joined
from trainband.errors import ClusterError, ModelMismatch, PeerError
from trainband.launch.worker_group import LOST_A_PEER
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Say
from trainband.spmd.activity import OF_ALL, Wait, Watched
from trainband.spmd.coordination import POLL_S, Coordination
from trainband.spmd.failure_detector import IN_ORDER, FailureDetector
from trainband.version import VERSION

SOON_S = 0.001
"""Between the first two looks for the others' values, and twice as long each time, up to `POLL_S`."""


class ProcessGroup:
    """The workers of a cluster as processes of one JAX program. Who of them lives is seen by `FailureDetector`.

    Args:
      cluster: whose workers they are, and which this one is.
      timeout_s: seconds of silence, or of standing still, after which a process counts as gone.
      start_s: for all to come up; also for the first step, which is compiled.
      say: where lines for people go.
      credentials: with which the tasks prove to one another who they are.

    Raises:
      ClusterError: see `Coordination`; or the workers have different numbers of devices.
      DeadlineExceeded: not all came up.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeout_s: float,
        start_s: float,
        say: Say,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._tasks = [str(task) for task in cluster.spec.workers]
        self._addresses = [cluster.spec.address(task) for task in cluster.spec.workers]
        self.index = cluster.training_index
        """Which of the processes this is."""
        self._start_s = start_s
        self._engine = 0
        self._barriers = 0
        self._left_because: str | None = None
        own_host = cluster.address.rpartition(":")[0].strip("[]")
        self._coordination = Coordination(
            self._addresses[0],
            own_host,
            self.index,
            self._tasks,
            start_s=start_s,
            say=say,
            credentials=credentials,
        )
        self._detector = FailureDetector(
            self._coordination, self._tasks, self._addresses, self.index, timeout_s=timeout_s, start_s=start_s, say=say
        )
        self._activity = self._detector.activity
        with self.busy("starts"):
            here = self.gather("here", {"version": VERSION, "job": secrets.token_hex(8)}, "starts")
        task_logger(__name__, self.task).info("connected with %s", ", ".join(self._tasks))
        atexit.register(self._close_at_exit)
        _exit_as_witness(self._detector)
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

    # --- messages

    def begin_engine(self) -> None:
        """From now on, messages are about another engine: none about the one before is read any more."""
        note_joined()
        self._engine += 1
        self._activity.step = (0, 0)  # trainings are counted from 1 again

    def _path_of(self, key: str) -> str:
        return f"messages/{self._engine}/{key}"

    def publish(self, key: str, value: Any) -> None:
        """Leaves a value that all can read."""
        self._coordination.set(self._path_of(key), json.dumps(value))

    def read(self, key: str) -> Any:
        """The value there; `None` if there is none."""
        found = self._coordination.get(self._path_of(key))
        return None if found is None else json.loads(found)

    def delete_before(self, key: str, number: int) -> None:
        """Deletes the values of all processes at `key/n/...` for every n below a number: nobody reads them any more."""
        numbers = {int(rest.partition("/")[0]) for rest in self._coordination.list(f"{self._path_of(key)}/")}
        for old in sorted(n for n in numbers if n < number):
            self._coordination.delete(f"{self._path_of(key)}/{old}")

    def receive(self, key: str, about: str) -> Any:
        """Waits for a value that the chief must leave there.

        Args:
          key: where.
          about: what this process does meanwhile, as in «worker:1 {about}».

        Raises:
          ClusterError: the chief waits for this process at another place of the program.
          PeerError: a process is gone.
        """
        with self._activity.waiting(Wait(self._path_of(key), about, 0)):
            while (value := self.read(key)) is None:
                self.check()
                self._activity.say_now_and_then(self._tasks[0])
                time.sleep(POLL_S)
        return value

    def gather(self, key: str, value: Any, about: str, *, unless: str = "", patient: bool = False) -> list[Any]:
        """The values of all processes, in order, each of which must leave one.

        Args:
          key: where.
          value: that of this one.
          about: see `receive`.
          unless: where any may leave a value after which none of these is waited for any more; then there are none.
          patient: waits for longer than `start_s` where those that are missing do something that takes long.

        Raises:
          ClusterError: another one waits for this process at another place of the program.
          PeerError: a process is gone, or has not come after `start_s`.
        """
        self.publish(f"{key}/{self.index}", value)
        until = time.monotonic() + self._start_s
        pause_s = SOON_S
        with self._activity.waiting(Wait(self._path_of(key), about, OF_ALL)):
            while True:
                missing, values = self._values_at(key)
                if missing and unless and self._coordination.list(f"{self._path_of(unless)}/"):
                    missing, values = self._values_at(key)  # one that came late may have ended since
                    if missing:
                        return []
                if not missing:
                    return [json.loads(values[str(i)]) for i in range(self.count)]
                self.check()
                self._activity.say_now_and_then(", ".join(map(self.name, missing)))
                if time.monotonic() >= until and not (patient and self._detector.are_doing(missing)):
                    self._give_up(self._why_not_come(missing, about), PeerError)
                time.sleep(pause_s)
                pause_s = min(POLL_S, 2 * pause_s)

    def _values_at(self, key: str) -> tuple[list[int], dict[str, str]]:
        """Whose values are missing there, and all others."""
        values = self._coordination.list(f"{self._path_of(key)}/")
        return [index for index in range(self.count) if str(index) not in values], values

    def _why_not_come(self, missing: Sequence[int], about: str) -> str:
        never = [index for index in missing if not self._detector.has_heard_from(index)]
        if never:
            return (
                f"{', '.join(map(self.name, never))} did not come up within {self._start_s:g} s; are they running, and "
                f"is {self._addresses[0]} to be reached from there"
            )
        return (
            f"{self.task} {about}, but {', '.join(map(self.name, missing))}, which lives, did not come to it within "
            f"{self._start_s:g} s (start_s=)"
        )

    def barrier(self, what: str, value: Any = None) -> list[Any]:
        """Waits until all processes are about to do the same thing together; what each says of it, in order.

        Exchanges that do not fit one another would end a process from C++, or never end.

        Args:
          what: as in «worker:0 {what}».

        Raises:
          ClusterError: another process is about to do something else, or at another step.
          PeerError: a process is gone, or has not come after `start_s` and does nothing that may take long.
        """
        self._barriers += 1
        step = list(self._activity.step)
        found = self.gather(f"barriers/{self._barriers}", [what, step, value], what, patient=True)
        self.delete_before("barriers", self._barriers)
        for task, (other, at, _) in zip(self._tasks, found, strict=True):
            if other != what:
                self._give_up(f"{self.task} {what}, but {task} {other}: {IN_ORDER}")
            if at != step:
                self._give_up(f"{self.task} {what}, and so does {task}, but at another step: {IN_ORDER}")
        return [value for *_, value in found]

    def require_same(self, what: str, mine: Mapping[str, Any], about: str) -> None:
        """Compares something with what the others have.

        Args:
          what: of what it is said that they are different.
          mine: by name.
          about: see `receive`.

        Raises:
          ModelMismatch: they differ, and in what.
        """
        for task, other in zip(self._tasks, self.gather(what, mine, about), strict=True):
            for name in {**mine, **other}:
                here, there = mine.get(name, "missing"), other.get(name, "missing")
                if here != there:
                    self._give_up(
                        f"{self.task} and {task} have different {what}: {name} is {here} here and {there} there; run "
                        "the same program with the same settings on all",
                        ModelMismatch,
                    )

    def _give_up(self, why: str, kind: type[Exception] | None = None) -> None:
        """Raises an error that all processes find by themselves."""
        raise (kind or ClusterError)(why + ".")

    # --- who lives

    def check(self) -> None:
        """Raises an error if this process can compute nothing more with the others.

        Raises:
          PeerError: one of them is gone.
          ClusterError: this process has left the job, or another one does something else than this.
        """
        self._detector.check()
        if self._left_because is not None:
            raise ClusterError(
                f"{self.task} has left the job{self._left_because}. Workers that compute in step take part in one job "
                "a process: start the script again, or let one Trainer do all that is to be done in it."
            )

    def busy(self, what: str) -> AbstractContextManager[None]:
        """A context in which this process does something for which others should wait, as in «worker:0 {what}»."""
        return self._activity.busy(what)

    def watched(self, training: int = 0, call: int = 0) -> Watched:
        """A context for an exchange with all others, in a call of a training, counted from 1.

        Raises:
          PeerError: it has failed because one of them is gone.
        """
        return self._activity.watched(training, call)

    def settled(self) -> None:
        """Says that a step is computed: the next ones are as fast as this one."""
        self._activity.settled = True

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        if self._left_because is not None:
            return
        self._left_because = failure and f" ({failure})"
        atexit.unregister(self._close_at_exit)
        self._detector.close(failure)

    def _close_at_exit(self) -> None:
        """Leaves for a script that has ended before it trained; the others may wait for it."""
        exc = getattr(sys, "last_value", None)
        self.close("its script ended before it trained" if exc is None else f"{type(exc).__name__}: {exc}")


class SingleProcess:
    """A process that is the whole group: it waits for nobody, and what it publishes only it reads."""

    task = "local"
    index = 0
    count = 1
    is_chief = True
    job = ""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._nothing: AbstractContextManager[None] = contextlib.nullcontext()

    def name(self, index: int) -> str:  # noqa: ARG002 - there is one
        """The name of this process."""
        return self.task

    def begin_engine(self) -> None:
        """Forgets what was published."""
        self._values.clear()

    def publish(self, key: str, value: Any) -> None:
        """Keeps a value, once."""
        self._values[key] = value

    def read(self, key: str) -> Any:
        """The value there; `None` if there is none."""
        return self._values.get(key)

    def receive(self, key: str, about: str) -> Any:  # noqa: ARG002 - it is there
        """The value there, which goes."""
        return self._values.pop(key)

    def gather(
        self,
        key: str,  # noqa: ARG002
        value: Any,
        about: str,  # noqa: ARG002
        *,
        unless: str = "",  # noqa: ARG002
        patient: bool = False,  # noqa: ARG002
    ) -> list[Any]:
        """Only the value of this process."""
        return [value]

    def barrier(self, what: str, value: Any = None) -> list[Any]:  # noqa: ARG002 - there is nobody to wait for
        """Only the value of this process, at once."""
        return [value]

    def require_same(self, what: str, mine: Mapping[str, Any], about: str) -> None:
        """Finds no difference."""

    def delete_before(self, key: str, number: int) -> None:
        """Has nothing to delete: only the last values are kept."""

    def check(self) -> None:
        """Finds nobody gone."""

    def busy(self, what: str) -> AbstractContextManager[None]:  # noqa: ARG002 - nobody waits
        """A context that means nothing."""
        return self._nothing

    def watched(self, training: int = 0, call: int = 0) -> AbstractContextManager[None]:  # noqa: ARG002
        """A context that means nothing: there are no exchanges."""
        return self._nothing

    def settled(self) -> None:
        """Tells nobody."""

    def close(self, failure: str = "") -> None:
        """Has nothing to leave."""


Group = ProcessGroup | SingleProcess
"""The processes of a job, or the one that is all of it."""


def _exit_as_witness(detector: FailureDetector) -> None:
    """Has a script that ends by the loss of a peer end with the exit code that says so: the launcher looks for whose
    failure it was.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        before(kind, exc, trace)
        if detector.has_lost_a_peer(exc):
            raise SystemExit(LOST_A_PEER)

    sys.excepthook = hook
