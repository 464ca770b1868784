"""Jobs by ssh, where ssh is a script that runs everything on this machine."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.platforms import EXIT_AFTER_ALL
from tests.programs import ROOT, Program, Programs, until

from trainband.cluster import Task
from trainband.errors import ClusterError, YourError
from trainband.launch.backend import Watcher
from trainband.launch.backends.choice import choose, read_options
from trainband.launch.backends.ssh import Ssh
from trainband.launch.machines.remote import Host
from trainband.launch.machines.ssh import SshMachines, read_hosts
from trainband.launch.request import JobRequest

PS, WORKER0 = Task("ps", 0), Task("worker", 0)

TASK = (
    """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type}:{index}".format(**config["task"])
secret = open(os.environ["TRAINBAND_SECRET_FILE"]).read()
print(task, len(secret), os.getcwd(), os.environ.get("TRAVELS"), os.environ.get("STAYS"))
print("files:", *sorted(os.listdir(os.path.dirname(os.environ["TRAINBAND_SECRET_FILE"]))))
def wait_forever():
    while True:
        signal.pause()
"""
    + EXIT_AFTER_ALL
)


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """Drops options and the host, and has a shell read the rest, in another directory, as ssh does."""
    script = tmp_path / "ssh"
    script.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
        '[ "$1" = nowhere ] && { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }\n'
        'shift\ncd /\nunset STAYS\nexec sh -c "$*"\n'
    )
    script.chmod(0o755)
    return str(script)


def job(programs: Programs, ssh: str, tmp_path: Path, code: str, *options: str) -> Program:
    """`trainband run --on ssh` of a script with these lines."""
    script = tmp_path / "script.py"
    script.write_text(TASK + code)
    fixed = ("--on", "ssh", "-o", f"ssh={ssh}", "-o", f"directory={tmp_path}", "-o", "variables=TRAVELS")
    slots = ("-o", f"hostfile={tmp_path / 'hosts'}")
    (tmp_path / "hosts").write_text("localhost slots=2  # both workers\n")
    (tmp_path / "tmp").mkdir()
    environ = {"TRAVELS": "yes", "STAYS": "no", "TMPDIR": str(tmp_path / "tmp")}
    return programs.trainband("run", *fixed, *slots, *options, str(script), environ=environ)


def left(tmp_path: Path) -> list[str]:
    """The temporary files of the job, here and there, but for what Python keeps for the next time."""
    return [path.name for path in (tmp_path / "tmp").iterdir() if path.name != f"trainband-{os.getuid()}"]


@pytest.mark.smoke
def test_tasks_know_who_they_are_and_where_the_files_of_the_job_lie(
    programs: Programs, ssh: str, tmp_path: Path
) -> None:
    code = "exit_after_all(3) if task == 'worker:1' else wait_forever()"
    run = job(programs, ssh, tmp_path, code, "--tls", "auto")
    assert run.wait() == 3, run.output
    for task in ("ps:0", "worker:0", "worker:1"):
        assert re.search(rf"^\[{task}\] {task} [1-9]\d* {tmp_path} yes None$", run.stdout, re.M), run.output
        own = task.replace(":", "-")
        files = sorted(("ca.pem", "secret", f"{own}.key", f"{own}.pem"))
        assert f"[{task}] files: {' '.join(files)}\n" in run.stdout, run.output
    assert "worker:1 failed: exit code 3" in run.stderr
    assert left(tmp_path) == []


def test_a_task_that_a_signal_has_killed_is_started_again(programs: Programs, ssh: str, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
before = Path({str(tmp_path)!r}, "before")
if task == "worker:1" and not before.exists():
    before.touch()
    os.kill(os.getpid(), signal.SIGKILL)
if task == "ps:0":
    wait_forever()
"""
    run = job(programs, ssh, tmp_path, code, "--restarts", "1")
    run.succeed()
    assert "worker:1 failed (killed by SIGKILL)" in run.stderr
    assert len(re.findall(r"^\[worker:1\] worker:1", run.stdout, re.M)) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_when_the_launcher_goes(
    number: signal.Signals, programs: Programs, ssh: str, tmp_path: Path
) -> None:
    run = job(programs, ssh, tmp_path, "wait_forever()")
    for task in ("ps:0", "worker:0", "worker:1"):
        run.wait_for(rf"^\[{task}\] {task}")
    assert len(programs.processes()) > 6
    run.send(number)
    run.wait()
    until(lambda: not programs.processes() and not left(tmp_path), "the end of all that is left")


