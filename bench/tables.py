"""Training a table of embeddings on parameter servers: TensorFlow, dense JAX and trainband in turn.

A recommender in the manner of DLRM: 26 ids of a Zipf distribution (1.05) and 13 numbers an example; all ids have their
row of 16 values in one table of 5 million; a factorization machine and small dense layers make a click of them. Batches
of 512 in each of 2 workers, asynchronous, Adagrad for rows and params. TensorFlow has the table as a variable that is
divided among the ps, updated by `IndexedSlices`; bare JAX is one process with the table as a param; trainband's ids are
hashes of 64 bits, and every id has its row before the clock starts. The cases alternate for some rounds, because a
machine's speed drifts, and the medians count.

With several ``--ids``, trainband alone is measured, to see what the size of the table adds to the cost of a step. A
batch from a larger table has more distinct ids, so the last column has the cost of each beside that of the step.

The contract of a task's program: the flags of `bench.peers.clicks`. A worker

1. makes the file DIR/worker-I.ready when its next act is its first step, and waits for the others';
2. makes DIR/worker-I.begin after its warm-up, and DIR/worker-I.end S seconds later;
3. prints one line of JSON: steps and wall_s of all workers between its marks, and the loss on batches that no worker
   trained on.
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

from bench import environments
from bench.environments import our_environment, peer_environment
from bench.processes import CaseFailed, Processes, free_addresses
from trainband.job.statistics import PsStatus
from trainband.monitor.inquiry import Inquiry

TENSORFLOW, JAX = "tensorflow", "jax"
TRANSPORTS = {"auto": "trainband", "ucx": "trainband-ucx", "flight": "trainband-flight"}
MODULES = {
    TENSORFLOW: "bench.peers.tensorflow_tables",
    JAX: "bench.peers.jax_table",
    **dict.fromkeys(TRANSPORTS.values(), "bench.tasks.trainband_tables"),
}
WORKERS = 2
IDS = 5_000_000
CHIEF = "worker:0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One way to do the training; `ps`: how many there are, 0 for bare JAX, which has one worker."""

    name: str
    ps: int
    ids: int

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return WORKERS if self.ps else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of every case; `deadline_s`: seconds for starting and filling the table, and again for ending."""

    seconds: float
    batch_size: int
    deadline_s: float
    learning_rate: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One case, once.

    Attributes:
      examples_per_s: of all workers.
      step_ms: of a worker.
      ps_cpu_ms: processor milliseconds of all ps for a step of a worker.
      worker_cpu_ms: likewise of the workers.
      ps_mib: memory of all ps at the end of the measurement, 0 without one.
      worker_mib: likewise of the workers.
      rows: in the table.
      rows_mib: of rows and optimizer state and, of trainband, their index and counters; 0 if not known.
      step_kb: gradients, params and rows that travel for a step of a worker; 0 if not known.
      distinct: ids of a batch.
      loss: on batches that no worker trained on; faster cases have trained on more.
    """

    case: Case
    round: int
    examples_per_s: float
    step_ms: float
    ps_cpu_ms: float
    worker_cpu_ms: float
    ps_mib: float
    worker_mib: float
    rows: int
    rows_mib: float
    step_kb: float
    distinct: float
    loss: float


