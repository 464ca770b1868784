"""The throughput of unequal workers under each update rule, against the sum of what each makes alone.

1 ps and 3 workers of speed 4, 2 and 1 on this machine: the time to compute a gradient is padded with a wait for each
example, 1 ms for a worker of speed 4. The 784-100-10 network on the digits in the package, batches of 256 of data that
the workers share, Adam 0.003. The rules: sync; sync with one backup worker; sync with shares by speed; async.

First each worker trains alone, in a job of its own, and then all three together, under each rule for the same time.
Examples are those of the updates that were made, as the ps counts them, over the second half of the time: the first
has the measuring of speeds and the compiling in it. The training loss at a moment is the mean of the losses that all
workers noted within three seconds around it, and what counts is when it is first at the target, from the start. The
rules alternate for some rounds and the medians count; the picture shows the first round.
"""

from __future__ import annotations

import json
import os
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
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses
from bench.ps_mnist import write_data
from trainband.monitor.inquiry import Inquiry

TASK = "bench.tasks.trainband_unequal"
COLOURS = {"sync": "#c62828", "sync-1-backup": "#ef8f00", "sync-balanced": "#2e7d32", "async": "#0b5394"}
NAMES = {
    "sync": "Sync()",
    "sync-1-backup": "Sync(backups=1)",
    "sync-balanced": 'Sync(balance="speed")',
    "async": "Async()",
}
RULES = tuple(COLOURS)
SPEEDS = (4, 2, 1)
WINDOW_S = 3.0
GRID_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every rule.

    Attributes:
      seconds: of training, together.
      alone_s: of training, of each worker alone.
      target_loss: that the smoothed training loss must reach.
      example_ms: what an example takes a worker of the highest speed longer than it does.
      speeds: of the workers.
      deadline_s: seconds for starting, and again for ending, after which a run has failed.
    """

    seconds: float
    alone_s: float
    target_loss: float
    example_ms: float
    speeds: tuple[float, ...] = SPEEDS
    deadline_s: float = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One rule, once.

    Attributes:
      workers: which of the plan's.
      examples_per_s: of the updates that were made, in the second half of the time.
      dropped_per_s: examples whose gradients came too late, likewise.
      updates_per_s: likewise.
      shares: of the examples of an update, of each worker, at the end; zeros if they are not divided.
      seconds_to_target: from the start; None if the target was not reached.
      last_loss: at the end of the time.
      times: seconds from the start, of the curve.
      losses: the smoothed training loss then.
    """

    rule: str
    round: int
    workers: tuple[int, ...]
    examples_per_s: float
    dropped_per_s: float
    updates_per_s: float
    shares: tuple[float, ...]
    seconds_to_target: float | None
    last_loss: float
    times: list[float]
    losses: list[float]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rule", "rules", type=click.Choice(RULES), multiple=True, help="May be repeated; all if not given.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(4), default=60.0, show_default=True, help="Of training, each rule.")
