"""Batches in the forms that training steps take."""

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

from trainband.model.variables import PyTree
from trainband.runtime.aligned import aligned_empty


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("batch",),
    meta_fields=("rows",),
    drop_fields=("examples",),  # does not select a compiled program
)
@dataclass(slots=True)
class ShardedBatch:
    """A batch on its devices.

    Attributes:
      batch: its arrays, each split along the first axis; those without an axis are on every device.
      rows: if padded to a multiple of the devices: how many examples are real, at the beginning of each of this many
        equal blocks of rows. `None` if all are.
      examples: how many this process contributed; `None` inside a traced function.
    """

    batch: PyTree
    rows: tuple[int, ...] | None = None
    examples: int | None = None

    def unpadded(self) -> PyTree:
        """Returns the batch without padding, whole on every device; traceable, in the context of the mesh.

        JAX 0.12 also accepts such a batch in unequal parts, but then computes something else if the variables are
        split as well: an embedding under tensor parallelism returns other numbers.
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
    """The batches of several steps, stacked.

    Attributes:
      batch: has the structure of one step's batch; each array has the steps as an additional first axis.
    """

    batch: PyTree


@dataclass(frozen=True, slots=True)
class Several:
    """The batches of several steps that are computed in one call, one after the other.

    Attributes:
      batches: one for each step, all of the same shape.
      last: whether nothing follows them.
      stack: the batches stacked along an additional first axis, if all arrays are NumPy's; else `None`.
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
    """The batches of a step whose size an update rule decides, computed one after the other.

    Attributes:
      batches: of few different sizes, none larger than a batch of the user.
      parts: their total: equal numbers of examples, in which a rule counts.
      usual: parts of a step if no rule divides the examples.
      part_examples: examples in a part; at the end of the data the last one may have fewer.
      waited_s: seconds spent waiting for the data.
    """

    batches: tuple[PyTree, ...]
    parts: int
    usual: int
    part_examples: int
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Dealt:
    """A batch for `MultiWorkerMirrored` that was cut for all workers at once: its size changes for all or none."""

    batch: PyTree


def examples_in(batch: PyTree) -> int:
    """Returns how many examples a batch has: the length of the first array that has an axis; else 1."""
    if isinstance(batch, ShardedBatch):
        if batch.examples is not None:
            return batch.examples
        return examples_in(batch.batch) if batch.rows is None else sum(batch.rows)
    if isinstance(batch, Portion):
        return sum(map(examples_in, batch.batches))
    first = batch[0] if type(batch) is tuple and batch else None
    # Listing all leaves takes some microseconds of every step.
    for leaf in (first,) if getattr(first, "shape", ()) else jax.tree.leaves(batch):
        shape = getattr(leaf, "shape", ())
        if shape:
            return int(shape[0])
    return 1


def examples_in_step(batch: PyTree, accumulate: int) -> int:
    """Returns how many examples a step of `accumulate` micro-batches has."""
    if accumulate == 1 or isinstance(batch, Portion):
        return examples_in(batch)
    return sum(examples_in(part) for part in batch)


def owned(batch: PyTree) -> PyTree:
    """Returns a batch whose NumPy arrays no one else writes into.

    On the CPU, JAX computes with the caller's own memory if it is aligned to 64 bytes: a caller who reuses arrays for
    the next batch would change the step that is under way. The copies are aligned too: JAX would copy them once more
    otherwise.
    """
    return jax.tree.map(lambda leaf: copied(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """Copies an array if JAX on the CPU uses its memory directly."""
    if type(array) is not np.ndarray or array.dtype.hasobject or not array.nbytes:
        # Copying gains nothing here; and JAX refuses masked arrays, so it must see that they are masked.
        return array.copy()
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def digest_of(leaves: Sequence[Any]) -> str:
    """Returns a digest of this process's part of some arrays, to tell batches apart."""
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
    """Returns the warning that two workers train on the same data."""
    return (
        f"WARNING: {one} and {other} began with the same batch. If all workers train on the same data, the job learns "
        "no more than one of them would: divide the data with trainband.data.shared(...) or "
        "Batches(..., shard=(index, count)). Keras's fit divides arrays and keras.utils.PyDataset; give it this "
        "worker's part of a loader, a generator or tf.data"
    )
