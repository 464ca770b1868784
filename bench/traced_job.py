"""A job of ps and workers under a supervisor, with a trace of every step and a look at every ps ten times a second."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tests.machines import Machines

from bench.environments import our_environment
from bench.processes import CaseFailed, free_addresses
from bench.security import environment
from bench.supervised import Command, Life, Supervised
from bench.tasks.trainband_chaos import LIVES, RECORD
from trainband.launch.environment import compiled_environment

TASK = "bench.tasks.trainband_chaos"
WATCH = "bench.tasks.chaos_watch"
PS, WORKERS = 2, 4
PS_TASKS = tuple(f"ps:{index}" for index in range(PS))
WORKER_TASKS = tuple(f"worker:{index}" for index in range(WORKERS))
CHIEF = WORKER_TASKS[0]
MACHINES = PS + WORKERS + 1
"""One for each task, and one for who watches."""
WARM = 20
"""Steps of every worker after which the job counts as running."""
FRESH_S = 1.5
"""The oldest status that counts."""
LOOK_S = 0.02

STEP = np.dtype([("worker", np.int64), ("life", np.int64), *((name, np.float64) for name in RECORD.names or ())])

Steps = NDArray[Any]
"""Of dtype `STEP`, in the order of their ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every run of a session.

    Attributes:
      compute_ms: what a worker waits in each step, in place of computing.
      deadline_s: for a job to start, and again to end.
    """

    rule: str
    standbys: int
    compute_ms: float
    data: Path
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The last report of a ps."""

    at_s: float
    status: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """The results of the job.

    Attributes:
      loss: on the test images.
      counters: float64[ps, workers * LIVES + 1], what each ps has counted.
      versions: of each shard, as it was seen last.
    """

    loss: float
    counters: NDArray[np.float64]
    versions: tuple[int, ...]


