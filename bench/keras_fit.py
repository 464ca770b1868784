"""`model.fit` of a Keras model: plain Keras on JAX, trainband's strategies, and Keras 2 on TensorFlow's, in turn.

The MNIST MLP, 784-100-10, batches of 100, Adam, on this machine. Contenders: `plain`, Keras 3 on JAX in one process,
and `one-device`, the same under trainband's OneDevice, each with all cores; `ps` and `mirrored`, under trainband's
ParameterServer (1 ps, 2 workers, async) and MultiWorkerMirrored (2 workers); `tf-ps` and `tf-mirrored`, `tf_keras`
under TensorFlow's ParameterServerStrategy and MultiWorkerMirroredStrategy, with as many tasks (the ps needs a
coordinator besides). Each epoch has as many updates of the whole job as `--steps` says; the first two epochs are not
counted, and the median epoch of the others gives a contender's steps/s. All take part in some rounds, one after the
other, because a machine's speed drifts.

The contract of a program: flags ``--data X.npz --steps S --epochs E --verbose V --out R.json``, and the chief
leaves in R.json: steps_per_s, epochs (measured), loss.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment, peer_environment, tensorflow_python
from bench.processes import CaseFailed, Processes, free_addresses
from bench.ps_mnist import write_data

WORKERS = 2
CONTENDERS = ("plain", "one-device", "ps", "mirrored", "tf-ps", "tf-mirrored")
TASK = "bench.tasks.keras_fit"
PEER = "bench.peers.tensorflow_keras_fit"
RATIOS = {"x plain": "plain", "x tf-ps": "tf-ps", "x tf-mirrored": "tf-mirrored"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every contender.

    Attributes:
      steps: updates in an epoch.
      epochs: with those that are not counted.
      verbose: of `fit`; 1 draws a progress bar.
      deadline_s: seconds for one contender.
    """

    steps: int
    epochs: int
    verbose: int
    deadline_s: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(10), default=500, show_default=True, help="Updates in an epoch.")
@click.option("--epochs", type=click.IntRange(3), default=8, show_default=True, help="The first two are not counted.")
@click.option("--verbose", type=click.IntRange(0, 2), default=0, show_default=True, help="Of fit; 1 draws a bar.")
@click.option("--only", type=click.Choice(CONTENDERS), multiple=True, help="May be repeated; else all.")
@click.option("--tensorflow-python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one contender.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int,
    steps: int,
    epochs: int,
    verbose: int,
    only: tuple[str, ...],
    tensorflow_python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the contenders in turn and print what came out."""
    plan = Plan(steps=steps, epochs=epochs, verbose=verbose, deadline_s=deadline_s)
    chosen = only or CONTENDERS
    peer = find_peer(tensorflow_python) if any(name.startswith("tf-") for name in chosen) else None
    speeds: dict[str, list[float]] = {name: [] for name in chosen}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for name in chosen:
                click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    try:
                        result = run_contender(name, plan, data, peer, Path(directory))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{name}: {exc}") from exc
                speeds[name].append(result["steps_per_s"])
                losses[name] = result["loss"]
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    if as_json:
        click.echo(json.dumps({"steps_per_s": speeds, "median": medians, "loss": losses}))
    else:
        console = Console()
        console.width = max(console.width, 110)  # a pipe counts as 80 columns
        console.print(make_table(speeds, medians, losses, plan))


def find_peer(given: Path | None) -> Path:
    """Return an interpreter that has TensorFlow and tf_keras.

    Raises:
      click.ClickException: there is none.
    """
    return tensorflow_python(given, also="tf_keras")


def run_contender(name: str, plan: Plan, data: Path, peer: Path | None, directory: Path) -> dict[str, Any]:
    """Run one contender once; give what its chief has left.

    Raises:
      CaseFailed: a process failed or was late.
    """
    flags = ["--data", data, "--steps", plan.steps, "--epochs", plan.epochs, "--verbose", plan.verbose]
    result = directory / "result.json"
    flags += ["--out", result]
    words = [str(flag) for flag in flags]
    with Processes(directory) as processes:
        if name.startswith("tf-"):
            assert peer is not None
            chief = start_peers(processes, name.removeprefix("tf-"), peer, words)
        elif name in ("ps", "mirrored"):
            chief = "job"
            ps = "1" if name == "ps" else "0"
            launcher = ["-m", "trainband.cli.main", "run", "--quiet", "--ps", ps, "--workers", str(WORKERS)]
            command: list[str | Path] = [sys.executable, *launcher, "-m", TASK, "--strategy", name, *words]
            processes.start(chief, command, our_environment(WORKERS))
        else:
            chief = "alone"
            command = [sys.executable, "-m", TASK, "--strategy", name, *words]
            processes.start(chief, command, our_environment(1))
        processes.wait_for_end([chief], plan.deadline_s)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def start_peers(processes: Processes, strategy: str, peer: Path, words: list[str]) -> str:
    """Start TensorFlow's tasks; give the name of the one that tells."""
    jobs = {"worker": WORKERS, **({"ps": 1, "chief": 1} if strategy == "ps" else {})}
    addresses = iter(free_addresses(sum(jobs.values())))
    cluster = {job: [next(addresses) for _ in range(count)] for job, count in jobs.items()}
    for job, hosts in cluster.items():
        for index in range(len(hosts)):
            place = ["--cluster", json.dumps(cluster), "--job_name", job, "--task_index", str(index)]
            command: list[str | Path] = [peer, "-m", PEER, "--strategy", strategy, *place, *words]
            processes.start(f"{job}:{index}", command, peer_environment(WORKERS))
    return "chief:0" if strategy == "ps" else "worker:0"


def make_table(
    speeds: dict[str, list[float]], medians: dict[str, float], losses: dict[str, float], plan: Plan
) -> Table:
    """Lay out one row for each contender."""
    counted = plan.epochs - 2
    title = f"fit of the MNIST MLP, batches of 100, Adam, {counted} epochs of {plan.steps} steps"
    table = Table(title=f"{title}, verbose={plan.verbose}, {os.cpu_count()} cores")
    table.add_column("contender")
    for column in ("steps/s each round", "median", "loss", *RATIOS):
        table.add_column(column, justify="right")
    for name, median in medians.items():
        ratios = [f"{median / medians[base]:.2f}" if base in medians else "" for base in RATIOS.values()]
        each = " ".join(f"{speed:.0f}" for speed in speeds[name])
        table.add_row(name, each, f"{median:.0f}", f"{losses[name]:.4f}", *ratios)
    return table


if __name__ == "__main__":
    main()
