"""Moving a large model: push a gradient, apply SGD, pull the params; one ps and one worker on loopback.

Cases: a plain TCP connection that does the same; TensorFlow 2.21; trainband with the transport it chooses (shared
memory), over UCX's TCP and over Flight; and a copy within one process's memory, for scale. They alternate for some
rounds, each round in fresh processes, of which the first exchanges are left out (memory is touched for the first time
then).

The contract of a program: flags ``--role ps|worker --address HOST:PORT --millions M --rounds R``, for trainband also
``--transport auto|flight|ucx``. The params are M million float32. The worker pushes, waits for the update and pulls, R
times, and prints one line of JSON, {"seconds": [of each time]}; then it ends with status 0. The ps serves until it is
killed, or ends with status 0.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench import security
from bench.environments import ROOT, our_environment, tensorflow_python
from bench.processes import CaseFailed, Processes, free_addresses

SOCKET_TASK = ROOT / "bench" / "peers" / "socket_push_pull.py"
TENSORFLOW_TASK = ROOT / "bench" / "peers" / "tensorflow_push_pull.py"
TRAINBAND_TASK = ROOT / "bench" / "tasks" / "trainband_push_pull.py"
CASES = ("socket", "tensorflow", "trainband", "trainband-ucx", "trainband-flight", "copy")
SECURED = ("trainband-secret", "trainband-tls", "trainband-flight-secret", "trainband-flight-tls")
LEFT_OUT = 2
LARGEST_TENSORFLOW_MILLIONS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One case, once.

    Attributes:
      seconds: of every exchange that counts.
      peak_mib: each task's largest resident memory.
    """

    case: str
    round: int
    seconds: list[float]
    peak_mib: dict[str, float]

    @property
    def median_s(self) -> float:
        """The median exchange, in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Another machine, so to speak.

    Attributes:
      prefix: of the command line, which makes it run there.
      address: of a listener there.
    """

    prefix: tuple[str, ...]
    address: str


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--exchanges", type=click.IntRange(1), default=5, show_default=True, help="That count, in each round.")
@click.option("--millions", type=click.IntRange(1), default=100, show_default=True, help="Of float32.")
@click.option("--case", "cases", type=click.Choice(CASES + SECURED), multiple=True, help="May be repeated.")
@click.option("--secured", is_flag=True, help="Trainband with and without security, in place of the peers.")
@click.option("--tensorflow-python", "python", type=click.Path(path_type=Path), envvar="TENSORFLOW_PYTHON")
@click.option("--deadline", "deadline_s", default=180.0, show_default=True, help="Seconds for one case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int,
    exchanges: int,
    millions: int,
    cases: tuple[str, ...],
    secured: bool,
    python: Path | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the cases in turn and print what came out."""
    chosen = cases or (("trainband", "trainband-flight", *SECURED) if secured else CASES)
    if any(case.startswith("trainband") for case in chosen) and not TRAINBAND_TASK.exists():
        raise click.ClickException(f"{TRAINBAND_TASK} is missing; choose the other cases by --case.")
    if "tensorflow" in chosen and millions > LARGEST_TENSORFLOW_MILLIONS:
        raise click.ClickException(f"TensorFlow sends at most {LARGEST_TENSORFLOW_MILLIONS} million float32 at once.")
    tensorflow = tensorflow_python(python) if "tensorflow" in chosen else None
    runs: list[Run] = []
    for number in range(rounds):
        for case in chosen:
            click.echo(f"round {number + 1} of {rounds}: {case}", err=True)
            try:
                if case == "copy":
                    runs.append(run_copy(number, millions, exchanges))
                else:
                    runs.append(run_case(case, number, millions, exchanges, tensorflow, deadline_s))
            except CaseFailed as exc:
                raise click.ClickException(f"{case}: {exc}") from exc
    if as_json:
        plan = {"rounds": rounds, "exchanges": exchanges, "millions": millions}
        click.echo(json.dumps({"plan": plan, "runs": [asdict(run) for run in runs], **summarise(runs)}))
    else:
        console = Console()
        console.width = max(console.width, 100)  # a pipe counts as 80 columns
        console.print(make_table(runs, millions))


def run_case(
    case: str,
    number: int,
    millions: int,
    exchanges: int,
    tensorflow: Path | None,
    deadline_s: float,
    hosts: Mapping[str, Host] = MappingProxyType({}),
) -> Run:
    """Run one case once, in processes of its own.

    Args:
      hosts: by role, where it runs; this machine where empty.

    Raises:
      CaseFailed: a task failed or was late.
    """
    address, worker_address = free_addresses(2)
    if hosts:
        address = hosts["ps"].address
    environment: dict[str, str] = {}
    if case == "socket":
        command: list[str | Path] = [sys.executable, SOCKET_TASK]
    elif case == "tensorflow":
        command = [tensorflow or sys.executable, TENSORFLOW_TASK, "--worker_address", worker_address]
    else:
        transport = next((way for way in ("flight", "ucx") if way in case), "auto")
        command = [sys.executable, TRAINBAND_TASK, "--transport", transport]
        environment = our_environment(1)
    command += ["--address", address, "--millions", str(millions), "--rounds", str(LEFT_OUT + exchanges)]
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as directory, Processes(Path(directory)) as processes:
        environment |= security.environment(case.rpartition("-")[2], Path(directory))
        for role in ("ps", "worker"):
            prefix = hosts[role].prefix if hosts else ()
            processes.start(role, [*prefix, *command, "--role", role], environment)
        processes.wait_for_end(["worker"], deadline_s)
        peaks = {name: usage.peak_mib for name, usage in processes.usage().items()}
        seconds = processes.result("worker")["seconds"]
    if len(seconds) != LEFT_OUT + exchanges:
        raise CaseFailed(f"the worker gave {len(seconds)} times, wanted {LEFT_OUT + exchanges}.")
    return Run(case=case, round=number, seconds=seconds[LEFT_OUT:], peak_mib=peaks)


def run_copy(number: int, millions: int, exchanges: int) -> Run:
    """Copy the same amount within memory that was touched before."""
    source = np.ones(millions * 1_000_000, np.float32)
    target = np.zeros_like(source)
    seconds = []
    for _ in range(LEFT_OUT + exchanges):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return Run(case="copy", round=number, seconds=seconds[LEFT_OUT:], peak_mib={})


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Return each case's median of its rounds' medians, and as a multiple of the socket's and of TensorFlow's."""
    medians = {
        case: statistics.median(run.median_s for run in runs if run.case == case)
        for case in dict.fromkeys(run.case for run in runs)
    }
    return {
        "median_s": medians,
        "times_socket": _ratios(medians, "socket"),
        "times_tensorflow": _ratios(medians, "tensorflow"),
    }


def _ratios(medians: dict[str, float], base: str) -> dict[str, float]:
    return {case: value / medians[base] for case, value in medians.items()} if base in medians else {}


def make_table(runs: list[Run], millions: int) -> Table:
    """Lay out one row for each case."""
    summary = summarise(runs)
    table = Table(title=f"Push, SGD, pull of {millions} million float32 ({4 * millions} MB)")
    table.add_column("case")
    for title in ("ms each round", "median ms", "x socket", "x TF", "ps MiB", "worker MiB"):
        table.add_column(title, justify="right")
    for case, median_s in summary["median_s"].items():
        mine = [run for run in runs if run.case == case]
        ratios = [summary[key].get(case) for key in ("times_socket", "times_tensorflow")]
        table.add_row(
            case,
            " ".join(f"{1000 * run.median_s:.0f}" for run in mine),
            f"{1000 * median_s:.0f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            *(f"{max(run.peak_mib.get(role, 0.0) for run in mine):.0f}" for role in ("ps", "worker")),
        )
    return table


if __name__ == "__main__":
    main()
