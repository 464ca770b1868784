"""Requests per second of trainband's server beside a plain FastAPI handler and LitServe.

All serve the same jitted function (`bench/peers/serve_model.py`) by the same JSON, one image of 28 x 28 a request, on
the CPU. `fastapi` calls it for each request in FastAPI's threads, `fastapi-inline` in the event loop; `litserve` has
the same batches as we. `trainband-binary` is ours over the open inference protocol with binary tensors. The clients are
one process of sockets (`bench/tasks/http_load.py`), and each asks again as soon as it is answered. Contenders take
turns in rounds, because a machine's speed drifts; the median round counts. `CPU ms` is the server's processor time for
a request, which says more than the rest where others use the machine. `--swaps 100` instead swaps the served
version so often while 64 clients ask, and says how many requests failed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.environments import our_environment, serving_python
from bench.processes import CaseFailed, Processes, free_addresses

CONTENDERS = ("trainband", "trainband-binary", "fastapi", "fastapi-inline", "litserve")
PREDICT = "/v1/models/predict:predict"
INFER = "/v2/models/predict/infer"
START_S = 90.0
KEYS = ("p50_ms", "p99_ms", "server_cpu_ms")


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--clients", type=click.IntRange(1), multiple=True, default=(1, 8, 64), show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="For each number of clients.")
@click.option("--model", type=click.Choice(["mlp", "convnet"]), default="mlp", show_default=True)
@click.option("--only", type=click.Choice(CONTENDERS), multiple=True, help="May be repeated; else all.")
@click.option("--max-delay-ms", default=2.0, show_default=True)
@click.option("--swaps", type=click.IntRange(0), default=0, help="Swap versions under load instead.")
@click.option("--peer-python", type=click.Path(path_type=Path), help="Has FastAPI and LitServe.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(
    rounds: int,
    clients: tuple[int, ...],
    seconds: float,
    model: str,
    only: tuple[str, ...],
    max_delay_ms: float,
    swaps: int,
    peer_python: Path | None,
    as_json: bool,
) -> None:
    """Run the contenders in turn and print what came out."""
    chosen = ("trainband",) if swaps else only or CONTENDERS
    peer = serving_python(peer_python) if any(not name.startswith("trainband") for name in chosen) else None
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {count: [] for count in clients} for name in chosen}
    with tempfile.TemporaryDirectory(prefix="trainband-bench-") as home:
        write_bodies(Path(home))
        for number in range(1 if swaps else rounds):
            for name in chosen:
                click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
                with tempfile.TemporaryDirectory(dir=home) as directory, Processes(Path(directory)) as processes:
                    try:
                        flags = ["--max-delay-ms", str(max_delay_ms)] if name.startswith("trainband") else []
                        port = start(processes, name, model, peer, flags + swap_flags(swaps, Path(home)))
                        if swaps:
                            report_swaps(processes, port, Path(home), swaps, as_json)
                            return
                        for count in clients:
                            found[name][count].append(measure(processes, name, port, Path(home), count, seconds))
                    except CaseFailed as exc:
                        raise click.ClickException(f"{name}: {exc}") from exc
    if as_json:
        click.echo(json.dumps({"model": model, "found": found}))
        return
    console = Console()
    console.width = max(console.width, 130)  # a pipe counts as 80 columns
    console.print(make_table(found, model))


def write_bodies(home: Path) -> None:
    """Write one request for each protocol."""
    image = np.random.default_rng(0).random((1, 28, 28), np.float32)
    (home / "predict.body").write_bytes(json.dumps({"instances": np.round(image, 4).astype(float).tolist()}).encode())
    tensor = {
        "name": "input",
        "shape": [1, 28, 28],
        "datatype": "FP32",
        "parameters": {"binary_data_size": image.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    (home / "infer.body").write_bytes(head + image.tobytes())
    (home / "infer.header").write_text(f"Inference-Header-Content-Length: {len(head)}")


def start(processes: Processes, name: str, model: str, peer: Path | None, flags: list[str]) -> int:
    """Start a server and wait until it answers; give its port."""
    port = int(free_addresses(1)[0].rpartition(":")[2])
    words = ["--model", model, "--port", str(port), *flags]
    if name.startswith("trainband"):
        processes.start("server", [sys.executable, "-m", "bench.tasks.trainband_serve", *words], our_environment(1))
    else:
        assert peer is not None
        module = "bench.peers.litserve_predict" if name == "litserve" else "bench.peers.fastapi_predict"
        inline = ["--inline"] if name == "fastapi-inline" else []
        root = str(Path(__file__).resolve().parent.parent)
        processes.start("server", [peer, "-m", module, *words, *inline], {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"})
    body = json.dumps({"instances": np.zeros((1, 28, 28)).tolist()}).encode()
    if not flags or "--swaps" not in flags:
        processes.wait_for("it answered", lambda: answers(port, PREDICT, body), START_S)
    else:
        processes.wait_for("it was ready", lambda: answers(port, "/v2/health/ready", None), START_S)
    return port


def answers(port: int, path: str, body: bytes | None) -> bool:
    """Say whether a request is answered."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def swap_flags(swaps: int, home: Path) -> list[str]:
    """Return the server's flags for this many swaps."""
    return ["--swaps", str(swaps), "--done", str(home / "done")] if swaps else []


