"""The cases of the matrix, and running one of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import combinations, product
from pathlib import Path

from tests.machines import connected
from tests.programs import Programs

EVERY_CASE = "TRAINBAND_FAULTS"
"""An environment variable: `product` runs every combination there is, which takes hours."""

FAULTS = {
    "dies": "kill -9, and it is started again at once",
    "stays dead": "kill -9, and it is never started again; a task without which the job cannot end is, but late",
    "pauses": "SIGSTOP for less than the lease, then SIGCONT",
    "sleeps": "SIGSTOP for longer than the lease, then SIGCONT",
    "unplugged": "its cable is pulled for longer than the lease",
    "mute": "what it sends is lost for longer than the lease",
    "deaf": "what is sent to it is lost for longer than the lease",
    "slow": "its line is slow from now on",
}
OF_WORKERS = {"leaves": "SIGTERM, by which it ends after its step, and it is started again"}
"""What happens to workers only, and only in the middle: before its first step SIGTERM ends it as kill -9 does, and
after its last it is about to end."""
WITH_A_STANDBY = {
    "parted": "what the two ps send each other is lost for longer than the lease, and nothing else is",
    "half parted": "what it sends the other ps is lost for longer than the lease, and nothing else is",
}
"""What happens to a ps, and makes a difference only where shards have standbys."""
TWO = {
    "dies twice": "kill -9, and it is started again; when it is the standby, the same once more",
    "dies before the other": "kill -9, and it is started again; when it is the standby, the other ps dies for good",
    "dies before a worker": "kill -9, and it is started again; when it is the standby, worker:1 dies for good",
    "dies unknown to a worker": "the same, and worker:1 is stopped before, so that the new process never meets it",
    "dies after the chief": "the chief, which decides who succeeds, dies for good, and after the lease this ps does",
}
"""What happens to a ps whose shards have standbys in two steps, for which there is time only in the middle."""
ELASTIC = "worker:2"
TARGETS = {"worker:1": "worker", "worker:0": "chief", ELASTIC: "elastic", "ps:0": "ps", "ps:1": "ps"}
"""Each task that something happens to, and what kind of task that is. Where nothing happens to the elastic
worker, one that the cluster plans has its place."""
PHASES = {
    "start": "every worker has joined, and none has made a step",
    "training": "every worker makes steps, and there is a checkpoint",
    "saving": "a checkpoint is being written: by the ps itself, else by ps:0; the chief is about to commit it",
    "end": "every worker has heard that the last update is made, and nothing is saved yet",
}
RULES = ("async", "bounded", "sync", "backups")


@dataclass(frozen=True, slots=True)
class Case:
    """What happens to whom, when, and under which rule; with how many standbys for each shard."""

    fault: str
    target: str
    phase: str
    rule: str
    standbys: int = 0

    def __post_init__(self) -> None:
        faults = [*FAULTS]
        if TARGETS.get(self.target) != "ps":
            faults += OF_WORKERS
        elif self.standbys:
            faults += [*WITH_A_STANDBY, *TWO]
        phases = {**dict.fromkeys(OF_WORKERS, ("training", "saving")), **dict.fromkeys(TWO, ("training",))}.get(
            self.fault, (*PHASES,)
        )
        for value, known in zip(astuple(self), (faults, TARGETS, phases, RULES, (0, 1)), strict=True):
            if value not in known:
                raise ValueError(f"{value!r} is none of {', '.join(map(str, known))}.")

    def __str__(self) -> str:
        words = (self.target, self.fault.replace(" ", "_"), self.phase, self.rule)
        return "-".join((*words, "standby") if self.standbys else words)

    @property
    def pairs(self) -> set[frozenset[str]]:
        """All pairs of a fault, a kind of task, a phase and a rule in it."""
        values = (self.fault, TARGETS[self.target], self.phase, self.rule)
        return {frozenset(pair) for pair in combinations(values, 2)}


def every_case() -> list[Case]:
    """All that can be made."""
    cases = []
    for row in product((*FAULTS, *OF_WORKERS, *WITH_A_STANDBY, *TWO), TARGETS, PHASES, RULES, (0, 1)):
        with suppress(ValueError):
            cases.append(Case(*row))
    return cases


def run(case: Case, directory: Path) -> None:
    """Runs the job of a case; raises what does not hold in it."""
    from tests.cluster_faults.job import Job

    programs = Programs()
    try:
        with connected(Job.MACHINES) as machines:
            job = Job(case, programs, machines, directory)
            job.run()
            programs.expect_none_left()
            job.expect_no_socket_left()
    finally:
        programs.end_all()
