"""The worker's side of the contract of `bench.ps_mnist`: its flags, batches, marks and result.

It needs NumPy only, so that every peer can import it in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN = 100
Batch = tuple[NDArray[Any], NDArray[Any]]


def parse_flags(description: str | None, jobs: tuple[str, ...] = ("worker",)) -> argparse.Namespace:
    """Read the flags of the contract; jobs are those that the program can play."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--job_name", choices=jobs, required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", default="")
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=10_000)
    parser.add_argument("--warm_up_steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--rule", choices=["async", "sync"], default="async")
    return parser.parse_args()


class Part:
    """One worker's part in a measured case.

    Args:
      flags: what `parse_flags` gave.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        """Read the data."""
        self._flags = flags
        self._hosts: list[str] = flags.worker_hosts.split(",")
        self._begin = (0, 0.0)
        self._end = (0, 0.0)
        with np.load(flags.data) as data:
            self._train = (data["train_images"], data["train_labels"])
            self._test = (data["test_images"], data["test_labels"])

    @property
    def index(self) -> int:
        """The number of this worker."""
        return int(self._flags.task_index)

    @property
    def hosts(self) -> list[str]:
        """All workers' addresses."""
        return self._hosts

    def test(self) -> Batch:
        """Return the test images as float32[n, 784] of 0..1, and their labels."""
        return as_floats(self._test[0]), self._test[1]

    def batches(self, floats: bool = True) -> Iterator[Batch]:
        """Yield batches for ever; each epoch is shuffled as a whole, then cut up, which is the fastest here.

        Images come as float32[size, 784] of 0..1, or else as the uint8 that they are, for a program that converts
        them itself.
        """
        images, labels = self._train
        images = as_floats(images) if floats else images.reshape(len(images), -1)
        random = np.random.default_rng(self.index)
        size = self._flags.batch_size
        while True:
            order = random.permutation(len(labels))
            shuffled_images, shuffled_labels = images[order], labels[order]
            for start in range(0, len(labels) - size + 1, size):
                yield shuffled_images[start : start + size], shuffled_labels[start : start + size]

    def ready(self) -> None:
        """Say that the next act is the first step, and wait for all workers; the bench ends us if one never is."""
        self.wait_for_all("ready")

    def start_measuring(self, step: int) -> None:
        """Measure from here, where the global step is `step`."""
        self._begin = (step, time.perf_counter())
        self._mark("begin")

    def end(self, step: int) -> None:
        """Measure until here."""
        self._end = (step, time.perf_counter())
        self._mark("end")

    def train_together(self, step: Callable[..., object], settle: Callable[[], object], *, floats: bool = True) -> None:
        """Take all the steps where every worker takes each of them together with the others.

        Args:
          step: called with images and labels; may return before it is done.
          settle: returns when all steps so far are done.
          floats: see `batches`.
        """
        batches = self.batches(floats)
        self.ready()
        for number in range(self._flags.train_steps):
            if number == self._flags.warm_up_steps:
                settle()
                self.start_measuring(number)
            step(*next(batches))
        settle()
        self.end(self._flags.train_steps)

    def print_result(self, loss: float, accuracy: float) -> None:
        """Print the line of JSON that the bench reads."""
        steps, wall_s = self._end[0] - self._begin[0], self._end[1] - self._begin[1]
        result = {"steps": steps, "wall_s": wall_s, "steps_per_s": steps / wall_s, "loss": loss, "accuracy": accuracy}
        print(json.dumps({"task": f"worker:{self.index}", **result}), flush=True)

    def wait_for_all(self, moment: str) -> None:
        """Make a mark, and wait until all workers have made it."""
        self._mark(moment)
        while not all((self._flags.marks / f"worker-{index}.{moment}").exists() for index in range(len(self._hosts))):
            time.sleep(0.001)

    def _mark(self, moment: str) -> None:
        (self._flags.marks / f"worker-{self.index}.{moment}").touch()


def as_floats(images: NDArray[Any]) -> NDArray[np.float32]:
    """Turn uint8[n, 28, 28] into float32[n, 784] of 0..1."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
