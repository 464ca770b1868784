"""One task of `bench.stragglers`: a ps, or a worker that waits before it computes.

The contract: flags ``--job_name ps|worker --task_index I --ps_hosts A --worker_hosts B,C --rule NAME --compute_ms MS
--learning_rate R --data X.npz --marks DIR``. A worker takes one step, so that everything is compiled, makes the file
DIR/worker-I.ready, and trains from when DIR/go is there until DIR/stop is. Then it prints one line of JSON: steps and
losses, the global step and the batch's loss after each step, and times, the monotonic seconds of those moments.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import optax

import trainband
from bench.tasks.trainband_ps import init, loss

RULES: dict[str, Any] = {
    "sync": trainband.Sync(),
    "sync-1-backup": trainband.Sync(backups=1),
    "bounded-3": trainband.Bounded(staleness=3),
    "async": trainband.Async(),
}


def main() -> None:
    """Run the task that the flags name; a ps serves until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--rule", choices=list(RULES), required=True)
    parser.add_argument("--compute_ms", type=float, default=10.0)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    flags = parser.parse_args()
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    trainer = trainband.Trainer(
        init=init,
        loss=loss,
        optimizer=optax.adam(flags.learning_rate),
        strategy=trainband.ParameterServer(cluster, update=RULES[flags.rule]),
        console=False,
    )
    with np.load(flags.data) as data:
        train = (data["train_images"], data["train_labels"])
    workers = len(flags.worker_hosts.split(","))
    batches = iter(
        trainband.data.Batches(*train, batch_size=flags.batch_size, shard=(flags.task_index, workers), seed=0)
    )
    with trainer:
        trainer.fit(islice(batches, 1))
        pace = Pace(flags)
        pace.wait_for_start()
        result = trainer.fit(pace.through(batches))
    # The last time is that of the look that saw the end.
    steps, losses = result.history[:, 0].tolist(), result.history[:, 1].tolist()
    print(json.dumps({"times": pace.times[1 : len(steps) + 1], "steps": steps, "losses": losses}), flush=True)


class Pace:
    """Lets one batch through after each wait, from the start to the end of the measurement.

    Attributes:
      times: when each batch was asked for, that is when the step before it was over; monotonic seconds.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        """Make the mark that this worker is ready."""
        self._marks: Path = flags.marks
        self._compute_s = flags.compute_ms / 1000
        self.times: list[float] = []
        (self._marks / f"worker-{flags.task_index}.ready").touch()

    def wait_for_start(self) -> None:
        """Wait for the bench's word."""
        while not (self._marks / "go").exists():
            time.sleep(0.001)

    def through(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, each after the time that computing takes at this worker's speed."""
        stop = self._marks / "stop"
        for batch in batches:
            self.times.append(time.monotonic())
            if stop.exists():
                return
            time.sleep(self._compute_s)
            yield batch


if __name__ == "__main__":
    main()
