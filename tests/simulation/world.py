"""A simulated job: its tasks, the network between them, and the faults as they come."""

from __future__ import annotations

import random
from functools import partial

from tests.simulation.faults import ARBITER, Break, Crash, Cut, Fault, Pause
from tests.simulation.history import Data, Died, Ended, Final, Record, Refusal, Told
from tests.simulation.network import Network
from tests.simulation.parts import REAL, Parts
from tests.simulation.process import Process
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Scheduler
from tests.simulation.seat import Job, Storage
from tests.simulation.server import Ps
from tests.simulation.worker import Work, Worker
from trainband.ps.succession import Role

PATIENCE_S = 300.0
"""A job must be at its end so many simulated seconds after its troubles are over."""

LOOK_S = 0.3
"""Between two looks whether the next fault may come."""

GUEST_S = 3.0
"""After the others, a worker comes that nobody has planned."""

RESTART_S = 0.5
"""A worker that fails is started again after so long."""


class World:
    """One job from its beginning to its end."""

    def __init__(self, scenario: Scenario, parts: Parts = REAL) -> None:
        """`parts`: other than the real ones, to plant a bug."""
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.history: list[Record] = []
        self._dice = random.Random(scenario.seed)
        self.network = Network(self.scheduler, self._dice)
        self.network.one_machine = scenario.one_machine
        self._storage = Storage()
        timing = scenario.timing
        self._names = [f"worker:{number}" for number in range(scenario.workers)]
        self._job = Job(
            scenario.rule,
            self._names[: scenario.workers - scenario.guests],
            scenario.shards,
            scenario.replicas,
            timing,
            parts,
            self._storage,
            scenario.checkpoint_every,
            self.history,
            self._handed_over,
        )
        self._clocks = scenario.clocks()
        self._at_hand_over = list(scenario.trouble.at_hand_over)
        self._quiet_from = 0.0
        """When the fault that came last, or is to come, is over."""
        self._ps: dict[str, Ps] = {}
        self._workers: dict[str, list[Worker]] = {name: [] for name in self._names}
        self._unfinished = set(self._names)
        self._gone: list[str] = []
        self._lives = 0
        self._processes: list[Process] = []

    def write_history_to(self, history: list[Record]) -> None:
        """Before `run`: another list than the own."""
        self.history = history
        self._job = self._job._replace(history=history)

    def run(self) -> list[Record]:
        """The history of the job."""
        trouble = self.scenario.trouble
        self.network.weather = trouble.weather
        for number in range(self.scenario.shards):
            self._start_ps(f"ps:{number}")
        for number, name in enumerate(self._names):
            late_s = GUEST_S if number >= self.scenario.workers - self.scenario.guests else 0.0
            self.scheduler.after(late_s + self._dice.uniform(0.0, 1.0), partial(self._start_worker, name))
        if trouble.single:
            self._strike_next(list(trouble.faults))
        else:
            for fault in trouble.faults:
                self.scheduler.at(fault.at, partial(self._strike, fault))
            self.scheduler.at(trouble.over_s, self._heal)
        self.scheduler.run(trouble.over_s + PATIENCE_S, lambda: not self._unfinished)
        self._conclude()
        for process in self._processes:
            process.end()
        return self.history

    # --- tasks

    def _process(self, name: str) -> Process:
        self._lives += 1
        self._tell(f"{name} begins its life {self._lives}")
        process = Process(name, f"{self._lives}", self.scheduler, self._clocks[name])
        self._processes.append(process)
        return process

    def _start_ps(self, name: str) -> None:
        self._ps[name] = ps = Ps(self._process(name), self._job, self.network)
        self.network.serve(name, ps)

    def _start_worker(self, name: str) -> None:
        process, scenario = self._process(name), self.scenario
        number = self._names.index(name)
        work = Work(
            number == 0,
            scenario.last_version,
            scenario.source,
            scenario.batch,
            scenario.step_s[number],
            scenario.shards,
            scenario.replicas,
            self._job.parts,
            self._begin_anew,
        )
        self._workers[name].append(
            Worker(process, self.network, work, scenario.timing, self._dice, self.history, self._worker_ended)
        )

    def _worker_ended(self, worker: Worker, failure: str) -> None:
        name = worker.process.name
        worker.process.die()
        if failure:
            self.history.append(Refusal(self.scheduler.now, f"{worker.process}", failure))
            if not self._alive(name):
                self.scheduler.after(RESTART_S, partial(self._restart, name))
            return
        self._tell(f"{worker.process} is done")
        self._unfinished.discard(name)

    def _restart(self, name: str) -> None:
        if name.startswith("ps"):
            self._start_ps(name)
        elif name in self._unfinished and not self._alive(name):
            self._start_worker(name)

    def _begin_anew(self) -> None:
        """Who starts a job from a checkpoint starts all its workers: Sync waits for those that are planned."""
        while self._gone:
            name = self._gone.pop()
            self._unfinished.add(name)
            self.scheduler.after(RESTART_S, partial(self._restart, name))

    def _alive(self, name: str) -> list[Worker]:
        return [worker for worker in self._workers[name] if worker.process.alive]

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
        until_s = self.scenario.timing.lease_s if fault.lasts_s else LOOK_S
        self._quiet_from = max(self._quiet_from, self.scheduler.now + fault.at + fault.lasts_s + until_s)

    def _handed_over(self) -> None:
        """A shard is going home."""
        trouble, now = self.scenario.trouble, self.scheduler.now
        self._tell("a shard is handed over")
        is_well = now >= self._quiet_from and all(ps.process.alive for ps in self._ps.values())
        if now < trouble.over_s and (is_well or not trouble.single):
            while self._at_hand_over:
                self._schedule(self._at_hand_over.pop())

    def _is_secure(self) -> bool:
        """Whether every shard has a primary, a standby that knows that it is one, and an arbiter that lives."""
        workers = {worker.process.incarnation for name in self._names for worker in self._alive(name)}
        seats = [seat for ps in self._ps.values() if ps.process.alive for seat in ps.seats.values()]
        standbys = {seat.shard for seat in seats if seat.book.role is Role.STANDBY and not seat.book.petition}
        secure = {
            seat.shard
            for seat in seats
            if seat.reigns and seat.book.secure and not seat.book.petition and seat.book.reign.arbiter in workers
        }
        return len(secure & standbys) == self.scenario.shards

    def _have_begun(self) -> bool:
        """Whether every worker that is not at its end is known to every ps, and trains."""
        return all(self._is_known(name) for name in self._unfinished)

    def _task(self, task: str) -> str:
        """Whom a fault means: `ARBITER` is whichever worker is that of the first shard now."""
        if task != ARBITER:
            return task
        arbiters = {
            seat.book.reign.arbiter
            for ps in self._ps.values()
            if ps.process.alive
            for seat in ps.seats.values()
            if seat.reigns
        }
        named = (name for name in self._names for one in self._alive(name) if one.process.incarnation in arbiters)
        return next(named, self._names[0])

    def _strike(self, fault: Fault) -> None:
        match fault:
            case Crash(task=task):
                self._crash(fault, self._task(task))
            case Pause(task=task):
                self._pause(fault, self._task(task))
            case Cut():
                self._cut(fault)
            case Break():
                self._tell(f"{fault}")
                self.network.break_one()

    def _cut(self, fault: Cut) -> None:
        self._tell(f"{fault}")
        until_s = self.scheduler.now + fault.length_s
        source = self._task(fault.source)
        everybody = [task for task in (*self._ps, *self._names) if task != source]
        for target in [self._task(fault.target)] if fault.target else everybody:
            self.network.cut(source, target, until_s)
            if fault.both_ways:
                self.network.cut(target, source, until_s)

    def _crash(self, fault: Crash, task: str) -> None:
        if task in self._ps:
            if not self._ps[task].process.alive or (self._is_ending() and not self._is_secure()):
                return  # who has done its part does not come back for a ps that has lost it
            self._ps[task].process.die()
            self.history.append(Died(self.scheduler.now, f"{self._ps[task].process}"))
        else:
            alive = self._alive(task)
            if not alive:
                return
            alive[-1].process.die()
            if fault.back_after_s is None and not self._is_known(task):
                # Sync waits for the first word of a planned worker; where that never comes is no question of lives.
                fault = fault._replace(back_after_s=RESTART_S)
        self._tell(f"{fault}")
        if fault.back_after_s is not None:
            self.scheduler.after(fault.back_after_s, partial(self._restart, task))
        elif task not in self._ps and not self._alive(task):
            self._unfinished.discard(task)
            self._gone.append(task)

    def _pause(self, fault: Pause, task: str) -> None:
        if task in self._ps:
            process = self._ps[task].process
        elif alive := self._alive(task):
            process = alive[-1].process
        else:
            return
        self._tell(f"{fault}")
        process.pause()
        self.scheduler.after(fault.length_s, process.resume)
        if fault.heir:
            delay_s = self._dice.uniform(0.2, fault.length_s + 1.0)
            self.scheduler.after(delay_s, lambda: self._start_heir(task))

    def _start_heir(self, task: str) -> None:
        if task in self._unfinished and len(self._alive(task)) == 1:
            self._start_worker(task)

    def _is_known(self, task: str) -> bool:
        """Whether every shard has had this worker in the job."""
        return all(
            any(member.task == task for member in ps.members) for ps in self._ps.values() if ps.process.alive
        ) and all(ps.process.alive for ps in self._ps.values())

    def _is_ending(self) -> bool:
        return any(seat.complete for ps in self._ps.values() for seat in ps.seats.values()) or any(
            worker.trained_out for workers in self._workers.values() for worker in workers
        )

    def _heal(self) -> None:
        self._tell("the troubles are over")
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
        self.history.append(Ended(now, tuple(sorted(self._unfinished))))

    def _finals(self) -> list[Final]:
        """What the seats hold that hold the shards; one that was away may not know yet that it does no more."""
        newest: dict[int, tuple[int, Final]] = {}
        for ps in self._ps.values():
            for seat in ps.seats.values() if ps.process.alive else ():
                epoch, _ = newest.get(seat.shard, (0, None))
                if seat.reigns and seat.book.reign.epoch > epoch:
                    newest[seat.shard] = seat.book.reign.epoch, seat.final()
        return [final for _, (_, final) in sorted(newest.items())]

    def _tell(self, text: str) -> None:
        self.history.append(Told(self.scheduler.now, text))
