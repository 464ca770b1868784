"""The worker's side of the contract of `bench.tables`: its flags, made-up clicks, marks and result.

It needs NumPy only, so that every peer can import it in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FEATURES, DENSE, DIM = 26, 13, 16
"""Ids and numbers of an example, and values of a row."""
BOTTOM, TOP = 32, 64
"""Units of the two hidden layers."""
FIRST_ROWS, FIRST_SUM = 0.01, 0.1
"""The first values of rows are between 0 and this, and the accumulators of Adagrad this."""
ZIPF = 1.05
TAKEN = 256
"""Batches that each worker makes before the clock starts, and takes again and again."""
WARM_UP_STEPS, WARM_UP_S = 5, 2.0
"""At least."""
TESTED = 8
_POLL_S = 0.001


class Batch(NamedTuple):
    """Examples: ids (n, FEATURES) int64 from 0 on, numbers (n, DENSE) and clicks (n,) float32."""

    ids: NDArray[np.int64]
    numbers: NDArray[np.float32]
    clicks: NDArray[np.float32]


def make_batches(seed: int, count: int, size: int, table: int) -> list[Batch]:
    """Make batches with Zipf-distributed ids below `table`; popular ones are spread over the whole range."""
    random = np.random.default_rng(seed)
    spread = next(odd for odd in range(0x9E3779B1, 0xFFFFFFFF, 2) if np.gcd(odd, table) == 1)
    truth = np.random.default_rng(0).normal(0.0, 0.5, DENSE)
    batches = []
    for _ in range(count):
        # The inverse of the distribution function, in the limit of many ids.
        uniform = random.random((size, FEATURES))
        ranks = ((uniform * (table ** (1 - ZIPF) - 1) + 1) ** (1 / (1 - ZIPF))).astype(np.int64) - 1
        ids = np.clip(ranks, 0, table - 1) * spread % table
        numbers = random.normal(size=(size, DENSE)).astype(np.float32)
        logits = (ids % 97 / 48.0 - 1.0).sum(1) + numbers @ truth
        clicks = random.random(size) < 1.0 / (1.0 + np.exp(-logits))
        batches.append(Batch(ids, numbers, clicks.astype(np.float32)))
    return batches


def parse_flags(description: str | None) -> argparse.Namespace:
    """Read the flags of the contract."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--table", type=int, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--transport", default="auto", help="for trainband")
    return parser.parse_args()


class Part:
    """One worker's part in a measured case.

    Args:
      flags: what `parse_flags` gave.
      global_step: returns how many steps all workers have made.
    """

    def __init__(self, flags: argparse.Namespace, global_step: Callable[[], int]) -> None:
        """Make the batches."""
        self.index: int = flags.task_index
        self.hosts: list[str] = flags.worker_hosts.split(",")
        self._flags = flags
        self._global_step = global_step
        self._taken = make_batches(1 + self.index, TAKEN, flags.batch_size, flags.table)
        self._begin = self._end = (0, 0.0)

    def batches(self) -> Iterator[Batch]:
        """Yield batches until the time is over; the measurement begins after the steps to warm up."""
        self.wait_for_all("ready")
        number, start_s = 0, time.perf_counter()
        while not self._begin[1] or time.perf_counter() - self._begin[1] < self._flags.seconds:
            if not self._begin[1] and number >= WARM_UP_STEPS and time.perf_counter() - start_s >= WARM_UP_S:
                self._begin = self._global_step(), time.perf_counter()
                self._mark("begin")
            yield self._taken[number % TAKEN]
            number += 1
        self._end = self._global_step(), time.perf_counter()
        self._mark("end")

    def tests(self) -> list[Batch]:
        """Return batches that no worker trains on."""
        return make_batches(0, TESTED, self._flags.batch_size, self._flags.table)

    def distinct(self) -> float:
        """Return how many different ids a batch has."""
        return float(np.mean([len(np.unique(batch.ids)) for batch in self._taken[:16]]))

    def print_result(self, loss: float) -> None:
        """Print the line of JSON that the bench reads."""
        steps, wall_s = self._end[0] - self._begin[0], self._end[1] - self._begin[1]
        result: dict[str, Any] = {"steps": steps, "wall_s": wall_s, "loss": loss, "distinct": self.distinct()}
        print(json.dumps({"task": f"worker:{self.index}", **result}), flush=True)

    def wait_for_all(self, moment: str) -> None:
        """Make a mark, and wait until all workers have made it."""
        self._mark(moment)
        while not all((self._flags.marks / f"worker-{index}.{moment}").exists() for index in range(len(self.hosts))):
            time.sleep(_POLL_S)

    def _mark(self, moment: str) -> None:
        (self._flags.marks / f"worker-{self.index}.{moment}").touch()
