"""One task of `bench.chaos`: a ps, or a worker whose every push is counted on every ps.

The contract: flags ``--job_name ps|worker --task_index I --ps_hosts A,B --worker_hosts C,D --life N --rule NAME
--standbys 0|1 --checkpoint_dir DIR --compute_ms MS --data X.npz --marks DIR``. A worker trains until DIR/stop is there,
which the current chief makes the end of the job. After each step it appends a `RECORD` to
DIR/trace-I-N; what was written before a kill -9 stays. At the end it prints one line of JSON: the test loss and, for
each ps, what its counters say.

Beside the small network each ps holds a vector of counters. A push of life N of worker I has a gradient of -8 in row
(I, N) and in the last row, whatever the params are, and the learning rate is 1/8: so under Async and Bounded a row says
how many pushes of that life the ps has applied, exactly, and under every rule the last row says how many updates.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband
from bench.tasks.trainband_ps import RULES
from bench.tasks.trainband_ps import init as init_network
from bench.tasks.trainband_ps import loss as network_loss
from trainband.model.placement import Placement
from trainband.model.variables import Variable
from trainband.strategies.base import StepReport

LIVES = 250
"""The most lives of a worker."""
LEARNING_RATE = 0.125
HEARTBEAT_S = 0.5
LEASE_S = 2.0
SAVE_SECS = 5.0
BATCH_SIZE = 100
RECORD = np.dtype([(name, np.float64) for name in ("began_s", "ended_s", "global_step", "applied", "loss")])
"""Of one step: when its push began to be computed and was answered (monotonic, the same clock in all processes)."""


class CounterOnEach:
    """As GreedyBytes, but counter number I is on ps I."""

    def place(self, variables: Sequence[Variable], ps_count: int, *, keep_whole: Collection[str] = ()) -> Placement:
        """See `PlacementPolicy.place`."""
        greedy = trainband.GreedyBytes().place(variables, ps_count, keep_whole=keep_whole)
        moved = []
        for piece in greedy.slices:
            folder, _, number = piece.variable.name.partition("/")
            moved.append(dataclasses.replace(piece, ps=int(number)) if folder == "counters" else piece)
        return Placement(tuple(moved), ps_count)


class Diary(trainband.Hook):
    """Gives every step its length and writes its record."""

    def __init__(self, marks: Path, worker: int, life: int, compute_s: float) -> None:
        """Open the trace."""
        self._stop = marks / "stop"
        # Unbuffered: what is written survives a kill -9.
        self._trace = (marks / f"trace-{worker}-{life}").open("ab", buffering=0)
        self._compute_s = compute_s
        self._began_s = 0.0
        self._parent = os.getppid()

    def before_run(self, session: trainband.MonitoredSession) -> None:  # noqa: ARG002
        """Wait as long as computing would take."""
        time.sleep(self._compute_s)
        self._began_s = time.monotonic()

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:
        """Write the record, and end the job if it is time."""
        loss = float(report.metrics["cross_entropy"])
        row = (self._began_s, time.monotonic(), report.global_step, report.applied, loss)
        self._trace.write(np.array(row, RECORD).tobytes())
        if os.getppid() != self._parent:
            sys.exit("the bench is gone")
        if session.is_chief and not session.should_stop() and self._stop.exists():
            session.request_stop("the time is over")

    def close(self) -> None:
        """Close the trace."""
        self._trace.close()


def main() -> None:
    """Run the task that the flags name; a ps serves until the job ends."""
    flags = parse_flags()
    cluster = trainband.cluster.resolve(
        ps_hosts=flags.ps_hosts, worker_hosts=flags.worker_hosts, job_name=flags.job_name, task_index=flags.task_index
    )
    workers, ps = len(flags.worker_hosts.split(",")), len(flags.ps_hosts.split(","))
    strategy = trainband.ParameterServer(
        cluster,
        update=RULES[flags.rule],
        placement=CounterOnEach(),
        timeouts=trainband.Timeouts(lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S),
        standbys=flags.standbys,
    )

    def init(key: jax.Array) -> Any:
        counters = {str(number): jnp.zeros(workers * LIVES + 1) for number in range(ps)}
        return {"network": init_network(key), "counters": counters}

    trainer = trainband.Trainer(
        init=init, loss=counted_loss, optimizer=optax.sgd(LEARNING_RATE), strategy=strategy, console=False
    )
    with np.load(flags.data) as data:
        images, labels = data["train_images"], data["train_labels"]
        test = (data["test_images"], data["test_labels"], np.zeros(len(data["test_labels"]), np.int32))
    rows = np.full(len(labels), flags.task_index * LIVES + flags.life, np.int32)
    batches = trainband.data.Batches(images, labels, rows, batch_size=BATCH_SIZE, seed=flags.task_index)
    hooks = []
    if flags.job_name == "worker":
        hooks.append(Diary(flags.marks, flags.task_index, flags.life, flags.compute_ms / 1000))
    saving: dict[str, Any] = {}
    if flags.checkpoint_dir:
        saving = {"checkpoint_dir": flags.checkpoint_dir, "save_secs": SAVE_SECS}
    # An end that is never reached: the chief ends the job when the time is over.
    trainer.fit(batches, steps=1 << 40, hooks=hooks, **saving)
    evaluation = trainer.evaluate([test])
    counters = [trainer.params["counters"][str(number)].tolist() for number in range(ps)]
    print(json.dumps({"loss": evaluation.metrics["cross_entropy"], "counters": counters}), flush=True)


def parse_flags() -> argparse.Namespace:
    """Read the flags of the contract."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--rule", choices=list(RULES), required=True)
    parser.add_argument("--standbys", type=int, required=True)
    parser.add_argument("--checkpoint_dir", default="")
    parser.add_argument("--compute_ms", type=float, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    return parser.parse_args()


def counted_loss(params: Any, batch: Any) -> Any:
    """Return the network's loss; the counters add nothing to it but their gradient."""
    images, labels, rows = batch
    loss, metrics = network_loss(params["network"], (images, labels))
    for counter in params["counters"].values():
        counted = counter[rows[0]] + counter[-1]
        loss -= (counted - jax.lax.stop_gradient(counted)) / LEARNING_RATE
    return loss, {**metrics, "cross_entropy": loss}


if __name__ == "__main__":
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
