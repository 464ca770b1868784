"""Orbax in `bench.checkpoint`: one process saves or restores the params and Adam's state, as its users write it.

The contract: flags ``--role save|read --millions M --directory DIR``; one line of JSON is printed:

* ``save``: seconds of a save into DIR that was waited for, and first_s of another before it, which is removed.
* ``read``: seconds until every array of that is on the device.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as orbax
from jax.sharding import SingleDeviceSharding

from bench.tasks.large_model import LEARNING_RATE, init, loss, touch_memory

NAMES = ("first", "second")


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["save", "read"], required=True)
    parser.add_argument("--millions", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    flags = parser.parse_args()
    print(json.dumps({"save": save, "read": read}[flags.role](flags)), flush=True)


def save(flags: argparse.Namespace) -> dict[str, Any]:
    """Save twice, a step before each, and wait until the checkpoint is committed."""
    optimizer = optax.adam(LEARNING_RATE)
    params = jax.jit(partial(init, millions=flags.millions))(jax.random.key(0))
    state = jax.jit(optimizer.init)(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(params, jnp.ones(1)), state, params)
        return optax.apply_updates(params, updates), state

    seconds = []
    with orbax.StandardCheckpointer() as checkpointer:
        for name in NAMES:
            params, state = jax.block_until_ready(train(params, state))
            touch_memory(flags.millions)
            begin = time.perf_counter()
            checkpointer.save(flags.directory.absolute() / name, {"params": params, "optimizer": state})
            checkpointer.wait_until_finished()
            seconds.append(time.perf_counter() - begin)
    shutil.rmtree(flags.directory / NAMES[0])
    return {"seconds": seconds[-1], "first_s": seconds[0]}


def read(flags: argparse.Namespace) -> dict[str, Any]:
    """Restore onto the device."""
    device = jax.devices()[0]
    jax.block_until_ready(jax.device_put(0.0, device))  # it is started
    sharding = SingleDeviceSharding(device)

    def make() -> Any:
        params = init(jax.random.key(0), flags.millions)
        return {"params": params, "optimizer": optax.adam(LEARNING_RATE).init(params)}

    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), jax.eval_shape(make)
    )
    with orbax.StandardCheckpointer() as checkpointer:
        touch_memory(flags.millions)
        begin = time.perf_counter()
        tree = checkpointer.restore(flags.directory.absolute() / NAMES[1], target)
        jax.block_until_ready(tree)
        return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    main()
