"""A cluster of Slurm's on this machine: its real daemons, in a directory of their own, gone with the test.

Five nodes in three partitions, whose daemons all run here:

- `main` (the default), the nodes `127.0.0.11` and `127.0.0.12`: names that resolve.
- `cpu`, the nodes `c0` and `c1`: names that do not resolve, as on many clusters; only Slurm knows their addresses.
- `urgent`, the nodes of `main`: its jobs take them from those of `main`, which go back into the queue.

Each node has four CPUs, however many this machine has. Needs Debian's packages slurmctld, slurmd, slurm-client and
munge (`make platforms` installs them), and root, because slurmd starts tasks as whoever submits them.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainband.launch import ReservedPorts
from trainband.launch.process import Reaper

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "salloc", "squeue", "scontrol", "scancel", "sinfo")
ADDRESSES = {"127.0.0.11": "127.0.0.11", "127.0.0.12": "127.0.0.12", "c0": "127.0.0.21", "c1": "127.0.0.22"}
NODES = tuple(ADDRESSES)
CPUS = 4
_START_S = 20.0
_STOP_S = 10.0

_CONFIGURATION = """\
ClusterName=throwaway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=10
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_resolution=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
KillWait=20
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=127.0.0.[11-12] Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=30
PartitionName=cpu Nodes=c[0-1] MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=127.0.0.[11-12] MaxTime=60 State=UP PriorityTier=10
"""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """A cluster that runs.

    Attributes:
      environ: what makes Slurm's commands talk to it.
      directory: its files, the logs of the daemons among them.
    """

    environ: Mapping[str, str]
    directory: Path

    def command(self, *command: str, timeout_s: float = 30.0) -> str:
        """Runs one of Slurm's commands in the environment of this process; gives its stdout.

        Raises:
          OSError: it has failed.
        """
        done = subprocess.run(
            command,
            env={**os.environ, **self.environ},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)} gave exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[str]:
        """The numbers of the jobs that wait or run."""
        return self.command("squeue", "--noheader", "--format=%A").split()

    def cancel_all(self) -> None:
        """Cancels all jobs and waits until they have ended."""
        for job in self.jobs():
            self.command("scancel", job)
        _until(lambda: not self.jobs(), "the end of Slurm's jobs")


def why_not() -> str | None:
    """Why there can be no cluster of Slurm's here; `None` where there can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)}): `make platforms` installs it on Debian, as root"
    if os.geteuid() != 0:
        return "slurmd needs root, to start tasks as whoever submits them"
    return None


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _until(condition: object, what: str, deadline_s: float = _START_S) -> None:
    assert callable(condition)
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {deadline_s:g} s")
        time.sleep(0.05)


@contextmanager
def _daemon(
    name: str, command: Sequence[str], environ: Mapping[str, str], directory: Path, reaper: Reaper
) -> Iterator[None]:
    """A context in which a daemon runs in the foreground, in a process group of its own, which the reaper knows."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=dict(environ), cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    try:
        reaper.register(process.pid)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        reaper.release(process.pid)


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A context in which a cluster of Slurm's runs. All its daemons and jobs end with it, and its files go.

    Raises:
      TimeoutError: a daemon did not come up; the message has its log.
    """
    with ExitStack() as owned:
        directory = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="trainband-slurm-")))
        directory.chmod(0o755)  # munged serves from no other
        reaper = Reaper(stop_s=_STOP_S, directories=[directory])  # for a test run that is killed
        owned.callback(reaper.close)
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        control, *ports = owned.enter_context(ReservedPorts(1 + len(NODES))).ports
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr={ADDRESSES[node]} Port={port} CPUs={CPUS}"
            for node, port in zip(NODES, ports, strict=True)
        ]
        text = _CONFIGURATION.format(
            host=host, port=control, user=getpass.getuser(), directory=directory, nodes="\n".join(lines)
        )
        configuration = directory / "slurm.conf"
        configuration.write_text(text, encoding="utf-8")
        variables = {"SLURM_CONF": str(configuration)}
        # Of an outer job, if any: nothing of it may reach this cluster.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC"))}
        environ = {**kept, "PATH": _path(), **variables}
        files = {
            "key-file": key,
            "socket": directory / "munge.socket",
            "pid-file": directory / "munged.pid",
            "log-file": directory / "munged-own.log",
            "seed-file": directory / "munged.seed",
        }
        munged = ["munged", "--foreground", *(f"--{name}={path}" for name, path in files.items())]
        owned.enter_context(_daemon("munged", munged, environ, directory, reaper))
        _wait_for("munged", (directory / "munge.socket").exists, directory)
        owned.enter_context(_daemon("slurmctld", ["slurmctld", "-D"], environ, directory, reaper))
        for node in NODES:
            owned.enter_context(_daemon(f"slurmd-{node}", ["slurmd", "-D", "-N", node], environ, directory, reaper))
        cluster = SlurmCluster(environ=variables, directory=directory)
        _wait_for("slurmctld", lambda: _are_idle(cluster), directory)
        try:
            yield cluster
        finally:
            cluster.cancel_all()


def _wait_for(name: str, condition: object, directory: Path) -> None:
    try:
        _until(condition, name)
    except TimeoutError as exc:
        log = (directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        raise TimeoutError(f"{exc}:\n{log}") from None


def _are_idle(cluster: SlurmCluster) -> bool:
    try:
        states = cluster.command("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()
    except OSError:  # the controller does not answer yet; the deadline is the caller's
        return False
    return len(set(states)) == len(NODES) and all(state.endswith(" idle") for state in states)


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    """A cluster of Slurm's, up in a quarter of a second. Skips the test, with the reason, where there can be none."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster() as cluster:
        yield cluster
