"""The backend `ssh`: tasks on the hosts of a list."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from trainband.errors import ClusterError
from trainband.launch.backend import Watcher
from trainband.launch.machines.ssh import SshMachines, read_hosts
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster
from trainband.launch.synchronised import copy_directory

OPTIONS = ("-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=6")
"""No terminal, no unseen prompt, and no endless wait for a machine that is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """Machines that this one reaches by ssh without a password, with trainband installed.

    Attributes:
      hostfile: a file with one host per line, see `trainband.launch.machines.ssh.read_hosts`.
      hosts: the hosts instead of a file, separated by commas: `a,b`.
      directory: where tasks run on them: this process's directory when empty, which they must share.
      sync: whether the files of this process's directory are first copied to `directory` on each host.
      python: the Python there: this one's path when empty.
      ssh: the command, with your own options: `ssh -p 2222 -i key`.
      variables: comma-separated names of environment variables that the tasks get in addition to those of trainband
        and JAX.
    """

    hostfile: str = ""
    hosts: str = ""
    directory: str = ""
    sync: bool = False
    python: str = ""
    ssh: str = "ssh"
    variables: str = ""

    def prepare(self, request: JobRequest, watcher: Watcher) -> SupervisedCluster:
        if bool(self.hostfile) == bool(self.hosts):
            raise ClusterError("ssh needs hosts; give either -o hostfile=FILE or -o hosts=a,b.")
        if self.sync and not self.directory:
            raise ClusterError("sync needs a directory on the hosts to copy to; give -o directory=PATH.")
        if self.hosts:
            lines = read_hosts(self.hosts.replace(",", "\n"), "hosts")
        else:
            try:
                text = Path(self.hostfile).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as exc:
                raise ClusterError(f"the hostfile {self.hostfile!r} cannot be read: {exc}.") from None
            lines = read_hosts(text, self.hostfile)
        ssh = [*shlex.split(self.ssh), *OPTIONS]
        here = str(Path.cwd())
        if self.sync:
            for line in lines:
                copy_directory(
                    here, [*ssh, line.target], self.directory, environ=request.environment, say=watcher.report
                )
        machines = SshMachines(
            lines,
            ssh=ssh,
            python=self.python or sys.executable,
            directory=self.directory or here,
            environ=request.environment,
            say=watcher.report,
            threads=request.threads,
            variables=[name for name in self.variables.split(",") if name],
        )
        return SupervisedCluster(request, machines, watcher)