def measure(
    processes: Processes,
    name: str,
    port: int,
    home: Path,
    clients: int,
    seconds: float,
    also: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Load a server for a while."""
    load = f"load {name} {clients}"
    path, body, headers = PREDICT, home / "predict.body", []
    if name == "trainband-binary":
        path, body = INFER, home / "infer.body"
        headers = [
            "--header",
            (home / "infer.header").read_text(),
            "--header",
            "Content-Type: application/octet-stream",
        ]
    words = [
        "--port",
        port,
        "--path",
        path,
        "--body",
        body,
        "--clients",
        clients,
        "--seconds",
        seconds,
        *headers,
        *also,
    ]
    command = [sys.executable, "-m", "bench.tasks.http_load", *map(str, words)]
    before = processes.usage()["server"].cpu_s
    processes.start(load, command, {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)})
    processes.wait_for_end([load], seconds + 30.0)
    result = processes.result(load)
    result["server_cpu_ms"] = 1e3 * (processes.usage()["server"].cpu_s - before) / max(1, result["answered"])
    if result["failures"]:
        click.echo(f"{name}, {clients} clients: failed requests: {result['failures']}", err=True)
    return result


def report_swaps(processes: Processes, port: int, home: Path, swaps: int, as_json: bool) -> None:
    """Load the server until it has swapped so often, and print what failed."""
    result = measure(processes, "trainband", port, home, 64, swaps * 0.5 + 10.0, ["--until", home / "done"])
    processes.wait_for("it had swapped so often", (home / "done").exists, 10.0)
    after = processes.result("server")
    value = {**after, "failed": sum(result["failures"].values()), **result}
    if as_json:
        click.echo(json.dumps(value))
        return
    click.echo(
        f"{after['swaps']} swaps while 64 clients asked {result['per_s']:.0f} times a second: {value['failed']} "
        f"requests failed; p50 {result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms"
    )


def make_table(found: dict[str, dict[int, list[dict[str, Any]]]], model: str) -> Table:
    """Lay out one row for each contender and number of clients."""
    plain = [name for name in ("fastapi", "fastapi-inline") if name in found]
    table = Table(title=f"{model}, one image a request, {os.cpu_count()} cores; median of the rounds")
    table.add_column("contender")
    for column in ("clients", "requests/s", "each round", "p50 ms", "p99 ms", "CPU ms", "failed", "x plain handler"):
        table.add_column(column, justify="right")
    for name, by_clients in found.items():
        for count, results in by_clients.items():
            speed = statistics.median(result["per_s"] for result in results)
            best = max((statistics.median(r["per_s"] for r in found[one][count]) for one in plain), default=0.0)
            table.add_row(
                name,
                str(count),
                f"{speed:.0f}",
                " ".join(f"{result['per_s']:.0f}" for result in results),
                *(f"{statistics.median(result[key] for result in results):.2f}" for key in KEYS),
                str(sum(sum(result["failures"].values()) for result in results)),
                f"{speed / best:.2f}" if best else "",
            )
    return table


if __name__ == "__main__":
    main()
