"""How much of a network link a large model uses: one ps and one worker in network namespaces, joined by a link.

Cases: a plain TCP connection, trainband over UCX's TCP and over Flight, which push a gradient, apply SGD and pull the
params, as `bench.push_pull` does. The links: a veth pair as fast as the machine makes it, then one held to 10 Gb/s and
one to 1 Gb/s (`tc tbf`). A share of the link is the time that the bytes need at its rate, both ways one after the
other, divided by the time that they took; the update between them counts. Takes root.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console
from rich.table import Table

from bench.processes import CaseFailed
from bench.push_pull import Host, run_case

CASES = ("socket", "trainband-ucx", "trainband-flight")
RATES = {"veth": 0.0, "10gbit": 10e9, "1gbit": 1e9}
"""Bits a second; 0 for as fast as it goes."""
PORT = 2222


@click.command(help=__doc__.partition("\n")[0])
@click.option("--link", "links", type=click.Choice([*RATES]), multiple=True, help="May be repeated; else all.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--exchanges", type=click.IntRange(1), default=3, show_default=True, help="That count, in each round.")
@click.option("--millions", type=click.IntRange(1), default=100, show_default=True, help="Of float32.")
@click.option("--deadline", "deadline_s", default=180.0, show_default=True, help="Seconds for one case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def main(links: tuple[str, ...], rounds: int, exchanges: int, millions: int, deadline_s: float, as_json: bool) -> None:
    """Run the cases on each link in turn and print the results."""
    if os.geteuid() != 0:
        raise click.ClickException("network namespaces take root.")
    os.environ["TRAINBAND_INSECURE"] = "1"
    found: dict[str, dict[str, float]] = {}
    for link in links or RATES:
        seconds: dict[str, list[float]] = {case: [] for case in CASES}
        with joined(link) as hosts:
            for number in range(rounds):
                for case in CASES:
                    click.echo(f"{link}, round {number + 1} of {rounds}: {case}", err=True)
                    try:
                        run = run_case(case, number, millions, exchanges, None, deadline_s, hosts)
                    except CaseFailed as exc:
                        raise click.ClickException(f"{case}: {exc}") from exc
                    seconds[case].append(run.median_s)
        found[link] = {case: statistics.median(values) for case, values in seconds.items()}
    if as_json:
        click.echo(json.dumps({"millions": millions, "median_s": found}))
    else:
        console = Console()
        console.width = max(console.width, 100)  # a pipe counts as 80 columns
        console.print(make_table(found, millions))


def make_table(found: Mapping[str, Mapping[str, float]], millions: int) -> Table:
    """Lay out one row for each link and case."""
    table = Table(title=f"Push, SGD, pull of {millions} million float32 ({4 * millions} MB each way) over a link")
    for title in ("link", "case"):
        table.add_column(title)
    for title in ("median ms", "x socket", "share of the link"):
        table.add_column(title, justify="right")
    for link, medians in found.items():
        for case, median_s in medians.items():
            ideal_s = 8 * 4e6 * millions * 2 / RATES[link] if RATES[link] else 0.0
            share = f"{100 * ideal_s / median_s:.0f} %" if ideal_s else ""
            table.add_row(link, case, f"{1000 * median_s:,.0f}", f"{median_s / medians['socket']:.2f}", share)
    return table


@contextmanager
def joined(link: str) -> Iterator[dict[str, Host]]:
    """Two namespaces with a link between them, until the end of the block."""
    names = {role: f"trainband-bench-{os.getpid()}-{role}" for role in ("ps", "worker")}
    addresses = {"ps": "10.78.0.1", "worker": "10.78.0.2"}
    try:
        for name in names.values():
            _run("ip", "netns", "add", name)
        _run(
            *("ip", "-n", names["ps"], "link", "add", "card", "type", "veth"),
            *("peer", "name", "card", "netns", names["worker"]),
        )
        for role, name in names.items():
            _run("ip", "-n", name, "address", "add", f"{addresses[role]}/24", "dev", "card")
            _run("ip", "-n", name, "link", "set", "card", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            if RATES[link]:
                shape = ("root", "tbf", "rate", link, "burst", "4mb", "latency", "50ms")
                _run("tc", "-n", name, "qdisc", "add", "dev", "card", *shape)
        yield {
            role: Host(prefix=("ip", "netns", "exec", name), address=f"{addresses[role]}:{PORT}")
            for role, name in names.items()
        }
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10.0)
    if done.returncode != 0:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    main()
