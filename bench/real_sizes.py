"""Models of hundreds of megabytes and thousands of variables: the start, the memory and the steps.

Each case is a chain of dense layers. Bare JAX trains it in one process; trainband under `OneDevice`, and on one ps with
one worker or more. Memory is the largest proportional set size of a task with its children, sampled twice a second.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses

CASES = ("5x1024", "100x1024", "500x1024", "50x32", "500x32")
SYSTEMS = ("bare JAX", "OneDevice", "ps")
TRANSPORTS = ("shared memory", "flight", "ucx")
SAMPLE_S = 0.5
STEPS = 6
START_S, START_S_PER_GB = 2.0, 1.5
"""Allowed beyond 1.2 times the start of bare JAX: for a cluster, and for each gigabyte of params."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One job.

    Attributes:
      layers, width: each layer has a kernel of width x width and a bias.
      system: one of `SYSTEMS`, with the transport where there is one.
      first_s: from the first line of the program, after imports, until the first step is over.
      step_s: the median of the next steps.
      ps_mib, worker_mib: the largest memory of the ps, and of the worker or of the only process; 0 without one.
    """

    layers: int
    width: int
    optimizer: str
    system: str
    first_s: float
    step_s: float
    ps_mib: float
    worker_mib: float

    @property
    def params_mb(self) -> float:
        """Megabytes of params."""
        return self.layers * (self.width + 1) * self.width * 4 / 1e6


@click.command(help=__doc__.partition("\n")[0])
@click.option("--case", "cases", multiple=True, default=CASES, show_default=True, help="LAYERSxWIDTH.")
@click.option("--optimizer", "optimizers", multiple=True, type=click.Choice(["sgd", "adam"]), default=("sgd", "adam"))
@click.option("--system", "systems", multiple=True, type=click.Choice(SYSTEMS), default=SYSTEMS)
@click.option("--transport", "transports", multiple=True, type=click.Choice(TRANSPORTS), default=TRANSPORTS[:1])
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rule", type=click.Choice(["async", "sync"]), default="async", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--deadline", "deadline_s", default=600.0, show_default=True, help="Seconds for one job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    cases: tuple[str, ...],
    optimizers: tuple[str, ...],
    systems: tuple[str, ...],
    transports: tuple[str, ...],
    workers: int,
    rule: str,
    rounds: int,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the jobs in turn and print the medians."""
    shapes = [tuple(map(int, case.split("x"))) for case in cases]
    runs: list[Run] = []
    for number in range(rounds):
        for layers, width in shapes:
            for optimizer in optimizers:
                for system in systems:
                    for transport in transports if system == "ps" else ("",):
                        name = " ".join(filter(None, (system, transport)))
                        click.echo(f"round {number + 1} of {rounds}: {layers}x{width} {optimizer}, {name}", err=True)
                        model = ["--layers", layers, "--width", width, "--optimizer", optimizer, "--steps", STEPS]
                        with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory:
                            try:
                                found = run_job(
                                    system, transport, workers, rule, [*map(str, model)], Path(directory), deadline_s
                                )
                            except CaseFailed as exc:
                                raise click.ClickException(f"{layers}x{width} {optimizer}, {name}: {exc}") from exc
                        runs.append(Run(layers=layers, width=width, optimizer=optimizer, system=name, **found))
    if as_json:
        click.echo(json.dumps({"runs": [asdict(run) for run in runs]}))
        return
    console = Console()
    console.width = max(console.width, 120)  # a pipe counts as 80 columns
    console.print(make_table(runs, workers))


def run_job(
    system: str, transport: str, workers: int, rule: str, model: Sequence[str], directory: Path, deadline_s: float
) -> dict[str, Any]:
    """Run one job; return the fields of its `Run` that it decides.

    Raises:
      CaseFailed: a task failed or was late.
    """
    commands: dict[str, list[str]] = {}
    if system == "bare JAX":
        commands["worker:0"] = ["bench.peers.jax_real_size"]
    elif system == "OneDevice":
        commands["worker:0"] = ["bench.tasks.real_size", "--role", "alone"]
    else:
        ps, *others = free_addresses(1 + workers)
        job = ["bench.tasks.real_size", "--rule", rule, "--ps", ps, "--workers", ",".join(others)]
        commands["ps:0"] = [*job, "--role", "ps"]
        for index in range(workers):
            commands[f"worker:{index}"] = [*job, "--role", "worker", "--index", str(index)]
    environment = our_environment(1)
    if transport in ("flight", "ucx"):
        environment["TRAINBAND_TRANSPORT"] = transport
    peaks = dict.fromkeys(commands, 0.0)
    with Processes(directory) as processes:

        def sample() -> None:
            for name, now in processes.memory_mib().items():
                peaks[name] = max(peaks[name], now)

        for name, command in commands.items():
            processes.start(name, [sys.executable, "-m", *command, *model], environment)
        processes.wait_for_end(list(commands), deadline_s, sample, SAMPLE_S)
        result = processes.result("worker:0")
    return {
        "first_s": result["first_s"],
        "step_s": result["step_s"],
        "ps_mib": peaks.get("ps:0", 0.0),
        "worker_mib": max(peak for name, peak in peaks.items() if name.startswith("worker")),
    }


def make_table(runs: list[Run], workers: int) -> Table:
    """Lay out one row for each case, of medians; `x allowed` divides a start by what it may take."""
    table = Table(title=f"Start, memory and steps of large models; {workers} worker{'s' * (workers > 1)}")
    for title in ("params MB", "variables", "optimizer", "system"):
        table.add_column(title, justify="left" if title in ("optimizer", "system") else "right", no_wrap=True)
    for title in ("first step s, each round", "median", "x allowed", "step ms", "ps MiB", "worker MiB"):
        table.add_column(title, justify="right")
    for key in dict.fromkeys((run.layers, run.width, run.optimizer, run.system) for run in runs):
        mine = [run for run in runs if (run.layers, run.width, run.optimizer, run.system) == key]
        bare = [
            run.first_s for run in runs if (run.layers, run.width, run.optimizer, run.system) == (*key[:3], SYSTEMS[0])
        ]
        first_s = statistics.median(run.first_s for run in mine)
        allowed_s = 1.2 * statistics.median(bare) + START_S + START_S_PER_GB * mine[0].params_mb / 1000 if bare else 0.0
        table.add_row(
            f"{mine[0].params_mb:,.0f}",
            f"{2 * key[0]:,}",
            key[2],
            key[3],
            " ".join(f"{run.first_s:.1f}" for run in mine),
            f"{first_s:.1f}",
            f"{first_s / allowed_s:.2f}" if bare and key[3] != SYSTEMS[0] else "",
            f"{1000 * statistics.median(run.step_s for run in mine):,.0f}",
            *(
                f"{max(peaks):,.0f}" if max(peaks) else ""
                for peaks in zip(*((r.ps_mib, r.worker_mib) for r in mine), strict=True)
            ),
        )
    return table


if __name__ == "__main__":
    main()
