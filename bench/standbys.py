"""The cost of a standby for every shard while nothing fails: the same job with `standbys=0` and `standbys=1` in turn.

2 ps and 2 workers on this machine, Async, the 784-100-10 network on the digits in the package, batches of 100, Adam:
steps are small, so that the copying of every push to the standby, which must arrive before a worker is answered,
weighs as much as it can. Steps a second are between two moments of the chief, after a warm-up; processor time is that
of all tasks between them, by kind of task. The two cases alternate for some rounds, and the medians count.
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
from bench.ps_mnist import RULES, write_data

TASK = "bench.tasks.trainband_ps"
TRANSPORTS = ("auto", "flight")
PS, WORKERS = 2, 2
CASES = (0, 1)
"""Standbys of each shard."""
MOST_LOST = 0.35
"""The target: the throughput falls by less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every run.

    Attributes:
      transport: ``auto`` (shared memory on one machine) or ``flight``.
      deadline_s: seconds after which a run has failed.
    """

    train_steps: int
    rule: str
    transport: str
    warm_up_steps: int = 200
    deadline_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One case, once.

    Attributes:
      steps_per_s: global steps a second.
      ps_cpu_ms: processor milliseconds a global step, of all ps together.
      worker_cpu_ms: likewise, of all workers.
      ps_mib: the largest resident memory of any ps.
      loss: on the test images, at the end.
    """

    standbys: int
    round: int
    steps_per_s: float
    ps_cpu_ms: float
    worker_cpu_ms: float
    ps_mib: float
    loss: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rule", type=click.Choice(RULES), default="async", show_default=True)
@click.option("--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--train_steps", type=click.IntRange(300), default=10_000, show_default=True)
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(rule: str, transport: str, rounds: int, train_steps: int, deadline_s: float, as_json: bool) -> None:
    """Run the two cases in turn and print what came out."""
    plan = Plan(train_steps=train_steps, rule=rule, transport=transport, deadline_s=deadline_s)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            # The order turns round, so that a machine which gets slower favours neither.
            for standbys in CASES if number % 2 == 0 else CASES[::-1]:
                click.echo(f"round {number + 1} of {rounds}: standbys={standbys}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    try:
                        runs.append(run_case(standbys, number, plan, data, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"standbys={standbys}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summarise(runs)}))
        return
    console = Console()
    console.width = max(console.width, 120)  # a pipe counts as 80 columns
    console.print(make_table(runs, plan))


def run_case(standbys: int, number: int, plan: Plan, data: Path, directory: Path) -> Run:
    """Run one case once.

    Raises:
      CaseFailed: a task failed or was late.
    """
    addresses = free_addresses(PS + WORKERS)
    marks = directory / "marks"
    marks.mkdir()
    flags: dict[str, object] = {
        "--ps_hosts": ",".join(addresses[:PS]),
        "--worker_hosts": ",".join(addresses[PS:]),
        "--train_steps": plan.train_steps,
        "--warm_up_steps": plan.warm_up_steps,
        "--rule": plan.rule,
        "--transport": plan.transport,
        "--standbys": standbys,
        "--data": data,
        "--marks": marks,
    }
    command = [sys.executable, "-m", TASK, *(str(part) for flag in flags.items() for part in flag)]
    ps, workers = [f"ps:{index}" for index in range(PS)], [f"worker:{index}" for index in range(WORKERS)]
    with Processes(directory) as processes:
        for task in (*ps, *workers):
            job, _, index = task.partition(":")
            processes.start(task, [*command, "--job_name", job, "--task_index", index], our_environment(WORKERS))
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        before = processes.usage()
        processes.wait_for("the last step", (marks / "worker-0.end").exists, plan.deadline_s)
        after = processes.usage()
        processes.wait_for_end([*workers, *ps], plan.deadline_s)
        result = processes.result(workers[0])

    def cpu_ms(tasks: Sequence[str]) -> float:
        seconds = sum(after[task].cpu_s - before[task].cpu_s for task in tasks)
        return 1000 * seconds / float(result["steps"])

    return Run(
        standbys=standbys,
        round=number,
        steps_per_s=result["steps_per_s"],
        ps_cpu_ms=cpu_ms(ps),
        worker_cpu_ms=cpu_ms(workers),
        ps_mib=max(after[task].peak_mib for task in ps),
        loss=result["loss"],
    )


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Return each case's median speed, and what a standby costs.

    Returns:
      median_steps_per_s: by the number of standbys.
      cost_of_medians: the share of the steps that a standby costs.
      costs: the same of each round; median_cost of all these.
    """
    speeds = {standbys: [run.steps_per_s for run in runs if run.standbys == standbys] for standbys in CASES}
    by_round = {(run.round, run.standbys): run.steps_per_s for run in runs}
    costs = [1 - by_round[number, 1] / by_round[number, 0] for number in sorted({run.round for run in runs})]
    medians = {standbys: statistics.median(values) for standbys, values in speeds.items()}
    return {
        "median_steps_per_s": medians,
        "cost_of_medians": 1 - medians[1] / medians[0],
        "costs": costs,
        "median_cost": statistics.median(costs),
    }


def make_table(runs: Sequence[Run], plan: Plan) -> Table:
    """Lay out one row for each case, of medians."""
    summary = summarise(runs)
    costs = " ".join(f"{100 * cost:.0f}%" for cost in summary["costs"])
    verdict = "met" if summary["median_cost"] < MOST_LOST else "missed"
    table = Table(
        title=f"{PS} ps, {WORKERS} workers, {plan.rule}, transport {plan.transport}, {plan.train_steps} steps",
        caption=f"A standby costs {100 * summary['median_cost']:.1f}% of the steps (each round: {costs}; of the "
        f"medians: {100 * summary['cost_of_medians']:.1f}%). Target, under {100 * MOST_LOST:.0f}%: {verdict}.",
        caption_justify="left",
    )
    table.add_column("case")
    for title in (
        "steps/s, each round",
        "median",
        "ratio",
        "ps CPU ms",
        "worker CPU ms",
        "CPU ms a step",
        "ps MiB",
        "loss",
    ):
        table.add_column(title, justify="right")
    medians = summary["median_steps_per_s"]
    for standbys in CASES:
        mine = [run for run in runs if run.standbys == standbys]
        table.add_row(
            f"standbys={standbys}",
            " ".join(f"{run.steps_per_s:.0f}" for run in mine),
            f"{medians[standbys]:.0f}",
            f"{medians[standbys] / medians[0]:.2f}",
            f"{statistics.median(run.ps_cpu_ms for run in mine):.3f}",
            f"{statistics.median(run.worker_cpu_ms for run in mine):.3f}",
            f"{statistics.median(run.ps_cpu_ms + run.worker_cpu_ms for run in mine):.3f}",
            f"{statistics.median(run.ps_mib for run in mine):.0f}",
            f"{statistics.median(run.loss for run in mine):.4f}",
        )
    return table


if __name__ == "__main__":
    main()
