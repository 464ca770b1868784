"""The cost of a slow worker under each update rule: the time to the same training loss.

1 ps and 4 workers of speed 1, 1, 1 and 1/4 on this machine: the time to compute a gradient is padded with a wait, 10 ms
for a worker of speed 1. The 784-100-10 network on the digits in the package, batches of 100, Adam. The rules: sync;
sync with one backup worker; bounded staleness of 3; async.

Every rule trains for the same time. The training loss at a moment is the mean over the batches of all workers that
ended within half a second of it, and what counts is when that is first at the target; all programs are compiled before
the clock starts. The rules alternate for some rounds and the medians count; the picture shows the first round.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses
from bench.ps_mnist import write_data

TASK = "bench.tasks.trainband_straggler"
COLOURS = {"sync": "#c62828", "sync-1-backup": "#ef8f00", "bounded-3": "#2e7d32", "async": "#0b5394"}
RULES = tuple(COLOURS)
SPEEDS = (1.0, 1.0, 1.0, 0.25)
WINDOW_S = 1.0
GRID_S = 0.05

RATES = ("updates_per_s", "gradients_per_s")

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every rule.

    Attributes:
      seconds: of training.
      compute_ms: what a gradient takes at speed 1.
      target_loss: that the smoothed training loss must reach.
      deadline_s: seconds for starting, and again for ending, after which a run has failed.
    """

    seconds: float
    compute_ms: float
    target_loss: float
    learning_rate: float
    speeds: tuple[float, ...] = SPEEDS
    deadline_s: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One rule, once.

    Attributes:
      seconds_to_target: from the start; None if the target was not reached.
      updates_to_target: the global step then; None likewise.
      gradients_to_target: that the workers had computed by then; None likewise.
      updates_per_s: over the whole time.
      gradients_per_s: likewise.
      last_loss: at the end of the time.
      times: seconds from the start, of the curve.
      losses: the smoothed training loss then.
    """

    rule: str
    round: int
    seconds_to_target: float | None
    updates_to_target: int | None
    gradients_to_target: int | None
    updates_per_s: float
    gradients_per_s: float
    last_loss: float
    times: list[float]
    losses: list[float]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rule", "rules", type=click.Choice(RULES), multiple=True, help="May be repeated; all if not given.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(2), default=20.0, show_default=True, help="Of training, each.")
@click.option("--target-loss", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True)
@click.option("--compute-ms", type=click.FloatRange(0), default=10.0, show_default=True, help="At speed 1.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=0.001, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), default=Path("runs/stragglers.png"), show_default=True)
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for one run's start or end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rules: tuple[str, ...],
    rounds: int,
    seconds: float,
    target_loss: float,
    compute_ms: float,
    learning_rate: float,
    picture: Path,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the rules in turn, draw the picture and print what came out."""
    plan = Plan(
        seconds=seconds,
        compute_ms=compute_ms,
        target_loss=target_loss,
        learning_rate=learning_rate,
        deadline_s=deadline_s,
    )
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for rule in rules or RULES:
                click.echo(f"round {number + 1} of {rounds}: {rule}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    try:
                        runs.append(run_rule(rule, number, plan, data, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{rule}: {exc}") from exc
    draw(runs, plan, picture)
    if as_json:
        summary = {"median_seconds_to_target": medians(runs), "picture": str(picture)}
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summary}))
    else:
        console = Console()
        console.width = max(console.width, 110)  # a pipe counts as 80 columns
        console.print(make_table(runs, plan))
        console.print(f"picture: {picture}")


def run_rule(rule: str, number: int, plan: Plan, data: Path, directory: Path) -> Run:
    """Train under one rule for the time of the plan.

    Raises:
      CaseFailed: a task failed or was late.
    """
    count = len(plan.speeds)
    addresses = free_addresses(1 + count)
    marks = directory / "marks"
    marks.mkdir()
    flags: dict[str, object] = {
        "--ps_hosts": addresses[0],
        "--worker_hosts": ",".join(addresses[1:]),
        "--rule": rule,
        "--learning_rate": plan.learning_rate,
        "--data": data,
        "--marks": marks,
    }
    command = [sys.executable, "-m", TASK, *(str(part) for flag in flags.items() for part in flag)]
    workers = [f"worker:{index}" for index in range(count)]
    with Processes(directory) as processes:
        processes.start("ps:0", [*command, "--job_name", "ps", "--task_index", "0"], our_environment(count))
        for index, speed in enumerate(plan.speeds):
            mine = ["--task_index", str(index), "--compute_ms", str(plan.compute_ms / speed)]
            processes.start(workers[index], [*command, "--job_name", "worker", *mine], our_environment(count))
        ready = [marks / f"worker-{index}.ready" for index in range(count)]
        processes.wait_for("the workers to be ready", lambda: all(mark.exists() for mark in ready), plan.deadline_s)
        (marks / "go").touch()
        begin_s = time.monotonic()
        processes.wait_a_while(plan.seconds)
        (marks / "stop").touch()
        processes.wait_for_end(workers, plan.deadline_s)
        results = [processes.result(name) for name in workers]
    return evaluate(rule, number, plan, begin_s, results)


