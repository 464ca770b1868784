"""One task of `bench.input_path`: a ps, or a worker that times its batches and its steps.

The contract: flags ``--job_name ps|worker --task_index I --ps_hosts A --worker_hosts B,C --train_steps N --source NAME
--examples E``, and ``--positions`` where a position is asked for after each step, as in a training run with
checkpoints. A worker trains on its share of E made up images of 784 uint8, in batches of 100, and prints one line of
JSON: input_s, the mean seconds that a step spent on its batch; step_s, the median seconds of a whole step; reads_ahead,
whether a thread got the batches ready.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import numpy as np
import optax

import trainband
from bench.tasks.trainband_ps import init, loss

BATCH_SIZE = 100
SOURCES = ("batches", "shared", "grain")
LEFT_OUT = 200


def main() -> None:
    """Run the task that the flags name; a ps serves until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--train_steps", type=int, default=6000)
    parser.add_argument("--source", choices=SOURCES, default=SOURCES[0])
    parser.add_argument("--examples", type=int, default=60_000)
    parser.add_argument("--positions", action="store_true")
    flags = parser.parse_args()
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    strategy = trainband.ParameterServer(cluster)
    with trainband.Trainer(init=init, loss=loss, optimizer=optax.adam(0.01), strategy=strategy) as trainer:
        print(json.dumps(train(flags, trainer)), flush=True)


def train(flags: argparse.Namespace, trainer: trainband.Trainer) -> dict[str, Any]:
    """Train as a session does, with a clock around what belongs to the input path."""
    engine = trainer.join()
    batches = make_source(flags)
    bind: Callable[..., None] | None = getattr(batches, "bind", None)
    if bind is not None:
        bind(engine.peers.lease)
    engine.steps.start_training(flags.train_steps)
    input_s, step_s, done = [], [], False
    with trainer.feed(batches, repeat=True, start=None, track=flags.positions) as feed:
        while not done:
            begin = perf_counter()
            batch = next(feed)
            given = perf_counter()
            done = engine.steps.step(batch).done
            trained = perf_counter()
            feed.trained()
            if flags.positions:
                _ = feed.position
            end = perf_counter()
            input_s.append(given - begin + end - trained)
            step_s.append(end - begin)
        reads_ahead = feed.reads_ahead
    return {
        "input_s": statistics.fmean(input_s[LEFT_OUT:]),
        "step_s": statistics.median(step_s[LEFT_OUT:]),
        "reads_ahead": reads_ahead,
    }


def make_source(flags: argparse.Namespace) -> Iterable[Any]:
    """Make this worker's batches, for ever."""
    random = np.random.default_rng(0)
    images = random.integers(256, size=(flags.examples, 784), dtype=np.uint8)
    labels = random.integers(10, size=flags.examples, dtype=np.int32)
    index, count = flags.task_index, len(flags.worker_hosts.split(","))
    if flags.source == "batches":
        return trainband.data.Batches(images, labels, batch_size=BATCH_SIZE, shard=(index, count))
    if flags.source == "shared":
        return trainband.data.shared([images, labels], batch_size=BATCH_SIZE)
    import grain

    examples = grain.MapDataset.source(Rows(images, labels)).seed(0).shuffle()[index::count]
    made: Iterable[Any] = examples.repeat().batch(BATCH_SIZE)
    return made


class Rows:
    """Images and their labels, as grain wants a source.

    Args:
      images: uint8[n, 784].
      labels: int32[n].
    """

    def __init__(self, images: Any, labels: Any) -> None:
        """Keep them."""
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        return self._images[index], self._labels[index]


if __name__ == "__main__":
    main()
