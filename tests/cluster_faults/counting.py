"""A training whose params count the pushes that made them: every push of every worker has a row of its own.

Its gradient is -1 in that row and 0 elsewhere, and the learning rate is 1, so a row says how often its push was applied
(under Sync: with which share), and the sum over all rows is the number of updates. There is one such variable for each
ps. Run as a script by the tests, which lead it from phase to phase by files.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import trainband
from trainband.strategies.base import StepReport

RULES: dict[str, Any] = {
    "async": trainband.Async(),
    "bounded": trainband.Bounded(staleness=2),
    "sync": trainband.Sync(),
    "backups": trainband.Sync(backups=1),
}
WORKERS, LIVES, PUSHES = 3, 2, 500
ROWS = WORKERS * LIVES * PUSHES
LAST = 25
"""Updates before the end at which every worker waits until the tests let it go on."""
TELL_S = 0.5


class Rows(Iterator[Any]):
    """Batches of one example each: the row of the push that will be made of it."""

    def __init__(self, worker: int, life: int) -> None:
        self._first = (worker * LIVES + life) * PUSHES
        self.row = self._first - 1

    def __next__(self) -> Any:
        self.row += 1
        assert self.row < self._first + PUSHES, "there is no row left for this push"
        return np.array([self.row], np.int32)


class Led(trainband.Hook):
    """Moves on from phase to phase when the tests say so, tells how far it is, and notes which pushes were applied."""

    def __init__(self, rows: Rows, control: Path, life: int, steps: int, step_s: float) -> None:
        self._rows = rows
        self._control = control
        self._life = life
        self._steps = steps
        self._step_s = step_s
        self._told_at = 0.0

    def begin(self, session: trainband.MonitoredSession) -> None:
        self._applied = (self._control / f"applied-{session.task}-{self._life}").open("w", buffering=1)
        print("ready", flush=True)
        self._wait_for("go")

    def after_run(self, session: trainband.MonitoredSession, report: StepReport) -> None:  # noqa: ARG002
        if report.applied:
            self._applied.write(f"{self._rows.row}\n")
        self._report(f"at global step {report.global_step}")
        time.sleep(self._step_s)
        if self._steps - LAST <= report.global_step < self._steps:
            self._wait_for("finish")

    def end(self, session: trainband.MonitoredSession) -> None:
        print(f"over at global step {session.global_step}", flush=True)
        self._wait_for("end")
        if session.directory is None:
            np.savez(self._control / f"params-{session.task}-{self._life}.npz", **session.params())

    def close(self) -> None:
        self._applied.close()

    def _wait_for(self, phase: str) -> None:
        while not (self._control / phase).exists():
            self._report(f"waits for the tests' word: {phase}")
            time.sleep(0.02)

    def _report(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            print(text, flush=True)


def slow_disk(seconds: float) -> None:
    """From now on, making a file of a checkpoint durable takes so long, and is told."""
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        print(f"writes {Path(f'/proc/self/fd/{descriptor}').readlink()}", flush=True)
        time.sleep(seconds)
        sync(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts")
    parser.add_argument("--worker_hosts")
    parser.add_argument("--job_name")
    parser.add_argument("--task_index")
    parser.add_argument("--rule", choices=RULES, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step_s", type=float, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--dir")
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--disk_s", type=float, default=0.0)
    parser.add_argument("--standbys", type=int, default=0)
    flag = parser.parse_args()
    print(f"begins its life {flag.life}", flush=True)
    if flag.disk_s:
        slow_disk(flag.disk_s)

    cluster = trainband.cluster.resolve(
        ps_hosts=flag.ps_hosts, worker_hosts=flag.worker_hosts, job_name=flag.job_name, task_index=flag.task_index
    )
    assert cluster is not None
    standbys = {"standbys": flag.standbys} if flag.standbys else {}
    trainer = trainband.Trainer(
        init=lambda _: {"a": jnp.zeros(ROWS), "b": jnp.zeros(ROWS)},
        loss=lambda params, batch: -(params["a"][batch] + params["b"][batch]).mean(),
        optimizer=optax.sgd(1.0),
        strategy=trainband.ParameterServer(
            cluster,
            update=RULES[flag.rule],
            placement=trainband.RoundRobin(),
            timeouts=trainband.Timeouts(lease_s=4.0, heartbeat_s=0.5, start_s=60.0),
            **standbys,
        ),
        console=False,
    )
    rows = Rows(0 if cluster.is_ps else cluster.training_index, flag.life)
    result = trainer.fit(
        rows,
        steps=flag.steps,
        checkpoint_dir=flag.dir,
        save_steps=flag.save_steps,
        hooks=[Led(rows, flag.control, flag.life, flag.steps, flag.step_s)],
    )
    print(f"{result.task} is done at global step {result.global_step}", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    try:
        main()
    except trainband.TrainbandError as error:
        sys.exit(f"error: {error}")
