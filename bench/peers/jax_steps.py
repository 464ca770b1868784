"""One worker of bare JAX: one program over all processes, whose gradients gloo sums.

Every process computes the loss and the gradient of its own batch and, after the sum, the same Adam update. There are
three ways to the sum: ``flat``, all gradients as one array; ``leaves``, each array by itself; and ``compiler``, where
the program is written as if for one device, and the compiler finds out what to sum. Batch normalisation then takes the
means of the whole batch, in the other ways those of this process's, and the running averages are summed like gradients.

It keeps the contract of `bench.allreduce`, which see.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.peers.steps import BATCHES, Batch, Part, make_peer_parser
from bench.tasks.networks import NETWORKS, ModuleNetwork, Network

WORKERS = "workers"


def main() -> None:
    """Run the worker that the flags name."""
    parser = make_peer_parser(__doc__)
    parser.add_argument("--sum", choices=["flat", "leaves", "compiler"], default="flat")
    parser.add_argument("--steps_a_call", type=int, default=1, help="computed one after the other in one call")
    parser.add_argument("--numpy", action="store_true", help="put each batch on the device for its step, from NumPy")
    flags = parser.parse_args()
    part = Part(flags, flags.task_index)
    hosts = flags.worker_hosts.split(",")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(hosts[0], len(hosts), part.index)
    replica = Replica(NETWORKS[flags.model], flags.learning_rate, flags.sum, flags.steps_a_call)
    if flags.steps_a_call > 1:
        taken = [part.batches[number % BATCHES] for number in range(flags.steps_a_call)]
        images, labels = (np.stack(arrays) for arrays in zip(*taken, strict=True))
        stacked = replica.to_global((images, labels))
        part.run(lambda _: replica.step(stacked), replica.settle, steps_a_call=flags.steps_a_call)
    elif flags.numpy:
        part.run(lambda number: replica.step(replica.to_global(part.batches[number % BATCHES])), replica.settle)
    else:
        batches = [replica.to_global(batch) for batch in part.batches]
        part.run(lambda number: replica.step(batches[number % BATCHES]), replica.settle)
    part.write_result(replica.loss(part.test))
    part.wait_for_all(len(hosts))
    jax.distributed.shutdown()


class Replica:
    """The copy of the params in this process, and the step that keeps all copies equal.

    Args:
      network: what is trained.
      learning_rate: of Adam.
      how: the way to the sum.
      steps_a_call: computed one after the other in one call, on one batch of each; if more than 1, by way of `flat`.
    """

    def __init__(self, network: Network | ModuleNetwork, learning_rate: float, how: str, steps_a_call: int) -> None:
        """Make the params and the program."""
        devices = jax.devices()
        mesh = Mesh(np.array(devices), (WORKERS,))
        whole = PartitionSpec()
        split = PartitionSpec(WORKERS) if steps_a_call == 1 else PartitionSpec(None, WORKERS)
        self._network = network
        self._optimizer = optax.adam(learning_rate)
        self._processes = len(devices)
        self._split = NamedSharding(mesh, split)
        same = NamedSharding(mesh, whole)
        program: Any
        if steps_a_call > 1:
            program = jax.shard_map(
                self._train_often, mesh=mesh, in_specs=(whole, split), out_specs=whole, check_vma=False
            )
            program = jax.jit(program, donate_argnums=0)
        elif how == "compiler":
            program = partial(self._train, lambda values: values)
            program = jax.jit(program, donate_argnums=0, in_shardings=(same, self._split), out_shardings=same)
        else:
            mean = self._mean_flat if how == "flat" else self._mean_of_leaves
            # Without the check, the gradient is this process's own: JAX would otherwise insert a sum for each variable.
            program = jax.shard_map(
                partial(self._train, mean), mesh=mesh, in_specs=(whole, split), out_specs=whole, check_vma=False
            )
            program = jax.jit(program, donate_argnums=0)
        self._program = program
        params, model_state = network.start()
        state = jax.tree.map(np.asarray, (params, model_state, self._optimizer.init(params)))
        self._state: Any = jax.device_put(state, same)
        self._loss: Any = None

    def to_global(self, batch: Batch) -> Any:
        """Return the arrays of all processes' batches, of which this process holds these rows."""
        return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(self._split, rows), batch)

    def step(self, batch: Any) -> None:
        """Take one step together with all other processes."""
        self._state, self._loss = self._program(self._state, batch)

    def settle(self) -> None:
        """Wait until all steps are done."""
        jax.block_until_ready((self._state, self._loss))

    def loss(self, batch: Batch) -> float:
        """Return the loss of the params as they now are."""
        values = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), self._state[:2])
        return float(jax.jit(self._network.evaluate)(*values, batch))

    def _train(self, mean: Any, state: Any, batch: Any) -> Any:
        params, model_state, optimizer_state = state
        compute = jax.value_and_grad(self._network.train, has_aux=True)
        (loss, model_state), gradient = mean(compute(params, model_state, batch))
        updates, optimizer_state = self._optimizer.update(gradient, optimizer_state, params)
        return (optax.apply_updates(params, updates), model_state, optimizer_state), loss

    def _train_often(self, state: Any, batches: Any) -> Any:
        state, losses = jax.lax.scan(partial(self._train, self._mean_flat), state, batches)
        return state, losses[-1]

    def _mean_flat(self, values: Any) -> Any:
        flat, unravel = ravel_pytree(values)
        return unravel(jax.lax.psum(flat, WORKERS) / self._processes)

    def _mean_of_leaves(self, values: Any) -> Any:
        # XLA makes one operation of these, which calls gloo for each array.
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, WORKERS) / self._processes, values)


if __name__ == "__main__":
    main()
