"""One task of `bench.checkpoint`: a ps or a worker that saves now and then, or one process that saves or restores once.

The contract: flags ``--role ps|worker|save|read|restore --millions M --directory DIR``, for ps and worker also
``--address HOST:PORT``, for a worker ``--every S --saves N``. Each role but the ps prints one line of JSON:

* ``worker``: segments, {steps, seconds, longest_s, saved, order_s, save_s, overran}, of which every second one begins
  with a save; and nbytes of a checkpoint. One save comes before them.
* ``save``: seconds and nbytes of a save into DIR that was waited for, and first_s of another before it.
* ``read``: seconds from opening the checkpoint until all its tensors are on the device.
* ``restore``: seconds of all that a session does before its first step, the first values of the params included.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import trainband
from bench.tasks.large_model import LEARNING_RATE, init, loss, touch_memory
from trainband.checkpoint import CheckpointDirectory
from trainband.train.hooks.session import SavingSession

BATCH = np.ones(1, np.float32)
NEVER_S = 1e9
WARM_UP = 5


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "worker", "save", "read", "restore"], required=True)
    parser.add_argument("--millions", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--saves", type=int, default=4)
    flags = parser.parse_args()
    if flags.role in ("ps", "worker"):
        result = work(flags)
    else:
        result = {"save": save, "read": read, "restore": restore}[flags.role](flags)
    print(json.dumps(result), flush=True)


def work(flags: argparse.Namespace) -> dict[str, Any]:
    """Serve as the ps, until the job ends; or train, with and without a save in turn."""
    spec = trainband.ClusterSpec({"ps": [flags.address], "worker": ["worker.invalid:1"]})
    cluster = trainband.Cluster(spec=spec, task=trainband.Task(flags.role, 0))
    trainer = make_trainer(flags, trainband.ParameterServer(cluster))
    # Only one is kept, so that each save also has an old one to remove, as in the long run.
    with session_of(trainer, flags, trainband.Retention(keep=1)) as session:
        for _ in range(WARM_UP):
            session.run(BATCH)
        session.save()
        while session.saving:
            session.run(BATCH)
        numbers = range(2 * flags.saves + 1)
        segments = [train_for(session, flags.every, saves=number % 2 == 1) for number in numbers]
        nbytes = session.saved.nbytes if session.saved is not None else 0
    return {"segments": segments, "nbytes": nbytes}


def train_for(session: trainband.MonitoredSession, seconds: float, saves: bool) -> dict[str, Any]:
    """Train for this long, and then until nothing is being written, which does not count.

    Returns:
      steps, and the seconds that they took; longest_s, the seconds of the longest of them; order_s, what ordering the
      save took of them; save_s, from then until the checkpoint was committed; overran, whether that was after the end.
    """
    before = session.saved
    steps, longest_s = 0, 0.0
    begin = now = time.perf_counter()
    if saves:
        session.save()
    order_s = time.perf_counter() - begin
    while now - begin < seconds:
        session.run(BATCH)
        steps, last, now = steps + 1, now, time.perf_counter()
        longest_s = max(longest_s, now - last)
    overran = session.saving
    while session.saving:
        session.run(BATCH)
    saved = session.saved
    if saves and (saved is None or saved is before):
        raise SystemExit("The checkpoint was not saved; see above.")
    return {
        "steps": steps,
        "seconds": now - begin,
        "longest_s": longest_s,
        "saved": saves,
        "order_s": order_s if saves else None,
        "save_s": saved.seconds if saves and saved is not None else None,
        "overran": overran,
    }


def save(flags: argparse.Namespace) -> dict[str, Any]:
    """Save twice, a step before each, and wait until the checkpoint is committed."""
    seconds = []
    with session_of(make_trainer(flags), flags, trainband.Retention()) as session:
        for _ in range(2):
            float(session.run(BATCH).loss)  # it is over
            touch_memory(flags.millions)
            begin = time.perf_counter()
            session.save(wait=True)
            seconds.append(time.perf_counter() - begin)
        assert session.saved is not None
        nbytes = session.saved.nbytes
    return {"seconds": seconds[-1], "first_s": seconds[0], "nbytes": nbytes}


def read(flags: argparse.Namespace) -> dict[str, Any]:
    """Bring every tensor of the newest checkpoint onto the device."""
    jax.block_until_ready(jax.device_put(BATCH))  # the device is started
    touch_memory(flags.millions)
    begin = time.perf_counter()
    checkpoint = CheckpointDirectory(flags.directory, print).newest()
    if checkpoint is None:
        raise SystemExit(f"There is no checkpoint in {flags.directory}.")
    arrays = [jax.device_put(checkpoint.read(tensor)) for tensor in checkpoint.manifest.tensors]
    jax.block_until_ready(arrays)
    return {"seconds": time.perf_counter() - begin, "nbytes": checkpoint.nbytes}


def restore(flags: argparse.Namespace) -> dict[str, Any]:
    """Begin a session that resumes from the newest checkpoint."""
    jax.block_until_ready(jax.device_put(BATCH))
    trainer = make_trainer(flags)
    touch_memory(flags.millions)
    begin = time.perf_counter()
    with session_of(trainer, flags, trainband.Retention()) as session:
        seconds = time.perf_counter() - begin
        if session.global_step == 0:
            raise SystemExit(f"There was no checkpoint in {flags.directory}.")
    return {"seconds": seconds}


def make_trainer(flags: argparse.Namespace, strategy: Any = None) -> trainband.Trainer:
    """Make what is trained, on one device unless told otherwise."""
    return trainband.Trainer(
        init=partial(init, millions=flags.millions),
        loss=loss,
        optimizer=optax.adam(LEARNING_RATE),
        strategy=strategy,
        console=False,
    )


def session_of(
    trainer: trainband.Trainer, flags: argparse.Namespace, retention: trainband.Retention
) -> trainband.MonitoredSession:
    """Begin a session that saves when it is told to, and at its end."""
    hooks = [SavesWhenTold(save_secs=NEVER_S)]
    return trainband.MonitoredSession(trainer, checkpoint_dir=flags.directory, hooks=hooks, retention=retention)


class SavesWhenTold(trainband.CheckpointSaverHook):
    """Stands in place of the hook that a session would add."""

    def end(self, session: SavingSession) -> None:
        """Save nothing at the end: that checkpoint would not be measured."""


if __name__ == "__main__":
    main()
