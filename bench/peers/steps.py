"""The worker's side of the contract of `bench.allreduce`: its flags, batches, marks and result.

It needs NumPy only, so that every peer can import it in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN = 100
CHANNELS = (16, 32)
CLASSES = 10
STAGES = (64, 128, 256, 512)
"""Channels of ResNet-18's residual blocks, two blocks of each."""
MOMENTUM, EPSILON = 0.9, 1e-5
"""Of batch normalisation: the share of a running average that a step keeps, and what is added to a variance."""
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 8192, 128, 384, 6, 6
"""Of the GPT-2."""
BATCHES = 50
_POLL_S = 0.001
_STATES, _SUCCESSORS = 64, 4
Batch = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """The data of a model, and the length of its training.

    Attributes:
      batch_size: examples in a batch of one worker.
      shape: of one example.
      make: gives this many made-up examples and their labels; None for the digits in --data.
      tested: examples that the loss in the result is of.
      warm_up_steps: before the speed is sought.
      probe_steps: in which it is found; also the fewest that are measured.
    """

    batch_size: int
    shape: tuple[int, ...]
    make: Callable[[np.random.Generator, int], Batch] | None = None
    tested: int = 1000
    warm_up_steps: int = 100
    probe_steps: int = 100

    def examples(self, path: Path) -> tuple[Batch, Batch]:
        """Return the examples to train on and those to test on, the same in every process."""
        if self.make is not None:
            inputs, labels = self.make(np.random.default_rng(0), BATCHES * self.batch_size + self.tested)
            return (inputs[self.tested :], labels[self.tested :]), (inputs[: self.tested], labels[: self.tested])
        with np.load(path) as data:
            train = self._as_floats(data["train_images"]), data["train_labels"].astype(np.int32)
            test = self._as_floats(data["test_images"]), data["test_labels"].astype(np.int32)
        return train, (test[0][: self.tested], test[1][: self.tested])

    def _as_floats(self, images: NDArray[Any]) -> NDArray[np.float32]:
        return images.reshape(len(images), *self.shape).astype(np.float32) / np.float32(255)


def _make_images(random: np.random.Generator, count: int) -> Batch:
    """Make float32[count, 64, 64, 3], noise over the picture of each one's class, and the classes."""
    pictures = random.standard_normal((CLASSES, 64, 64, 3), np.float32)
    labels = random.integers(CLASSES, size=count, dtype=np.int32)
    return pictures[labels] + random.standard_normal((count, 64, 64, 3), np.float32), labels


def _make_tokens(random: np.random.Generator, count: int) -> Batch:
    """Make int32[count, 128] tokens of a Markov chain, and each one's next."""
    states = random.choice(VOCABULARY, _STATES, replace=False).astype(np.int32)
    successors = random.integers(_STATES, size=(_STATES, _SUCCESSORS))
    walks = np.empty((count, CONTEXT + 1), np.int64)
    walks[:, 0] = random.integers(_STATES, size=count)
    for place in range(CONTEXT):
        walks[:, place + 1] = successors[walks[:, place], random.integers(_SUCCESSORS, size=count)]
    tokens = states[walks]
    return tokens[:, :-1], tokens[:, 1:]


PROBLEMS = {
    "mlp": Problem(batch_size=100, shape=(784,)),
    "convnet": Problem(batch_size=32, shape=(28, 28, 1)),
    "resnet18": Problem(batch_size=8, shape=(64, 64, 3), make=_make_images, tested=64, warm_up_steps=3, probe_steps=3),
    "gpt2": Problem(batch_size=4, shape=(CONTEXT,), make=_make_tokens, tested=16, warm_up_steps=3, probe_steps=3),
}


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a reader of the flags that every program has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=list(PROBLEMS), required=True)
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
        """Make the batches: float32 images or int32 tokens, and int32 labels."""
        self.index = index
        self.problem = PROBLEMS[flags.model]
        """What is trained on."""
        self._flags = flags
        (inputs, labels), self.test = self.problem.examples(flags.data)
        random = np.random.default_rng(index)
        self.batches: list[Batch] = []
        """The batches that are taken in turn, again and again."""
        for _ in range(BATCHES):
            rows = random.choice(len(labels), self.problem.batch_size, replace=False)
            self.batches.append((inputs[rows], labels[rows]))

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

        run(self.problem.warm_up_steps)
        steps = self.agree(run(self.problem.probe_steps))
        self.mark("begin")
        self._speed = run(steps)
        self._steps = -(-steps // steps_a_call) * steps_a_call
        self.mark("end")

    def agree(self, steps_per_s: float) -> int:
        """Return the number of steps to measure, which the first worker finds from its speed and tells the others."""
        path: Path = self._flags.marks / "steps"
        if self.index == 0:
            part = path.with_suffix(".part")
            part.write_text(str(max(self.problem.probe_steps, round(steps_per_s * self._flags.seconds))))
            part.rename(path)
        while not path.exists():
            time.sleep(_POLL_S)
        return int(path.read_text())

    def measured(self, steps: int, steps_per_s: float) -> None:
        """Note what a program has measured without `run`."""
        self._steps, self._speed = steps, steps_per_s

    def write_result(self, loss: float) -> None:
        """Leave the result, of which the loss on the test examples is a part, where the bench reads it."""
        result = {"steps": self._steps, "steps_per_s": self._speed, "loss": loss}
        self._path("part").write_text(json.dumps(result))
        self._path("part").rename(self._path("json"))

    def wait_for_all(self, workers: int, moment: str = "json") -> None:
        """Wait until all workers are so far; by default, until they have left their results.

        A peer that ends earlier may take the others with it.
        """
        while not all((self._flags.marks / f"worker-{index}.{moment}").exists() for index in range(workers)):
            time.sleep(_POLL_S)

    def mark(self, moment: str) -> None:
        """Make the file that says that this worker is so far."""
        self._path(moment).touch()

    def _path(self, suffix: str) -> Path:
        path: Path = self._flags.marks / f"worker-{self.index}.{suffix}"
        return path
