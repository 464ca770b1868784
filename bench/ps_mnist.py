"""Training a small network on parameter servers, under each update rule: the peers and trainband in turn.

1 ps and 2 workers on this machine's loopback interface; 784-100-10 with ReLU, batches of 100 of the digits in the
package, Adam at 0.01. Cases: TensorFlow 2.21; trainband with the transport it chooses (shared memory); trainband over
UCX's TCP and over Flight, as between machines; and the limit set by computing alone. They alternate for some rounds,
because a machine's speed drifts, and the medians count.

The rules: ``async``; ``sync``, in TensorFlow its SyncReplicasOptimizer, where a step is one gradient of each worker and
one update; ``bounded`` with a staleness of 2, which TensorFlow does not have: its async rule stands beside it. For sync
there are also peers without a ps, whose workers average their gradients among themselves: TensorFlow's
MultiWorkerMirrored, PyTorch's DistributedDataParallel where there is a PyTorch, and bare JAX.

The contract of a task's program: flags ``--job_name ps|worker --task_index I --ps_hosts A,B --worker_hosts C,D
--train_steps N --warm_up_steps W --batch_size B --learning_rate R --data X.npz --marks DIR --rule sync|async|bounded``,
for trainband also ``--transport auto|flight|ucx``; a peer without a ps gets no ``--ps_hosts``. X.npz holds train_images
uint8[n, 28, 28], train_labels int32[n], test_images and test_labels. A worker

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench import environments, security
from bench.environments import has_torch, our_environment, peer_environment
from bench.processes import CaseFailed, Processes, free_addresses
from trainband.data import load

RULES = ("async", "sync", "bounded")
BASE = "tensorflow"
LIMIT = "compute-only"
RATIOS = {"x TF": "times_tensorflow", "x best peer": "times_best_peer", "x limit": "share_of_compute_only"}
CHIEF = "worker:0"


@dataclass(frozen=True, slots=True)
class Case:
    """One way to do the training.

    Attributes:
      module: the task's program.
      interpreter: whose Python runs it: ``own``, ``tensorflow`` or ``torch``.
      flags: that only this case has.
      has_ps: whether there is a ps beside the workers; those without one know the sync rule only.
      security: with which the tasks prove who they are: `secret` or `tls`. Such cases run only where they are named.
    """

    module: str
    interpreter: str = "own"
    flags: tuple[str, ...] = ()
    has_ps: bool = True
    security: str = ""


CASES = {
    BASE: Case("bench.peers.tensorflow_ps", "tensorflow"),
    "tensorflow-mirrored": Case("bench.peers.tensorflow_mirrored", "tensorflow", has_ps=False),
    "torch-ddp": Case("bench.peers.torch_ddp", "torch", has_ps=False),
    "jax-allreduce": Case("bench.peers.jax_allreduce", has_ps=False),
    "trainband": Case("bench.tasks.trainband_ps"),
    "trainband-ucx": Case("bench.tasks.trainband_ps", flags=("--transport", "ucx")),
    "trainband-flight": Case("bench.tasks.trainband_ps", flags=("--transport", "flight")),
    **{
        f"trainband{way}-{kind}": Case("bench.tasks.trainband_ps", flags=flags, security=kind)
        for way, flags in (("", ()), ("-flight", ("--transport", "flight")))
        for kind in ("secret", "tls")
    },
    LIMIT: Case("bench.tasks.compute_only"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every case.

    Attributes:
      deadline_s: seconds after which a case has failed.
    """

    train_steps: int
    warm_up_steps: int = 200
    batch_size: int = 100
    learning_rate: float = 0.01
    workers: int = 2
    rule: str = "async"
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
@click.option("--rule", type=click.Choice(RULES), default="async", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--train_steps", type=click.IntRange(300), default=10_000, show_default=True)
@click.option("--case", "cases", type=click.Choice(list(CASES)), multiple=True, help="May be repeated; else all.")
@click.option("--tensorflow-python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--torch-python", type=click.Path(path_type=Path), envvar="TORCH_PYTHON", help="Else this Python.")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rule: str,
    rounds: int,
    train_steps: int,
    cases: tuple[str, ...],
    tensorflow_python: Path | None,
    torch_python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the cases in turn and print what came out."""
    plan = Plan(train_steps=train_steps, rule=rule, deadline_s=deadline_s)
    chosen = choose(cases, rule)
    pythons = find_pythons(chosen, tensorflow_python, torch_python)
    chosen = [name for name in chosen if CASES[name].interpreter in pythons]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for name in chosen:
                click.echo(f"round {number + 1} of {rounds}: {name}, {rule}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    python = pythons[CASES[name].interpreter]
                    try:
                        runs.append(run_case(name, number, plan, data, python, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{name}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summarise(runs)}))
    else:
        console = Console()
        console.width = max(console.width, 130)  # a pipe counts as 80 columns
        console.print(make_table(runs, plan))


def choose(asked: Sequence[str], rule: str) -> list[str]:
    """Return the cases to run.

    Raises:
      click.ClickException: one that was asked for does not know the rule.
    """
    wrong = [name for name in asked if not CASES[name].has_ps and rule != "sync"]
    if wrong:
        raise click.ClickException(f"{', '.join(wrong)}: without a ps there is the sync rule only, not {rule}.")
    usual = {name: case for name, case in CASES.items() if not case.security}
    return list(asked) or [name for name, case in usual.items() if case.has_ps or rule == "sync"]


def find_pythons(names: Sequence[str], tensorflow: Path | None, torch: Path | None) -> dict[str, Path]:
    """Return the interpreters that the cases need, by name; says so without PyTorch.

    Raises:
      click.ClickException: TensorFlow can be found nowhere.
    """
    needed = {CASES[name].interpreter for name in names}
    pythons = {"own": Path(sys.executable)}
    if "tensorflow" in needed:
        pythons["tensorflow"] = environments.tensorflow_python(tensorflow)
    if "torch" in needed:
        python = torch.absolute() if torch is not None else Path(sys.executable)
        if has_torch(python):
            pythons["torch"] = python
        else:
            click.echo(f"torch-ddp is left out: {python} has no torch; give one by --torch-python.", err=True)
    return pythons


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


def run_case(name: str, number: int, plan: Plan, data: Path, python: Path, directory: Path) -> Run:
    """Run one case once.

    Raises:
      CaseFailed: a task failed or was late.
    """
    if name == LIMIT:
        return run_compute_only(number, plan, data)
    case = CASES[name]
    rule = "async" if name == BASE and plan.rule == "bounded" else plan.rule
    own = case.interpreter == "own"
    environment = our_environment(plan.workers) if own else peer_environment(plan.workers)
    environment |= security.environment(case.security, directory)
    addresses = free_addresses(1 + plan.workers)
    marks = directory / "marks"
    marks.mkdir()
    flags: dict[str, object] = {
        **({"--ps_hosts": addresses[0]} if case.has_ps else {}),
        "--worker_hosts": ",".join(addresses[1:]),
        "--train_steps": plan.train_steps,
        "--warm_up_steps": plan.warm_up_steps,
        "--batch_size": plan.batch_size,
        "--learning_rate": plan.learning_rate,
        "--data": data,
        "--marks": marks,
        "--rule": rule,
    }
    command = [str(python), "-m", case.module, *case.flags, *(str(part) for flag in flags.items() for part in flag)]
    workers = [f"worker:{index}" for index in range(plan.workers)]
    with Processes(directory) as processes:
        for task in (*(["ps:0"] if case.has_ps else []), *workers):
            job, _, index = task.partition(":")
            processes.start(task, [*command, "--job_name", job, "--task_index", index], environment)
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        before = processes.usage()
        processes.wait_for("the last step", (marks / "worker-0.end").exists, plan.deadline_s)
        after = processes.usage()
        processes.wait_for_end(workers, plan.deadline_s)
        peaks = {task: usage.peak_mib for task, usage in processes.usage().items()}
        result = processes.result(CHIEF)
    cpu_s = sum(after[task].cpu_s - before[task].cpu_s for task in after)
    return Run(
        case=name,
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
    module = CASES[LIMIT].module
    command = [str(part) for part in (sys.executable, "-m", module, "--data", data, "--rule", plan.rule, *flags)]
    done = subprocess.run(
        command,
        env={**os.environ, **our_environment(plan.workers)},
        capture_output=True,
        text=True,
        timeout=plan.deadline_s,
    )
    if done.returncode != 0:
        raise CaseFailed(f"it ended with {done.returncode}.\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Run(
        case=LIMIT,
        round=number,
        steps_per_s=result["steps_per_s"],
        cpu_ms_per_step=result["cpu_ms_per_step"],
    )


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Return each case's median speed, and as a multiple of TensorFlow's, of the best peer's and of the limit."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        speeds.setdefault(run.case, []).append(run.steps_per_s)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    peers = {name: speed for name, speed in medians.items() if CASES[name].module.startswith("bench.peers")}
    return {
        "median_steps_per_s": medians,
        "times_tensorflow": _ratios(medians, BASE),
        "times_best_peer": _ratios(medians, max(peers, key=peers.__getitem__)) if peers else {},
        "share_of_compute_only": _ratios(medians, LIMIT),
    }


def _ratios(medians: dict[str, float], base: str) -> dict[str, float]:
    return {case: value / medians[base] for case, value in medians.items()} if base in medians else {}


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out every run, and below each case's medians; CPU is in milliseconds a step, of all tasks together."""
    summary = summarise(runs)
    title = f"1 ps, {plan.workers} workers, {plan.rule}, {plan.train_steps} steps of {plan.batch_size}"
    note = "TensorFlow has no bounded rule: its async one stands here." if plan.rule == "bounded" else None
    table = Table(title=title, caption=note, caption_justify="left")
    table.add_column("case")
    for title in ("round", "steps/s", "CPU ms", "ps MiB", "worker MiB", "loss", "accuracy", *RATIOS):
        table.add_column(title, justify="right")
    for case in summary["median_steps_per_s"]:
        mine = [run for run in runs if run.case == case]
        for run in mine:
            table.add_row(*_cells(run), *[""] * len(RATIOS))
        median = Run(
            case=case,
            round=-1,
            steps_per_s=summary["median_steps_per_s"][case],
            cpu_ms_per_step=_median([run.cpu_ms_per_step for run in mine]),
            peak_mib={name: statistics.median(run.peak_mib[name] for run in mine) for name in mine[0].peak_mib},
            loss=_median([run.loss for run in mine]),
            accuracy=_median([run.accuracy for run in mine]),
        )
        ratios = [summary[key].get(case) for key in RATIOS.values()]
        shown = ("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
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
