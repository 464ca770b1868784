"""One process of bare JAX with the table as a param: its gradient, and Adagrad's update, are of the whole table.

It keeps the contract of `bench.tables`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import optax

from bench.peers.clicks import DIM, FIRST_ROWS, FIRST_SUM, Part, parse_flags
from bench.tasks import click_network


def main() -> None:
    """Run the only worker."""
    flags = parse_flags(__doc__)
    steps = [0]
    part = Part(flags, lambda: steps[0])
    optimizer = optax.adagrad(flags.learning_rate, FIRST_SUM)

    @jax.jit
    def loss_of(params: Any, batch: Any) -> Any:
        return click_network.loss(params["dense"], params["rows"][batch.ids], batch.numbers, batch.clicks)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    key = jax.random.key(0)
    params: Any = {
        "dense": click_network.init(key),
        "rows": jax.random.uniform(key, (flags.table, DIM), maxval=FIRST_ROWS),
    }
    state = optimizer.init(params)
    for batch in part.batches():
        params, state = jax.block_until_ready(step(params, state, batch))
        steps[0] += 1
    losses = [float(loss_of(params, batch)) for batch in part.tests()]
    part.print_result(sum(losses) / len(losses))


if __name__ == "__main__":
    main()
