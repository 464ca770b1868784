"""Asynchronous training of a small network on parameter servers: TensorFlow and trainband in turn.

1 ps and 2 workers on this machine's loopback interface; 784-100-10 with ReLU, batches of 100 of the digits in the
package, Adam at 0.01. Cases: TensorFlow 2.21; trainband with the transport it chooses (shared memory); trainband over
Flight, as between machines; and the limit set by computing alone. They alternate for some rounds, because a machine's
speed drifts, and the medians count.

The contract of a task's program: flags ``--job_name ps|worker --task_index I --ps_hosts A,B --worker_hosts C,D
--train_steps N --warm_up_steps W --batch_size B --learning_rate R --data X.npz --marks DIR [--sync]``, for trainband
also ``--transport auto|flight``. X.npz holds train_images uint8[n, 28, 28], train_labels int32[n], test_images and
test_labels. A worker

1. makes the file DIR/worker-I.ready when its next act is its first training step, and waits for all other workers';
2. makes DIR/worker-I.begin when it sees a global step >= W, and measures from there;
3. makes DIR/worker-I.end when it sees a global step >= N, and stops measuring;
4. evaluates the model of then on the test images, prints one line of JSON with task, steps, wall_s, steps_per_s (global
   steps), loss and accuracy, and ends with status 0.

A ps serves until it is killed, or ends with status 0.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.environments import ROOT, task_environment, tensorflow_python
from bench.processes import CaseFailed, Processes, free_addresses
from trainband.data import load

TENSORFLOW_TASK = ROOT / "bench" / "peers" / "tensorflow_ps.py"
TRAINBAND_TASK = ROOT / "bench" / "tasks" / "trainband_ps.py"
COMPUTE_TASK = ROOT / "bench" / "tasks" / "compute_only.py"
CASES = ("tensorflow", "trainband", "trainband-flight", "compute-only")
CHIEF = "worker:0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What every case does alike.

    Attributes:
      deadline_s: seconds after which a case has failed.
    """

    train_steps: int
    warm_up_steps: int = 200
    batch_size: int = 100
    learning_rate: float = 0.01
    workers: int = 2
    sync: bool = False
    deadline_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One case, once.

    Attributes:
      steps_per_s: global steps a second between the marks of the chief.
      cpu_ms_per_step: processor milliseconds, user and system, of all tasks between those marks.
      peak_mib: each task's largest resident memory.
      loss: of the final model on the test images; None for compute-only, which trains nothing.
      accuracy: likewise.
    """

    case: str
    round: int
    steps_per_s: float
    cpu_ms_per_step: float | None = None
    peak_mib: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    accuracy: float | None = None


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--train_steps", type=click.IntRange(1000), default=10_000, show_default=True)
@click.option("--case", "cases", type=click.Choice(CASES), multiple=True, help="May be repeated; all if not given.")
@click.option("--sync", is_flag=True, help="Synchronous updates instead of asynchronous ones.")
@click.option("--tensorflow-python", "python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int,
    train_steps: int,
    cases: tuple[str, ...],
    sync: bool,
    python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the cases in turn and print what came out."""
    chosen = cases or CASES
    if any(case.startswith("trainband") for case in chosen) and not TRAINBAND_TASK.exists():
        raise click.ClickException(f"{TRAINBAND_TASK} is missing; choose the other cases by --case.")
    tensorflow = tensorflow_python(python) if "tensorflow" in chosen else None
    plan = Plan(train_steps=train_steps, sync=sync, deadline_s=deadline_s)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for case in chosen:
                click.echo(f"round {number + 1} of {rounds}: {case}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    try:
                        runs.append(run_case(case, number, plan, data, tensorflow, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{case}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summarise(runs)}))
    else:
        console = Console()
        console.width = max(console.width, 120)  # a pipe counts as 80 columns
        console.print(make_table(runs, plan))


def write_data(path: Path) -> Path:
    """Write the digits to the file that all tasks read."""
    data = load()
    np.savez(
        path,
        train_images=data.train.images,
        train_labels=data.train.labels,
        test_images=data.test.images,
        test_labels=data.test.labels,
    )
    return path