@click.option("--alone", "alone_s", type=click.FloatRange(4), default=16.0, show_default=True, help="Each worker.")
@click.option("--target-loss", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), default=Path("runs/unequal.png"), show_default=True)
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for one run's start or end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rules: tuple[str, ...],
    rounds: int,
    seconds: float,
    alone_s: float,
    target_loss: float,
    picture: Path,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the workers alone and the rules in turn, draw the picture and print what came out."""
    plan = Plan(
        seconds=seconds,
        alone_s=alone_s,
        target_loss=target_loss,
        example_ms=1.0,
        deadline_s=deadline_s,
    )
    runs: list[Run] = []
    alone: list[Run] = []
    everybody = tuple(range(len(plan.speeds)))
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            cases = [(worker,) for worker in everybody]
            for case in cases:
                click.echo(f"round {number + 1} of {rounds}: worker {case[0]} alone", err=True)
                alone.append(_run("sync", number, plan, data, Path(home), case, plan.alone_s))
            for rule in rules or RULES:
                click.echo(f"round {number + 1} of {rounds}: {rule}", err=True)
                runs.append(_run(rule, number, plan, data, Path(home), everybody, plan.seconds))
    draw(runs, alone, plan, picture)
    if as_json:
        summary = {"share_of_sum": shares_of_sum(runs, alone), "picture": str(picture)}
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in [*alone, *runs]], **summary}))
    else:
        console = Console()
        console.width = max(console.width, 120)  # a pipe counts as 80 columns
        console.print(make_table(runs, alone, plan))
        console.print(f"picture: {picture}")


def _run(rule: str, number: int, plan: Plan, data: Path, home: Path, workers: tuple[int, ...], seconds: float) -> Run:
    with tempfile.TemporaryDirectory(dir=home) as directory:
        try:
            return run_rule(rule, number, plan, data, Path(directory), workers, seconds)
        except CaseFailed as exc:
            raise click.ClickException(f"{rule}: {exc}") from exc


def run_rule(
    rule: str, number: int, plan: Plan, data: Path, directory: Path, workers: tuple[int, ...], seconds: float
) -> Run:
    """Train under one rule for some time.

    Raises:
      CaseFailed: a task failed or was late.
    """
    addresses = free_addresses(1 + len(workers))
    marks = directory / "marks"
    marks.mkdir()
    flags: dict[str, object] = {
        "--ps_hosts": addresses[0],
        "--worker_hosts": ",".join(addresses[1:]),
        "--rule": rule,
        "--data": data,
        "--marks": marks,
    }
    command = [sys.executable, "-m", TASK, *(str(part) for flag in flags.items() for part in flag)]
    names = [f"worker:{index}" for index in range(len(workers))]
    # Each worker has one thread; programs that were compiled once are kept, as they are for users who start again.
    environment = {
        **our_environment(max(2, os.cpu_count() or 1)),
        "JAX_COMPILATION_CACHE_DIR": str(directory.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with Processes(directory) as processes:
        processes.start("ps:0", [*command, "--job_name", "ps", "--task_index", "0"], environment)
        for index, (name, worker) in enumerate(zip(names, workers, strict=True)):
            example_ms = plan.example_ms * max(plan.speeds) / plan.speeds[worker]
            mine = ["--job_name", "worker", "--task_index", str(index), "--example_ms", str(example_ms)]
            processes.start(name, [*command, *mine], environment)
        ready = [marks / f"worker-{index}.ready" for index in range(len(workers))]
        processes.wait_for("the workers to be ready", lambda: all(mark.exists() for mark in ready), plan.deadline_s)
        with Inquiry(addresses[0], plan.deadline_s) as inquiry:
            (marks / "go").touch()
            begin_s = time.monotonic()
            processes.wait_a_while(seconds / 2)
            half, half_s = inquiry.ask(), time.monotonic()
            processes.wait_a_while(seconds / 2)
            end, end_s = inquiry.ask(), time.monotonic()
            (marks / "stop").touch()
        processes.wait_for_end(names, plan.deadline_s)
        results = [processes.result(name) for name in names]
    span_s = end_s - half_s
    times, losses = curve(begin_s, end_s - begin_s, results)
    reached = [at for at, loss in zip(times, losses, strict=True) if loss <= plan.target_loss]
    return Run(
        rule=rule,
        round=number,
        workers=workers,
        examples_per_s=(end.examples_applied - half.examples_applied) / span_s,
        dropped_per_s=(end.examples_dropped - half.examples_dropped) / span_s,
        updates_per_s=(end.version - half.version) / span_s,
        shares=tuple(worker.share for worker in sorted(end.workers, key=lambda worker: worker.task)),
        seconds_to_target=reached[0] if reached else None,
        last_loss=losses[-1],
        times=times,
        losses=losses,
    )


def curve(begin_s: float, seconds: float, results: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the mean of the losses that all workers noted within half a window of each point of a grid."""
    times, losses = (
        np.concatenate([np.array(result[key], np.float64) for result in results]) for key in ("times", "losses")
    )
    order = np.argsort(times, kind="stable")
    times, losses = times[order] - begin_s, losses[order]
    grid = np.arange(0.0, seconds, GRID_S)
    totals = np.concatenate([[0.0], np.cumsum(losses)])
    low, high = np.searchsorted(times, grid - WINDOW_S / 2), np.searchsorted(times, grid + WINDOW_S / 2)
    known = high > low
    if not known.any():
        raise CaseFailed(f"no worker took a step in {seconds} s.")
    return grid[known].round(3).tolist(), ((totals[high] - totals[low])[known] / (high - low)[known]).round(6).tolist()


