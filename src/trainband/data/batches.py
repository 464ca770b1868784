"""Batches of rows, reshuffled each epoch and divided among the workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.runtime.aligned import ALIGNMENT, aligned_empty

Array = NDArray[Any]
Block = NDArray[Any]
"""[batches, batch_size, ...]."""

# Rows are gathered about 1 MiB ahead and the batches are views of that block: for 100 rows of 784 bytes 7.6 us a batch,
# against 11.7 us batch by batch and 14.7 us (and twice the memory) for a whole epoch: a block stays in the cache.
_BLOCK_BYTES = 1 << 20


class Batches:
    """An iterable of batches; each iteration gives the same batches.

    Every batch is a tuple with one array for each given, of rows that belong together. The caller owns a batch: it is
    never overwritten, and it starts on a 64-byte boundary. (It shares a block of about 1 MiB with its neighbours,
    which is freed with the last of them.)

    Every epoch has its own order, a function of seed and epoch alone. Worker `index` of `count` takes every count-th
    example of this order, starting at index: in each epoch each example goes to exactly one worker, and workers need
    not talk to each other. The workers' shares differ by one example at most. This holds for any number of workers; if
    a state (see `BatchIterator`) is restored with another number in the middle of an epoch, the rest of its order is
    divided in the same way, so that only remainders are left out. With drop_remainder, the last rows of a share that
    do not fill a batch are left out of that epoch; the next epoch has another order, so that none is left out for long
    (without shuffle they are the same each time). Without drop_remainder they form a smaller batch.

    Args:
      *arrays: [n, ...] each, of the same n; row i of each makes example i.
      batch_size: examples a batch.
      seed: of the order, at least 0; the same for all workers.
      shard: (index, count): the share of the examples that this worker takes, see above.
      shuffle: whether to change the given order.
      drop_remainder: whether all batches have batch_size examples.
      epochs: how many; None means without end.

    Raises:
      DataError: no array, arrays of different length, an object array, batch_size < 1, a shard that is not 0 <= index
        < count, epochs < 1, a negative seed, or a share that does not fill one batch.
    """

    def __init__(
        self,
        *arrays: Array,
        batch_size: int,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        shuffle: bool = True,
        drop_remainder: bool = True,
        epochs: int | None = None,
    ) -> None:
        """Check the arguments; see the class."""
        index, count = shard
        length = common_length(arrays)
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}.")
        if not 0 <= index < count:
            raise DataError(f"shard must be (index, count) with 0 <= index < count, got {shard}.")
        if epochs is not None and epochs < 1:
            raise DataError(f"epochs must be at least 1, or None for no end, got {epochs}.")
        if seed < 0:
            raise DataError(f"seed must be at least 0, got {seed}.")
        share = len(range(index, length, count))
        least = batch_size if drop_remainder else 1
        if share < least:
            advice = "make batch_size smaller" + (", or pass drop_remainder=False" if share and drop_remainder else "")
            raise DataError(
                f"worker {index} of {count} has {share} of {length} examples, too few for one batch of "
                f"{batch_size}; {advice if share else 'use fewer workers or more data'}."
            )
        # np.take would copy an array that is not contiguous for every batch.
        self._arrays = tuple(np.ascontiguousarray(array) for array in arrays)
        self._batch_size = batch_size
        self._seed = seed
        self._index, self._count = index, count
        self._shuffle = shuffle
        self._epochs = epochs
        self._drop_remainder = drop_remainder
        self._examples = share - share % batch_size if drop_remainder else share

    @property
    def examples(self) -> int:
        """Number of examples that this worker sees in an epoch."""
        return self._examples

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        return -(-self._examples // self._batch_size)

    def __iter__(self) -> BatchIterator:
        """Iterate over all epochs, from the first batch of epoch 0."""
        return self.starting_at(0)

    def starting_at(self, batch: int) -> BatchIterator:
        """Iterate from a batch, counted from 0 over all epochs, as a resumed run does.

        Raises:
          DataError: batch is negative.
        """
        if batch < 0:
            raise DataError(f"a batch number must be at least 0, got {batch}.")
        first, within = divmod(batch, len(self))
        return BatchIterator(self, first, within * self._batch_size * self._count)

    def epoch(self, number: int) -> Iterator[tuple[Array, ...]]:
        """Iterate over the batches of one epoch, counted from 0; it may lie beyond `epochs`.

        Raises:
          DataError: number is negative.
        """
        if number < 0:
            raise DataError(f"an epoch number must be at least 0, got {number}.")
        return self._gather(self._order(number))

    def blocks(self, epoch: int, examples: int) -> Iterator[tuple[Block, ...]] | None:
        """Return this worker's part of the rest of an epoch; for `BatchIterator`.

        Args:
          epoch: its number.
          examples: how many of its order all workers together have taken.

        Returns:
          Blocks of batches, one array for each given, or None after the last epoch.
        """
        if self._epochs is not None and epoch >= self._epochs:
            return None
        return self._blocks(self._order(epoch, examples))

    def length(self, examples: int) -> int:
        """Return how many batches of an epoch this worker still has after all workers took `examples` of it."""
        share = len(range(examples + self._index, len(self._arrays[0]), self._count))
        return share // self._batch_size if self._drop_remainder else -(-share // self._batch_size)

    @property
    def in_step(self) -> int:
        """Number of examples that all workers together take of an epoch's order in one batch each."""
        return self._batch_size * self._count

    def check(self, epoch: object, examples: object) -> tuple[int, int]:
        """Return both unchanged if a state may hold them.

        Raises:
          DataError: it may not.
        """
        length = len(self._arrays[0])
        if type(epoch) is not int or type(examples) is not int or epoch < 0 or not 0 <= examples <= length:
            raise DataError(
                f"not a state of these batches: epoch {epoch!r}, examples {examples!r} of {length}; restore it with "
                "the data that it was saved with."
            )
        return epoch, examples

    def _order(self, number: int, gone: int = 0) -> NDArray[np.intp]:
        """Return this worker's examples of an epoch in order, intp[examples], after the first `gone` of all workers."""
        order = epoch_order(len(self._arrays[0]), self._seed, number, shuffle=self._shuffle)
        mine = order[gone + self._index :: self._count]
        if self._drop_remainder:
            mine = mine[: len(mine) - len(mine) % self._batch_size]
        return np.ascontiguousarray(mine)

    def _gather(self, order: NDArray[np.intp]) -> Iterator[tuple[Array, ...]]:
        """Yield the batches of an order; all but the last have batch_size rows."""
        for block in self._blocks(order):
            batches = zip(*block, strict=True)
            del block  # so that its memory is free for the next one
            yield from batches
            del batches

    def _blocks(self, order: NDArray[np.intp]) -> Iterator[tuple[Block, ...]]:
        """Yield the batches of an order, many at a time."""
        size = self._batch_size
        ahead = batches_ahead(self._arrays, size)
        whole = len(order) // size
        for start in range(0, whole, ahead):
            rows = order[start * size : min(start + ahead, whole) * size].reshape(-1, size)
            yield tuple(gather(array, rows) for array in self._arrays)
        if whole * size < len(order):
            rest = order[whole * size :].reshape(1, -1)
            yield tuple(gather(array, rest) for array in self._arrays)

    def peek(self) -> tuple[Array, ...]:
        """Return the first batch, for its shapes and dtypes, without advancing any iteration."""
        return next(islice(self, 1))


