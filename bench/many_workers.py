"""Many workers and one ps: how long until all push, and how long until all have ended.

One ps and 4, 16 and 64 workers on this machine, whose gradients are made up and take a second each, so that the cores
are for joining, the first push, and leaving. Imports, tracing and compiling are over before the clock starts: of those,
each worker of a real job pays for its own, and they have nothing to do with how many there are.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses

TASK = "bench.tasks.many_workers"
TRANSPORTS = ("shared memory", "flight")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job.

    Attributes:
      start_s: from the start of the workers to the answer to the last one's first push.
      end_s: from SIGTERM to the end of the last worker.
      failed: the workers that raised an error, or had not ended after 20 s.
      workers_cpu_s: processor seconds of all workers.
      ps_cpu_s: likewise, of the ps.
      ps_threads: the most threads that the ps was seen to have.
      ps_descriptors: likewise, file descriptors.
    """

    transport: str
    rule: str
    workers: int
    start_s: float
    end_s: float
    failed: int
    workers_cpu_s: float
    ps_cpu_s: float
    ps_threads: int
    ps_descriptors: int


@click.command(help=__doc__.partition("\n")[0])
@click.option("--workers", "counts", multiple=True, type=click.IntRange(1), default=(4, 16, 64), show_default=True)
@click.option("--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS), default=TRANSPORTS)
@click.option("--rule", type=click.Choice(["async", "sync"]), default="async", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--deadline", "deadline_s", default=240.0, show_default=True, help="Seconds for one job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    counts: tuple[int, ...], transports: tuple[str, ...], rule: str, rounds: int, deadline_s: float, as_json: bool
) -> None:
    """Run the jobs in turn and print the medians."""
    runs: list[Run] = []
    for number in range(rounds):
        for transport in transports:
            for count in counts:
                click.echo(f"round {number + 1} of {rounds}: {count} workers, {transport}", err=True)
                with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory:
                    try:
                        runs.append(run_job(transport, rule, count, Path(directory), deadline_s))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{count} workers, {transport}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"runs": [asdict(run) for run in runs]}))
        return
    console = Console()
    console.width = max(console.width, 110)  # a pipe counts as 80 columns
    console.print(make_table(runs))


def run_job(transport: str, rule: str, count: int, directory: Path, deadline_s: float) -> Run:
    """Run one job.

    Raises:
      CaseFailed: a task failed or was late.
    """
    arguments = [",".join(free_addresses(1 + count)), rule, transport]
    with Processes(directory) as processes:
        for role in ("ps", "workers"):
            command = [sys.executable, "-m", TASK, role, *arguments]
            processes.start(role, command, our_environment(1))
        peaks = [0, 0]

        def sample() -> None:
            peaks[:] = map(max, peaks, processes.threads_and_descriptors("ps"))

        processes.wait_for_end(["workers", "ps"], deadline_s, sample, every_s=0.1)
        workers, ps = processes.result("workers"), processes.result("ps")
    return Run(
        transport=transport,
        rule=rule,
        workers=count,
        start_s=workers["start_s"],
        end_s=workers["end_s"],
        failed=workers["failed"],
        workers_cpu_s=workers["cpu_s"],
        ps_cpu_s=ps["cpu_s"],
        ps_threads=peaks[0],
        ps_descriptors=peaks[1],
    )


def make_table(runs: list[Run]) -> Table:
    """Lay out one row for each case, of medians."""
    table = Table(title=f"One ps, {runs[0].rule}: until all push, and until all have ended")
    table.add_column("transport")
    times = ("workers", "start s, each round", "median", "end s, each round", "median", "failed")
    for title in (*times, "CPU s: workers", "ps", "ps threads", "descriptors"):
        table.add_column(title, justify="right")
    for transport, count in dict.fromkeys((run.transport, run.workers) for run in runs):
        mine = [run for run in runs if (run.transport, run.workers) == (transport, count)]
        starts, ends = [run.start_s for run in mine], [run.end_s for run in mine]
        table.add_row(
            transport,
            str(count),
            ", ".join(f"{value:.1f}" for value in starts),
            f"{statistics.median(starts):.2f}",
            ", ".join(f"{value:.1f}" for value in ends),
            f"{statistics.median(ends):.2f}",
            str(sum(run.failed for run in mine)),
            f"{statistics.median(run.workers_cpu_s for run in mine):.1f}",
            f"{statistics.median(run.ps_cpu_s for run in mine):.1f}",
            str(max(run.ps_threads for run in mine)),
            str(max(run.ps_descriptors for run in mine)),
        )
    return table


if __name__ == "__main__":
    main()
