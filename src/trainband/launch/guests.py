"""Workers on this machine that join a running job, and that its cluster spec does not list."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from trainband.cluster.address import Address
from trainband.cluster.cluster import Cluster
from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.backends.base import Watcher, drop
from trainband.launch.machines.this_machine import ThisMachine
from trainband.launch.options import Grace, Restarts
from trainband.launch.request import JobRequest
from trainband.launch.supervised_cluster import SupervisedCluster
from trainband.launch.worker_group import WorkerGroup
from trainband.runtime.overrides import override

_GRACE = Grace()
_RESTARTS = Restarts()


class LocalGuests(SupervisedCluster):
    """Starts guests of one job as processes of this machine and supervises them until all have exited.

    Args:
      guests: one for each process, all with the same spec.
      on_start: called with each task that is started, and again when it is restarted.
      command, environ, threads, on_line, on_note, keep_lines, grace, restarts, clock: as for `LocalCluster`.

    Raises:
      ClusterError: there is no guest, one of them is not a guest, two have the same name, or their specs differ.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        guests: Sequence[Cluster],
        environ: Mapping[str, str],
        threads: int | None = None,
        on_line: Callable[[Task, str, str], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        on_start: Callable[[Task], None] | None = None,
        keep_lines: int = 20,
        grace: Grace = _GRACE,
        restarts: Restarts = _RESTARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [str(guest.task) for guest in guests]
        if not guests:
            raise ClusterError("LocalGuests.guests is empty: no task would train.")
        if not all(guest.guest for guest in guests):
            raise ClusterError(f"LocalGuests.guests: one of {', '.join(names)} is a task of the cluster itself.")
        if len(set(names)) < len(names) or any(guest.spec != guests[0].spec for guest in guests):
            raise ClusterError(f"LocalGuests.guests: {', '.join(names)} are not different workers of one job.")
        request = JobRequest(program=command, ps=0, workers=len(guests), restarts=restarts, environment=environ)
        watcher = Watcher(line=on_line or drop, started=on_start or drop, note=on_note or drop, keep_lines=keep_lines)
        super().__init__(request, _GuestMachine(guests, threads), watcher, grace=grace, clock=clock)
        self._guests = list(guests)
        self._needs_secret = False  # they need the job's

    @override
    def _plan(self) -> list[Cluster]:
        return self._guests

    @override
    def _worker_group(self) -> WorkerGroup | None:
        return None  # each guest trains with the job's ps, independently of the others


class _GuestMachine(ThisMachine):
    """The guests share the cores with tasks of their job that are here, too."""

    def __init__(self, guests: Sequence[Cluster], threads: int | None) -> None:
        super().__init__("127.0.0.1", threads)  # on which a guest serves nothing
        self._guests = guests

    @override
    def trainers(self, cluster: Cluster) -> int | None:
        spec = cluster.spec
        here = [task for task in spec.workers if Address.parse(spec.address(task), str(task)).is_loopback]
        trainers = len(self._guests) + len(here)
        return trainers if trainers > 1 else None
