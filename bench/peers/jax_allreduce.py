"""One worker of bare JAX: one program over all processes, whose gradients are summed by gloo as one flat array.

Every process computes the gradient of its own batch and, after the sum, the same Adam update. There is no ps; a process
that dies ends the job.

It keeps the contract of `bench.ps_mnist`, which see, for the job `worker`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.peers.contract import HIDDEN, Part, parse_flags
from bench.tasks.compute_only import loss, make_params

WORKERS = "workers"


def main() -> None:
    """Run the worker that the flags name."""
    flags = parse_flags(__doc__)
    part = Part(flags)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(part.hosts[0], len(part.hosts), part.index)
    replica = Replica(len(part.hosts), flags.learning_rate)
    part.train_together(replica.step, replica.settle, floats=False)
    images, labels = part.test()
    params = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), replica.params)
    hidden = np.maximum(images @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    assert hidden.shape[1] == HIDDEN
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    part.print_result(float(losses.mean()), float((logits.argmax(axis=-1) == labels).mean()))
    part.wait_for_all("done")  # one that goes earlier takes the others with it
    jax.distributed.shutdown()


class Replica:
    """The copy of the params in this process, and the step that keeps all copies equal.

    Args:
      workers: how many processes there are.
      learning_rate: of Adam.
    """

    def __init__(self, workers: int, learning_rate: float) -> None:
        """Make the params and the program."""
        mesh = Mesh(np.array(jax.devices()), (WORKERS,))
        self._optimizer = optax.adam(learning_rate)
        self._device = jax.local_devices()[0]
        self._workers = workers
        self._split = NamedSharding(mesh, PartitionSpec(WORKERS))
        whole = PartitionSpec()
        # Without the check, the gradient is this process's own: JAX would otherwise insert a sum for each variable.
        program = jax.shard_map(
            self._train,
            mesh=mesh,
            in_specs=(whole, PartitionSpec(WORKERS), PartitionSpec(WORKERS)),
            out_specs=whole,
            check_vma=False,
        )
        params = make_params()
        state = jax.tree.map(np.asarray, (params, self._optimizer.init(params)))
        self._state: Any = jax.device_put(state, NamedSharding(mesh, whole))
        self._program = jax.jit(program, donate_argnums=0)

    @property
    def params(self) -> Any:
        """The params as they now are."""
        return self._state[0]

    def step(self, images: Any, labels: Any) -> None:
        """Take one step together with all other processes."""
        self._state = self._program(self._state, self._mine(images), self._mine(labels))

    def settle(self) -> None:
        """Wait until all steps are done."""
        jax.block_until_ready(self._state)

    def _train(self, state: Any, images: Any, labels: Any) -> Any:
        params, optimizer_state = state
        flat, unravel = ravel_pytree(jax.grad(loss)(params, images, labels))
        gradient = unravel(jax.lax.psum(flat, WORKERS) / self._workers)
        updates, optimizer_state = self._optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    def _mine(self, rows: Any) -> jax.Array:
        """Return the array of which this process holds these rows."""
        shape = (self._workers * rows.shape[0], *rows.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._split, [jnp.asarray(rows, device=self._device)])


if __name__ == "__main__":
    main()
