"""SshMachines: the tasks of a job on the hosts of a list, each started by ssh."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainband.cluster.address import Address
from trainband.cluster.task import JOBS, Task
from trainband.errors import ClusterError
from trainband.launch.machines.remote import Host, RemoteMachines
from trainband.runtime.overrides import override
from trainband.runtime.waiting import Say


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A host of a hostfile.

    Attributes:
      target: the argument of ssh: `name`, `user@name`, or a name in ~/.ssh/config.
      address: at which the other tasks reach it.
      slots: how many training tasks it takes.
      jobs: whose tasks it takes.
      python: its Python; empty for the usual one.
    """

    target: str
    address: str
    slots: int = 1
    jobs: tuple[str, ...] = JOBS
    python: str = ""


def read_hosts(text: str, where: str) -> list[Line]:
    """Reads the hosts of a hostfile like Open MPI's: a line for each, with `slots=N` and here also `jobs=ps,worker`,
    `address=10.0.0.7` and `python=PATH`; `#` begins a comment.

    Args:
      where: the name of the file, for errors.

    Raises:
      ClusterError: there is no host, one is listed twice, or a line is invalid; the message has its number.

    Source: https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html, "hostfile".
    """
    found: dict[str, Line] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        target, *settings = words
        if target in found:
            raise ClusterError(f"{where}:{number}: {target} is listed twice; give it slots=2.")
        found[target] = _read_line(target, settings, f"{where}:{number}")
    if not found:
        raise ClusterError(f"{where} lists no hosts.")
    local = [line.target for line in found.values() if Address(host=line.address, port=1).is_loopback]
    if local and len(local) < len(found):
        raise ClusterError(
            f"{where}: {local[0]} is a different machine on each host; write the name or address at which the others "
            "reach it."
        )
    return list(found.values())


def _read_line(target: str, settings: Sequence[str], where: str) -> Line:
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in ("slots", "jobs", "address", "python") or not value:
            raise ClusterError(
                f"{where}: {setting!r} is invalid; a line is a host, then slots=N, jobs=ps,worker, address=HOST or "
                "python=PATH."
            )
        values[name] = value
    slots = values.get("slots", "1")
    if not slots.isdigit():
        raise ClusterError(f"{where}: slots={slots} is not a number.")
    jobs = tuple(values["jobs"].split(",")) if "jobs" in values else JOBS
    if unknown := [job for job in jobs if job not in JOBS]:
        raise ClusterError(f"{where}: {unknown[0]!r} is not a job; the jobs are {', '.join(JOBS)}.")
    return Line(
        target=target,
        address=values.get("address", target.rpartition("@")[2]),
        slots=int(slots),
        jobs=jobs,
        python=values.get("python", ""),
    )


class SshMachines(RemoteMachines):
    """Hosts reached by ssh, as `Machines`.

    Training tasks take one slot each, host by host. The ps and the evaluator take none and are spread over the hosts.

    Args:
      ssh: the command and its options.
      python, directory: on the hosts.
      environ, say, threads, variables: as for `RemoteMachines`.
    """

    def __init__(
        self,
        hosts: Sequence[Line],
        *,
        ssh: Sequence[str],
        python: str,
        directory: str,
        environ: Mapping[str, str],
        say: Say,
        threads: int | None,
        variables: Collection[str],
    ) -> None:
        super().__init__(environ, say, threads=threads, variables=variables)
        self._lines = {
            Host(
                name=line.address,
                command=(*ssh, line.target),
                by_shell=True,
                python=line.python or python,
                directory=directory,
            ): line
            for line in hosts
        }

    @override
    def place(self, sizes: Mapping[str, int], lost: Collection[Host]) -> dict[Task, Host]:
        lines = {host: line for host, line in self._lines.items() if host not in lost}
        slots = {host: line.slots for host, line in lines.items()}
        places: dict[Task, Host] = {}
        for job, size in sizes.items():
            able = [host for host, line in lines.items() if job in line.jobs]
            trains = job in ("worker", "chief")
            if not able or (trains and sum(slots[host] for host in able) < size):
                there = f"{sum(slots[host] for host in able)} free slots" if trains else "no host"
                raise ClusterError(
                    f"{size} {job} tasks need a place, and the hosts have {there} for them"
                    f"{' without the lost ones' if lost else ''}; add hosts, raise slots= or change jobs=."
                )
            for index in range(size):
                host = next(host for host in able if slots[host]) if trains else able[index % len(able)]
                slots[host] -= trains
                places[Task(job, index)] = host
        return places