def test_files_are_copied_to_hosts_that_do_not_share_them(programs: Programs, ssh: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "new" / "there"
    here.mkdir()
    (here / "module.py").write_text("print('imported')\n")
    (here / ".git").mkdir()
    (here / "train.py").write_text("import os, module; print(os.getcwd())\n")
    options = ("-o", "hosts=localhost", "-o", "sync=true", "-o", f"directory={there}", "-o", f"ssh={ssh}")
    command = ("-m", "trainband.cli.main", "run", "--on", "ssh", *options, "--ps", "0", "--workers", "1", "train.py")
    run = programs.python("trainband run", *command, cwd=here)
    assert run.succeed() == f"[worker:0] imported\n[worker:0] {there}\n"
    assert not (there / ".git").exists()


HOSTFILES = [
    ("", "hosts lists no hosts"),
    ("a\na slots=2", r"hosts:2: a is listed twice"),
    ("a slots=many", r"hosts:1: slots=many is not a number"),
    ("a\nb gpus=2", r"hosts:2: 'gpus=2' is invalid"),
    ("a jobs=ps,boss", r"hosts:1: 'boss' is not a job"),
    ("a\nlocalhost", "localhost is a different machine on each host"),
]


@pytest.mark.parametrize(("text", "message"), HOSTFILES)
def test_a_hostfile_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read_hosts(text, "hosts")


def machines(text: str) -> SshMachines:
    return SshMachines(
        read_hosts(text, "hosts"),
        ssh=["ssh"],
        python="python3",
        directory="/",
        environ={},
        say=pytest.fail,
        threads=None,
        variables=(),
    )


def placed(places: dict[Task, Host]) -> dict[str, str]:
    return {str(task): " ".join(host.command) for task, host in places.items()}


def test_workers_take_slots_and_ps_go_from_host_to_host() -> None:
    hosts = machines("me@a address=10.0.0.1 slots=2 jobs=worker\nb\nc jobs=ps # without a GPU")
    places = hosts.place({"ps": 3, "worker": 3}, lost=())
    assert placed(places) == {
        "ps:0": "ssh b",
        "ps:1": "ssh c",
        "ps:2": "ssh b",
        "worker:0": "ssh me@a",
        "worker:1": "ssh me@a",
        "worker:2": "ssh b",
    }
    assert places[WORKER0].name == "10.0.0.1"
    with pytest.raises(ClusterError, match="4 worker tasks need a place, and the hosts have 3 free slots"):
        hosts.place({"worker": 4}, lost=())
    assert placed(hosts.place({"worker": 1}, lost=[places[WORKER0]])) == {"worker:0": "ssh b"}


BAD = [
    ({}, "give either -o hostfile=FILE or -o hosts=a,b"),
    ({"hostfile": "/none"}, "the hostfile '/none' cannot be read"),
    ({"hosts": "a", "sync": True}, "give -o directory=PATH"),
    ({"hosts": "nowhere"}, "nowhere cannot run tasks: ssh: connect to host nowhere port 22: No route to host"),
    ({"hosts": "localhost", "directory": "/none"}, "lacks the tasks' working directory /none"),
    ({"hosts": "localhost", "python": "/none/python"}, "localhost cannot run tasks: .*name its Python"),
    ({"hosts": "localhost", "variables": "NONE_SUCH"}, "NONE_SUCH cannot be passed to the tasks: not set here"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_hosts_cannot_do_is_said_before_tasks_run(options: dict[str, object], message: str, ssh: str) -> None:
    backend = choose("ssh", {"ssh": ssh, **options})
    request = JobRequest(program=["none.py"], environment={**os.environ, "PYTHONPATH": str(ROOT / "src")}, workers=1)
    with pytest.raises(YourError, match=message), backend.prepare(request, Watcher()):
        pass


def test_options_of_the_command_line_are_those_of_the_backend() -> None:
    assert choose("ssh", read_options("ssh", ["hosts=a,b", "sync=true"])) == Ssh(hosts="a,b", sync=True)
    for text, message in (("sync=1", "write true or false"), ("sync", "write -o sync=VALUE")):
        with pytest.raises(ClusterError, match=message):
            read_options("ssh", [text])
    with pytest.raises(ClusterError, match=r"ssh has no option 'hostfil', .* Did you mean hostfile\?"):
        choose("ssh", {"hostfil": "x"})
