"""A simulated job: its tasks, the network between them, and the faults as they come."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import optax

from tests.simulation.faults import ARBITER, CHIEF, Break, Crash, Cut, Fault, Pause, Terminate
from tests.simulation.history import Broken, Data, Died, Ended, Final, Record, Refusal, Told
from tests.simulation.job import TIMEOUTS, CheapPlan, Endless, SimulatedStep, SimulatedStrategy, plan_of, shared_batches
from tests.simulation.network import Network, TaskTransport
from tests.simulation.observers import Observed, ReplicaNotes, observed
from tests.simulation.process import Failed, Process
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Scheduler
from tests.simulation.values import NUMBER, Values, compile_for
from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import RefusalCode, Refused, TrainbandError
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replicator.replicator import Replicator
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.server import Server
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.client import JobClient
from trainband.strategies.base import Strategy
from trainband.train import Trainer
from trainband.train.hooks.base import Hook
from trainband.wire.messages.replication import arbiter_name

PATIENCE_S = 400.0
"""A job must be at its end so many simulated seconds after its troubles are over."""

LOOK_S = 0.3
"""Between two looks whether the next fault may come."""

ELASTIC_S = 3.0
"""After the others, a worker comes that nobody has planned."""

RESTART_S = 0.5
"""A worker that fails is started again after so long."""

MEMORY = Path("/dev/shm")


class Steering(Hook):
    """The chief sets a number of the optimizer's state every so many updates."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._next = every

    def after_run(self, session: Any, report: Any) -> None:
        del report
        if session.is_chief and session.global_step >= self._next:
            self._next = session.global_step + self._every
            with suppress_not_chief():
                session.trainer.join().values.steer({NUMBER: float(1 + session.global_step)})


@contextmanager
def suppress_not_chief() -> Iterator[None]:
    """Within, a refusal because another worker has the chief's duties by now is no failure."""
    try:
        yield
    except Refused as exc:
        if exc.code is not RefusalCode.NOT_CHIEF:
            raise


class SimulatedServer(Server):
    """A ps whose updates are a stand-in's."""

    values: Values

    def _new_service(self, **settings: Any) -> ParameterService:
        return super()._new_service(compile_program=compile_for(self.values), **settings)


