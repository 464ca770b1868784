"""One task of the job of `bench.gpu`: a ps, or a worker on the card; run by ``trainband run --ps 1 --workers 1``.

The contract: flags ``--seconds S --marks DIR``. Each task leaves DIR/TASK.json with its pid and the platform and kind
of the device that its JAX computes on; the worker's also has the medians of the pieces of its step, in seconds. It then
waits for DIR/seen, so that both processes can be inspected, and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import optax

import trainband
from bench.tasks.gpu_networks import LEARNING_RATE, NETWORKS
from trainband.ps.worker.exchange import Exchanger

NETWORK = NETWORKS["large"]
WARM_UP = 3
LEAST = 5
SEEN_S = 120.0


def main() -> None:
    """Run the task that the environment names; a ps serves until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--marks", type=Path, required=True)
    flags = parser.parse_args()
    cluster = trainband.cluster.resolve()
    if cluster is None:
        parser.error("there is no cluster; start this by trainband run.")
    strategy = trainband.ParameterServer(cluster)
    device = jax.local_devices()[0]  # starts JAX: what a task would take of the cards, it takes now
    found: dict[str, Any] = {"pid": os.getpid(), "platform": device.platform, "kind": device.device_kind}
    mark = flags.marks / f"{cluster.task}.json"
    trainer = trainband.Trainer(
        init=NETWORK.init,
        loss=NETWORK.loss,
        optimizer=optax.adam(LEARNING_RATE),
        strategy=strategy,
        console=False,
    )
    if cluster.is_ps:
        write_whole(mark, found)
        trainer.join()
    with trainer:
        batches = jax.block_until_ready(jax.device_put(NETWORK.batches(), device))
        pieces = in_job(trainer, batches, flags.seconds)
        pieces |= alone(trainer.params, batches[0], device, flags.seconds)
        write_whole(mark, {**found, "pieces": pieces})
        wait_for(flags.marks / "seen")


def in_job(trainer: trainband.Trainer, batches: Any, seconds: float) -> dict[str, float]:
    """Train; give the medians of a whole step and of the exchange in it."""
    clock = Clock()
    whole: list[float] = []
    exchange: list[float] = []
    with (
        patch.object(Exchanger, "send", clock.around(Exchanger.send)),
        patch.object(Exchanger, "collect", clock.around(Exchanger.collect)),
        trainband.MonitoredSession(trainer) as session,
    ):
        feed = session.feed(batches)
        for _ in range(WARM_UP):
            session.run(next(feed))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(whole) < LEAST:
            batch = next(feed)
            clock.taken_s = 0.0
            begin = time.perf_counter()
            session.run(batch)
            whole.append(time.perf_counter() - begin)
            exchange.append(clock.taken_s)
        session.request_stop("it is measured")
    return {"whole": statistics.median(whole), "exchange": statistics.median(exchange)}


class Clock:
    """Adds up what calls take.

    Attributes:
      taken_s: seconds since it was set to 0.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.taken_s = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, clocked."""

        def clocked(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.taken_s += time.perf_counter() - begin

        return clocked


def alone(params: Any, batch: Any, device: jax.Device, seconds: float) -> dict[str, float]:
    """Take the pieces of a step one by one, with no job; params are NumPy's. Give their medians."""
    program = jax.jit(jax.value_and_grad(NETWORK.loss))
    on_device = jax.device_put(params, device)
    jax.block_until_ready(program(on_device, batch))
    taken: dict[str, list[float]] = {"compute": [], "to_host": [], "to_device": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["compute"]) < LEAST:
        times = [time.perf_counter()]
        _, gradient = jax.block_until_ready(program(on_device, batch))
        times.append(time.perf_counter())
        jax.device_get(gradient)  # fresh arrays each time: JAX keeps the copy of those that it has fetched
        times.append(time.perf_counter())
        jax.block_until_ready(jax.device_put(params, device))
        times.append(time.perf_counter())
        for piece, (begin, done) in zip(taken.values(), pairwise(times), strict=True):
            piece.append(done - begin)
    return {name: statistics.median(piece) for name, piece in taken.items()}


def write_whole(path: Path, found: dict[str, Any]) -> None:
    """Leave a file, which is there only when it is whole."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(path)


def wait_for(path: Path) -> None:
    """Wait for a file, not for ever."""
    end = time.monotonic() + SEEN_S
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
