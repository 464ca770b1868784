"""The computation of a worker whose update rule decides the examples of a step: batches, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from trainband.cluster import Cluster
from trainband.errors import ClusterError
from trainband.model.batch import Portion, examples_in
from trainband.model.mesh_context import on_mesh
from trainband.model.model import Model
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.shard_link import Blocks
from trainband.spmd.batch_sharding import BatchSharding
from trainband.spmd.gradient import Carry, GradientFunction
from trainband.strategies.devices import on_device
from trainband.strategies.gradient_step import CompiledGradientStep, Computed, in_blocks, in_tree


class PortionedGradientStep:
    """See `GradientStep`: of a `Portion`, whose batches are computed one after the other.

    The first step compiles one program for each batch size, one that adds two gradients, and one that turns the sum
    into the push, so that later steps may have any number of examples without compiling.
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
        self._single = CompiledGradientStep(model, cluster, plan, mesh, spreader, on_first)
        self._on_first = on_first
        self._task = str(cluster.task)
        self._layout, self._pull_dtype = plan.layout, plan.description.pull_dtype
        self._device = mesh.devices.flat[0]
        self._spreader = spreader if mesh.size > 1 else None
        self._known: set[Any] = set()
        """The kinds of batches for which the program is compiled."""
        gradient_of = GradientFunction(model, cluster.training_index)

        def start(shards: Any) -> Any:
            return in_tree(plan, shards)

        def finish(params: PyTree, state: PyTree, carry: Carry, total: Any) -> Any:
            return in_blocks(plan, gradient_of.whole(params, state, carry, total))

        self._start = jax.jit(start)
        self._part = jax.jit(on_mesh(gradient_of.part, mesh))
        self._add = jax.jit(lambda one, other: jax.tree.map(jnp.add, one, other), donate_argnums=0)
        self._finish = jax.jit(on_mesh(finish, mesh))

    @property
    def place(self) -> Callable[[PyTree], PyTree] | None:
        """Batches are cut before they go to a device."""
        return None

    def first_values(self) -> Sequence[Sequence[NDArray[Any]]]:
        return self._single.first_values()

    def first_carry(self, shards: Sequence[Blocks]) -> Carry:
        return self._single.first_carry(shards)

    def carry_of(self, worker_state: WorkerState, carry: Carry) -> Carry:
        return self._single.carry_of(worker_state, carry)

    def compile(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> None:
        with on_device(self._device):
            params, state = self._start(self._layout.with_views(shards, self._pull_dtype))
            for one in {_kind_of(one): one for one in self._batches(batch)}.values():
                arguments = (params, state, carry, self._spread(one), np.int32(0), np.float32(1))
                self._part.lower(*arguments).compile()
            part, _ = jax.eval_shape(self._part, *arguments)
            self._add.lower(part, part).compile()

    def __call__(self, shards: Sequence[Blocks], carry: Carry, batch: PyTree) -> Computed:
        batches = self._batches(batch)
        if not self._known:
            self._on_first(batches[0])
            self._compile_sizes(shards, carry, batch)
        kinds = {_kind_of(one) for one in batches} | {len(batches) > 1}
        compiles, self._known = not kinds <= self._known, self._known | kinds
        begin = time.perf_counter()
        examples = [examples_in(one) for one in batches]
        total: Any = None
        with on_device(self._device):
            params, state = self._start(self._layout.with_views(shards, self._pull_dtype))
            for number, (one, count) in enumerate(zip(batches, examples, strict=True)):
                weight = np.float32(count / sum(examples))
                part, state = self._part(params, state, carry, self._spread(one), np.int32(number), weight)
                total = part if total is None else self._add(total, part)
            loss, gradient, finite, carry, metrics = self._finish(params, state, carry, total)
        arrays = tuple(tuple(np.asarray(block) for block in blocks) for blocks in gradient)
        seconds = 0.0 if compiles else time.perf_counter() - begin
        return Computed(float(loss), arrays, bool(finite), carry, metrics, sum(examples), seconds)

    def _compile_sizes(self, shards: Sequence[Blocks], carry: Carry, portion: Portion) -> None:
        """Compiles the program for every possible batch size, lest all wait for one worker at a later step."""
        first = portion.batches[0]
        if portion.usual == 1 or examples_in(first) != portion.usual * portion.part_examples:
            return  # with accumulation there is only one size
        counts = [1 << bit for bit in range(portion.usual.bit_length()) if 1 << bit < portion.usual]
        sizes = [count * portion.part_examples for count in counts]
        cut = tuple(jax.tree.map(lambda leaf, size=size: leaf[:size], first) for size in sizes)
        self.compile(shards, carry, replace(portion, batches=cut))
        self._known |= {_kind_of(one) for one in cut}

    def _batches(self, batch: PyTree) -> tuple[PyTree, ...]:
        if not isinstance(batch, Portion):
            raise ClusterError(
                f"{self._task}: Sync(balance='speed') decides how many examples each step has, but this step was given "
                "its own batch; use Trainer.fit, or take the batches of a loop from session.feed(batches)."
            )
        return batch.batches

    def _spread(self, batch: PyTree) -> PyTree:
        return batch if self._spreader is None else self._spreader(batch)


def _kind_of(batch: PyTree) -> Any:
    """Returns a key that batches share if one program computes them."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
