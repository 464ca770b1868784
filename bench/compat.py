"""Scripts of TensorFlow, run by TensorFlow and, unchanged, by trainband's faces of TensorFlow 1 and 2.

With ``--face 2``, `bench.compat_eager` says what is run. With ``--face 1``, the script is `bench.peers.tensorflow_ps`:
784-100-10 with ReLU, Adam, batches of 100 of the digits in the package, a Supervisor and one session.run a step; 1 ps
and 2 workers on this machine's loopback interface. The two alternate for some rounds, because a machine's speed drifts,
and the medians count. The contract of a task's program is that of `bench.ps_mnist`, which see.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import compat_eager, environments
from bench.environments import ROOT, our_environment, peer_environment
from bench.processes import CaseFailed, Processes, free_addresses
from bench.ps_mnist import CHIEF, Plan, Run, write_data

SCRIPT = ROOT / "bench" / "peers" / "tensorflow_ps.py"
TENSORFLOW, OURS = "tensorflow", "trainband.compat"


@click.command(help=__doc__.partition("\n")[0])
@click.option("--face", type=click.Choice(["1", "2"]), default="1", show_default=True)
@click.option(
    "--case", "cases", type=click.Choice(list(compat_eager.CASES)), multiple=True, help="Of face 2; else all."
)
@click.option("--rule", type=click.Choice(["async", "sync"]), default="async", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--train_steps", type=click.IntRange(300), help="Else 6000, and 2000 with face 2.")
@click.option("--tensorflow-python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    face: str,
    cases: tuple[str, ...],
    rule: str,
    rounds: int,
    train_steps: int | None,
    tensorflow_python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run both in turn and print what came out."""
    if face == "2":
        python = environments.tensorflow_python(tensorflow_python, also="tf_keras")
        plan_2 = compat_eager.Plan(train_steps=train_steps or 2_000, deadline_s=deadline_s)
        run_face_2(cases or tuple(compat_eager.CASES), rounds, plan_2, python, as_json)
        return
    if cases:
        raise click.UsageError("--case needs --face 2.")
    run_face_1(
        Plan(train_steps=train_steps or 6_000, rule=rule, deadline_s=deadline_s), rounds, tensorflow_python, as_json
    )


def run_face_2(cases: tuple[str, ...], rounds: int, plan: compat_eager.Plan, python: Path, as_json: bool) -> None:
    """Run these cases of TensorFlow 2; one that cannot run says why, and the others still run."""
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        done = [
            compat_eager.compare(name, rounds, plan, data, python, Path(home), lambda text: click.echo(text, err=True))
            for name in cases
        ]
    if as_json:
        results = [
            {**asdict(each), "median_steps_per_s": each.medians, "times_tensorflow": each.ratio} for each in done
        ]
        click.echo(json.dumps({"plan": asdict(plan), "cases": results}))
    else:
        Console(width=120).print(compat_eager.make_table(done, plan))


def run_face_1(plan: Plan, rounds: int, tensorflow_python: Path | None, as_json: bool) -> None:
    """Run the script of TensorFlow 1 by both in turn."""
    python = environments.tensorflow_python(tensorflow_python)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for name in (TENSORFLOW, OURS):
                click.echo(f"round {number + 1} of {rounds}: {name}, {plan.rule}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    try:
                        runs.append(run_case(name, number, plan, data, python, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{name}: {exc}") from exc
    medians = {
        name: statistics.median(run.steps_per_s for run in runs if run.case == name) for name in (TENSORFLOW, OURS)
    }
    ratio = medians[OURS] / medians[TENSORFLOW]
    if as_json:
        result = {"plan": asdict(plan), "runs": [asdict(run) for run in runs], "median_steps_per_s": medians}
        click.echo(json.dumps({**result, "times_tensorflow": ratio}))
    else:
        Console(width=100).print(make_table(runs, plan, ratio))


def run_case(name: str, number: int, plan: Plan, data: Path, python: Path, directory: Path) -> Run:
    """Run the script once, as one of the two does.

    Raises:
      CaseFailed: a task failed or was late.
    """
    ours = name == OURS
    environment = our_environment(plan.workers) if ours else peer_environment(plan.workers)
    start = [sys.executable, "-m", "trainband.compat", str(SCRIPT)] if ours else [str(python), str(SCRIPT)]
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
        "--rule": plan.rule,
    }
    command = [*start, *(str(part) for flag in flags.items() for part in flag)]
    workers = [f"worker:{index}" for index in range(plan.workers)]
    with Processes(directory) as processes:
        for task in ("ps:0", *workers):
            job, _, index = task.partition(":")
            processes.start(task, [*command, "--job_name", job, "--task_index", index], environment)
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        before = processes.usage()
        processes.wait_for("the last step", (marks / "worker-0.end").exists, plan.deadline_s)
        after = processes.usage()
        processes.wait_for_end(workers, plan.deadline_s)
        peaks = {task: usage.peak_mib for task, usage in processes.usage().items()}
        result = processes.result(CHIEF)
    return Run(
        case=name,
        round=number,
        steps_per_s=result["steps_per_s"],
        cpu_ms_per_step=1000 * sum(after[task].cpu_s - before[task].cpu_s for task in after) / result["steps"],
        peak_mib=peaks,
        loss=result["loss"],
        accuracy=result["accuracy"],
    )


def make_table(runs: list[Run], plan: Plan, ratio: float) -> Table:
    """Lay out every run; CPU is in milliseconds a step, of all tasks together."""
    title = f"1 ps, {plan.workers} workers, {plan.rule}, {plan.train_steps} steps of {plan.batch_size}"
    table = Table(
        title=title, caption=f"trainband makes {ratio:.2f} times TensorFlow's steps/s", caption_justify="left"
    )
    table.add_column("run by")
    for heading in ("round", "steps/s", "CPU ms", "loss", "accuracy"):
        table.add_column(heading, justify="right")
    for run in sorted(runs, key=lambda run: (run.case != TENSORFLOW, run.round)):
        table.add_row(
            run.case,
            str(run.round + 1),
            f"{run.steps_per_s:,.0f}",
            f"{run.cpu_ms_per_step or 0:.2f}",
            f"{run.loss or 0:.4f}",
            f"{run.accuracy or 0:.4f}",
        )
    return table


if __name__ == "__main__":
    main()
