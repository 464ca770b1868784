"""Bare JAX in `bench.real_sizes`: the first steps of one process, as its users write them.

The contract: flags ``--layers N --width W --optimizer sgd|adam --steps N``; one line of JSON is printed: first_s,
seconds from before `init` until the first step is over; step_s, the median of the others; loss, of the last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from functools import partial
from typing import Any

import jax
import optax

from bench.tasks.deep_chain import OPTIMIZERS, batch_of, init, loss


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    flags = parser.parse_args()
    optimizer = OPTIMIZERS[flags.optimizer]()
    batch = jax.block_until_ready(jax.device_put(batch_of(flags.width)))  # the device is started

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(params: Any, state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    begin = time.perf_counter()
    params = init(jax.random.key(0), flags.layers, flags.width)
    state = optimizer.init(params)
    ends = []
    for _ in range(flags.steps):
        params, state, value = train(params, state, batch)
        last = float(value)
        ends.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(ends)]
    print(json.dumps({"first_s": ends[0] - begin, "step_s": statistics.median(steps), "loss": last}), flush=True)


if __name__ == "__main__":
    main()
