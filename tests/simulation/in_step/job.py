"""A simulated job of workers that compute in lockstep, from its beginning to its end."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from tests.simulation.faults import Crash, Cut, Pause
from tests.simulation.in_step.connection import SECRET, SimulatedConnection
from tests.simulation.in_step.exchanges import Mailbox, SimulatedControl, SimulatedProgram, SimulatedState
from tests.simulation.in_step.scenario import (
    START_S,
    TIMEOUT_S,
    Crowds,
    Doubles,
    Evaluates,
    Fault,
    Hangs,
    Raises,
    Restarts,
    Scenario,
    Start,
    StaysAway,
    Strays,
)
from tests.simulation.in_step.sockets import SimulatedSockets, Wires
from tests.simulation.network import Network
from tests.simulation.process import Clock, Failed, Process, sleep
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Scheduler
from trainband.cluster import Address, Cluster, ClusterSpec, Task
from trainband.errors import AddressInUse, DeadlineExceeded, Refused
from trainband.model.batch import Several
from trainband.spmd.agreement import MAKES
from trainband.spmd.batch_sharding import OwnPart
from trainband.spmd.calls import Calls
from trainband.spmd.connection import Connection
from trainband.spmd.end_of_training import EndOfTraining
from trainband.spmd.first_step import FirstStep
from trainband.spmd.links import Links
from trainband.spmd.pipeline import Pipeline
from trainband.spmd.process_group import ProcessGroup
from trainband.spmd.proof import Proof
from trainband.spmd.step_inputs import StepInputs
from trainband.spmd.steps import MeshSteps

PATIENCE_S = 200.0
"""Simulated seconds after which a job must have ended."""


class Said(NamedTuple):
    """A line printed for the user."""

    at: float
    worker: int
    text: str


class Waited(NamedTuple):
    """A process has waited for others: for their values at a key, for an exchange of this number, or for the store."""

    at: float
    worker: int
    until: float
    key: str
    exchange: int | None = None


class Agreed(NamedTuple):
    """The values of all processes at a key, as one process has read them."""

    at: float
    worker: int
    key: str
    values: str


class Trained(NamedTuple):
    """A training has ended, as a process sees it."""

    at: float
    worker: int
    training: int
    begun: int
    step: int
    applied: int
    reason: str


class Ended(NamedTuple):
    """A process has ended: "well", by an error, or because it was killed."""

    at: float
    worker: int
    why: str


class Happened(NamedTuple):
    """A fault has happened, or something that must not happen."""

    at: float
    worker: int
    what: Any


Record = Said | Waited | Agreed | Trained | Ended | Happened


class Outcome(NamedTuple):
    """The outcome of a job.

    Attributes:
      scenario: of the job.
      history: everything that happened in it.
      sent: when each value was given to the store, by its key.
      beats: when heartbeats of each process have come to the store.
      exchanges: of each process, when it began each exchange.
      first_calls: the exchanges whose programs are compiled before.
      unfinished: the processes that have not ended.
    """

    scenario: Scenario
    history: Sequence[Record]
    sent: dict[str, float]
    beats: Sequence[Sequence[float]]
    exchanges: Sequence[Sequence[float]]
    first_calls: frozenset[int]
    unfinished: Sequence[int]


class ObservedGroup(ProcessGroup):
    """A group that records its waits and answers."""

    def __init__(self, member: Member, cluster: Cluster, **settings: Any) -> None:
        self.member = member
        super().__init__(cluster, **settings)

    def gather(self, key: str, value: Any, about: str, *, unless: str = "", patient: bool = False) -> list[Any]:
        path = self._path_of(key)
        with self.member.waits(path):
            found = super().gather(key, value, about, unless=unless, patient=patient)
        if found:
            self.member.record(Agreed, path, json.dumps(found))
        return found

    def receive(self, key: str, about: str) -> Any:
        path = self._path_of(key)
        with self.member.waits(path):
            found = super().receive(key, about)
        self.member.record(Agreed, path, json.dumps(found))
        return found


class Inputs(StepInputs):
    """Reduces a batch to whether its gradient is finite."""

    def __init__(self, index: int, task: str, per_call: int) -> None:
        self.sharding = cast("Any", SimpleNamespace(forget=lambda: None, own=OwnPart(index, 1, (index,))))
        self._task, self._per_call, self._in_step = task, per_call, True
        self.stacks, self.place = False, None

    def of_step(self, batch: Any) -> Any:
        return (bool(batch[1]),)

    def of_call(self, several: Several) -> Any:
        return tuple(bool(batch[1]) for batch in several.batches)


class ComparesBatches(FirstStep):
    """Compares no params: the simulation has none."""

    def start_training(self, training: int) -> None:
        super().start_training(training)
        self._has_compared_params = True


class Member:
    """One process of the job."""

    def __init__(self, job: Job, index: int) -> None:
        self.job, self.index = job, index
        self.process = job.processes[index]
        self.task = self.process.name
        self._dice = random.Random(f"{job.scenario.seed} {index}")
        self._runtime = SimulatedRuntime(self.process, lambda _: None)
        self._waiting: list[tuple[float, str, int | None]] = []
        self.mailbox = Mailbox(job.network, job.processes, index, self._exchanges)
        self.process.failed = self._failed
        self.process.on_death.append(self._record_death)
        self._why = "killed"
        self._main = self.process.thread(self._run, "main")

    def start(self) -> None:
        """Begins its script."""
        self._main.start()

    def record(self, kind: Callable[..., Record], *what: Any) -> None:
        """Adds a record to the history."""
        self.job.record(kind(self.process.now, self.index, *what))

    def waits(self, key: str) -> Any:
        """Returns a context in which it waits for values at a key."""
        return _Waits(self, key)

    def start_wait(self, key: str, exchange: int | None = None) -> None:
        self._waiting.append((self.process.now, key, exchange))

    def end_wait(self) -> None:
        since, key, exchange = self._waiting.pop()
        self.record(lambda now, index: Waited(since, index, now, key, exchange))

    def _exchanges(self, number: int, begins: bool) -> None:
        if begins:
            self.start_wait("", number)
        else:
            self.end_wait()

    def _failed(self, failed: Failed) -> None:
        self.record(Happened, f"{failed.name}: {failed.error!r}")

    def _record_death(self) -> None:
        while self._waiting:
            self.end_wait()
        self.record(Ended, self._why)

    def say(self, text: str) -> None:
        """Records a line for the user."""
        self.record(Said, text)
        if text.startswith("ERROR"):
            self._why = text

    def _run(self) -> None:
        spec = ClusterSpec({"worker": [f"worker-{index}:2222" for index in range(len(self.job.processes))]})
        group: ProcessGroup | None = None
        failure = ""
        try:
            group = ObservedGroup(
                self,
                Cluster(spec=spec, task=Task("worker", self.index)),
                timeout_s=TIMEOUT_S,
                start_s=START_S,
                say=self.say,
                connect=self.connect,
                runtime=self._runtime,
            )
            self._script(group)
        except Exception as exc:
            failure = f"{type(exc).__name__}: {exc}"
            while self._waiting:
                self.end_wait()
        if group is not None:
            group.close(failure)
        self._why = failure or "well"
        self.process.die()

    def connect(self, coordinator: str, own_host: str, index: int, tasks: Sequence[str], **given: Any) -> Connection:
        """Meets the others."""
        del own_host, given["credentials"]
        return SimulatedConnection(
            coordinator,
            index,
            tasks,
            **given,
            sockets=SimulatedSockets(self.job.wires, self.process),
            runtime=self._runtime,
            process=self.process,
            sent=self.job.sent,
            beats=lambda other: self.job.beats[other].append(self.process.now),
            breaks=lambda: self.record(Happened, "JAX ends the process: its connection has broken"),
        )

    def _script(self, group: ProcessGroup) -> None:
        scenario = self.job.scenario
        steps = self._steps(group, 0)
        for training, limit in enumerate(scenario.limits):
            if training and scenario.another_engine:
                done = steps.global_step
                steps = self._steps(group, training)
                limit = None if limit is None else max(1, limit - done)
            begun = steps.global_step
            reason = self._train(group, steps, training, limit)
            if not reason.startswith(("worker:", "all")):
                reason = f"{self.task}: {reason}"
            self.record(Trained, training, begun, steps.global_step, self._state.applied, reason)
            found = group.barrier("evaluates", [steps.global_step, self._state.applied])
            assert len(found) == group.count

    def _steps(self, group: ProcessGroup, engine: int) -> MeshSteps:
        scenario, anything = self.job.scenario, cast("Any", SimpleNamespace())
        per_call = scenario.per_call
        group.start_engine()
        group.require_same("programs", {"steps_per_execution": per_call}, MAKES)
        apart = lambda what: self.record(Happened, f"apart {what}")  # noqa: E731
        self._state = state = SimulatedState(self.mailbox, counts_down=per_call > 1, apart=apart)
        program = SimulatedProgram(state, self.mailbox, self.process, self._dice.uniform(0.1, 4.0))
        ending, inputs, control = (
            EndOfTraining(group),
            Inputs(self.index, self.task, per_call),
            SimulatedControl(per_call),
        )
        parts: Any = program, state, group, control, ending
        pipeline = Pipeline(*parts, per_call=per_call, say=lambda _: None)
        program.place = lambda: (engine, pipeline._training, pipeline.calls)  # noqa: SLF001
        checkpoints: Any = SimpleNamespace(start_due=lambda: None, start_training=lambda: None, status=None)
        parts = pipeline, inputs, checkpoints, ending, control
        calls = Calls(*parts, per_call=per_call, accumulate=1)
        compares: Any = anything, state, group, inputs, pipeline, ending, self.say
        parts = group, state, inputs, pipeline, calls, checkpoints, ComparesBatches(*compares), anything
        return MeshSteps(*parts)

    def _train(self, group: ProcessGroup, steps: MeshSteps, training: int, limit: int | None) -> str:
        scenario, made = self.job.scenario, 0
        left = scenario.data[training][self.index]
        goes_on = steps.start_training(limit)
        while goes_on:
            if not training:
                self._do(group, made)
            sleep(self.process, self._dice.uniform(0.5, 1.5) * scenario.step_s[self.index])
            if not left:
                return steps.pause()
            if self.index == 0 and made == scenario.stops[training]:
                return steps.pause("enough for now")
            count = min(left, scenario.per_call)
            batches = [np.array([self.index, self._dice.random() >= scenario.not_finite]) for _ in range(count)]
            left -= count
            report = steps.step(Several(tuple(batches), last=not left) if scenario.per_call > 1 else batches[0])
            made += 1
            if report.done or report.stopped:
                return report.stopped or "all updates are made"
            if steps._pipeline.ended:  # noqa: SLF001 - by this process's data, within a call
                return steps._pipeline.ended  # noqa: SLF001
        return "all updates are made"

    def _do(self, group: ProcessGroup, step: int) -> None:
        for deed in self.job.scenario.faults:
            if isinstance(deed, Crash | Pause | Cut | Start) or (deed.task, deed.step) != (self.task, step):
                continue
            self.record(Happened, deed)
            match deed:
                case Raises():
                    raise OSError("the disk with the pictures is gone")
                case Hangs():
                    sleep(self.process, 10 * PATIENCE_S)
                case Strays():
                    group.barrier("asks for the params")
                case Evaluates():
                    with group.busy("evaluates"):
                        sleep(self.process, deed.length_s)


class _Waits:
    """Records a wait."""

    def __init__(self, member: Member, key: str) -> None:
        self._member, self._key = member, key

    def __enter__(self) -> None:
        self._member.start_wait(self._key)

    def __exit__(self, *_: object) -> None:
        if self._member.process.alive:
            self._member.end_wait()


class Job:
    """All processes of a job, and the faults as they happen."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.history: list[Record] = []
        self.show: Callable[[Record], None] | None = None
        self.scheduler = Scheduler()
        self._dice = dice = random.Random(scenario.seed)
        self._others: list[Process] = []
        self.network = Network(self.scheduler, dice)
        self.network.weather = scenario.weather
        clocks = [Clock(dice.uniform(-1000.0, 0.0), dice.uniform(0.99, 1.01)) for _ in range(scenario.workers)]
        self.processes = [
            Process(f"worker:{index}", index, f"host-{index}", self.scheduler, dice, clock)
            for index, clock in enumerate(clocks)
        ]
        self.wires = Wires(self.network, {f"worker-{one.life}": one.name for one in self.processes})
        self.sent: dict[str, float] = {}
        """When each value was given to the store, by its key."""
        self.beats: list[list[float]] = [[] for _ in self.processes]
        """When heartbeats of each process have come to the store."""
        self.members = [Member(self, index) for index in range(scenario.workers)]
        for member in self.members:
            member.mailbox.others = [other.mailbox for other in self.members]

    def record(self, record: Record) -> None:
        """Adds a record to the history."""
        self.history.append(record)
        if self.show is not None:
            self.show(record)

    def _plan(self) -> None:
        starts = list(self.scenario.starts)
        for fault in self.scenario.faults:
            if isinstance(fault, Restarts):
                index = self._index(fault)
                before = self._other(fault.task, index)
                self.scheduler.at(
                    starts[index], before.thread(functools.partial(self._meet, before, index), "main").start
                )
                self.scheduler.at(fault.at, before.die)
                starts[index] = fault.at + fault.length_s
            if not isinstance(fault, Raises | Hangs | Strays | Evaluates):
                self.scheduler.at(fault.at, functools.partial(self._do, fault))
        for member, at in zip(self.members, starts, strict=True):
            self.scheduler.at(at, member.start)

    def _index(self, fault: Fault) -> int:
        return int(self.scenario.place(fault).partition(":")[2])

    def _other(self, name: str, index: int) -> Process:
        """Returns a process that is not part of the job, or no longer will be."""
        other = Process(name, len(self.processes) + len(self._others), f"host-{index}", self.scheduler, self._dice)
        self._others.append(other)
        return other

    def _meet(self, process: Process, index: int) -> None:
        """Comes to the rendezvous as one of the workers."""
        tasks = [one.name for one in self.processes]
        runtime, sockets = SimulatedRuntime(process, lambda _: None), SimulatedSockets(self.wires, process)
        proof = Proof(SECRET, clock=process.clock)
        Links(Address("worker-0", 2222), index, tasks, START_S, lambda _: None, proof, runtime, sockets)

    def _double(self, process: Process, index: int) -> None:
        try:
            self._meet(process, index)
        except Exception as exc:
            if type(exc) in (Refused, DeadlineExceeded, AddressInUse):
                return
            self.record(Happened(self.scheduler.now, index, f"another process of this task fails: {exc!r}"))
        finally:
            process.die()

    def _bother(self, process: Process, number: int) -> None:
        """Connects to the chief as a stranger."""
        with suppress(OSError):
            connection = SimulatedSockets(self.wires, process).connect("worker-0", 2222, START_S)
            if number % 2:
                connection.sendall(b"trainband worker 1\n".ljust(48))
            connection.settimeout(None)
            while connection.recv(64):
                pass

    def _do(self, fault: Crash | Pause | Cut | Start) -> None:
        index = self._index(fault)
        process, now = self.processes[index], self.scheduler.now
        if not process.alive:
            return
        self.record(Happened(now, index, fault))
        match fault:
            case Crash() | StaysAway():
                process.die()
            case Pause():
                process.pause()
                self.scheduler.after(fault.length_s, process.go_on)
            case Cut():
                targets = [fault.target] if fault.target else [one.name for one in self.processes if one is not process]
                for target in targets:
                    self.network.cut(fault.source, target, now + fault.length_s)
                    self.network.cut(target, fault.source, now + fault.length_s)
            case Doubles():
                double = self._other(fault.task, index)
                double.thread(lambda: self._double(double, index), "main").start()
            case Crowds():
                crowd = self._other("stranger", 0)
                for number in range(fault.callers):
                    crowd.thread(functools.partial(self._bother, crowd, number), "main").start()

    def run(self) -> Outcome:
        """Runs the job to its end."""
        self._plan()
        self.scheduler.run(PATIENCE_S, lambda: not any(process.alive for process in self.processes))
        unfinished = [index for index, process in enumerate(self.processes) if process.alive]
        for process in (*self.processes, *self._others):
            process.on_death.clear()
            process.bury()
        exchanges = [member.mailbox.sent for member in self.members]
        first_calls = frozenset(number for member in self.members for number in member.mailbox.first_calls)
        return Outcome(self.scenario, self.history, self.sent, self.beats, exchanges, first_calls, unfinished)
