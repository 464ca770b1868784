"""The computation of a worker on parameter servers: from the params' blocks to the gradient's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.model.batch import examples_in_step
from trainband.model.layout import narrow
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Model
from trainband.model.tables import BatchWithRows, WithRows
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_link import Blocks
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.gradient import Carry, GradientFunction, Step, all_finite
from trainband.strategies.devices import on_device, placer


class Computed(NamedTuple):
    """The result of one step.

    Attributes:
      loss: of the batch.
      gradient: the blocks of each shard.
      finite: whether every element of the gradient is finite, as far as this worker checks.
      carry: for the next step.
      metrics: of the batch, by name.
      examples: in the batch.
      seconds: the time taken; 0 if it does not predict the next step's, as when something was compiled.
      rows: the gradient of the rows that were looked up, by feature.
    """

    loss: float
    gradient: Sequence[Sequence[NDArray[Any]]]
    finite: bool
    carry: Carry
    metrics: PyTree
    examples: int
    seconds: float = 0.0
    rows: Mapping[str, NDArray[np.float32]] = {}


class GradientStep(Protocol):
    """A worker's computation."""

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """See `Steps.place`."""
        ...

    def first_values(self) -> Sequence[Sequence[NDArray[Any]]]:
        """Returns the initial blocks of each shard, for a new job."""
        ...

    def first_carry(self, shards: Sequence[Blocks]) -> Carry:
        """Returns the carry of a worker that begins with these params."""
        ...

    def carry_of(self, worker_state: WorkerState, carry: Carry) -> Carry:
        """Returns the carry that a worker saved; `carry`: a first one, for its structure."""
        ...

    def compile(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> None:
        """Compiles the step for such a batch, so that the first one takes no longer."""
        ...

    def __call__(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> Computed:
        """Computes one step."""
        ...


def in_tree(plan: Plan, shards: Any) -> tuple[PyTree, PyTree]:
    """Returns params and model state from the blocks of each shard, as pulled; traceable."""
    leaves = zip(plan.layout.gather(shards), plan.variables.entries, strict=True)
    return plan.variables.split([leaf.astype(variable.dtype) for leaf, variable in leaves])


def in_blocks(plan: Plan, step: Step, rows: PyTree = ()) -> tuple[jax.Array, Any, Any, Carry, PyTree]:
    """Returns loss, gradient in blocks as sent, whether that is finite, carry and metrics; traceable.

    `rows`: the gradient of rows, which must be finite too.
    """
    push_dtype = plan.description.push_dtype
    blocks = tuple(
        tuple(b.astype(narrow(block, push_dtype)) for b, block in zip(values, shard.blocks, strict=True))
        for values, shard in zip(
            plan.layout.scatter(jax.tree.leaves((step.gradient, step.state))), plan.layout.shards, strict=True
        )
    )
    trained = [
        b
        for values, shard in zip(blocks, plan.layout.shards, strict=True)
        for b, block in zip(values, shard.blocks, strict=True)
        if block.trained
    ]
    # A ps checks its own part. With several, all must refuse a gradient that one of them would.
    finite = all_finite((trained, rows)) if len(plan.layout.shards) > 1 else True
    return step.loss, blocks, finite, step.carry, step.metrics


class CompiledGradientStep:
    """See `GradientStep`: one compiled function on this worker's devices.

    Args:
      on_first: receives a batch of the first step before it is computed.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        plan: Plan,
        mesh: Mesh,
        spreader: BatchSharding,
        on_first: Callable[[PyTree], None],
    ) -> None:
        self._model = model
        self._on_first: Callable[[PyTree], None] | None = on_first
        self._plan = plan
        self._device = mesh.devices.flat[0]
        self._spreader = spreader if mesh.size > 1 else None
        gradient_of = GradientFunction(model, cluster.training_index)

        def compute(shards: Any, carry: Carry, batch: PyTree) -> Any:
            params, state = in_tree(plan, shards)
            rows: PyTree = {}
            if isinstance(batch, BatchWithRows):
                step = gradient_of(WithRows(params, batch.rows), state, carry, batch.batch)
                rows = step.gradient.rows
                step = step._replace(gradient=step.gradient.params)
            else:
                step = gradient_of(params, state, carry, batch)
            return *in_blocks(plan, step, rows), rows

        self._compute = jax.jit(on_mesh(compute, mesh))
        self._first_carry = jax.jit(gradient_of.first_carry)

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        return self._spreader or placer(self._device)

    def first_values(self) -> Sequence[Sequence[NDArray[Any]]]:
        with on_device(self._device):
            return self._plan.layout.filled(self._model.first_leaves())

    def first_carry(self, shards: Sequence[Blocks]) -> Carry:
        with on_device(self._device):
            params, _ = self._plan.variables.split(self._plan.layout.gather(shards, np))
            carry: Carry = self._first_carry(params)
            own: Carry = jax.tree.map(jnp.copy, carry)  # the params' memory is that of the last pull
        return own

    def carry_of(self, worker_state: WorkerState, carry: Carry) -> Carry:
        with on_device(self._device):
            left: Carry = jax.device_put(worker_state.unpack(carry))
        return left

    def compile(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> None:
        with on_device(self._device):
            self._compute.lower(self._inputs(shards), carry, self._spread(batch)).compile()

    def __call__(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> Computed:
        batch = self._spread(batch)
        if self._on_first is not None and not isinstance(batch, BatchWithRows):
            self._on_first(batch if self._model.accumulate == 1 else batch[0])
            self._on_first = None
        with on_device(self._device):
            loss, gradient, finite, carry, metrics, rows = self._compute(self._inputs(shards), carry, batch)
        arrays = tuple(tuple(np.asarray(block) for block in blocks) for blocks in gradient)
        given = batch.batch if isinstance(batch, BatchWithRows) else batch
        examples = examples_in_step(given, self._model.accumulate)
        found = {name: np.asarray(gradient) for name, gradient in rows.items()}
        return Computed(float(loss), arrays, bool(finite), carry, metrics, examples, rows=found)

    def _inputs(self, shards: Sequence[Blocks]) -> Any:
        """Returns the blocks as the answers to pushes send them, so that one program is compiled."""
        return self._plan.layout.with_views(shards, self._plan.description.pull_dtype)

    def _spread(self, batch: PyTree) -> PyTree:
        if self._spreader is None:
            return batch
        return self._spreader(batch) if self._model.accumulate == 1 else tuple(map(self._spreader, batch))