def run_case(case: str, number: int, plan: Plan, data: Path, tensorflow: Path | None, directory: Path) -> Run:
    """Run one case once.

    Raises:
      CaseFailed: a task failed or was late.
    """
    if case == "compute-only":
        return run_compute_only(number, plan, data)
    if case == "tensorflow":
        command: list[str | Path] = [tensorflow or sys.executable, TENSORFLOW_TASK]
        environment: dict[str, str] = {}
    else:
        transport = "flight" if case == "trainband-flight" else "auto"
        command = [sys.executable, TRAINBAND_TASK, "--transport", transport]
        environment = our_environment(plan)
    addresses = free_addresses(1 + plan.workers)
    marks = directory / "marks"
    marks.mkdir()
    flags: dict[str, object] = {
        "--ps_hosts": addresses[0],
        "--worker_hosts": ",".join(addresses[1:]),
        "--train_steps": plan.train_steps,
        "--warm_up_steps": plan.warm_up_steps,
        "--batch_size": plan.batch_size,
        "--learning_rate": plan.learning_rate,
        "--data": data,
        "--marks": marks,
    }
    command += [str(part) for flag in flags.items() for part in flag] + (["--sync"] if plan.sync else [])
    workers = [f"worker:{index}" for index in range(plan.workers)]
    with Processes(directory) as processes:
        for name in ("ps:0", *workers):
            job, _, index = name.partition(":")
            processes.start(name, [*command, "--job_name", job, "--task_index", index], environment)
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        before = processes.usage()
        processes.wait_for("the last step", (marks / "worker-0.end").exists, plan.deadline_s)
        after = processes.usage()
        processes.wait_for_end(workers, plan.deadline_s)
        peaks = {name: usage.peak_mib for name, usage in processes.usage().items()}
        result = processes.result(CHIEF)
    cpu_s = sum(after[name].cpu_s - before[name].cpu_s for name in after)
    return Run(
        case=case,
        round=number,
        steps_per_s=result["steps_per_s"],
        cpu_ms_per_step=1000 * cpu_s / result["steps"],
        peak_mib=peaks,
        loss=result["loss"],
        accuracy=result["accuracy"],
    )


def run_compute_only(number: int, plan: Plan, data: Path) -> Run:
    """Run the limit, which starts its own processes."""
    flags = ["--train_steps", plan.train_steps, "--batch_size", plan.batch_size, "--workers", plan.workers]
    command = [str(part) for part in (sys.executable, COMPUTE_TASK, "--data", data, *flags)]
    command += ["--sync"] if plan.sync else []
    done = subprocess.run(
        command,
        env={**os.environ, **our_environment(plan)},
        capture_output=True,
        text=True,
        timeout=plan.deadline_s,
    )
    if done.returncode != 0:
        raise CaseFailed(f"it ended with {done.returncode}.\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Run(
        case="compute-only",
        round=number,
        steps_per_s=result["steps_per_s"],
        cpu_ms_per_step=result["cpu_ms_per_step"],
    )


def our_environment(plan: Plan) -> dict[str, str]:
    """Give what our tasks need beside our own environment; the package may be a checkout that is not installed."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**task_environment(plan.workers, os.cpu_count() or 1), "PYTHONPATH": path}


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Give each case's median speed, and ours as a multiple of TensorFlow's and of the limit."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        speeds.setdefault(run.case, []).append(run.steps_per_s)
    medians = {case: statistics.median(values) for case, values in speeds.items()}
    return {
        "median_steps_per_s": medians,
        "times_tensorflow": _ratios(medians, "tensorflow"),
        "share_of_compute_only": _ratios(medians, "compute-only"),
    }


def _ratios(medians: dict[str, float], base: str) -> dict[str, float]:
    return {case: value / medians[base] for case, value in medians.items()} if base in medians else {}


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out every run, and below each case's medians; CPU is in milliseconds a step, of all tasks together."""
    summary = summarise(runs)
    rule = "sync" if plan.sync else "async"
    table = Table(title=f"1 ps, {plan.workers} workers, {rule}, {plan.train_steps} steps of {plan.batch_size}")
    table.add_column("case")
    for title in ("round", "steps/s", "CPU ms", "ps MiB", "worker MiB", "loss", "accuracy", "x TF", "of limit"):
        table.add_column(title, justify="right")
    for case in summary["median_steps_per_s"]:
        mine = [run for run in runs if run.case == case]
        for run in mine:
            table.add_row(*_cells(run), "", "")
        median = Run(
            case=case,
            round=-1,
            steps_per_s=summary["median_steps_per_s"][case],
            cpu_ms_per_step=_median([run.cpu_ms_per_step for run in mine]),
            peak_mib={name: statistics.median(run.peak_mib[name] for run in mine) for name in mine[0].peak_mib},
            loss=_median([run.loss for run in mine]),
            accuracy=_median([run.accuracy for run in mine]),
        )
        ratios = (summary["times_tensorflow"].get(case), summary["share_of_compute_only"].get(case))
        shown = ("" if ratios[0] is None else f"{ratios[0]:.2f}", "" if ratios[1] is None else f"{ratios[1]:.0%}")
        table.add_row(*_cells(median), *shown, style="bold", end_section=True)
    return table


def _cells(run: Run) -> tuple[str, ...]:
    """Format one run; round -1 is the median."""

    def number(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return (
        run.case,
        "median" if run.round < 0 else str(run.round + 1),
        f"{run.steps_per_s:.0f}",
        number(run.cpu_ms_per_step, 3),
        " ".join(f"{peak:.0f}" for name, peak in run.peak_mib.items() if name.startswith("ps")),
        " ".join(f"{peak:.0f}" for name, peak in run.peak_mib.items() if name.startswith("worker")),
        number(run.loss, 4),
        number(run.accuracy, 4),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


if __name__ == "__main__":
    main()
