"""How an exchange grows with the number of ps and workers: speed, processor time and latency, without computing.

1, 2 and 4 ps with 1, 2, 4 and 8 workers, and 1 ps with 16, all on this machine. A worker waits for a fixed time in
place of computing, pushes a gradient of 318 kB (the size of the 784-100-10 network's, split evenly over the ps), the
ps apply Adam, and it pulls the params: that is one exchange, the update rule being async.

Every ps is a process. The workers share at most 4 processes, as threads, for a process of each would need more memory
and start-up than the measurement itself. Processor time is read from outside, of the ps and of the workers' processes
separately. The idle use of a ps (leases, heartbeats) is measured just before and subtracted, since it
belongs to the second, not to the exchange; it has a column of its own.

The combinations alternate for some rounds, and the medians count. It ends with the growth of the ps's processor time
for an exchange from 1 to 16 workers; the target is at most 30%. A ps that sleeps most of the time works with cold
caches, which makes the exchanges of one worker dear. So the growth is given a second time at the same load: 16 workers
that wait 16 times as long, beside 1 worker.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, Usage, free_addresses

TASK = "bench.tasks.trainband_exchanges"
MOST_WORKERS = 16
COMBINATIONS = [(ps, workers, 1) for ps in (1, 2, 4) for workers in (1, 2, 4, 8, 16) if ps == 1 or workers < 16]
COMBINATIONS.append((1, MOST_WORKERS, MOST_WORKERS))  # ps, workers, and how many times the wait
MOST_PROCESSES = 4
IDLE_S = 2.0
SETTLE_S = 0.5
MOST_GROWTH = 0.30


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every combination.

    Attributes:
      compute_ms: what a worker waits in place of computing.
      seconds: of exchanges that are measured.
      deadline_s: seconds for starting, and again for ending, after which a combination has failed.
    """

    compute_ms: float = 20.0
    seconds: float = 5.0
    transport: str = "auto"
    deadline_s: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One combination.

    Attributes:
      compute_ms: what a worker waited before each exchange.
      exchanges_per_s: of all workers together, each with all ps.
      ps_cpu_ms: processor milliseconds of all ps for one exchange, without what they use when idle.
      total_cpu_ms: of the ps and the workers' processes, with everything.
      ps_idle_ms_per_s: processor milliseconds a second of all idle ps.
      median_ms: how long an exchange takes, as its worker sees it.
      p99_ms: likewise, the 99th percentile.
    """

    ps: int
    workers: int
    compute_ms: float
    exchanges_per_s: float
    ps_cpu_ms: float
    total_cpu_ms: float
    ps_idle_ms_per_s: float
    median_ms: float
    p99_ms: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--compute-ms", type=click.FloatRange(0), default=20.0, show_default=True, help="The stand-in's time.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=3.0, show_default=True, help="Measured, each.")
@click.option("--ps", "only_ps", type=click.Choice(["1", "2", "4"]), help="Only the combinations with this many ps.")
@click.option("--transport", type=click.Choice(["auto", "flight"]), default="auto", show_default=True)
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for one combination.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    compute_ms: float,
    rounds: int,
    seconds: float,
    only_ps: str | None,
    transport: str,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the combinations in turn and print what came out."""
    plan = Plan(compute_ms=compute_ms, seconds=seconds, transport=transport, deadline_s=deadline_s)
    runs: list[Run] = []
    for number in range(rounds):
        for ps, workers, times in COMBINATIONS:
            if only_ps in (None, str(ps)):
                wait_ms = compute_ms * times
                click.echo(f"round {number + 1} of {rounds}: {ps} ps, {workers} workers, {wait_ms:g} ms", err=True)
                try:
                    runs.append(run_combination(ps, workers, replace(plan, compute_ms=wait_ms)))
                except CaseFailed as exc:
                    raise click.ClickException(f"{ps} ps, {workers} workers: {exc}") from exc
    found = medians(runs)
    if as_json:
        growths = {"growth_of_ps_cpu": growth(found), "growth_of_ps_cpu_at_the_same_load": growth(found, MOST_WORKERS)}
        summary = {"medians": [asdict(run) for run in found], **growths, "most_growth": MOST_GROWTH}
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summary}))
    else:
        console = Console()
        console.width = max(console.width, 110)  # a pipe counts as 80 columns
        console.print(make_table(found, plan))
        console.print("ps CPU for an exchange, from 1 to 16 workers on 1 ps:")
        console.print(f"- each with the same wait: {verdict(growth(found))}")
        console.print(f"- all together with the same load: {verdict(growth(found, MOST_WORKERS))}")


