"""The cost to a job of its page, with one viewer and with many (`trainband dashboard`).

One job of `examples/mnist.py`, of 1 ps and 2 workers, and the server of its page beside it. In turns, the server is
stopped (SIGSTOP), or serves one viewer, or many: the updates of the ps in each such window are counted, so that all
three are measured on the same machine at the same time. The viewers share the machine with the job, at the lowest
priority; browsers run elsewhere. On a machine that others use, too, the CPU time of a step says more than its pace: it
is that of the job's tasks and of the page's server together.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.mnist_job import MnistJob, Window, ratios_of
from bench.processes import CaseFailed, Processes, free_addresses

SETTLE_S = 1.5
"""After each change, before anything is counted: viewers come, and get all that the page remembers."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", type=click.IntRange(2), default=12, show_default=True, help="Windows of each kind.")
@click.option("--window", "window_s", default=5.0, show_default=True, help="Seconds of each.")
@click.option("--viewers", type=click.IntRange(2), default=50, show_default=True, help="The many.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--hidden", type=click.IntRange(1), default=100, show_default=True, help="Units of the network.")
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for the job to come up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int, window_s: float, viewers: int, workers: int, hidden: int, deadline_s: float, as_json: bool
) -> None:
    """Run the job and its page, and print what came out."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench-watch-") as directory, Processes(Path(directory)) as processes:
            wanted = Path(directory) / "viewers-wanted"
            found = measure(processes, wanted, rounds, window_s, viewers, workers, hidden, deadline_s)
    except CaseFailed as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table(title=f"The page beside 1 ps + {workers} workers")
    for name in ("", "no page", "1 viewer", f"{viewers} viewers"):
        table.add_column(name, justify="right" if name else "left")
    cases = [found["0"], found["1"], found[str(viewers)]]
    table.add_row("steps/s, median", *(f"{one['steps_s']:,.0f}" for one in cases))
    table.add_row("of those without, median of rounds", *(f"{one['ratio']:.3f}" for one in cases))
    table.add_row("its quartiles", *(" to ".join(f"{q:.3f}" for q in one["ratio_quartiles"]) for one in cases))
    table.add_row("CPU a step, with the page's server", *(f"{one['cpu_ms']:.3f} ms" for one in cases))
    table.add_row("cores of the server", *(f"{one['page_cores']:.4f}" for one in cases))
    table.add_row("its share of all CPU", *(f"{one['page_share']:.2%}" for one in cases))
    Console().print(table)


def measure(
    processes: Processes,
    wanted: Path,
    rounds: int,
    window_s: float,
    many: int,
    workers: int,
    hidden: int,
    deadline_s: float,
) -> dict[str, Any]:
    """Brings everything up and measures."""
    ps, web, *others = free_addresses(2 + workers)
    job = MnistJob(processes, [ps, *others], hidden, deadline_s)
    wanted.write_text("0")
    port = web.rpartition(":")[2]
    page = [sys.executable, "-m", "trainband.cli.main", "dashboard", ps, "--port", port, "--insecure"]
    processes.start("page", page, job.environment)
    processes.wait_for("the page is served", lambda: _listens(web), deadline_s)
    looking: list[str | Path] = [sys.executable, "-m", "bench.tasks.page_viewers", f"127.0.0.1:{port}", wanted]
    processes.start("viewers", looking, job.environment)
    processes.wait_a_while(2.0)
    server = processes._running["page"].pid  # noqa: SLF001
    kinds = (0, 1, many)
    windows: dict[int, list[Window]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):  # a trend hits all alike
            wanted.write_text(str(kind))
            os.kill(server, signal.SIGCONT if kind else signal.SIGSTOP)
            processes.wait_a_while(SETTLE_S)
            one = job.window(window_s, "page")
            windows[kind].append(one)
            click.echo(f"round {number + 1} of {rounds}, {kind} viewers: {one.steps_s:,.0f} steps/s", err=True)
    os.kill(server, signal.SIGCONT)
    return {
        str(kind): {
            "steps_s": statistics.median(one.steps_s for one in found),
            **ratios_of(found, windows[0]),
            "cpu_ms": 1e3 * statistics.median(one.cpu_s for one in found),
            "page_cores": statistics.median(one.beside_cpu_s / one.seconds for one in found),
            "page_share": statistics.median(one.beside_cpu_s / (one.job_cpu_s + one.beside_cpu_s) for one in found),
            "windows": [one.steps_s for one in found],
        }
        for kind, found in windows.items()
    }


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
