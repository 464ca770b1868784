"""Training in which every worker holds the whole model: the peers and trainband in turn.

2 processes on this machine, float32, Adam. Models: ``mlp``, 784-100-10 with ReLU and batches of 100 in each process;
``convnet``, two convolutions of 3x3 with a stride of 2 to 16 and 32 channels, and a dense layer, in batches of 32;
``resnet18``, ResNet-18 with batch normalisation on images of 64x64x3, 11 million params, in batches of 8; ``gpt2``, a
GPT-2 of 6 layers of width 384, 14 million params, on 4 times 128 tokens. The data of the latter two is made up.
Contenders: bare JAX over gloo, which sums all gradients as one flat array, each array by itself, or what its compiler
finds; PyTorch's DistributedDataParallel over gloo; TensorFlow's MultiWorkerMirrored; trainband's ParameterServer with
Sync and with Async, which has 1 ps beside the workers, and its MultiWorkerMirrored. Names ending in 50 run 50 steps in
one call.

A step is one gradient of each worker and one update with their mean; with Async, one gradient and its update. Every
process gets its share of the cores as compute threads, as `trainband run` gives it; a ps has as many as a worker. All
take the same 50 batches again and again, which they hold in their own form: JAX and trainband as arrays on their
device. A case with ``numpy`` in its name is given NumPy arrays instead, as they come from most data, and put each on
the device for its step. They alternate for some rounds, because a machine's speed drifts, and the medians count.

Batch normalisation takes the means of a worker's own batch. In
trainband's MultiWorkerMirrored, and where JAX's compiler finds what to sum, they are those of all workers' batches
together, and each layer exchanges them.

The contract of a worker's program: flags ``--model M --learning_rate R --seconds S --data X.npz --marks
DIR``; a peer also gets ``--task_index I --worker_hosts C,D --threads T``, and one of trainband's tasks is started by
`trainband run`. X.npz is that of `bench.ps_mnist`. A worker

1. takes steps to warm up and to find its speed, 100 of each if they are short; from this the first worker finds how
   many fill S seconds, and leaves the number in DIR/steps, for all;
2. makes DIR/worker-I.begin where its steps so far are done, takes that many steps, and makes DIR/worker-I.end;
3. leaves {"steps", "steps_per_s", "loss"} in DIR/worker-I.json, the loss being that of its params on test examples, and
   ends with status 0.

Where the losses of workers in lockstep differ, their models do, and the case has failed.
"""

from __future__ import annotations

import json
import math
import os
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

from bench.environments import our_environment, peer_environment, tensorflow_python, torch_python
from bench.peers.steps import PROBLEMS
from bench.processes import CaseFailed, Processes, free_addresses
from bench.ps_mnist import write_data

WORKERS = 2
TRAINBAND_TASK = "bench.tasks.trainband_allreduce"
MIRRORED = "trainband-mirrored"
MIRRORED_NUMPY = "trainband-mirrored-numpy"
ASYNC = "trainband-async"
RATIOS = {"x JAX": "jax", "x DDP": "torch-ddp", "x TF": "tensorflow"}
TARGETS = ((MIRRORED, "jax", 0.97), ("trainband-sync", "torch-ddp", 1.0), (ASYNC, "torch-ddp", 1.3))
"""(contender, peer, least ratio of their examples/s)."""
MOST_DIFFERENCE = 1e-4
"""Between the losses of two workers, relative; programs for one model may round differently."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the training.

    Attributes:
      module: the worker's program.
      interpreter: whose Python runs it: ``own``, ``tensorflow`` or ``torch``.
      flags: that only this contender has.
      ps: how many parameter servers there are beside the workers.
    """

    module: str
    interpreter: str = "own"
    flags: tuple[str, ...] = ()
    ps: int = 0


