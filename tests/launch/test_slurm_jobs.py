"""What the launcher makes of Slurm's variables and output, and what it writes for Slurm; without Slurm."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.programs import ROOT

from trainband.cluster import Task
from trainband.cluster.resolvers.log_level import FORMAT
from trainband.errors import ClusterError, YourError
from trainband.launch.backend import Watcher
from trainband.launch.backends.slurm import Slurm
from trainband.launch.machines.slurm import srun_environment
from trainband.launch.options import Grace, Restarts
from trainband.launch.request import JobRequest
from trainband.launch.slurm.allocation import Allocation, Node, allocation_of
from trainband.launch.slurm.commands import JobState, SlurmCommands
from trainband.launch.slurm.output import Failure, GrowingFile, Note, TaskLine, read_line
from trainband.launch.slurm.script import EXIT_CODE, batch_script, inner_command
from trainband.launch.slurm.submitted_job import SubmittedJob

RECORDED: dict[str, list[dict[str, str]]] = json.loads((ROOT / "tests" / "cluster" / "slurm.json").read_text("utf-8"))
MAIN = ("127.0.0.11", "127.0.0.12")

ALLOCATIONS = {
    "salloc": [Node(MAIN[0], 3, 3), Node(MAIN[1], 1, 1)],
    "script": [Node(MAIN[0], 4, 4), Node(MAIN[1], 2, 2)],
    "script of a heterogeneous job": [Node("c0", 1, 1, 0), Node(MAIN[0], 2, 2, 1), Node(MAIN[1], 1, 1, 1)],
    "srun --pty bash": [Node(MAIN[0], 1, 1)],
    "script that a task has submitted": [Node("c0", 1, 1)],
    "step": None,
}


@pytest.mark.parametrize(("name", "nodes"), ALLOCATIONS.items())
def test_the_nodes_of_an_allocation(name: str, nodes: list[Node] | None) -> None:
    found = allocation_of(RECORDED[name][0])
    assert (None if found is None else list(found.nodes)) == nodes


def names(placed: dict[str, list[Node]]) -> dict[str, list[str]]:
    return {job: [node.name for node in nodes] for job, nodes in placed.items()}


def test_tasks_are_spread_over_nodes_and_ps_are_in_the_first_group() -> None:
    two = Allocation("7", (Node("a", 8, 1), Node("b", 8, 1)))
    assert names(two.place({"ps": 1, "worker": 1})) == {"ps": ["a"], "worker": ["b"]}
    assert names(two.place({"ps": 1, "worker": 2})) == {"ps": ["a"], "worker": ["a", "b"]}, "no more were planned"
    groups = Allocation("7", (Node("c", 4, 2, 0), Node("a", 8, 1, 1), Node("b", 8, 1, 1)))
    placed = groups.place({"ps": 1, "chief": 1, "worker": 1, "evaluator": 1})
    assert names(placed) == {"ps": ["c"], "evaluator": ["c"], "chief": ["a"], "worker": ["b"]}
    assert names(groups.place({"worker": 3})) == {"worker": ["c", "a", "b"]}, "without ps, all train"


TOO_SMALL = [
    ({"ps": 1, "worker": 4}, (Node("a", 2),), "has 1 node with 2 CPUs, and 5 tasks (1 ps, 4 worker) need a CPU each"),
    (
        {"ps": 2, "worker": 1},
        (Node("c", 1, 1, 0), Node("a", 8, 1, 1)),
        "has 1 node in its first group, which has the ps and the evaluator, with 1 CPU, and 2 tasks (2 ps)",
    ),
]


@pytest.mark.parametrize(("sizes", "nodes", "message"), TOO_SMALL)
def test_an_allocation_that_is_too_small_is_refused(
    sizes: dict[str, int], nodes: tuple[Node, ...], message: str
) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)):
        Allocation("7", nodes).place(sizes)


def test_srun_takes_no_options_from_the_script() -> None:
    kept = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    dropped = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_STEP_ID")
    assert srun_environment({**kept, **dict.fromkeys(dropped, "2")}) == kept


LINES = [
    ("[worker:10] [ps:0] loss 1", TaskLine(Task("worker", 10), "[ps:0] loss 1")),
    ("trainband: worker:1 failed (exit code 3)", Note("worker:1 failed (exit code 3)")),
    ("slurmstepd: error: *** JOB 7 ON a CANCELLED ***", Note("slurmstepd: error: *** JOB 7 ON a CANCELLED ***")),
    ("── worker:1 failed: killed by SIGKILL ── its last line ────", Failure(Task("worker", 1), "killed by SIGKILL")),
    ("│ hello", None),
    ("─────────", None),
]


@pytest.mark.parametrize(("line", "meaning"), LINES)
def test_the_lines_of_a_launcher_are_read_back(line: str, meaning: object) -> None:
    assert read_line(line) == meaning


def test_a_file_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = GrowingFile(path)
    assert list(file.read()) == [], "it need not be there yet"
    path.write_text("one\ntw")
    assert list(file.read()) == ["one"]
    with path.open("a") as more:
        more.write("o\nthree")
    assert list(file.read()) == ["two"]
    assert list(file.finish()) == ["three"]


def request(**changes: object) -> JobRequest:
    fields: dict[str, object] = {"program": ["train.py", "--steps", "3"], "environment": {"PATH": "/nowhere"}}
    return JobRequest(**{**fields, **changes})  # type: ignore[arg-type]


def test_ps_with_resources_of_their_own_make_a_heterogeneous_job() -> None:
    backend = Slurm(partition="gpu", nodes=2, gres="gpu:1", cpus_per_task=4, time="1:00:00", extra="--mem-per-cpu=2G")
    common = ["--time=1:00:00", "--signal=B:USR1@60", "--mem-per-cpu=2G"]
    training = ["--partition=gpu", "--nodes=2", "--cpus-per-task=4", "--gres=gpu:1"]
    assert backend.groups(request()) == [["--ntasks=3", *training, *common]]
    apart = Slurm(**{**{name: getattr(backend, name) for name in backend.__slots__}, "ps_cpus": 2})
    assert apart.groups(request(evaluator=True)) == [
        ["--ntasks=2", "--partition=gpu", "--cpus-per-task=2", *common],
        ["--ntasks=2", *training, *common],
    ]
    assert apart.groups(request(ps=0)) == [["--ntasks=2", *training, *common]], "there is no ps"


def test_the_command_says_all_that_the_request_says() -> None:
    full = request(chief=True, evaluator=True, restarts=Restarts(limit=2), threads=3, tls=True, program=["-m", "a.b"])
    words = inner_command(full, ["-m", "a.b", "-x"], "/py")
    assert words[:6] == ["/py", "-m", "trainband.cli.main", "run", "--on", "slurm"]
    options = "--ps 1 --workers 2 --restarts 2 --threads 3 --tls auto --chief --evaluator -m a.b -- -x"
    assert words[6:] == options.split()
    events = inner_command(request(environment={FORMAT: "json"}), ["train.py"], "/py")
    assert events[6:] == "--ps 1 --workers 2 --restarts 0 --plain train.py --".split(), "its lines are read back"
    alone = inner_command(request(ps=0, min_workers=1), ["train.py"], "/py")
    assert alone[6:] == "--ps 0 --workers 2 --restarts 0 --min-workers 1 train.py --".split()


LAUNCHER = "import signal, sys; print('up', flush=True); signal.sigwait([signal.SIGTERM]); sys.exit(143)"
ENDINGS = [
    # the signal, whether scontrol works, what it is called with, the exit code in the run's directory
    (signal.SIGUSR1, True, "requeue 7\n", None),
    (signal.SIGUSR1, False, "requeue 7\n", "143\n"),
    (signal.SIGTERM, True, "", "143\n"),
]


@pytest.mark.parametrize(("number", "works", "called", "code"), ENDINGS)
def test_the_script_requeues_where_slurm_ends_the_job_and_not_where_it_is_cancelled(
    number: signal.Signals, works: bool, called: str, code: str | None, tmp_path: Path
) -> None:
    fake = tmp_path / "scontrol"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit {0 if works else 1}\n')
    fake.chmod(0o755)
    launcher = [sys.executable, "-c", f"import signal; signal.pthread_sigmask(0, [15]); {LAUNCHER}"]
    text = batch_script([["--ntasks=3"]], launcher, run=str(tmp_path), signal="USR1", requeue=True)
    environ = {"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    script = subprocess.Popen(["bash", "-c", text], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with script:
        assert script.stdout is not None
        assert script.stdout.readline() == b"up\n"
        script.send_signal(number)
        assert script.wait(20.0) == 143
    log = tmp_path / "called"
    assert (log.read_text() if log.exists() else "") == called
    written = tmp_path / EXIT_CODE
    assert (written.read_text() if written.exists() else None) == code


class Queue(SlurmCommands):
    """Slurm with these answers to what becomes of the job, in turn."""

    def __init__(self, answers: list[JobState | YourError | None], status: int | None) -> None:
        super().__init__({})
        self._answers, self._status = answers, status

    def submit(self, script: str, options: Sequence[str]) -> str:
        del script, options
        return "7"

    def state(self, job: str) -> JobState | None:
        del job
        answer = self._answers.pop(0)
        if isinstance(answer, YourError):
            raise answer
        return answer

    def exit_status(self, job: str) -> int | None:
        del job
        return self._status


OUTCOMES = [
    # what Slurm answers, the exit code that it has kept, how the job has ended
    ([YourError("Slurm's squeue failed"), JobState("RUNNING"), JobState("COMPLETED")], 0, ("succeeded", 0)),
    (
        [JobState("RUNNING"), JobState("PENDING", "BeginTime"), JobState("RUNNING"), JobState("FAILED")],
        3,
        ("failed", 3),
    ),
    ([JobState("RUNNING"), JobState("OUT_OF_MEMORY")], -9, ("failed", 137)),
    ([JobState("RUNNING"), JobState("TIMEOUT")], 0, ("failed", 1)),
    ([JobState("RUNNING"), None], None, ("failed", 1)),
]


@pytest.mark.parametrize(("answers", "status", "ended"), OUTCOMES)
def test_how_a_job_has_ended_whose_script_has_written_nothing(
    answers: list[JobState | YourError | None],
    status: int | None,
    ended: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    ticks = itertools.count(step=20.0)
    job = SubmittedJob(
        request(),
        Watcher(report=notes.append),
        commands=Queue(list(answers), status),
        script=str,
        options=[],
        output=None,
        grace=Grace(),
        clock=lambda: next(ticks),
    )
    silent = isinstance(answers[0], YourError)
    with job:
        outcome = job.wait()
    assert (outcome.kind, outcome.exit_code) == ended
    assert ("Slurm's squeue failed; asking again for 600 s" in notes) == silent
    assert list(tmp_path.iterdir()) == []


REFUSED = [
    (lambda: Slurm(nodes=0), ClusterError, "slurm: nodes must be 1 or more"),
    (lambda: Slurm(signal="TERM@60"), ClusterError, "TERM is not allowed"),
    (lambda: Slurm().prepare(request(), Watcher()), YourError, "sbatch is not on this machine .PATH = /nowhere."),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_what_cannot_be_is_refused(make: object, error: type[Exception], message: str) -> None:
    assert callable(make)
    with pytest.raises(error, match=message):
        make()
