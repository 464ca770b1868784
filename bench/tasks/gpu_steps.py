"""One check of `bench.gpu`, in a process that has all the cards for itself and frees them at its end.

The contract: flags ``--check NAME --seconds S --rounds R --cpu_devices N``; the last line printed is a JSON object.

- ``devices``: what JAX computes on: jax, platform, kind, count.
- ``speed``: for each network, the steps/s of each round of a bare optax loop, and of `Trainer.fit` under OneDevice,
  with each step in a call of its own and with 50 in one;
- ``mirrored``: those of OneDevice, and of Mirrored over all devices, each of which gets as large a batch.
- ``equality``: for each small model of the tests, the largest difference between the params that the accelerator and
  the CPU come to in 8 steps, once with matrix products in whole float32 and once as JAX computes them by default.

Contenders take turns in one process, one after the other in one round and the other way round in the next.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any

import jax
import numpy as np
import optax
from tests.strategies import models

import trainband
from bench.tasks.gpu_networks import LEARNING_RATE, NETWORKS, Network

STEPS = 8
PROBE_S = 0.2
Run = Callable[[int], None]
"""Takes this many steps, and waits until the last is computed."""


def main() -> None:
    """Run the check that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", choices=["devices", "speed", "mirrored", "equality"], required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu_devices", type=int, default=1)
    flags = parser.parse_args()
    if flags.cpu_devices > 1:
        jax.config.update("jax_num_cpu_devices", flags.cpu_devices)
    found: dict[str, Any]
    match flags.check:
        case "devices":
            found = devices()
        case "speed":
            found = {name: speeds(bare_and_ours(network), flags) for name, network in NETWORKS.items()}
        case "mirrored":
            found = {name: speeds(one_and_all(network), flags) for name, network in NETWORKS.items()}
        case _:
            found = {name: differences(name) for name in models.MODELS}
    print(json.dumps(found), flush=True)


def devices() -> dict[str, Any]:
    """Say what JAX computes on."""
    found = jax.local_devices()
    return {
        "jax": jax.__version__,
        "platform": found[0].platform,
        "kind": found[0].device_kind,
        "count": len(found),
    }


def silent(_: str) -> None:
    """Leave out what is said: a check without a GPU falls back to the CPU, and the bench says so."""


# --- steps/s


def speeds(contenders: dict[str, Run], flags: argparse.Namespace) -> dict[str, list[float]]:
    """Measure the contenders in turn; all take as many steps as fill the seconds for the first of them."""
    for run in contenders.values():
        run(3)  # compiles
    steps = count(next(iter(contenders.values())), flags.seconds)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(flags.rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            found[name].append(steps / seconds_of(contenders[name], steps))
    return found


def count(run: Run, seconds: float) -> int:
    """Find how many steps fill this many seconds."""
    steps = 2
    while (took := seconds_of(run, steps)) < min(PROBE_S, seconds):
        steps *= 2
    return max(5, round(steps * seconds / took))


def seconds_of(run: Run, steps: int) -> float:
    """Measure this many steps."""
    begin = time.perf_counter()
    run(steps)
    return time.perf_counter() - begin


def bare_and_ours(network: Network) -> dict[str, Run]:
    """Return the loop that one would write by hand, and ours; both take the same batches, which are on the device."""
    batches = jax.block_until_ready(jax.device_put(network.batches(), jax.local_devices()[0]))
    one = trainband.OneDevice(say=silent)
    return {"bare": bare(network, batches), "fit": fit(network, one, batches), "calls": fit(network, one, batches, 50)}


def one_and_all(network: Network) -> dict[str, Run]:
    """Return the training on one device, and on all."""
    one, mirrored = trainband.OneDevice(say=silent), trainband.Mirrored(say=silent)
    whole = network.batches(len(jax.local_devices()))
    placed = jax.block_until_ready([mirrored.global_batch(batch) for batch in whole])
    mine = jax.block_until_ready(jax.device_put(network.batches(), jax.local_devices()[0]))
    return {"one": fit(network, one, mine), "all": fit(network, mirrored, placed)}


def bare(network: Network, batches: Sequence[Any]) -> Run:
    """Train without trainband."""
    optimizer = optax.adam(LEARNING_RATE)
    params = jax.jit(network.init)(jax.random.key(0))
    values = [params, jax.jit(optimizer.init)(params)]

    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(network.loss)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    program = jax.jit(step, donate_argnums=(0, 1))

    def run(steps: int) -> None:
        params, state = values
        loss = None
        for batch in islice(cycle(batches), steps):
            params, state, loss = program(params, state, batch)
        values[:] = jax.block_until_ready((params, state, loss))[:2]

    return run


def fit(network: Network, strategy: Any, batches: Sequence[Any], steps_a_call: int = 1) -> Run:
    """Train with `Trainer.fit`, from its call to its return: its beginning, its end and its history count."""
    trainer = trainband.Trainer(
        init=network.init,
        loss=network.loss,
        optimizer=optax.adam(LEARNING_RATE),
        strategy=strategy,
        steps_per_execution=steps_a_call,
        console=False,
        say=silent,
    )
    return lambda steps: finish(trainer.fit(batches, steps), steps)


def finish(result: Any, steps: int) -> None:
    """Check that the steps were made.

    Raises:
      SystemExit: some were not.
    """
    if result.steps != steps or result.refused:
        raise SystemExit(f"{steps} steps were asked for, {result.steps} were made, {result.refused} refused.")


# --- the same params


def differences(name: str) -> dict[str, float]:
    """Compare the params that the accelerator and the CPU come to."""
    found = {}
    for precision in ("float32", "default"):
        with jax.default_matmul_precision("float32") if precision == "float32" else nullcontext():
            pairs = zip(trained(name, "gpu"), trained(name, "cpu"), strict=True)
            found[precision] = max(float(np.abs(mine - other).max()) for mine, other in pairs)
    return found


def trained(name: str, device: str) -> list[Any]:
    """Return the params and the model state after some steps."""
    trainer = trainband.Trainer(
        **models.MODELS[name](),
        optimizer=models.optimizer(),
        strategy=trainband.OneDevice(device, say=silent),
        console=False,
        say=silent,
    )
    finish(trainer.fit(models.batches(STEPS), STEPS), STEPS)
    return jax.tree.leaves((trainer.params, trainer.model_state))


if __name__ == "__main__":
    main()