CONTENDERS = {
    "jax": Contender("bench.peers.jax_steps", flags=("--sum", "flat")),
    "jax-numpy": Contender("bench.peers.jax_steps", flags=("--sum", "flat", "--numpy")),
    "jax-50": Contender("bench.peers.jax_steps", flags=("--sum", "flat", "--steps_a_call", "50")),
    "jax-one-by-one": Contender("bench.peers.jax_steps", flags=("--sum", "leaves")),
    "jax-compiler": Contender("bench.peers.jax_steps", flags=("--sum", "compiler")),
    "torch-ddp": Contender("bench.peers.torch_steps", "torch"),
    "tensorflow": Contender("bench.peers.tensorflow_steps", "tensorflow"),
    "tensorflow-50": Contender("bench.peers.tensorflow_steps", "tensorflow", flags=("--steps_a_call", "50")),
    "trainband-sync": Contender(TRAINBAND_TASK, flags=("--strategy", "sync"), ps=1),
    ASYNC: Contender(TRAINBAND_TASK, flags=("--strategy", "async"), ps=1),
    MIRRORED: Contender(TRAINBAND_TASK, flags=("--strategy", "mirrored")),
    "trainband-mirrored-50": Contender(TRAINBAND_TASK, flags=("--strategy", "mirrored", "--steps_a_call", "50")),
    MIRRORED_NUMPY: Contender(TRAINBAND_TASK, flags=("--strategy", "mirrored", "--numpy")),
    "trainband-mirrored-numpy-50": Contender(
        TRAINBAND_TASK, flags=("--strategy", "mirrored", "--numpy", "--steps_a_call", "50")
    ),
}
CHOSEN = {
    "resnet18": ("jax", "jax-compiler", "torch-ddp", "tensorflow", "trainband-sync", ASYNC, MIRRORED),
    "gpt2": ("jax", "torch-ddp", "trainband-sync", ASYNC, MIRRORED),
}
"""The contenders on models with long steps, where it makes no difference how a step is called; else all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every contender.

    Attributes:
      seconds: of steps that are measured, about.
      threads: compute threads of each process.
      deadline_s: seconds for starting and again for ending, after which a case has failed.
    """

    model: str
    seconds: float
    threads: int
    learning_rate: float = 0.001
    deadline_s: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One contender, once.

    Attributes:
      steps: that were measured.
      steps_per_s: of the first worker.
      examples_per_s: of all workers.
      cpu_ms_per_example: processor milliseconds, user and system, of all processes between the marks of the first
        worker.
      loss: of the final params on test examples; contenders that are faster take more steps.
    """

    contender: str
    round: int
    steps: int
    steps_per_s: float
    examples_per_s: float
    cpu_ms_per_example: float
    loss: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--model", type=click.Choice(list(PROBLEMS)), default="mlp", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=5.0, show_default=True, help="Measured, each.")
@click.option("--only", type=click.Choice(list(CONTENDERS)), multiple=True, help="May be repeated; else all.")
@click.option("--tensorflow-python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--torch-python", type=click.Path(path_type=Path), envvar="TORCH_PYTHON")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one case to start.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    model: str,
    rounds: int,
    seconds: float,
    only: tuple[str, ...],
    tensorflow_python: Path | None,
    torch_python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the contenders in turn and print what came out."""
    threads = max(1, (os.cpu_count() or 1) // WORKERS)
    plan = Plan(model=model, seconds=seconds, threads=threads, deadline_s=deadline_s)
    chosen = choose(model, only)
    pythons = find_pythons(chosen, tensorflow_python, torch_python)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        data = write_data(Path(home) / "digits.npz")
        for number in range(rounds):
            for name in chosen:
                click.echo(f"round {number + 1} of {rounds}: {name}, {model}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory:
                    python = pythons[CONTENDERS[name].interpreter]
                    try:
                        runs.append(run_contender(name, number, plan, data, python, Path(directory)))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{name}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs], **summarise(runs)}))
    else:
        console = Console()
        console.width = max(console.width, 110)  # a pipe counts as 80 columns
        console.print(make_table(runs, plan))
        for line in compare(runs):
            console.print(line)


def choose(model: str, asked: Sequence[str]) -> list[str]:
    """Return the contenders to run.

    Raises:
      click.ClickException: one has no such model.
    """
    names = list(asked or CHOSEN.get(model, tuple(CONTENDERS)))
    if model == "gpt2" and any(CONTENDERS[name].interpreter == "tensorflow" for name in names):
        raise click.ClickException("TensorFlow has no gpt2 here.")
    return names


def find_pythons(names: Sequence[str], tensorflow: Path | None, torch: Path | None) -> dict[str, Path]:
    """Return the interpreters that the contenders need, by name.

    Raises:
      click.ClickException: one can be found nowhere.
    """
    needed = {CONTENDERS[name].interpreter for name in names}
    pythons = {"own": Path(sys.executable)}
    if "tensorflow" in needed:
        pythons["tensorflow"] = tensorflow_python(tensorflow)
    if "torch" in needed:
        pythons["torch"] = torch_python(torch)
    return pythons


