"""The worker's side of the contract of `bench.allreduce`: its flags, batches, marks and result.

It needs NumPy only, so that every peer can import it in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODELS = ("mlp", "convnet")
SHAPES = {"mlp": (784,), "convnet": (28, 28, 1)}
HIDDEN = 100
CHANNELS = (16, 32)
CLASSES = 10
BATCHES = 50
TESTED = 1000
WARM_UP_STEPS = 100
PROBE_STEPS = 100
_POLL_S = 0.001
Batch = tuple[NDArray[Any], NDArray[Any]]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a reader of the flags that every program has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    return parser


def make_peer_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a reader of these flags and of those that a peer has in place of a launcher."""
    parser = make_parser(description)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser


class Part:
    """One worker's part in a measured case.

    Args:
      flags: what a parser of this file gave.
      index: the number of this worker.
    """

    def __init__(self, flags: argparse.Namespace, index: int) -> None:
        """Make the batches: float32 images of 0..1, and int32 labels."""
        self.index = index
        self._flags = flags
        shape = SHAPES[flags.model]
        with np.load(flags.data) as data:
            images, labels = data["train_images"], data["train_labels"]
            tested = data["test_images"][:TESTED], data["test_labels"][:TESTED]
        random = np.random.default_rng(index)
        self.batches: list[Batch] = []
        """The batches that are taken in turn, again and again."""
        for _ in range(BATCHES):
            rows = random.choice(len(labels), flags.batch_size, replace=False)
            self.batches.append((_as_floats(images[rows], shape), labels[rows].astype(np.int32)))
        self.test: Batch = (_as_floats(tested[0], shape), tested[1].astype(np.int32))
        """The images and labels that the loss in the result is of."""

    def run(self, call: Callable[[int], object], settle: Callable[[], object], *, steps_a_call: int = 1) -> None:
        """Warm up, find out how many steps the wanted time takes, and measure them.

        Args:
          call: takes steps together with the other workers; given the number of the call, from 0; may return early.
          settle: returns when all steps so far are done.
          steps_a_call: how many steps a call takes.
        """
        done = 0

        def run(steps: int) -> float:
            """Take at least this many steps; return the steps per second."""
            nonlocal done
            calls = -(-steps // steps_a_call)
            begin = time.perf_counter()
            for number in range(done, done + calls):
                call(number)
            settle()
            done += calls
            return calls * steps_a_call / (time.perf_counter() - begin)

        run(WARM_UP_STEPS)
        steps = self.agree(run(PROBE_STEPS))
        self.mark("begin")
        self._speed = run(steps)
        self._steps = -(-steps // steps_a_call) * steps_a_call
        self.mark("end")

    def agree(self, steps_per_s: float) -> int:
        """Return the number of steps to measure, which the first worker finds from its speed and tells the others."""
        path: Path = self._flags.marks / "steps"
        if self.index == 0:
            part = path.with_suffix(".part")
            part.write_text(str(max(PROBE_STEPS, round(steps_per_s * self._flags.seconds))))
            part.rename(path)
        while not path.exists():
            time.sleep(_POLL_S)
        return int(path.read_text())

    def measured(self, steps: int, steps_per_s: float) -> None:
        """Note what a program has measured without `run`."""
        self._steps, self._speed = steps, steps_per_s

    def write_result(self, loss: float) -> None:
        """Leave the result, of which the loss on the test images is a part, where the bench reads it."""
        result = {"steps": self._steps, "steps_per_s": self._speed, "loss": loss}
        self._path("part").write_text(json.dumps(result))
        self._path("part").rename(self._path("json"))

    def wait_for_all(self, workers: int) -> None:
        """Wait until all workers have left their results: one that goes earlier may take the others with it."""
        while not all((self._flags.marks / f"worker-{index}.json").exists() for index in range(workers)):
            time.sleep(_POLL_S)

    def mark(self, moment: str) -> None:
        """Make the file that says that this worker is so far."""
        self._path(moment).touch()

    def _path(self, suffix: str) -> Path:
        path: Path = self._flags.marks / f"worker-{self.index}.{suffix}"
        return path


def _as_floats(images: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    return images.reshape(len(images), *shape).astype(np.float32) / np.float32(255)