class World:
    """One job from its beginning to its end."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.history: list[Record] = []
        self.values = Values()
        self.services: list[tuple[Observed, ParameterService]] = []
        self.failovers: dict[int, ReplicaNotes] = {}
        self.installs: dict[tuple[int, str, int], Any] = {}
        self._dice = random.Random(scenario.seed)
        self.network = Network(self.scheduler, self._dice)
        self.network.failed = lambda process, where, exc: self._broken(process, where, exc)
        self.say: Callable[[str], None] | None = None
        """Is told every line that a task has for people, for a trace."""
        self.show: Callable[[Record], None] | None = None
        """Is told every record as it is noted, for a trace."""
        self._names = [f"worker:{number}" for number in range(scenario.workers)]
        self._spec = ClusterSpec(
            {
                "ps": [f"ps-{i}:2222" for i in range(scenario.shards)],
                "worker": [f"worker-{i}:2222" for i in range(scenario.workers - scenario.elastic)],
            }
        )
        self._plan: CheapPlan = plan_of(scenario.shards, scenario.rule, scenario.standbys, table=scenario.seed % 5 == 3)
        self._clocks = scenario.clocks()
        self._hosts = scenario.hosts()
        self._at_failback = list(scenario.trouble.at_failback)
        self._at_checkpoint = list(scenario.trouble.at_checkpoint)
        self._quiet_from = 0.0
        """When the fault that came last, or is to come, is over."""
        self._ps: dict[str, Process] = {}
        self._workers: dict[str, list[Process]] = {name: [] for name in self._names}
        self._unfinished = set(self._names)
        self._trained_out = False
        self._served_out: set[str] = set()
        self._done: set[str] = set()
        """The ps that have ended because there was nothing more to do."""
        self._gone: list[str] = []
        self._processes: list[Process] = []
        self._directory = Path(tempfile.mkdtemp(prefix="simulated-job-", dir=MEMORY if MEMORY.is_dir() else None))

    def run(self) -> list[Record]:
        """The history of the job."""
        trouble = self.scenario.trouble
        self.network.weather = trouble.weather
        try:
            with observed():
                for number in range(self.scenario.shards):
                    self._start_ps(f"ps:{number}")
                for number, name in enumerate(self._names):
                    late_s = ELASTIC_S if number >= self.scenario.workers - self.scenario.elastic else 0.0
                    self.scheduler.after(late_s + self._dice.uniform(0.0, 1.0), partial(self._start_worker, name))
                if trouble.single:
                    self._strike_next(list(trouble.faults))
                else:
                    for fault in trouble.faults:
                        self.scheduler.at(fault.at, partial(self._strike, fault))
                    self.scheduler.at(trouble.over_s, self._heal)
                self.scheduler.run(trouble.over_s + PATIENCE_S, lambda: not self._unfinished)
                self._conclude()
                history, self.history = self.history, []
                for process in self._processes:
                    process.bury()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        return history

    # --- what its observers say and ask

    def record(self, record: Record) -> None:
        """Appends to the history."""
        self.history.append(record)
        if self.show is not None:
            self.show(record)

    def name_of(self, ps: int, incarnation: str) -> str:
        """What the history calls a life of a ps."""
        found = (one.name for one, service in self.services if service.task.incarnation == incarnation)
        return next(found, f"ps:{ps}/{incarnation}")

    def replicator_of(self, replica: ShardReplica) -> Replicator:
        """What keeps a replica."""
        notes: ReplicaNotes = replica._notes  # type: ignore[attr-defined]  # noqa: SLF001
        service = next(service for one, service in self.services if one is notes.process)
        return service.replicas.replicators[replica.number]

    # --- tasks

    def _process(self, name: str) -> Process:
        life = len(self._processes) + 1
        self._report(f"{name} begins its life {life}")
        dice = random.Random(f"{self.scenario.seed}:{life}")
        process = Process(name, life, self._hosts[name], self.scheduler, dice, self._clocks[name])
        process.failed = lambda failed: self._failed(process, failed)
        process.observed = Observed(self, f"{process}")  # type: ignore[attr-defined]
        self._processes.append(process)
        return process

    def _started_at(self, pid: int) -> int | None:
        process = self._processes[pid - 1]
        return pid if process.alive else None

    def _failed(self, process: Process, failed: Failed) -> None:
        self._broken(process, failed.name, failed.error)

    def _broken(self, process: Process, where: str, exc: BaseException) -> None:
        self.record(Broken(self.scheduler.now, f"{process}", f"{where}: {type(exc).__name__}: {exc}"))
        if self.say is not None:
            import traceback

            self.say("".join(traceback.format_exception(exc)))

    def _speaker(self, process: Process) -> Callable[[str], None]:
        def say(text: str) -> None:
            if self.say is not None:
                self.say(f"{process}: {text}")

        return say

    def _start_ps(self, name: str) -> None:
        self._ps[name] = process = self._process(name)
        runtime = SimulatedRuntime(process, self._started_at)

        def serve() -> None:
            cluster = Cluster(spec=self._spec, task=Task("ps", int(name.partition(":")[2])))
            transport = TaskTransport(self.network, process)
            try:
                server = SimulatedServer(
                    cluster,
                    transport=transport,
                    timeouts=TIMEOUTS,
                    say=self._speaker(process),
                    checkpoint_dir=self._directory,
                    runtime=runtime,
                )
                server.join()
            except (SystemExit, TrainbandError) as exc:
                self._ps_ended(process, f"{exc}")
            else:
                self._ps_ended(process, "")

        SimulatedServer.values = self.values
        process.thread(serve, "main").start()

    def _ps_ended(self, process: Process, failure: str) -> None:
        self._report(f"{process} has ended {failure}")
        if not failure:
            self._served_out.add(process.name)
        if failure:  # what it had is lost
            self.record(Died(self.scheduler.now, f"{process}"))
            if process.name in self._ps and self._unfinished:
                self.scheduler.after(RESTART_S, partial(self._restart, process.name))
        process.die()

    def _start_worker(self, name: str) -> None:
        if self._served_out:  # too late: the job is over
            self._report(f"{name} comes too late")
            self._unfinished.discard(name)
            return
        process, scenario = self._process(name), self.scenario
        number = self._names.index(name)
        runtime = SimulatedRuntime(process, self._started_at)
        say = self._speaker(process)

        def step(client: JobClient) -> SimulatedStep:
            return SimulatedStep(client, self.values, runtime, process.dice, scenario.step_s[number], scenario.bad)

        def work() -> None:
            is_elastic = number >= scenario.workers - scenario.elastic
            strategy = SimulatedStrategy(
                cluster=Cluster(spec=self._spec, task=Task("worker", number), elastic=is_elastic),
                plan=self._plan,
                transport=TaskTransport(self.network, process),
                runtime=runtime,
                say=say,
                step=step,
                overlap=scenario.overlap,
            )
            trainer = Trainer(
                init=lambda key: key,
                loss=_no_loss,
                optimizer=optax.identity(),
                strategy=cast(Strategy, strategy),
                console=False,
                history=False,  # its looks at the job would be other schedules than those that seeds were chosen for
                say=say,
            )
            source = scenario.source
            failure: BaseException | None = None
            try:
                trainer.fit(
                    Endless(scenario.batch) if source is None else shared_batches(source, scenario.batch),
                    scenario.updates,
                    checkpoint_dir=self._directory if scenario.saves else None,
                    save_steps=(scenario.checkpoint_every or None) if scenario.save_secs > 1e5 else None,
                    save_secs=scenario.save_secs,
                    hooks=[Steering(scenario.steers)] if scenario.steers else [],
                )
                trainer.close()
            except (TrainbandError, SystemExit) as exc:
                failure = exc
            self._worker_ended(process, failure)

        self._workers[name].append(process)
        process.thread(work, "main").start()

    def _worker_ended(self, process: Process, failure: BaseException | None) -> None:
        name = process.name
        process.die()
        if failure is None:
            self._report(f"{process} is done")
            self._trained_out = True
            self._done.add(name)
            self._unfinished.discard(name)
            return
        if isinstance(failure, Refused):
            self.record(Refusal(self.scheduler.now, f"{process}", str(failure), failure.code))
        else:
            self._report(f"{process} ends: {type(failure).__name__}: {failure}")
            if "to initialise the variables" in str(failure):  # whoever starts that job looks for its chief
                if self._names[0] in self._done:
                    self._report(f"{name} is not needed any more: the chief is done")
                    self._unfinished.discard(name)
                    return
                self.restart_all()
        if not self._alive(name):
            self.scheduler.after(RESTART_S, partial(self._restart, name))

    def restart_all(self) -> None:
        """Who starts a job from a checkpoint starts all its workers: Sync waits for those that are planned."""
        while self._gone:
            name = self._gone.pop()
            self._unfinished.add(name)
            self.scheduler.after(RESTART_S, partial(self._restart, name))

    def _restart(self, name: str) -> None:
        if name.startswith("ps"):
            if not self._ps[name].alive:
                self._start_ps(name)
        elif name in self._unfinished and not self._alive(name):
            self._start_worker(name)

    def _alive(self, name: str) -> list[Process]:
        return [process for process in self._workers[name] if process.alive]

    def _replicas(self, *, alive: bool = True) -> list[ReplicaNotes]:
        """Those of all ps that live, or that have not been killed."""
        dead = {record.replica for record in self.history if isinstance(record, Died)} if not alive else set()
        lives = {f"{process}" for process in self._ps.values() if process.alive}
        return [
            notes
            for one, _ in self.services
            if (one.name in lives if alive else one.name not in dead)
            for notes in one.replicas.values()
        ]

    def _services(self) -> list[ParameterService]:
        lives = {f"{process}" for process in self._ps.values() if process.alive}
        return [service for one, service in self.services if one.name in lives]

    # --- faults

    def _strike_next(self, faults: list[Fault]) -> None:
        """One fault after the other: the next comes when the last is over and every shard has its standby again."""
        if not faults:
            self._heal()
            return
        if self.scheduler.now < self._quiet_from or not (self._is_secure() and self._have_begun()):
            self.scheduler.after(LOOK_S, partial(self._strike_next, faults))
            return
        fault, *later = faults
        self._schedule(fault)
        self.scheduler.at(self._quiet_from, partial(self._strike_next, later))

    def _schedule(self, fault: Fault) -> None:
        if isinstance(fault, Cut) and not fault.at:
            self._strike(fault)  # before anything more is sent
        else:
            self.scheduler.after(fault.at, partial(self._strike, fault))
        # What was cut off may yet be given up for that: it looks well until its lease has ended.
        until_s = TIMEOUTS.lease_s if fault.lasts_s else LOOK_S
        self._quiet_from = max(self._quiet_from, self.scheduler.now + fault.at + fault.lasts_s + until_s)

    def failed_back(self) -> None:
        """A shard is failing back."""
        trouble, now = self.scenario.trouble, self.scheduler.now
        self._report("a shard is handed over")
        is_well = now >= self._quiet_from and all(process.alive for process in self._ps.values())
        if now < trouble.over_s and (is_well or not trouble.single):
            while self._at_failback:
                self._schedule(self._at_failback.pop())

    def committed(self) -> None:
        """A checkpoint is there."""
        while self._at_checkpoint and self.scheduler.now < self.scenario.trouble.over_s:
            self._schedule(self._at_checkpoint.pop())

    def _is_secure(self) -> bool:
        """Whether every shard has a primary, a standby that knows that it is one, and an arbiter that lives."""
        workers = self._incarnations()
        replicas = [notes.replica for notes in self._replicas()]
        standbys = {
            replica.number
            for replica in replicas
            if replica.failover.role is Role.STANDBY and not replica.failover.vote_request
        }
        secure = {
            replica.number
            for replica in replicas
            if replica.is_primary
            and replica.failover.secure
            and not replica.failover.vote_request
            and replica.failover.term.arbiter in workers
        }
        return len(secure & standbys) == self.scenario.shards

    def _incarnations(self) -> dict[str, str]:
        """Of every worker that lives, as an arbiter: its name."""
        return {
            arbiter_name(process.observed.client.membership.incarnation): name  # type: ignore[attr-defined]
            for name in self._names
            for process in self._alive(name)
            if process.observed.client is not None  # type: ignore[attr-defined]
        }

    def _have_begun(self) -> bool:
        """Whether every worker that is not at its end is known to every ps, and trains."""
        return all(self._is_known(name) for name in self._unfinished)

    def _task(self, task: str) -> str:
        """Whom a fault means: `ARBITER` is whichever worker is that of the first shard now, `CHIEF` the chief."""
        if task == CHIEF:
            return next((service.membership.chief() for service in self._services()), self._names[0])
        if task != ARBITER:
            return task
        arbiters = {notes.replica.failover.term.arbiter for notes in self._replicas() if notes.replica.is_primary}
        named = (name for incarnation, name in self._incarnations().items() if incarnation in arbiters)
        return next(named, self._names[0])

    def _strike(self, fault: Fault) -> None:
        match fault:
            case Crash(task=task):
                self._crash(fault, self._task(task))
            case Pause(task=task):
                self._pause(fault, self._task(task))
            case Terminate(task=task):
                self._terminate(fault, self._task(task))
            case Cut():
                self._cut(fault)
            case Break():
                self._report(f"{fault}")
                self.network.break_one()

    def _cut(self, fault: Cut) -> None:
        self._report(f"{fault}")
        until_s = self.scheduler.now + fault.length_s
        source = self._task(fault.source)
        everybody = [task for task in (*self._ps, *self._names) if task != source]
        for target in [self._task(fault.target)] if fault.target else everybody:
            self.network.cut(source, target, until_s)
            if fault.both_ways:
                self.network.cut(target, source, until_s)

    def _crash(self, fault: Crash, task: str) -> None:
        if task in self._ps:
            if not self._ps[task].alive or (self._is_ending() and not self._is_secure()):
                return  # who has done its part does not come back for a ps that has lost it
            self._ps[task].die()
            self.record(Died(self.scheduler.now, f"{self._ps[task]}"))
        else:
            alive = self._alive(task)
            if not alive:
                return
            alive[-1].die()
            is_last = not self._unfinished - {task}
            if fault.back_after_s is None and (is_last or not self._is_known(task)):
                # Sync waits for the first word of a planned worker; where that never comes is no question of lives.
                fault = fault._replace(back_after_s=RESTART_S)
        self._report(f"{fault}")
        if fault.back_after_s is not None:
            self.scheduler.after(fault.back_after_s, partial(self._restart, task))
        elif task not in self._ps and not self._alive(task):
            self._unfinished.discard(task)
            self._gone.append(task)

    def _terminate(self, fault: Terminate, task: str) -> None:
        if task in self._ps:
            if not self._ps[task].alive or self._is_ending() or not self._is_secure():
                return
            process = self._ps[task]
        elif alive := self._alive(task):
            process = alive[-1]
        else:
            return
        self._report(f"{fault}")

        def killed() -> None:
            if task in self._ps:
                self.record(Died(self.scheduler.now, f"{process}"))
            self.scheduler.after(RESTART_S, partial(self._restart, task))

        process.sigterm(killed)

    def _pause(self, fault: Pause, task: str) -> None:
        if task in self._ps:
            process = self._ps[task]
        elif alive := self._alive(task):
            process = alive[-1]
        else:
            return
        self._report(f"{fault}")
        process.pause()
        self.scheduler.after(fault.length_s, process.go_on)
        if fault.successor:
            delay_s = self._dice.uniform(0.2, fault.length_s + 1.0)
            self.scheduler.after(delay_s, lambda: self._start_successor(task))

    def _start_successor(self, task: str) -> None:
        if task in self._unfinished and len(self._alive(task)) == 1:
            self._start_worker(task)

    def _is_known(self, task: str) -> bool:
        """Whether every ps has had this worker in the job."""
        services = self._services()
        return len(services) == len(self._ps) and all(
            any(member.task == task for member in service.membership.members) for service in services
        )

    def _is_ending(self) -> bool:
        return self._trained_out or any(notes.replica.complete for notes in self._replicas())

    def _heal(self) -> None:
        self._report("the troubles are over")
        self.network.heal()

    # --- the end

    def _conclude(self) -> None:
        now = self.scheduler.now
        self.history += self._finals()
        source = self.scenario.source
        if source is not None and source.epochs is not None:
            pieces = {
                (epoch, piece): (piece * source.piece, piece * source.piece + source.size(piece))
                for epoch in range(source.epochs)
                for piece in range(source.pieces)
            }
            self.history.append(Data(now, pieces))
        self.history.append(Ended(now, tuple(sorted(self._unfinished)), tuple(sorted(self._done))))

    def _finals(self) -> list[Final]:
        """What the replicas hold that hold the shards; one that was away may not know yet that it does no more."""
        newest: dict[int, tuple[int, Final]] = {}
        for notes in self._replicas(alive=False):
            replica, epoch = notes.replica, newest.get(notes.shard, (0, None))[0]
            if replica.is_primary and replica.failover.term.number > epoch:
                newest[notes.shard] = replica.failover.term.number, self._final(notes)
        return [final for _, (_, final) in sorted(newest.items())]

    def _final(self, notes: ReplicaNotes) -> Final:
        replica, updater = notes.replica, notes.replica.require_updater()
        held = tuple(push for _, gradient in updater.held() for push in self.values.update_of(gradient))
        return Final(
            self.scheduler.now,
            notes.shard,
            replica.version,
            notes.value(),
            held,
            frozenset(updater.waiting()),
            frozenset(updater.waiting_for()),
            notes.name,
            notes.numbers(),
        )

    def _report(self, text: str) -> None:
        self.record(Told(self.scheduler.now, text))


def _no_loss(params: Any, batch: Any) -> Any:
    """A simulated worker computes none."""
    raise NotImplementedError
