"""The cost to a job of a server that follows it, and the age of its answers (`trainband serve --follow`).

One job of `examples/mnist.py`, of 1 ps and 2 workers, and one server beside it. In turns, the server follows, or is
stopped (SIGSTOP) so that the job has the machine to itself: the updates of the ps in each such window are counted, so
that both are measured on the same machine at the same time. On a machine that others use, too, the CPU time of a step
says more than its pace: it is that of the job's tasks and of the server together. Then, while it follows, a client asks
for predictions, and each update that the ps makes is timed until the first answer that was computed with it (or a later
one).
"""

from __future__ import annotations

import bisect
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.environments import ROOT
from bench.mnist_job import MnistJob, Window, ratios_of
from bench.processes import CaseFailed, Processes, free_addresses

SETTLE_S = 0.7
"""After each change, before anything is counted."""
LOOK_S = 0.05
BODY = json.dumps({"inputs": [{"name": "input", "shape": [1, 784], "datatype": "FP32", "data": [0.5] * 784}]})


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pairs", type=click.IntRange(2), default=12, show_default=True, help="Windows with and without.")
@click.option("--window", "window_s", default=5.0, show_default=True, help="Seconds of each.")
@click.option("--freshness", "freshness_s", default=15.0, show_default=True, help="Seconds in which answers are timed.")
@click.option("--interval", "interval_s", default=0.5, show_default=True, help="--follow-interval of the server.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--hidden", type=click.IntRange(1), default=100, show_default=True, help="Units of the network.")
@click.option("--deadline", "deadline_s", default=120.0, show_default=True, help="Seconds for the job to come up.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    pairs: int,
    window_s: float,
    freshness_s: float,
    interval_s: float,
    workers: int,
    hidden: int,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Run the job and the server, and print what came out."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench-follow-") as directory, Processes(Path(directory)) as processes:
            found = measure(processes, pairs, window_s, freshness_s, interval_s, workers, hidden, deadline_s)
    except CaseFailed as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table(title=f"serve --follow beside 1 ps + {workers} workers, every {interval_s:g} s")
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_row("steps/s without, median", f"{found['alone']:,.0f}")
    table.add_row("steps/s followed, median", f"{found['followed']:,.0f}")
    table.add_row("followed / without, median of pairs", f"{found['ratio']:.3f}")
    table.add_row("its quartiles", " to ".join(f"{one:.3f}" for one in found["ratio_quartiles"]))
    table.add_row("CPU a step without, median", f"{found['cpu_ms_alone']:.3f} ms")
    table.add_row("CPU a step followed, with the server's", f"{found['cpu_ms_followed']:.3f} ms")
    table.add_row("cores that the server used", f"{found['server_cores']:.3f}")
    table.add_row("from update to answer, median", f"{found['freshness_median_s']:.2f} s")
    table.add_row("p99", f"{found['freshness_p99_s']:.2f} s")
    table.add_row("largest", f"{found['freshness_max_s']:.2f} s")
    Console().print(table)


def measure(
    processes: Processes,
    pairs: int,
    window_s: float,
    freshness_s: float,
    interval_s: float,
    workers: int,
    hidden: int,
    deadline_s: float,
) -> dict[str, Any]:
    """Brings everything up and measures."""
    ps, web, *others = free_addresses(2 + workers)
    job = MnistJob(processes, [ps, *others], hidden, deadline_s)
    model = f"{ROOT / 'bench' / 'tasks' / 'mnist_predict.py'}:predict"
    serve = [sys.executable, "-m", "trainband.cli.main", "serve", "--model", model]
    serve += ["--input", "input:float32[batch,784]", "--follow", ps, "--follow-interval", str(interval_s)]
    serve += ["--port", web.rpartition(":")[2], "--max-batch", "1"]
    processes.start("server", serve, job.environment)
    processes.wait_for("the server serves", lambda: _answered(web) > 0, deadline_s)
    server = processes._running["server"].pid  # noqa: SLF001
    windows: dict[bool, list[Window]] = {True: [], False: []}
    for number in range(2 * pairs):
        is_followed = (number % 4) in (1, 2)  # without, with, with, without: a trend hits both alike
        os.kill(server, signal.SIGCONT if is_followed else signal.SIGSTOP)
        processes.wait_a_while(SETTLE_S)
        one = job.window(window_s, "server")
        windows[is_followed].append(one)
        click.echo(f"window {number + 1} of {2 * pairs}: {one.steps_s:,.0f} steps/s", err=True)
    os.kill(server, signal.SIGCONT)
    processes.wait_a_while(2.0)
    ages = freshness(job, web, freshness_s)
    followed, alone = windows[True], windows[False]
    return {
        "alone": statistics.median(one.steps_s for one in alone),
        "followed": statistics.median(one.steps_s for one in followed),
        **ratios_of(followed, alone),
        "cpu_ms_alone": 1e3 * statistics.median(one.cpu_s for one in alone),
        "cpu_ms_followed": 1e3 * statistics.median(one.cpu_s for one in followed),
        "server_cores": statistics.median(one.beside_cpu_s / one.seconds for one in followed),
        "freshness_median_s": statistics.median(ages),
        "freshness_p99_s": ages[int(0.99 * len(ages))],
        "freshness_max_s": ages[-1],
        "updates_timed": len(ages),
        "windows": {"alone": [one.steps_s for one in alone], "followed": [one.steps_s for one in followed]},
        "cpu_s_of_windows": {"alone": [one.cpu_s for one in alone], "followed": [one.cpu_s for one in followed]},
    }


def freshness(job: MnistJob, web: str, seconds: float) -> list[float]:
    """How old each update of the ps was when an answer was first computed with it, sorted."""
    made: list[tuple[int, float]] = []
    answered: list[tuple[int, float]] = []
    end = time.monotonic() + seconds

    def watch_ps() -> None:
        while time.monotonic() < end:
            made.append((job.version(), time.monotonic()))
            time.sleep(LOOK_S)

    watching = threading.Thread(target=watch_ps, daemon=True)
    watching.start()
    while time.monotonic() < end:
        version = _answered(web)
        if not answered or version > answered[-1][0]:
            answered.append((version, time.monotonic()))
        time.sleep(LOOK_S)
    watching.join()
    steps = [version for version, _ in made]
    ages = []
    for (before, _), (version, at) in pairwise(answered):
        for step in range(before + 1, version + 1):
            number = bisect.bisect_left(steps, step)
            if 0 < number < len(made):  # made between two looks: taken for made at the first
                ages.append(at - made[number - 1][1])
    if not ages:
        raise CaseFailed("no update was seen in an answer.")
    return sorted(ages)


def _answered(web: str) -> int:
    """With which version a prediction was computed; 0 where none comes."""
    connection = http.client.HTTPConnection(web, timeout=10.0)
    try:
        connection.request("POST", "/v2/models/predict/infer", BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
    except (OSError, ValueError):
        return 0
    finally:
        connection.close()
    return int(told["model_version"]) if answer.status == 200 else 0


if __name__ == "__main__":
    main()
