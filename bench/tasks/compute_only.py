"""The limit that computing alone sets: the gradients and the updates of `bench.ps_mnist`, with no communication.

One process for each worker computes its part of the gradients, one more applies the Adam updates, everything at the
same time on the same cores. A step is one gradient and its update; with --rule sync, one gradient from each worker and
one update with their mean (making the mean is not counted). No parameter server that does this work in JAX can be
faster than steps / (seconds until all are done), so a share of it says what communication costs.

Every process warms up, says that it is ready by a line on a pipe and waits for a line on another one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HIDDEN = 100
WARM_UP = 200


def main() -> None:
    """Run the role that the flags name; without one, start the others and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train_steps", type=int, default=10_000)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rule", choices=["async", "bounded", "sync"], default="async")
    parser.add_argument("--role", choices=["gradients", "updates"])
    flags = parser.parse_args()
    if flags.role is None:
        print(json.dumps(lead(flags)))
    else:
        import jax

        # As trainband does in its ps and workers: without it, the limit is lower than what can be reached.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        (compute_gradients if flags.role == "gradients" else apply_updates)(flags)


def lead(flags: argparse.Namespace) -> dict[str, Any]:
    """Start all roles, let them go at the same moment and collect what they say."""
    steps = flags.train_steps
    share = steps if flags.rule == "sync" else -(-steps // flags.workers)
    roles = [("updates", steps)] + [("gradients", share)] * flags.workers
    children: list[subprocess.Popen[str]] = []
    try:
        for role, count in roles:
            command = [sys.executable, __file__, "--data", str(flags.data), "--batch_size", str(flags.batch_size)]
            command += ["--role", role, "--train_steps", str(count)]
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for child in children:
            if _read(child) != "ready":
                raise SystemExit("A process of the limit failed; see above.")
        begin = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [json.loads(_read(child) or "null") for child in children]
        seconds = time.perf_counter() - begin
        if None in said:
            raise SystemExit("A process of the limit failed; see above.")
    finally:
        for child in children:
            child.kill()
            child.wait()
    return {
        "steps_per_s": steps / seconds,
        "cpu_ms_per_step": 1000 * sum(each["cpu_s"] for each in said) / steps,
        "cpu_microseconds": {role: 1e6 * each["cpu_s"] / n for (role, n), each in zip(roles, said, strict=True)},
    }


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def run_together(step: Any, steps: int) -> None:
    """Warm up, wait for the others, take this many steps, and report their processor time."""
    for _ in range(WARM_UP):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    for _ in range(steps):
        step()
    print(json.dumps({"cpu_s": time.process_time() - cpu}), flush=True)


def compute_gradients(flags: argparse.Namespace) -> None:
    """Play a worker: the loss and its gradient for one batch after the other."""
    import jax
    import numpy as np

    from trainband.data import Batches

    with np.load(flags.data) as data:
        images, labels = data["train_images"], data["train_labels"]
    batches = iter(Batches(images.reshape(len(images), -1), labels, batch_size=flags.batch_size))
    program = jax.jit(jax.value_and_grad(loss))
    params = make_params()

    def step() -> None:
        jax.block_until_ready(program(params, *next(batches)))

    run_together(step, flags.train_steps)


def apply_updates(flags: argparse.Namespace) -> None:
    """Play the ps: Adam."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(0.01)
    params = make_params()
    gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), params)

    def update(params: Any, state: Any, gradient: Any) -> Any:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    # As a ps must: the optimizer state may be overwritten, the params may not, for a reply still reads them.
    program = jax.jit(update, donate_argnums=1)
    held = [(params, optimizer.init(params))]

    def step() -> None:
        held[0] = jax.block_until_ready(program(*held[0], gradient))

    run_together(step, flags.train_steps)


def make_params() -> Any:
    """Make the network's params, with the initial values of TensorFlow's Dense layer."""
    import jax
    import jax.numpy as jnp

    hidden, output = jax.random.split(jax.random.key(0))
    glorot = jax.nn.initializers.glorot_uniform()
    return {
        "hidden": {"kernel": glorot(hidden, (784, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "output": {"kernel": glorot(output, (HIDDEN, 10)), "bias": jnp.zeros(10)},
    }


def loss(params: Any, images: Any, labels: Any) -> Any:
    """Softmax cross entropy of uint8[batch, 784] images and int32[batch] labels."""
    import jax
    import jax.numpy as jnp
    import optax

    pixels = images.astype(jnp.float32) / 255
    hidden = jax.nn.relu(pixels @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


if __name__ == "__main__":
    main()
