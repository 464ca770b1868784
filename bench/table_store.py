"""The store of a table: rows a second that one core looks up and updates, and the memory of a row.

Each case fills a store with rows, then looks up and updates rows in batches whose ids follow Zipf's law with exponent
1.05 over all rows, once uniformly as well. The distinct ids of a batch are counted, as a ps sees them. Times are
processor time of the store alone, after one batch that is not counted, so that other work on the machine disturbs them
less; the best and the median of several rounds are printed.

`--rows 100000000` needs 16 GB for rows of 16 under Adagrad, and is left to the caller.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Printed

from trainband.ps.tables import TableStore, summed, unique
from trainband.rows import Adagrad, AfterCount, Table

EXPONENT = 1.05
FILLED = 65536
"""Rows that are made with one update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One case: million rows a second, the best and the median of the rounds; bytes of a row, and over its payload."""

    rows: int
    dim: int
    ids: str
    admission: bool
    insert: float
    lookup: tuple[float, float]
    update: tuple[float, float]
    bytes_per_row: float
    over_payload: float
    longest_insert_ms: float


def ids_of(ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Scattered ids, as hashes of strings are."""
    return ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)


def zipf_ranks(random: np.random.Generator, rows: int, count: int) -> NDArray[np.int64]:
    """Ranks below `rows` by Zipf's law: the distribution function is inverted as if ranks were real numbers."""
    power = 1.0 - EXPONENT
    drawn = (1.0 + random.random(count) * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks: NDArray[np.int64] = np.minimum(drawn.astype(np.int64), rows) - 1
    return ranks


def batches(law: str, rows: int, size: int, count: int) -> Iterator[NDArray[np.uint64]]:
    """The distinct ids of batches of `size` ids."""
    random = np.random.default_rng(7)
    for _ in range(count):
        ranks = zipf_ranks(random, rows, size) if law == "zipf" else random.integers(0, rows, size)
        yield np.unique(ids_of(ranks))


def speed(work: Callable[[NDArray[np.uint64]], object], rounds: Sequence[Sequence[NDArray[np.uint64]]]) -> list[float]:
    """Million rows a second in each round."""
    work(rounds[0][0])
    found = []
    for ids in rounds:
        start = time.process_time()
        for some in ids:
            work(some)
        found.append(sum(map(len, ids)) / (time.process_time() - start) / 1e6)
    return found


def measure(rows: int, dim: int, *, admission: bool, batch: int, rounds: int) -> Iterator[Figures]:
    """The figures of one store, by the law of its ids."""
    table = Table(
        "bench", dim=dim, optimizer=Adagrad(0.05), admit=AfterCount(2, counters=4 * rows) if admission else None
    )
    store = TableStore(table)
    gradients = np.random.default_rng(1).standard_normal((max(batch, FILLED), dim), np.float32)
    order = np.random.default_rng(2).permutation(rows)
    spent, longest, given = 0.0, 0.0, 0
    for step in range(2 if admission else 1):
        for start in range(0, rows, FILLED):
            ids = np.sort(ids_of(order[start : start + FILLED]))
            begin = time.process_time()
            store.apply(ids, gradients[: len(ids)], step)
            taken = time.process_time() - begin
            spent, longest, given = spent + taken, max(longest, taken), given + len(ids)
    filled = store.statistics()
    for law in ("zipf", "uniform"):
        chosen = list(batches(law, rows, batch, 12 * rounds))
        drawn = [chosen[start : start + 12] for start in range(0, len(chosen), 12)]
        lookups = speed(store.lookup, drawn)
        updates = speed(lambda ids: store.apply(ids, gradients[: len(ids)], 1), drawn)
        yield Figures(
            rows=filled.rows,
            dim=dim,
            ids=law,
            admission=admission,
            insert=given / spent / 1e6,
            lookup=(max(lookups), statistics.median(lookups)),
            update=(max(updates), statistics.median(updates)),
            bytes_per_row=filled.bytes_per_row,
            over_payload=filled.bytes_per_row / (8 * dim),
            longest_insert_ms=1e3 * longest,
        )


def worker_side(batch: int, dim: int) -> tuple[float, float]:
    """Million ids a second of `unique`, and million rows a second of `summed`, at Zipf's law over ten million rows."""
    ids = ids_of(zipf_ranks(np.random.default_rng(3), 10_000_000, batch))
    gradients = np.random.default_rng(4).standard_normal((batch, dim), np.float32)
    distinct, places = unique(ids)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):
        start = time.process_time()
        unique(ids)
        middle = time.process_time()
        summed(gradients, places, len(distinct))
        times[0].append(middle - start)
        times[1].append(time.process_time() - middle)
    return batch / min(times[0]) / 1e6, batch / min(times[1]) / 1e6


@click.command(help=__doc__)
@click.option("--rows", multiple=True, type=int, default=(10_000, 100_000, 1_000_000, 10_000_000))
@click.option("--dim", "dims", multiple=True, type=int, default=(16, 64))
@click.option("--batch", default=65_536, help="Ids of a batch, before those that repeat are left out.")
@click.option("--rounds", default=5)
@click.option("--largest_gb", default=6.0, help="Stores that need more memory are left out.")
@click.option("--json", "as_json", is_flag=True, help="Prints a line of JSON for each case instead of the table.")
def main(
    *, rows: tuple[int, ...], dims: tuple[int, ...], batch: int, rounds: int, largest_gb: float, as_json: bool
) -> None:
    printed = Printed(
        "rows",
        "dim",
        "ids",
        "admission",
        "insert M/s",
        "lookup M/s",
        "Adagrad M/s",
        "B a row",
        "x payload",
        "longest ms",
    )
    for dim in dims:
        for count in rows:
            for admission in (False, True):
                if count * (8 * dim + 32) > largest_gb * 1e9:
                    continue
                gc.collect()
                for found in measure(count, dim, admission=admission, batch=batch, rounds=rounds):
                    if as_json:
                        print(json.dumps(asdict(found)), flush=True)
                    lookup, update = ("{:.1f} ({:.1f})".format(*pair) for pair in (found.lookup, found.update))
                    printed.add_row(
                        *(
                            f"{found.rows:,}",
                            str(dim),
                            found.ids,
                            "after 2" if admission else "all",
                            f"{found.insert:.2f}",
                        ),
                        *(lookup, update, f"{found.bytes_per_row:.0f}", f"{found.over_payload:.2f}"),
                        f"{found.longest_insert_ms:.0f}",
                    )
    if not as_json:
        Console(width=140).print(printed)
        for dim in dims:
            ids, sums = worker_side(batch, dim)
            print(f"a worker's batch of {batch} x {dim}: unique {ids:.1f} M ids/s, summed {sums:.1f} M rows/s")


if __name__ == "__main__":
    main()