def run_contender(name: str, number: int, plan: Plan, data: Path, python: Path, directory: Path) -> Run:
    """Run one contender once.

    Raises:
      CaseFailed: a process failed or was late, or the workers' models differ.
    """
    marks = directory / "marks"
    marks.mkdir()
    with Processes(directory) as processes:
        tasks = start(processes, CONTENDERS[name], plan, python, {"--data": data, "--marks": marks})
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        before = processes.usage()
        processes.wait_for("the last step", (marks / "worker-0.end").exists, 10 * plan.seconds + plan.deadline_s)
        after = processes.usage()
        processes.wait_for_end(tasks, plan.deadline_s)
    results: list[dict[str, Any]] = [
        json.loads((marks / f"worker-{index}.json").read_text()) for index in range(WORKERS)
    ]
    losses = [result["loss"] for result in results]
    if name != ASYNC and not all(math.isclose(loss, losses[0], rel_tol=MOST_DIFFERENCE) for loss in losses):
        raise CaseFailed(f"the workers' models have the losses {losses}; they should be one model.")
    cpu_s = sum(after[task].cpu_s - before[task].cpu_s for task in after)
    examples = PROBLEMS[plan.model].batch_size * (1 if name == ASYNC else WORKERS)
    return Run(
        contender=name,
        round=number,
        steps=results[0]["steps"],
        steps_per_s=results[0]["steps_per_s"],
        examples_per_s=results[0]["steps_per_s"] * examples,
        cpu_ms_per_example=1000 * cpu_s / (results[0]["steps"] * examples),
        loss=losses[0],
    )


def start(processes: Processes, contender: Contender, plan: Plan, python: Path, paths: dict[str, Path]) -> list[str]:
    """Start the processes of a case; give their names."""
    flags: dict[str, object] = {
        "--model": plan.model,
        "--learning_rate": plan.learning_rate,
        "--seconds": plan.seconds,
        **paths,
    }
    command = ["-m", contender.module, *contender.flags, *_words(flags)]
    own = contender.interpreter == "own"
    environment = our_environment(WORKERS) if own else peer_environment(WORKERS)
    if contender.module == TRAINBAND_TASK:
        launcher = ["-m", "trainband.cli.main", "run", "--quiet", "--ps", str(contender.ps), "--workers", str(WORKERS)]
        processes.start("job", [python, *launcher, "--threads", str(plan.threads), *command], environment)
        return ["job"]
    addresses = ",".join(free_addresses(WORKERS))
    names = [f"worker:{index}" for index in range(WORKERS)]
    for index, name in enumerate(names):
        place = {"--task_index": index, "--worker_hosts": addresses, "--threads": plan.threads}
        processes.start(name, [python, *command, *_words(place)], environment)
    return names


def _words(flags: dict[str, Any]) -> list[str]:
    return [str(part) for flag in flags.items() for part in flag]


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Return each contender's median speed, and as a multiple of some peers'."""
    speeds: dict[str, list[float]] = {}
    for run in runs:
        speeds.setdefault(run.contender, []).append(run.examples_per_s)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    times = {
        base: {name: speed / medians[base] for name, speed in medians.items()}
        for base in RATIOS.values()
        if base in medians
    }
    return {"median_examples_per_s": medians, "times": times}


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out one row for each contender; CPU is in milliseconds an example, of all processes together."""
    summary = summarise(runs)
    size = PROBLEMS[plan.model].batch_size
    table = Table(title=f"{plan.model}, {WORKERS} workers, batches of {size}, Adam, {plan.seconds:g} s each")
    table.add_column("contender")
    for title in ("examples/s each round", "median", "CPU ms", "loss", *RATIOS):
        table.add_column(title, justify="right")
    digits = 0 if max(run.examples_per_s for run in runs) > 100 else 1
    for name, median in summary["median_examples_per_s"].items():
        mine = [run for run in runs if run.contender == name]
        ratios = [summary["times"].get(base, {}).get(name) for base in RATIOS.values()]
        table.add_row(
            name,
            " ".join(f"{run.examples_per_s:.{digits}f}" for run in mine),
            f"{median:.{digits}f}",
            f"{statistics.median(run.cpu_ms_per_example for run in mine):.3g}",
            f"{statistics.median(run.loss for run in mine):.4f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def compare(runs: list[Run]) -> list[str]:
    """Say of each target that was measured whether it is met."""
    times = summarise(runs)["times"]
    reached = [(name, base, least, times.get(base, {}).get(name)) for name, base, least in TARGETS]
    return [
        f"target: {name} at least {least:g} times {base}: {'met' if ratio >= least else 'missed'} ({ratio:.2f})"
        for name, base, least, ratio in reached
        if ratio is not None
    ]


if __name__ == "__main__":
    main()
