"""Workers that stand in no cluster spec and join a job that runs: `trainband run --join`."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.machines import Machines
from tests.programs import ROOT, Program, Programs, until

from trainband.job.statistics import PsStatus, WorkerStatus
from trainband.monitor.inquiry import Inquiry

SCRIPT = ROOT / "tests" / "cluster_join" / "hurried.py"
STEPS = 2000
"""Enough for 100 s at the slow pace: nobody comes too late, however slowly processes start here."""


class Pace:
    """The files by which a test tells the tasks of `hurried.py` what to do."""

    def __init__(self, folder: Path) -> None:
        self._hurry = folder / "hurry"
        self._stay = folder / "stay"
        self._stay.touch()
        self.flags = (f"--hurry={self._hurry}", f"--stay={self._stay}")

    def hurry(self) -> None:
        """No more waiting between steps."""
        self._hurry.touch()

    def leave(self) -> None:
        """Whoever has finished may go."""
        self._stay.unlink()


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    """Slow at first; tasks that have finished stay."""
    return Pace(tmp_path)


def arguments(pace: Pace, rule: str = "async", steps: int = STEPS) -> tuple[str, ...]:
    return (str(SCRIPT), f"--steps={steps}", f"--rule={rule}", *pace.flags)


def started(programs: Programs, pace: Pace, *options: str, rule: str = "async") -> tuple[Program, list[str]]:
    """A job that trains, by `trainband run` with these options, and the addresses of its ps."""
    job = programs.trainband("run", "--workers=1", *options, *arguments(pace, rule))
    job.wait_for(r"^\[worker:0\] training$")
    config = json.loads(environment_of(programs, "worker:0")["TF_CONFIG"])
    return job, config["cluster"]["ps"]


def environment_of(programs: Programs, task: str) -> dict[str, str]:
    return _environment(process_of(programs, task))


def process_of(programs: Programs, task: str) -> int:
    """The process of a task that a launcher has started."""
    for pid in programs.processes():
        try:
            environ, command = _environment(pid), Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue  # it has ended
        if "TF_CONFIG" in environ and SCRIPT.name in command:
            who = json.loads(environ["TF_CONFIG"])["task"]
            if f"{who['type']}:{who['index']}" == task:
                return pid
    pytest.fail(f"there is no process of {task}")


def _environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def ask(address: str) -> PsStatus:
    """The status of a ps."""
    with Inquiry(address, 10.0) as inquiry:
        return inquiry.ask()


def worker(address: str, task: str) -> WorkerStatus | None:
    return next((one for one in ask(address).workers if one.task == task), None)


def contributes(address: str, task: str, more_than: int = 0) -> bool:
    """Whether it has made pushes that count."""
    found = worker(address, task)
    return found is not None and found.presence == "live" and found.pushes - found.dropped > more_than


def finished(address: str) -> PsStatus:
    """The status once all updates are made."""
    until(lambda: ask(address).version == STEPS, "the last update")
    return ask(address)


@pytest.mark.parametrize("rule", ["async", pytest.param("bounded", marks=pytest.mark.slow)])
def test_a_worker_that_nobody_planned_takes_part(rule: str, programs: Programs, pace: Pace) -> None:
    job, (address,) = started(programs, pace, "--ps=1", rule=rule)
    elastic = programs.trainband("run", "--join", address, *arguments(pace, rule))
    until(lambda: contributes(address, "worker:1", more_than=3), "worker:1 to take part")
    pace.hurry()
    elastic.wait_for(rf"^\[worker:1\] worker:1 made \d+ steps, to global step {STEPS}$")
    job.wait_for(rf"^\[worker:0\] worker:0 made \d+ steps, to global step {STEPS}$")
    status = finished(address)
    assert status.last_version == STEPS
    assert {one.task for one in status.workers} == {"worker:0", "worker:1"}
    assert sum(one.pushes - one.dropped for one in status.workers) == STEPS

    late = programs.trainband("run", "--join", address, *arguments(pace, rule))
    late.wait_for(rf"^\[worker:2\] worker:2 made 0 steps, to global step {STEPS}$")
    pace.leave()
    for launcher in (job, elastic, late):
        launcher.succeed()
    assert "[ps:0] trainband: ps:0 ends: the job is complete" in job.stderr
    assert not re.search(r"^\[worker:0\]", elastic.stdout, re.M)


@pytest.mark.smoke
def test_sync_counts_an_elastic_worker_from_its_first_push(programs: Programs, pace: Pace) -> None:
    job, (address,) = started(programs, pace, "--ps=1", rule="sync")
    elastic = programs.trainband("run", "--join", address, *arguments(pace, "sync"))
    until(lambda: contributes(address, "worker:1"), "worker:1 to take part")
    stopped = process_of(programs, "worker:1")
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: ask(address).waiting_for == ("worker:1",), "the others to wait for worker:1")
    os.kill(stopped, signal.SIGCONT)
    pace.hurry()
    status = finished(address)
    pushes = {one.task: one.pushes - one.dropped for one in status.workers}
    assert pushes["worker:0"] == STEPS
    assert 0 < pushes["worker:1"] < STEPS
    assert status.examples_applied == 16 * sum(pushes.values())
    pace.leave()
    for launcher in (job, elastic):
        launcher.succeed()


def test_elastic_workers_come_and_go_as_they_like(programs: Programs, pace: Pace) -> None:
    job, (address,) = started(programs, pace, "--ps=1", rule="sync")
    mortal = programs.trainband("run", "--join", address, *arguments(pace, "sync"))
    until(lambda: contributes(address, "worker:1"), "worker:1 to take part")
    os.kill(process_of(programs, "worker:1"), signal.SIGKILL)
    assert mortal.wait() == 128 + signal.SIGKILL
    assert "── worker:1 failed: killed by SIGKILL ──" in mortal.stderr
    job.wait_for(r"^\[ps:0\] trainband: worker:1 is gone: its stream broke off$")

    patient = programs.trainband("run", "--join", address, "--restarts=1", *arguments(pace, "sync"))
    until(lambda: contributes(address, "worker:2"), "worker:2 to take part")
    os.kill(process_of(programs, "worker:2"), signal.SIGKILL)
    patient.wait_for(r"worker:2 failed \(killed by SIGKILL\); restarting it in 1 s \(1 of 1\)")
    dead = worker(address, "worker:2")
    assert dead is not None
    until(lambda: contributes(address, "worker:2", dead.pushes - dead.dropped), "worker:2 to be back")
    patient.interrupt()
    assert patient.wait() == 130

    pace.hurry()
    status = finished(address)
    assert {one.task: one.presence == "live" for one in status.workers} == {
        "worker:0": True,
        "worker:1": False,
        "worker:2": False,
    }
    pace.leave()
    job.succeed()
    gone = programs.trainband("run", "--join", address, *arguments(pace))
    gone.fail(rf"^error: nothing listens at {address}\. Give --join the address of any ps of a running job", code=2)


@pytest.mark.slow
def test_several_elastic_workers_at_once_by_any_ps(programs: Programs, pace: Pace) -> None:
    job, addresses = started(programs, pace, "--ps=2", "--chief")
    elastic = programs.trainband("run", "--join", addresses[1], "--workers=2", *arguments(pace))
    more = programs.trainband("run", "--join", addresses[0], *arguments(pace))
    names = {"worker:1", "worker:2", "worker:3"}
    for address in addresses:
        for name in names:
            until(lambda address=address, name=name: contributes(address, name), f"{name} to take part")  # type: ignore[misc]
    pace.hurry()
    status = finished(addresses[0])
    assert {one.task for one in status.workers} == {"chief:0", "worker:0", *names}
    pace.leave()
    for launcher in (job, elastic, more):
        launcher.succeed()
    assert len(set(re.findall(r"^\[(worker:\d)\]", elastic.stdout, re.M))) == 2


def test_an_elastic_worker_from_another_machine(programs: Programs, machines: Machines, pace: Pace) -> None:
    address = machines.addresses[0]
    hosts = (f"--ps_hosts={address}", f"--worker_hosts={machines.addresses[1]}")
    tasks = [
        programs.python(name, *arguments(pace), f"--job_name={job}", "--task_index=0", *hosts, machine=machine)
        for name, job, machine in (
            ("ps:0", "ps", machines.names[0]),
            ("worker:0", "worker", machines.names[1]),
        )
    ]
    tasks[1].wait_for("^training$")
    elastic = programs.trainband("run", "--join", address, *arguments(pace), machine=machines.names[2])
    elastic.wait_for(r"^\[worker:1\] training$")
    pace.hurry()
    elastic.wait_for(rf"^\[worker:1\] worker:1 made [1-9]\d* steps, to global step {STEPS}$")
    pace.leave()
    for program in (*tasks, elastic):
        program.succeed()
