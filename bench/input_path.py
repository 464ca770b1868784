"""How much of a step the input path takes: batches for the training of `bench.ps_mnist`, from several sources.

1 ps and 2 workers on loopback, async; 784-100-10, batches of 100 images of 784 uint8, of as many examples as MNIST has.
Each worker trains as `Trainer.fit` does, and a clock runs around what belongs to its input: the next batch out of the
feed and the word that it was trained on, and, "with positions", the position that a checkpoint would need, after each
step. The share is the mean of that, interruptions included, over the median of all the step.

The sources: `trainband.data.Batches`; `trainband.data.shared`, whose pieces come from the ps; and a grain MapDataset,
shuffled and batched, where there is grain. They alternate for some rounds, and the medians count.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment
from bench.processes import CaseFailed, Processes, free_addresses

TASK = "bench.tasks.trainband_input_path"
SOURCES = ("batches", "shared", "grain")
WORKERS = ("worker:0", "worker:1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One source, once; of the first worker.

    Attributes:
      positions: whether a position was asked for after each step.
      input_s: the mean seconds that a step spent on its batch.
      step_s: the median seconds of a whole step.
      reads_ahead: whether a thread got the batches ready; its own time is not in `input_s`.
    """

    source: str
    positions: bool
    round: int
    input_s: float
    step_s: float
    reads_ahead: bool

    @property
    def case(self) -> str:
        """The source, and whether with positions."""
        return case_name(self.source, self.positions)

    @property
    def share(self) -> float:
        """Of the step."""
        return self.input_s / self.step_s


@click.command(help=__doc__.partition("\n")[0])
@click.option("--source", "sources", type=click.Choice(SOURCES), multiple=True, help="May be repeated; else all.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--train_steps", type=click.IntRange(1000), default=6000, show_default=True, help="Of the job, each.")
@click.option("--examples", type=click.IntRange(1000), default=60_000, show_default=True)
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for one job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    sources: tuple[str, ...], rounds: int, train_steps: int, examples: int, deadline_s: float, as_json: bool
) -> None:
    """Run the jobs in turn and print what came out."""
    chosen = sources or SOURCES
    if "grain" in chosen and find_spec("grain") is None:
        click.echo("grain is left out: it is not installed.", err=True)
        chosen = tuple(source for source in chosen if source != "grain")
    runs: list[Run] = []
    for number in range(rounds):
        for source in chosen:
            for positions in (False, True):
                click.echo(f"round {number + 1} of {rounds}: {case_name(source, positions)}", err=True)
                flags = ["--source", source, "--train_steps", str(train_steps), "--examples", str(examples)]
                try:
                    result = run_job([*flags, *(["--positions"] if positions else [])], deadline_s)
                except CaseFailed as exc:
                    raise click.ClickException(f"{source}: {exc}") from exc
                runs.append(Run(source=source, positions=positions, round=number, **result))
    if as_json:
        plan = {"rounds": rounds, "train_steps": train_steps, "examples": examples}
        click.echo(json.dumps({"plan": plan, "runs": [asdict(run) for run in runs], "share": summarise(runs)}))
    else:
        console = Console()
        console.width = max(console.width, 110)  # a pipe counts as 80 columns
        console.print(make_table(runs, train_steps))


def case_name(source: str, positions: bool) -> str:
    """Name a case in the words of the table."""
    return f"{source}, with positions" if positions else source


def run_job(flags: Sequence[str], deadline_s: float) -> dict[str, Any]:
    """Train once; give what the first worker says.

    Raises:
      CaseFailed: a task failed or was late.
    """
    addresses = free_addresses(1 + len(WORKERS))
    command = [
        sys.executable,
        "-m",
        TASK,
        *flags,
        "--ps_hosts",
        addresses[0],
        "--worker_hosts",
        ",".join(addresses[1:]),
    ]
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory, Processes(Path(directory)) as processes:
        for task in ("ps:0", *WORKERS):
            job, _, index = task.partition(":")
            mine = ["--job_name", job, "--task_index", index]
            processes.start(task, [*command, *mine], our_environment(len(WORKERS)))
        processes.wait_for_end(WORKERS, deadline_s)
        return processes.result(WORKERS[0])


def summarise(runs: Sequence[Run]) -> dict[str, float]:
    """Return each case's median share of the step."""
    cases = dict.fromkeys(run.case for run in runs)
    return {case: statistics.median(run.share for run in runs if run.case == case) for case in cases}


def make_table(runs: Sequence[Run], train_steps: int) -> Table:
    """Lay out the cases; times are in microseconds."""
    table = Table(title=f"1 ps, {len(WORKERS)} workers, async, {train_steps} steps of 100 images")
    table.add_column("source")
    for title in ("input µs, each round", "median", "step µs", "% of the step", "reads ahead"):
        table.add_column(title, justify="right")
    for case, share in summarise(runs).items():
        mine = [run for run in runs if run.case == case]
        table.add_row(
            case,
            " ".join(f"{1e6 * run.input_s:.1f}" for run in mine),
            f"{1e6 * statistics.median(run.input_s for run in mine):.1f}",
            f"{1e6 * statistics.median(run.step_s for run in mine):.0f}",
            f"{100 * share:.1f}",
            "yes" if any(run.reads_ahead for run in mine) else "no",
        )
    return table


if __name__ == "__main__":
    main()
