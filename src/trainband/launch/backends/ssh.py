"""The backend `ssh`: tasks on the hosts of a list."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from trainband.errors import ClusterError
from trainband.launch.backends.base import Watcher
from trainband.launch.machines.ssh import SshMachines, read_hosts
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster
from trainband.launch.synchronised import copy_directory

OPTIONS = ("-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=6")
"""No terminal, no question that nobody sees, and no endless wait for a machine that is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """Machines that this one reaches by ssh without a password, with trainband installed.

    Attributes:
      hostfile: a file with a host a line, see `trainband.launch.machines.ssh.read_hosts`.
      hosts: the hosts themselves, separated by commas, instead: `a,b`.
      directory: where tasks run on them: this process's directory when empty, which they share then.
      sync: whether the files of this process's directory are copied to `directory` on each host first.
      python: the Python there: this one's path when empty.
      ssh: the command, with options of your own: `ssh -p 2222 -i key`.
      variables: the names of environment variables that the tasks get, beside those that concern trainband and JAX,
        separated by commas.
    """

    hostfile: str = ""
    hosts: str = ""
    directory: str = ""
    sync: bool = False
    python: str = ""
    ssh: str = "ssh"
    variables: str = ""

    def prepare(self, request: JobRequest, watcher: Watcher) -> SupervisedCluster:
        """See `Backend.prepare`."""
        if bool(self.hostfile) == bool(self.hosts):
            raise ClusterError("ssh needs its hosts: give -o hostfile=FILE, or -o hosts=a,b (one of the two).")
        if self.sync and not self.directory:
            raise ClusterError("sync copies files to a directory on the hosts: say which, with -o directory=PATH.")
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
                copy_directory(here, [*ssh, line.target], self.directory, environ=request.environment, say=watcher.note)
        machines = SshMachines(
            lines,
            ssh=ssh,
            python=self.python or sys.executable,
            directory=self.directory or here,
            environ=request.environment,
            say=watcher.note,
            threads=request.threads,
            variables=[name for name in self.variables.split(",") if name],
        )
        return SupervisedCluster(request, machines, watcher)