def run_combination(ps: int, workers: int, plan: Plan) -> Run:
    """Start ps and workers, let them exchange, and measure between two moments.

    Raises:
      CaseFailed: a task failed or was late.
    """
    addresses = free_addresses(ps)
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home, Processes(Path(home)) as processes:
        marks = Path(home) / "marks"
        marks.mkdir()
        command = [sys.executable, "-m", TASK, "--ps_hosts", ",".join(addresses), "--workers", str(workers)]
        command += ["--marks", str(marks), "--compute_ms", str(plan.compute_ms), "--transport", plan.transport]
        servers = [f"ps:{index}" for index in range(ps)]
        for index, name in enumerate(servers):
            processes.start(name, [*command, "--role", "ps", "--index", str(index)], our_environment(2))
        firsts = share(workers)
        for first, count in firsts.items():
            flags = ["--role", "workers", "--first", str(first), "--count", str(count)]
            processes.start(f"workers:{first}", [*command, *flags], our_environment(2))
        groups = [f"workers:{first}" for first in firsts]
        ready = [marks / f"workers-{first}.ready" for first in firsts]
        processes.wait_for("the workers to be ready", lambda: all(mark.exists() for mark in ready), plan.deadline_s)
        idle = _observe(processes, IDLE_S)
        (marks / "go").touch()
        _observe(processes, SETTLE_S)
        busy = _observe(processes, plan.seconds)
        (marks / "stop").touch()
        processes.wait_for_end(groups, plan.deadline_s)
        results = [processes.result(name) for name in groups]
    ends = np.concatenate([result["ends"] for result in results])
    took = np.concatenate([result["seconds"] for result in results])[(ends >= busy.begin_s) & (ends < busy.end_s)]
    if not len(took):
        raise CaseFailed(f"no exchange ended in {plan.seconds} s.")
    idle_rate = idle.cpu_s(servers) / idle.wall_s
    ps_cpu_s = busy.cpu_s(servers) - idle_rate * busy.wall_s
    return Run(
        ps=ps,
        workers=workers,
        compute_ms=plan.compute_ms,
        exchanges_per_s=len(took) / busy.wall_s,
        ps_cpu_ms=1000 * ps_cpu_s / len(took),
        total_cpu_ms=1000 * busy.cpu_s([*servers, *groups]) / len(took),
        ps_idle_ms_per_s=1000 * idle_rate,
        median_ms=1000 * float(np.median(took)),
        p99_ms=1000 * float(np.quantile(took, 0.99)),
    )


def share(workers: int) -> dict[int, int]:
    """Divide the workers among as few processes as allowed: the first worker of each process, and how many it has."""
    count = min(workers, MOST_PROCESSES)
    edges = [workers * number // count for number in range(count + 1)]
    return {begin: end - begin for begin, end in pairwise(edges)}


@dataclass(frozen=True, slots=True)
class Span:
    """Two moments, and what the tasks had used at each."""

    begin_s: float
    end_s: float
    before: dict[str, Usage]
    after: dict[str, Usage]

    @property
    def wall_s(self) -> float:
        """Seconds between them."""
        return self.end_s - self.begin_s

    def cpu_s(self, names: list[str]) -> float:
        """Processor seconds of these tasks between them."""
        return sum(self.after[name].cpu_s - self.before[name].cpu_s for name in names)


def _observe(processes: Processes, seconds: float) -> Span:
    """Let the tasks run for a while; errors as for `Processes.wait_for`."""
    begin_s, before = time.monotonic(), processes.usage()
    processes.wait_a_while(seconds)
    return Span(begin_s, time.monotonic(), before, processes.usage())


def medians(runs: list[Run]) -> list[Run]:
    """Return one run for each combination, each of its figures the median of the rounds'."""
    rounds: dict[tuple[int, int, float], list[Run]] = {}
    for run in runs:
        rounds.setdefault((run.ps, run.workers, run.compute_ms), []).append(run)
    names = [each.name for each in fields(Run) if each.name not in ("ps", "workers", "compute_ms")]
    return [
        replace(some[0], **{name: statistics.median(getattr(run, name) for run in some) for name in names})
        for some in rounds.values()
    ]


def growth(runs: list[Run], times: int = 1) -> float | None:
    """Return the share by which the ps's processor time for an exchange grows from 1 to 16 workers on 1 ps.

    Args:
      runs: one of each combination.
      times: how many times the one worker's wait the 16 waited.

    Returns:
      The share; None where one of the two was not run.
    """
    one = next((run for run in runs if (run.ps, run.workers) == (1, 1)), None)
    if one is None:
        return None
    for run in runs:
        if (run.ps, run.workers) == (1, MOST_WORKERS) and np.isclose(run.compute_ms, times * one.compute_ms):
            return run.ps_cpu_ms / one.ps_cpu_ms - 1
    return None


def verdict(grown: float | None) -> str:
    """Describe a growth as text for people."""
    if grown is None:
        return "not measured"
    return f"{grown:+.0%} (at most +{MOST_GROWTH:.0%}: {'met' if grown <= MOST_GROWTH else 'missed'})"


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out one row for each combination."""
    table = Table(title=f"Exchanges of 318 kB each way, transport {plan.transport}")
    columns = (
        "ps",
        "workers",
        "wait ms",
        "exchanges/s",
        "ps CPU ms",
        "total CPU ms",
        "idle ms/s",
        "median ms",
        "p99 ms",
    )
    for title in columns:
        table.add_column(title, justify="right")
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        table.add_row(
            str(run.ps),
            str(run.workers),
            f"{run.compute_ms:g}",
            f"{run.exchanges_per_s:.0f}",
            f"{run.ps_cpu_ms:.3f}",
            f"{run.total_cpu_ms:.3f}",
            f"{run.ps_idle_ms_per_s:.1f}",
            f"{run.median_ms:.2f}",
            f"{run.p99_ms:.2f}",
            end_section=following is not None and following.ps != run.ps,
        )
    return table


if __name__ == "__main__":
    main()