class BatchIterator(Iterator[tuple[Array, ...]]):
    """Iterator over a `Batches` that can save and restore its position."""

    state_is_cheap = True
    """0.1 us; a feed takes it after every batch."""

    def __init__(self, batches: Batches, epoch: int, examples: int) -> None:
        """Begin in an epoch, after this many examples of its order (of all workers together)."""
        self._batches = batches
        self._seek(epoch, examples)

    def __next__(self) -> tuple[Array, ...]:
        """Return the next batch."""
        for batch in self._block:
            self._given += 1
            return batch
        return self._refill()

    def get_state(self) -> dict[str, int]:
        """Return the position after the last batch, in plain values.

        Returns:
          epoch: the number of the epoch.
          examples: how many examples of this epoch's order are taken, counted as if all workers had taken as many
            batches. Any number of workers may resume from the same state.
        """
        if self._given < self._length:
            return {"epoch": self._epoch, "examples": self._before + self._given * self._batches.in_step}
        return {"epoch": self._epoch + 1, "examples": 0}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Resume from a state; with the number of workers that saved it, exactly the same batches follow.

        Raises:
          DataError: it is not a state of batches with this many examples.
        """
        self._seek(*self._batches.check(state.get("epoch"), state.get("examples")))

    def _seek(self, epoch: int, examples: int) -> None:
        self._epoch = epoch
        self._before = examples  # of the order, gone when this iterator began with it
        self._given = 0  # batches
        self._length = self._batches.length(examples)
        self._blocks: Iterator[tuple[Block, ...]] | None = None
        self._block: Iterator[tuple[Array, ...]] = iter(())

    def _refill(self) -> tuple[Array, ...]:
        """Gather the next block and return its first batch."""
        self._block = iter(())  # frees the old block's memory for the new one, while it is still in the cache
        while True:
            if self._blocks is None:
                self._blocks = self._batches.blocks(self._epoch, self._before)
                if self._blocks is None:
                    raise StopIteration
            for block in self._blocks:
                self._block = zip(*block, strict=True)
                self._given += 1
                return next(self._block)
            self._seek(self._epoch + 1, 0)


def common_length(arrays: Sequence[Array]) -> int:
    """Return the number of rows that all the arrays have.

    Raises:
      DataError: no array, arrays of different length, or one whose rows cannot be batched.
    """
    if not arrays:
        raise DataError("Batches needs at least one array.")
    for position, array in enumerate(arrays):
        if not hasattr(array, "ndim"):
            raise DataError(
                f"array {position} is a {type(array).__name__}; give each array as an argument of its own, such as "
                "Batches(images, labels, batch_size=100)."
            )
        if array.ndim == 0:
            raise DataError(f"array {position} is a single value; it needs a dimension of examples.")
        if array.dtype.hasobject:
            raise DataError(f"array {position} holds Python objects ({array.dtype}); give numbers.")
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise DataError(f"the arrays have {lengths} rows; all must have the same number.")
    return lengths[0]


def epoch_order(length: int, seed: int, epoch: int, *, shuffle: bool) -> NDArray[np.intp]:
    """Return the order of an epoch of this many examples, intp[length]."""
    if not shuffle:
        return np.arange(length, dtype=np.intp)
    # RandomState, because its stream is frozen (NEP 19) while Generator's may change: workers with different
    # versions of NumPy must agree on the order, or one example would go to two of them and another to none.
    random = np.random.RandomState(np.random.PCG64([seed, epoch]))
    return random.permutation(length).astype(np.intp, copy=False)


def batches_ahead(arrays: Sequence[Array], batch_size: int) -> int:
    """Return how many batches to gather at a time, at least 1."""
    row_bytes = sum(math.prod(array.shape[1:]) * array.itemsize for array in arrays)
    return max(1, _BLOCK_BYTES // max(1, batch_size * row_bytes))


def gather(array: Array, rows: NDArray[np.intp]) -> Array:
    """Gather rows into fresh memory, each batch on a 64-byte boundary.

    Args:
      array: [n, ...], contiguous.
      rows: intp[batches, batch_size].

    Returns:
      [batches, batch_size, ...].
    """
    batches, size = rows.shape
    shape = (size, *array.shape[1:])
    batch_bytes = math.prod(shape) * array.itemsize
    stride = -(-batch_bytes // ALIGNMENT) * ALIGNMENT
    memory = aligned_empty((batches * stride,), np.dtype(np.uint8))
    # mode="clip" because "raise" gathers into a second buffer first; our rows are always in range.
    if stride == batch_bytes:
        block = memory.view(array.dtype).reshape(batches, *shape)
        np.take(array, rows, axis=0, out=block, mode="clip")
        return block
    block = np.ndarray((batches, *shape), array.dtype, memory, 0, (stride, *array[:size].strides))
    for batch, wanted in zip(block, rows, strict=True):
        np.take(array, wanted, axis=0, out=batch, mode="clip")
    return block
