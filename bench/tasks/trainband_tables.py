"""One task of trainband with a table of rows on its ps, as its users write it. It keeps the contract of `bench.tables`.

Before the clock starts, the workers train every id of the table once, so that all rows exist, as they do in a variable.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

import trainband
from bench.peers.clicks import DENSE, DIM, FEATURES, FIRST_ROWS, FIRST_SUM, Batch, Part, parse_flags
from bench.tasks import click_network
from trainband import rows

FILLING = 8192
"""Examples of a batch that fills the table."""


def main() -> None:
    """Run the task that the flags name."""
    flags = parse_flags(__doc__)
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    strategy = trainband.ParameterServer(cluster, transport=trainband.Network(flags.transport))
    if strategy.serves:
        strategy.serve()
        return
    table = trainband.Table(
        "ids",
        dim=DIM,
        optimizer=rows.Adagrad(flags.learning_rate, initial=FIRST_SUM),
        initializer=rows.Uniform(FIRST_ROWS),
    )
    trainer = trainband.Trainer(
        init=click_network.init,
        loss=loss,
        optimizer=optax.adagrad(flags.learning_rate, FIRST_SUM),
        tables={"ids": (table, lambda batch: batch["ids"])},
        strategy=strategy,
        console=False,
    )
    part = Part(flags, lambda: trainer.global_step)
    filling = list(range(0, flags.table, FILLING * FEATURES))
    # The workers begin at the two ends, and together take as many steps as there are pieces: every one once.
    trainer.fit(Again(lambda: fill(flags, filling[:: 1 - 2 * (part.index % 2)])), steps=len(filling))
    trainer.fit(Again(lambda: map(as_given, part.batches())))
    part.print_result(trainer.evaluate([as_given(batch) for batch in part.tests()]).loss)


class Again:
    """Batches that can be iterated again, so that the feed may read ahead."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        """Begin."""
        return self._begin()


def loss(params: Any, looked_up: Any, batch: Any) -> Any:
    """See `click_network.loss`."""
    return click_network.loss(params, looked_up["ids"], batch["numbers"], batch["clicks"])


def as_given(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return a batch as it is trained on: its ids are hashes of 64 bits."""
    ids = batch.ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two are equal
    return {"ids": ids, "numbers": batch.numbers, "clicks": batch.clicks}


def fill(flags: argparse.Namespace, starts: list[int]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches with all ids, each piece beginning at one of `starts`."""
    for start in starts:
        ids = (np.arange(start, start + FILLING * FEATURES) % flags.table).reshape(FILLING, FEATURES)
        yield as_given(Batch(ids, np.zeros((FILLING, DENSE), np.float32), np.full(FILLING, 0.5, np.float32)))


if __name__ == "__main__":
    main()