@click.command(help=__doc__.partition("\n")[0])
@click.option("--ids", "sizes", multiple=True, type=click.IntRange(1000), default=(IDS,), show_default=True)
@click.option("--ps", "counts", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True)
@click.option("--transport", "transports", multiple=True, type=click.Choice(list(TRANSPORTS)), default=("auto",))
@click.option("--only", multiple=True, type=click.Choice([TENSORFLOW, JAX, "trainband"]), help="May be repeated.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=10.0, show_default=True, help="Measured, each.")
@click.option("--batch_size", type=click.IntRange(1), default=512, show_default=True)
@click.option("--tensorflow-python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--deadline", "deadline_s", default=300.0, show_default=True, help="Seconds for one case to start.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    transports: tuple[str, ...],
    only: tuple[str, ...],
    rounds: int,
    seconds: float,
    batch_size: int,
    tensorflow_python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the cases in turn and print the medians."""
    only = only or (("trainband",) if len(sizes) > 1 else (TENSORFLOW, JAX, "trainband"))
    python = environments.tensorflow_python(tensorflow_python) if TENSORFLOW in only else Path()
    names = [TENSORFLOW] * (TENSORFLOW in only) + [TRANSPORTS[one] for one in transports if "trainband" in only]
    cases = [Case(name=JAX, ps=0, ids=ids) for ids in sizes if JAX in only]
    cases += [Case(name=name, ps=ps, ids=ids) for ps in counts for ids in sizes for name in names]
    plan = Plan(seconds=seconds, batch_size=batch_size, deadline_s=deadline_s)
    runs: list[Run] = []
    for number in range(rounds):
        for case in cases:
            click.echo(f"round {number + 1} of {rounds}: {case.name}, {case.ps} ps, {case.ids:,} ids", err=True)
            with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory:
                try:
                    runs.append(run_case(case, number, plan, python, Path(directory)))
                except CaseFailed as exc:
                    raise click.ClickException(f"{case}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"plan": asdict(plan), "runs": [asdict(run) for run in runs]}))
        return
    console = Console()
    console.width = max(console.width, 160)  # a pipe counts as 80 columns
    console.print(make_table(runs, plan))


def run_case(case: Case, number: int, plan: Plan, tensorflow: Path, directory: Path) -> Run:
    """Run one case.

    Raises:
      CaseFailed: a task failed or was late.
    """
    is_ours = case.name in TRANSPORTS.values()
    addresses = free_addresses(case.ps + case.workers)
    marks = directory / "marks"
    marks.mkdir()
    flags = {
        "--ps_hosts": ",".join(addresses[: case.ps]),
        "--worker_hosts": ",".join(addresses[case.ps :]),
        "--table": case.ids,
        "--batch_size": plan.batch_size,
        "--learning_rate": plan.learning_rate,
        "--seconds": plan.seconds,
        "--marks": marks,
        "--transport": next((one for one, name in TRANSPORTS.items() if name == case.name), "auto"),
    }
    python: str | Path = tensorflow if case.name == TENSORFLOW else sys.executable
    command = [python, "-m", MODULES[case.name], *(str(part) for flag in flags.items() for part in flag)]
    environment = (peer_environment if case.name == TENSORFLOW else our_environment)(case.workers)
    ps = [f"ps:{index}" for index in range(case.ps)]
    workers = [f"worker:{index}" for index in range(case.workers)]
    asked = addresses[: case.ps] if is_ours else []
    with Processes(directory) as processes:
        for task in (*ps, *workers):
            job, _, index = task.partition(":")
            processes.start(task, [*command, "--job_name", job, "--task_index", index], environment)
        processes.wait_for("the end of the warm-up", (marks / "worker-0.begin").exists, plan.deadline_s)
        cpu, before = processes.usage(), statuses(asked)
        processes.wait_for("the last step", (marks / "worker-0.end").exists, plan.deadline_s)
        cpu_after, after, mib = processes.usage(), statuses(asked), processes.memory_mib()
        processes.wait_for_end([*workers, *(ps if is_ours else [])], plan.deadline_s)
        result = processes.result(CHIEF)
    steps: int = result["steps"]
    examples_per_s = steps * plan.batch_size / result["wall_s"]

    def cpu_ms(tasks: Sequence[str]) -> float:
        return 1000 / steps * sum(cpu_after[task].cpu_s - cpu[task].cpu_s for task in tasks)

    return Run(
        case=case,
        round=number,
        examples_per_s=examples_per_s,
        step_ms=1000 * case.workers * plan.batch_size / examples_per_s,
        ps_cpu_ms=cpu_ms(ps),
        worker_cpu_ms=cpu_ms(workers),
        ps_mib=sum(mib[task] for task in ps),
        worker_mib=sum(mib[task] for task in workers),
        rows=sum(table.rows for one in after for table in one.tables) or case.ids,
        rows_mib=sum(table.nbytes for one in after for table in one.tables) / 2**20,
        step_kb=(traffic(after) - traffic(before)) / steps / 1000,
        distinct=result["distinct"],
        loss=result["loss"],
    )


def statuses(addresses: Sequence[str]) -> list[PsStatus]:
    """Ask these ps for their statuses."""
    found = []
    for address in addresses:
        with Inquiry(address, 10.0, advice="This is a ps of the benchmark") as inquiry:
            found.append(inquiry.ask())
    return found


def traffic(found: Sequence[PsStatus]) -> int:
    """Return the bytes that these ps have received and sent."""
    return sum(one.bytes_in + one.bytes_out for one in found)


def make_table(runs: list[Run], plan: Plan) -> Table:
    """Lay out one row for each case, of medians."""
    table = Table(title=f"{WORKERS} workers, batches of {plan.batch_size}")
    columns = (
        *("case", "ps", "ids", "distinct", "examples/s", "median", "step ms", "ps CPU ms", "worker CPU ms", "ps MiB"),
        *("worker MiB", "rows MiB", "kB a step", "loss", "x TF", "x JAX", "step x smallest", "an id"),
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "case" else "right")
    medians = {case: _median(runs, case, "examples_per_s") for case in dict.fromkeys(run.case for run in runs)}
    for case, speed in medians.items():
        mine = [run for run in runs if run.case == case]
        smallest = min((one for one in medians if (one.name, one.ps) == (case.name, case.ps)), key=lambda one: one.ids)
        bases = (
            Case(name=TENSORFLOW, ps=case.ps, ids=case.ids),
            Case(name=JAX, ps=0, ids=case.ids),
        )
        ratios = [f"{speed / medians[base]:.2f}" if base in medians else "" for base in bases]
        growth = medians[smallest] / speed
        figure: dict[str, Any] = {name: _median(runs, case, name) for name in Run.__slots__ if name != "case"}
        growth_an_id = growth * _median(runs, smallest, "distinct") / figure["distinct"]
        table.add_row(
            case.name,
            str(case.ps),
            f"{case.ids:.0e}" if case.ids >= 10**7 else f"{case.ids:,}",
            f"{figure['distinct']:.0f}",
            " ".join(f"{run.examples_per_s:.0f}" for run in mine),
            f"{speed:.0f}",
            *(f"{figure[name]:.2f}" for name in ("step_ms", "ps_cpu_ms", "worker_cpu_ms")),
            *(f"{figure[name]:.0f}" for name in ("ps_mib", "worker_mib", "rows_mib", "step_kb")),
            f"{figure['loss']:.4f}",
            *ratios,
            *(["", ""] if smallest == case else [f"{growth:.2f}", f"{growth_an_id:.2f}"]),
        )
    return table


def _median(runs: list[Run], case: Case, figure: str) -> float:
    return float(statistics.median(getattr(run, figure) for run in runs if run.case == case))


if __name__ == "__main__":
    main()
