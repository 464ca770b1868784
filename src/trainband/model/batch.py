"""Batches, as what trains on them sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray
from xxhash import xxh64

from trainband.checkpoint.part import aligned_empty
from trainband.model.variables import PyTree


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("batch",),
    meta_fields=("rows",),
    drop_fields=("examples",),  # no part of what a program is compiled for
)
@dataclass(slots=True)
class ShardedBatch:
    """A batch on its devices.

    Attributes:
      batch: its arrays, each in parts along the first axis; those without an axis are on every device.
      rows: where they are filled up to what the devices divide: how many examples are real, at the beginning of each of
        so many equal blocks of rows. `None` where all are.
      examples: how many this process has brought; `None` inside a traced function.
    """

    batch: PyTree
    rows: tuple[int, ...] | None = None
    examples: int | None = None

    def unpadded(self) -> PyTree:
        """The batch without what fills it up, whole on every device; traceable, in the context of the mesh.

        JAX 0.12 may also leave such a batch in unequal parts, but then computes something else where the variables are
        split as well: an embedding under tensor parallelism gives other numbers.
        """
        if self.rows is None:
            return self.batch
        counts = self.rows

        def cut(leaf: Any) -> Any:
            if not leaf.ndim:
                return leaf
            leaf = jax.lax.with_sharding_constraint(leaf, PartitionSpec())
            size = leaf.shape[0] // len(counts)
            blocks = [leaf[i * size : i * size + count] for i, count in enumerate(counts) if count]
            return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks)

        return jax.tree.map(cut, self.batch)


class BatchStack(NamedTuple):
    """What several steps train on, each of its arrays in one with those of all steps.

    Attributes:
      batch: as one step's, with another axis in front.
    """

    batch: PyTree


@dataclass(frozen=True, slots=True)
class Several:
    """What several steps train on that are computed in one call, one after the other.

    Attributes:
      batches: what each of them trains on, all of one shape.
      last: whether there is nothing more after them.
      stack: the same as one, each array with another axis in front, where all are NumPy's; else `None`.
    """

    batches: tuple[PyTree, ...]
    last: bool = False
    stack: PyTree = None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("batches",),
    meta_fields=("parts", "usual", "part_examples", "waited_s"),
)
@dataclass(slots=True)
class Portion:
    """What a step trains on where an update rule says how much that is: batches, computed one after the other.

    Attributes:
      batches: of few different sizes, and of no more examples than one that the user has made.
      parts: that they have together: equal numbers of examples, in which a rule counts.
      usual: parts of a step where no rule divides the examples.
      part_examples: examples in a part; at the end of the data the last one may have fewer.
      waited_s: seconds that the data has taken to come.
    """

    batches: tuple[PyTree, ...]
    parts: int
    usual: int
    part_examples: int
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Dealt:
    """A batch for `MultiWorkerMirrored` that was cut for all workers at once: where its size changes, all theirs do."""

    batch: PyTree


def examples_in(batch: PyTree) -> int:
    """How many examples a batch has: the length of its first axis, of the first array that has one; else 1."""
    if isinstance(batch, ShardedBatch):
        if batch.examples is not None:
            return batch.examples
        return examples_in(batch.batch) if batch.rows is None else sum(batch.rows)
    if isinstance(batch, Portion):
        return sum(map(examples_in, batch.batches))
    first = batch[0] if type(batch) is tuple and batch else None
    # To list all leaves takes some microseconds of every step.
    for leaf in (first,) if getattr(first, "shape", ()) else jax.tree.leaves(batch):
        shape = getattr(leaf, "shape", ())
        if shape:
            return int(shape[0])
    return 1


def examples_in_step(batch: PyTree, accumulate: int) -> int:
    """How many examples a step has, where it is made of `accumulate` micro-batches."""
    if accumulate == 1 or isinstance(batch, Portion):
        return examples_in(batch)
    return sum(examples_in(part) for part in batch)


def owned(batch: PyTree) -> PyTree:
    """A batch whose NumPy arrays nobody else writes into.

    On the CPU, JAX computes with the caller's own memory where that lies at a multiple of 64 bytes: what a caller who
    uses his arrays again writes there for the next batch would be seen by the step that is under way. The copy lies
    so, too: JAX would copy it once more.
    """
    return jax.tree.map(lambda leaf: copied(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array where JAX on the CPU takes it as it is."""
    if type(array) is not np.ndarray or array.dtype.hasobject or not array.nbytes:
        # Nothing to be gained; and JAX refuses masked ones, and must see that they are.
        return array.copy()
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def digest_of(leaves: Sequence[Any]) -> str:
    """Tells batches apart: of what this process has of some arrays."""
    digest = xxh64()
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        shards = [shard.data for shard in leaf.addressable_shards] if isinstance(leaf, jax.Array) else [leaf]
        for part in map(np.ascontiguousarray, shards):
            if not part.dtype.hasobject:
                digest.update(part.reshape(-1).view(np.uint8).data)  # no copy
    return digest.hexdigest()


def one_data_twice(one: str, other: str) -> str:
    """Says that two workers train on the same."""
    return (
        f"WARNING: {one} and {other} began with the same batch. If all workers train on the same data, the job learns "
        "no more than one of them would: divide the data with trainband.data.shared(...) or "
        "Batches(..., shard=(index, count))"
    )