def shares_of_sum(runs: list[Run], alone: list[Run]) -> dict[str, list[float]]:
    """Return the examples per second of each rule, in each round, over the sum of each worker alone."""
    sums: dict[int, float] = {}
    for run in alone:
        sums[run.round] = sums.get(run.round, 0.0) + run.examples_per_s
    out: dict[str, list[float]] = {}
    for run in runs:
        out.setdefault(run.rule, []).append(run.examples_per_s / sums[run.round])
    return out


def make_table(runs: list[Run], alone: list[Run], plan: Plan) -> Table:
    """Lay out one row for each worker alone and for each rule, of medians."""
    speeds = ", ".join(f"{one:g}" for one in plan.speeds)
    table = Table(
        title=f"Workers of speed {speeds}: examples/s together, and the time to a loss of {plan.target_loss:g}"
    )
    table.add_column("rule")
    columns = (
        "examples/s",
        "of the sum, each round",
        "of the sum",
        "dropped/s",
        "updates/s",
        "s to the loss",
        "shares",
    )
    for title in columns:
        table.add_column(title, justify="right")
    for worker, speed in enumerate(plan.speeds):
        made = [run.examples_per_s for run in alone if run.workers == (worker,)]
        table.add_row(f"speed {speed:g}, alone", f"{statistics.median(made):.0f}")
    for rule, ratios in shares_of_sum(runs, alone).items():
        mine = [run for run in runs if run.rule == rule]
        found = statistics.median([run.seconds_to_target or float("inf") for run in mine])
        table.add_row(
            NAMES[rule],
            f"{statistics.median(run.examples_per_s for run in mine):.0f}",
            " ".join(f"{ratio:.0%}" for ratio in ratios),
            f"{statistics.median(ratios):.0%}",
            f"{statistics.median(run.dropped_per_s for run in mine):.0f}",
            f"{statistics.median(run.updates_per_s for run in mine):.2f}",
            f"over {plan.seconds:g}" if np.isinf(found) else f"{found:.1f}",
            " ".join(f"{share:.0%}" for share in mine[-1].shares) if any(mine[-1].shares) else "",
        )
    return table


def draw(runs: list[Run], alone: list[Run], plan: Plan, path: Path) -> None:
    """Draw the first round: examples per second as bars, and the loss over the seconds, for each rule."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    first = [run for run in runs if run.round == 0]
    makes = [run.examples_per_s for run in alone if run.round == 0]
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    bars, curves = figure.subplots(1, 2, width_ratios=(1, 1.4))
    labels = ["each alone", *(NAMES[run.rule] for run in first)]
    below = 0.0
    for made, speed, shade in zip(makes, plan.speeds, ("#555555", "#888888", "#bbbbbb"), strict=True):
        bars.barh(0, made, left=below, color=shade)
        bars.text(below + made / 2, 0, f"{speed:g}", ha="center", va="center", color="white", fontsize=9)
        below += made
    for place, run in enumerate(first, start=1):
        bars.barh(place, run.examples_per_s, color=COLOURS[run.rule])
        ratio = run.examples_per_s / sum(makes)
        inside = ratio > 0.25
        bars.text(
            run.examples_per_s * (0.97 if inside else 1.03),
            place,
            f"{ratio:.0%}",
            ha="right" if inside else "left",
            va="center",
            color="white" if inside else "black",
        )
    bars.axvline(sum(makes), color="#666666", linewidth=0.8, linestyle="--")
    bars.set_yticks(range(len(labels)), labels)
    bars.invert_yaxis()
    bars.set(xlabel="examples/s in updates", title="together, and of the sum of each alone")
    bars.grid(visible=True, axis="x", alpha=0.3)
    for run in first:
        reached = "not reached" if run.seconds_to_target is None else f"{run.seconds_to_target:.0f} s"
        label = f"{NAMES[run.rule]}: {reached}"
        curves.plot(run.times, run.losses, color=COLOURS[run.rule], linewidth=1.6, label=label)
    curves.axhline(plan.target_loss, color="#666666", linewidth=0.8, linestyle="--")
    curves.set_yscale("log")
    curves.set(xlabel="seconds", title="training loss")
    curves.grid(visible=True, alpha=0.3)
    curves.legend(title=f"time to a loss of {plan.target_loss:g}")
    figure.suptitle(f"1 ps and workers of speed {', '.join(f'{one:g}' for one in plan.speeds)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
