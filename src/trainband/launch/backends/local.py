"""The backend `local`: all tasks on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.launch.backend import Watcher
from trainband.launch.machines.this_machine import ThisMachine
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """All tasks on this machine.

    Attributes:
      host: the address of this machine that the tasks serve on.
    """

    host: str = "127.0.0.1"

    def prepare(self, request: JobRequest, watcher: Watcher) -> SupervisedCluster:
        return SupervisedCluster(request, ThisMachine(self.host, request.threads), watcher)
