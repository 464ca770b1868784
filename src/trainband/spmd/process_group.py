"""ProcessGroup: the processes that compute in lockstep, and their messages to one another; or one process alone."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from trainband.cluster import Cluster
from trainband.cluster.credentials import NO_CREDENTIALS, Credentials
from trainband.cluster.resolvers.joined import report_joined
from trainband.cluster.worker_group import LOST_A_PEER
from trainband.errors import ClusterError, ModelMismatch, PeerError
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.formatting import one_line
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Say
from trainband.spmd.connection import Connect
from trainband.spmd.coordination import Coordination
from trainband.spmd.failure_detector import IN_ORDER, POLL_S, FailureDetector
from trainband.spmd.process_activity import OF_ALL, Activity, Wait, Watched
from trainband.version import VERSION, build, of_other_code

SOON_S = 0.001
"""Between the first two reads of the others' values; doubles each time, up to `POLL_S`."""


class ProcessGroup:
    """The workers of a cluster as processes of one JAX program. `FailureDetector` finds out which are alive.

    Args:
      cluster: names the workers, and this one.
      timeout_s: seconds of silence, or without progress, after which a process counts as gone.
      start_s: for all to come up; also for the first step, which is compiled.
      say: prints lines for the user.
      credentials: by which the tasks prove their identity to one another.
      connect: connects this process with the others.
      runtime: threads and time.

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
        connect: Connect = Coordination,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._tasks = [str(task) for task in cluster.spec.workers]
        self._addresses = [cluster.spec.address(task) for task in cluster.spec.workers]
        self.index = cluster.training_index
        """The number of this process."""
        self._runtime = runtime
        self._start_s = start_s
        self._engine = 0
        self._barriers = 0
        self._left_because: str | None = None
        own_host = cluster.address.rpartition(":")[0].strip("[]")
        connection = connect(
            self._addresses[0],
            own_host,
            self.index,
            self._tasks,
            start_s=start_s,
            say=say,
            credentials=credentials,
        )
        self._store = connection.store
        self._activity = activity = Activity(say, runtime.clock)
        self._detector = FailureDetector(
            connection,
            activity,
            self._tasks,
            self._addresses,
            self.index,
            timeout_s=timeout_s,
            start_s=start_s,
            runtime=runtime,
        )
        self._watched = Watched(activity, self._detector.explained)
        here = self._all_here()
        connection.seal()
        task_logger(__name__, self.task).info("connected with %s", ", ".join(self._tasks))
        runtime.at_exit(self._close_at_exit)
        # If a script ends because it lost a peer, the launcher looks for the task that failed first.
        runtime.exit_with(LOST_A_PEER, self._detector.has_lost_a_peer)
        self.job: str = here[0]["job"]
        """A random id, the same for all."""
        for task, other in zip(self._tasks, here, strict=True):
            version, code = (one_line(str(other.get(name, "")), 80) for name in ("version", "build"))
            if version != VERSION:
                _raise_error(f"{task} runs trainband {version}, and {self.task} {VERSION}: install one version")
            if warning := of_other_code(task, code, self.task):
                say(warning)

    def _all_here(self) -> list[dict[str, str]]:
        """Returns each process's description of itself, once all are connected."""
        own = {"version": VERSION, "build": build(), "job": self._runtime.token()}
        try:
            with self.busy("starts"):
                return self.gather("here", own, "starts")
        except PeerError as exc:  # the others read why, in the chief's process
            self.close(f"{type(exc).__name__}: {exc}")
            raise

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
        """Returns the task of a process."""
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
            why = "the workers must have the same number of devices to compute in lockstep, but they have"
            _raise_error(f"{why}: {seen}")

    def start_engine(self) -> None:
        """Separates the messages of the next engine from those of the previous ones."""
        report_joined()
        self._engine += 1
        self._activity.step = (0, 0)  # training runs are counted from 1 again

    def _path_of(self, key: str) -> str:
        return f"messages/{self._engine}/{key}"

    def _asking(self) -> AbstractContextManager[None]:
        """A context for a call of the store, which hangs while the chief is silent. The chief calls from any thread."""
        return contextlib.nullcontext() if self.is_chief else self._activity.waiting()

    def publish(self, key: str, value: Any) -> None:
        """Leaves a value that all can read."""
        with self._asking():
            self._store.set(self._path_of(key), json.dumps(value))

    def read(self, key: str) -> Any:
        """Returns the value there; `None` without one."""
        with self._asking():
            found = self._store.get(self._path_of(key))
        return None if found is None else json.loads(found)

    def delete_before(self, key: str, number: int) -> None:
        """Deletes all processes' values at `key/n/...` for every n below `number`, which no process reads again."""
        with self._asking():
            numbers = {int(rest.partition("/")[0]) for rest in self._store.list(f"{self._path_of(key)}/")}
            for old in sorted(n for n in numbers if n < number):
                self._store.delete(f"{self._path_of(key)}/{old}")

    def receive(self, key: str, about: str) -> Any:
        """Waits for a value that the chief must leave there.

        Args:
          key: where.
          about: what this process does meanwhile, as in "worker:1 {about}".

        Raises:
          ClusterError: the chief waits for this process at another place in the program.
          PeerError: a process is gone.
        """
        with self._activity.waiting(Wait(self._path_of(key), about, 0)):
            while (value := self._store.get(self._path_of(key))) is None:
                self.check()
                self._activity.report_wait(self._tasks[0])
                self._runtime.sleep(POLL_S)
        return json.loads(value)

    def gather(self, key: str, value: Any, about: str, *, unless: str = "", patient: bool = False) -> list[Any]:
        """Returns the values of all processes, in order; each must leave one.

        Args:
          key: where.
          value: of this one.
          about: see `receive`.
          unless: where a value from any process ends this wait; the result is then empty.
          patient: waits longer than `start_s` while the missing processes do something that takes long.

        Raises:
          ClusterError: another one waits for this process at another place in the program.
          PeerError: a process is gone, or has not come after `start_s`.
        """
        until = self._runtime.clock() + self._start_s
        pause_s = SOON_S
        path = self._path_of(key)
        with self._activity.waiting(Wait(path, about, OF_ALL)):
            self._store.set(f"{path}/{self.index}", json.dumps(value))
            while True:
                missing, values = self._values_at(key)
                if missing and unless and self._store.list(f"{self._path_of(unless)}/"):
                    missing, values = self._values_at(key)  # one that came late may have ended since
                    if missing:
                        return []
                if not missing:
                    return [json.loads(values[str(i)]) for i in range(self.count)]
                self.check()
                self._activity.report_wait(", ".join(map(self.name, missing)))
                if patient and self._detector.peers.are_doing(missing):
                    until = self._runtime.clock() + self._start_s
                elif self._runtime.clock() >= until:
                    self._detector.accuse(missing[0], self._why_not_come(missing, about))
                self._runtime.sleep(pause_s)
                pause_s = min(POLL_S, 2 * pause_s)

    def _values_at(self, key: str) -> tuple[list[int], dict[str, str]]:
        """Returns the processes whose values are missing there, and the values of the others."""
        values = self._store.list(f"{self._path_of(key)}/")
        return [index for index in range(self.count) if str(index) not in values], values

    def _why_not_come(self, missing: Sequence[int], about: str) -> str:
        never = [index for index in missing if index not in self._detector.peers]
        if never:
            return (
                f"{', '.join(map(self.name, never))} did not come up within {self._start_s:g} s; check that they run "
                f"and can reach {self._addresses[0]}"
            )
        return (
            f"{self.task} {about}, but {', '.join(map(self.name, missing))}, though alive, did not within "
            f"{self._start_s:g} s; check what it does, or raise start_s"
        )

    def barrier(self, what: str, value: Any = None) -> list[Any]:
        """Waits until all processes are about to do the same thing; returns the value of each, in order.

        Mismatched exchanges would end a process from C++, or never end.

        Args:
          what: as in "worker:0 {what}".

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
                _raise_error(f"{self.task} {what}, but {task} {other}: {IN_ORDER}")
            if at != step:
                _raise_error(f"{self.task} {what}, and so does {task}, but at another step: {IN_ORDER}")
        return [value for *_, value in found]

    def require_same(self, what: str, mine: Mapping[str, Any], about: str) -> None:
        """Compares values with those of the others.

        Args:
          what: names the values in messages.
          mine: by name.
          about: see `receive`.

        Raises:
          ModelMismatch: they differ; names the difference.
        """
        for task, other in zip(self._tasks, self.gather(what, mine, about), strict=True):
            for name in {**mine, **other}:
                here, there = mine.get(name, "missing"), other.get(name, "missing")
                if here != there:
                    _raise_error(
                        f"{self.task} and {task} have different {what}: {name} is {here} here and {there} there; run "
                        "the same program with the same settings on all",
                        ModelMismatch,
                    )

    def check(self) -> None:
        """Raises an error if this process can no longer compute with the others.

        Raises:
          PeerError: one of them is gone.
          ClusterError: this process has left the job, or another one is doing something else.
        """
        self._detector.check()
        if self._left_because is not None:
            raise ClusterError(
                f"{self.task} has left the job{self._left_because}. A worker that computes in lockstep takes part in "
                "only one job per process: start the script again, or do everything in it with one Trainer."
            )

    def busy(self, what: str) -> AbstractContextManager[None]:
        """A context in which this process does something to wait for, as in "worker:0 {what}"."""
        return self._activity.busy(what)

    def watched(self, training: int = 0, call: int = 0) -> Watched:
        """A context for an exchange with all others, in this call of this training (from 1).

        Raises:
          PeerError: it has failed because one of them is gone.
        """
        self._activity.enter_exchange(training, call)
        return self._watched

    def settled(self) -> None:
        """Notes that a step has been computed: the next ones are as fast."""
        self._activity.settled = True

    def close(self, failure: str = "") -> None:
        """Leaves the job; `failure` says why, if something went wrong. Idempotent."""
        if self._left_because is not None:
            return
        self._left_because = failure and f" ({failure})"
        self._runtime.not_at_exit(self._close_at_exit)
        self._detector.close(failure)

    def _close_at_exit(self) -> None:
        """Leaves when a script ends before it has trained; the others may be waiting for it."""
        exc = getattr(sys, "last_value", None)
        self.close("its script ended before it trained" if exc is None else f"{type(exc).__name__}: {exc}")


def _raise_error(why: str, kind: type[Exception] = ClusterError) -> None:
    """Raises an error that all processes find by themselves."""
    raise kind(why + ".")


class SingleProcess:
    """A process that is the whole group: it waits for no others, and only it reads its values."""

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

    def start_engine(self) -> None:
        """Removes the values published for an earlier engine."""
        self._values.clear()

    def publish(self, key: str, value: Any) -> None:
        """Keeps a value, once."""
        self._values[key] = value

    def read(self, key: str) -> Any:
        """Returns the value there; `None` without one."""
        return self._values.get(key)

    def receive(self, key: str, about: str) -> Any:  # noqa: ARG002 - it is there
        """Returns the value there, and removes it."""
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

    def barrier(self, what: str, value: Any = None) -> list[Any]:  # noqa: ARG002 - there are no others
        """Only the value of this process, at once."""
        return [value]

    def require_same(self, what: str, mine: Mapping[str, Any], about: str) -> None:
        """Finds no difference."""

    def delete_before(self, key: str, number: int) -> None:
        """Has nothing to delete: only the last values are kept."""

    def check(self) -> None:
        """Never raises an error."""

    def busy(self, what: str) -> AbstractContextManager[None]:  # noqa: ARG002 - there are no others
        """A context that does nothing."""
        return self._nothing

    def watched(self, training: int = 0, call: int = 0) -> AbstractContextManager[None]:  # noqa: ARG002
        """A context that does nothing: there are no exchanges."""
        return self._nothing

    def settled(self) -> None:
        """Does nothing."""

    def close(self, failure: str = "") -> None:
        """Has nothing to leave."""


Group = ProcessGroup | SingleProcess
"""The processes of a job, or its only one."""