@dataclass(slots=True)
class _Trace:
    """One file that grows, and what has been read of it."""

    path: Path
    parts: list[NDArray[Any]] = field(default_factory=list)
    last: Any = None
    _read: int = 0

    def poll(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % RECORD.itemsize
        if whole:
            self._read += whole
            self.parts.append(np.frombuffer(data[:whole], RECORD))
            applied = self.parts[-1][self.parts[-1]["applied"] > 0]
            self.last = applied[-1] if len(applied) else self.last


class TracedJob:
    """One job; a context manager that leaves nothing running.

    Args:
      plan: what it does.
      directory: an empty one, for traces, logs and checkpoints.
      machines: `MACHINES` of them; None for all tasks on this one.
    """

    def __init__(self, plan: Plan, directory: Path, machines: Machines | None) -> None:
        """Start nothing yet."""
        self.plan = plan
        self.machines = machines
        self._directory = directory
        # Like the tasks of `trainband run --restarts`; other machines reach them, so that they need a secret.
        compiled = compiled_environment(our_environment(WORKERS), directory / "compiled")
        self.tasks = Supervised(directory, {**compiled, **environment("secret", directory)})
        self._addresses = machines.addresses if machines is not None else tuple(free_addresses(PS + WORKERS))
        self._traces: dict[tuple[int, int], _Trace] = {}
        self._watched = 0
        self._seen: dict[int, Seen] = {}
        self._versions = [0] * PS

    def __enter__(self) -> Self:
        """Start all tasks."""
        self.tasks.__enter__()
        for task in (*PS_TASKS, *WORKER_TASKS):
            self.tasks.start(task, self._command(task))
        watch = [*self._on(MACHINES - 1), sys.executable, "-m", WATCH, "--ps_hosts", ",".join(self._addresses[:PS])]
        self.tasks.start("watch", lambda _: watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what still runs."""
        self.tasks.__exit__(kind, error, trace)

    def _command(self, task: str) -> Command:
        job, _, index = task.partition(":")
        flags: dict[str, object] = {
            "--job_name": job,
            "--task_index": index,
            "--ps_hosts": ",".join(self._addresses[:PS]),
            "--worker_hosts": ",".join(self._addresses[PS : PS + WORKERS]),
            "--rule": self.plan.rule,
            "--standbys": self.plan.standbys,
            # With a standby nothing needs to be saved for a ps to come back.
            "--checkpoint_dir": "" if self.plan.standbys else self._directory / "checkpoints",
            "--compute_ms": self.plan.compute_ms,
            "--data": self.plan.data,
            "--marks": self._directory,
        }
        command = [*self._on(machine_of(task)), sys.executable, "-m", TASK]
        command += [str(part) for flag in flags.items() for part in flag]
        return lambda life: [*command, "--life", str(life)]

    def _on(self, machine: int) -> list[str]:
        return [] if self.machines is None else ["ip", "netns", "exec", self.machines.names[machine]]

    # --- looking

    def poll(self) -> None:
        """Read what is new: ends of processes, steps, and answers of the ps."""
        self.tasks.poll()
        for worker, task in enumerate(WORKER_TASKS):
            life = self.tasks.lives[task][-1].number
            if life >= LIVES:
                raise CaseFailed(f"{task} has begun its life {life}; there are counters for {LIVES} only.")
            if (worker, life) not in self._traces:
                self._traces[worker, life] = _Trace(self._directory / f"trace-{worker}-{life}")
                if life:
                    self._traces[worker, life - 1].poll()  # what the one before wrote last
            self._traces[worker, life].poll()
        said = self.tasks.lives["watch"][-1].said
        with said.open() as file:
            file.seek(self._watched)
            while (line := file.readline()).endswith("\n"):
                self._watched = file.tell()
                self._record_status(json.loads(line))

    def _record_status(self, answer: Mapping[str, Any]) -> None:
        self._seen[answer["ps"]] = Seen(answer["at_s"], answer["status"])
        for replica in (answer["status"] or {}).get("replicas", ()):
            if replica["role"] == "primary":
                self._versions[replica["shard"]] = replica["version"]

    def wait_for(self, what: str, condition: Callable[[], bool], deadline_s: float) -> None:
        """Look until a condition holds.

        Raises:
          CaseFailed: deadline_s seconds passed first.
        """
        end = time.monotonic() + deadline_s
        while True:
            self.poll()
            if condition():
                return
            if time.monotonic() > end:
                raise CaseFailed(f"waited {deadline_s:g} s for {what}, in vain.{self.said()}")
            time.sleep(LOOK_S)

    def wait_until(self, moment_s: float) -> None:
        """Look until a moment of the monotonic clock."""
        while time.monotonic() < moment_s:
            self.poll()
            time.sleep(LOOK_S)

    def wait_for_start(self) -> None:
        """Wait until every worker trains and the job is whole.

        Raises:
          CaseFailed: it does not come to that.
        """

        def all_train() -> bool:
            if ended := self.unasked():
                life = ended[0]
                raise CaseFailed(f"{life.task} ended with {life.code} before every worker trained:\n{life.shown()}")
            return all(self._length(w) >= WARM for w in range(WORKERS))

        self.wait_for("every worker to train", all_train, self.plan.deadline_s)
        self.wait_for("the job to be whole", lambda: not self.missing(0.0), self.plan.deadline_s)

    def _length(self, worker: int) -> int:
        return sum(len(part) for (number, _), trace in self._traces.items() if number == worker for part in trace.parts)

    def roles(self, ps: int) -> tuple[str, ...]:
        """Return the roles that a ps has said last to have, of each of its shard replicas."""
        seen = self._seen.get(ps)
        return tuple(replica["role"] for replica in seen.status["replicas"]) if seen is not None and seen.status else ()

    def pushed_since(self, worker: int, moment_s: float) -> bool:
        """Say whether the present life of a worker has had a push applied that was answered after a moment."""
        trace = self._traces.get((worker, self.tasks.lives[WORKER_TASKS[worker]][-1].number))
        return trace is not None and trace.last is not None and trace.last["ended_s"] > moment_s

    def missing(self, since_s: float) -> str:
        """Say what the job still lacks to be whole; empty where all is as it was before any fault.

        Args:
          since_s: after which every worker must have had a push applied, and every ps must have been seen.
        """
        for task in (*PS_TASKS, *WORKER_TASKS):
            if not self.tasks.running(task):
                return f"{task} does not run"
        for worker, task in enumerate(WORKER_TASKS):
            if not self.pushed_since(worker, since_s):
                return f"{task} has had no push applied"
        replicas = []
        for ps, task in enumerate(PS_TASKS):
            seen = self._seen.get(ps)
            if seen is None or seen.status is None or seen.at_s < max(since_s, time.monotonic() - FRESH_S):
                return f"{task} does not answer"
            gone = set(WORKER_TASKS) - set(seen.status["live"])
            if gone:
                return f"{task} does not count {', '.join(sorted(gone))}"
            replicas += [
                (replica["shard"], replica["role"], ps, replica["standby"]) for replica in seen.status["replicas"]
            ]
        for shard in range(PS):
            holders = [replica for replica in replicas if replica[0] == shard and replica[1] == "primary"]
            if len(holders) != 1:
                return f"{len(holders)} ps hold shard {shard}"
            _, _, holder, standby = holders[0]
            followers = [ps for number, role, ps, _ in replicas if number == shard and role == "standby"]
            if self.plan.standbys and followers != [standby]:
                return f"shard {shard}, held by ps:{holder}, has no standby (there are {followers}, named is {standby})"
        return ""

    # --- the end

    def finish(self) -> Ending:
        """End the training where it is, and wait until every task has ended by itself.

        Raises:
          CaseFailed: one does not end, or none reports the end of the training.
        """
        (self._directory / "stop").touch()
        self.tasks.restarting = False
        names = (*PS_TASKS, *WORKER_TASKS)
        self.wait_for(
            "every task to end by itself",
            lambda: not any(self.tasks.running(task) for task in names),
            self.plan.deadline_s,
        )
        for task in WORKER_TASKS:
            for line in reversed(self.tasks.lives[task][-1].said.read_text(errors="replace").splitlines()):
                if line.startswith("{"):
                    told = json.loads(line)
                    return Ending(
                        loss=told["loss"], counters=np.array(told["counters"]), versions=tuple(self._versions)
                    )
        raise CaseFailed(f"no worker has told the end of the training.{self.said()}")

    def steps(self) -> Steps:
        """Return all steps that were read."""
        parts = []
        for (worker, life), trace in self._traces.items():
            for part in trace.parts:
                steps = np.empty(len(part), STEP)
                steps["worker"], steps["life"] = worker, life
                for name in RECORD.names or ():
                    steps[name] = part[name]
                parts.append(steps)
        steps = np.concatenate(parts) if parts else np.empty(0, STEP)
        return steps[np.argsort(steps["ended_s"], kind="stable")]

    def unasked(self) -> list[Life]:
        """Return the processes that ended without a request."""
        return self.tasks.unasked()

    def said(self) -> str:
        """Return what every task has printed lately, for an error message."""
        return "".join(
            f"\n--- {task}, life {lives[-1].number}:\n{lives[-1].shown()}"
            for task, lives in self.tasks.lives.items()
            if task != "watch"
        )

    def copy_logs(self, directory: Path) -> Path:
        """Copy what the tasks have printed to where it stays; give that."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for path in self._directory.glob("*.log"):
            shutil.copy(path, directory)
        return directory


def machine_of(task: str) -> int:
    """Return the number of the machine that a task runs on."""
    return (*PS_TASKS, *WORKER_TASKS).index(task)