def evaluate(rule: str, number: int, plan: Plan, begin_s: float, results: Sequence[dict[str, Any]]) -> Run:
    """Make one run's figures of what all workers noted."""
    times, steps, losses = (
        np.concatenate([np.array(result[key], np.float64) for result in results])
        for key in ("times", "steps", "losses")
    )
    order = np.argsort(times, kind="stable")
    times, steps, losses = times[order] - begin_s, steps[order], losses[order]
    inside = times <= plan.seconds
    times, steps, losses = times[inside], steps[inside], losses[inside]
    grid, curve = smooth(times, losses, plan.seconds)
    reached = np.flatnonzero(curve <= plan.target_loss)
    at = float(grid[reached[0]]) if len(reached) else None
    before = times <= at if at is not None else None
    first = steps.min(initial=np.inf) - 1 if len(steps) else 0.0
    return Run(
        rule=rule,
        round=number,
        seconds_to_target=at,
        updates_to_target=None if before is None else int(steps[before].max(initial=0) - first),
        gradients_to_target=None if before is None else int(before.sum()),
        updates_per_s=float(steps.max(initial=0) - first) / plan.seconds,
        gradients_per_s=len(times) / plan.seconds,
        last_loss=float(curve[-1]),
        times=grid.round(3).tolist(),
        losses=curve.round(6).tolist(),
    )


def smooth(times: Floats, losses: Floats, seconds: float) -> tuple[Floats, Floats]:
    """Return the mean of the losses within half a window of each point of a grid; points with none are left out."""
    grid = np.arange(0.0, seconds, GRID_S)
    totals = np.concatenate([[0.0], np.cumsum(losses)])
    low = np.searchsorted(times, grid - WINDOW_S / 2)
    high = np.searchsorted(times, grid + WINDOW_S / 2)
    known = high > low
    if not known.any():
        raise CaseFailed(f"no worker took a step in {seconds} s.")
    return grid[known], (totals[high] - totals[low])[known] / (high - low)[known]


def medians(runs: list[Run]) -> dict[str, float | None]:
    """Return each rule's median seconds to the target; None where most rounds did not reach it."""
    out: dict[str, float | None] = {}
    for rule in dict.fromkeys(run.rule for run in runs):
        found = [run.seconds_to_target for run in runs if run.rule == rule]
        median = statistics.median(float("inf") if value is None else value for value in found)
        out[rule] = None if np.isinf(median) else median
    return out


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out one row for each rule, of medians."""
    speeds = ", ".join(f"{speed:g}" for speed in plan.speeds)
    table = Table(title=f"Workers of speed {speeds} ({plan.compute_ms:g} ms at 1): to a loss of {plan.target_loss:g}")
    table.add_column("rule")
    columns = ("seconds each round", "median s", "updates", "gradients", "updates/s", "gradients/s", "last loss")
    for title in columns:
        table.add_column(title, justify="right")
    for rule, seconds in medians(runs).items():
        mine = [run for run in runs if run.rule == rule]
        table.add_row(
            rule,
            " ".join("-" if run.seconds_to_target is None else f"{run.seconds_to_target:.1f}" for run in mine),
            f"over {plan.seconds:g}" if seconds is None else f"{seconds:.2f}",
            _median([run.updates_to_target for run in mine]),
            _median([run.gradients_to_target for run in mine]),
            *(f"{statistics.median(getattr(run, name) for run in mine):.0f}" for name in RATES),
            f"{statistics.median(run.last_loss for run in mine):.4f}",
        )
    return table


def _median(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f}" if known else ""


def draw(runs: list[Run], plan: Plan, path: Path) -> None:
    """Draw the first round: the loss over the seconds, a line for each rule."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for run in runs:
        if run.round == 0:
            reached = "not reached" if run.seconds_to_target is None else f"{run.seconds_to_target:.1f} s"
            axes.plot(run.times, run.losses, color=COLOURS[run.rule], linewidth=1.6, label=f"{run.rule}: {reached}")
    axes.axhline(plan.target_loss, color="#666666", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    speeds = ", ".join(f"{speed:g}" for speed in plan.speeds)
    axes.set(xlabel="seconds", ylabel="training loss", title=f"1 ps, workers of speed {speeds}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(title=f"time to a loss of {plan.target_loss:g}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
