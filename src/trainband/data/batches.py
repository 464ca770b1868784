"""Batches of rows, shuffled anew each epoch and divided among the workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError

Array = NDArray[Any]
Block = NDArray[Any]
"""[batches, batch_size, ...]."""

_ALIGNMENT = 64  # bytes; JAX on the CPU uses an array without a copy from there on

# Rows are gathered about 1 MiB ahead and the batches are views of that block: for 100 rows of 784 bytes 7.6 us a batch,
# against 11.7 us batch by batch and 14.7 us (and the memory twice) for an epoch at once: a block stays in the cache.
_BLOCK_BYTES = 1 << 20


class Batches:
    """An iterable of batches; iterating again gives the same batches again.

    Every batch is a tuple with one array for each given, of rows that belong together. A batch is the caller's: it is
    never written again, and it starts on a 64-byte boundary. (It shares a block of about 1 MiB with its neighbours,
    which is freed with the last of them.)

    Every epoch has its own order, a function of seed and epoch alone. Of this order, worker `index` of `count` takes
    every count-th example from index on: so in each epoch each example goes to exactly one worker, and no worker needs
    to talk to another. The workers' shares differ by one example at most. This holds for any number of workers; and
    where a state (see `BatchIterator`) is restored onto another number in the middle of an epoch, the rest of its order
    is divided in the same way, so that none is left out but for remainders. The last rows of a share that do not fill a
    batch are left out of that epoch, with drop_remainder; the next epoch's order is another one, so that none is left
    out for long (without shuffle they are the same each time). Without drop_remainder they come as a smaller batch.

    Args:
      *arrays: [n, ...] each, of the same n; row i of each makes example i.
      batch_size: examples a batch.
      seed: of the order, at least 0; the same for all workers.
      shard: (index, count): which share of the examples this worker takes, see above.
      shuffle: whether there is an order other than the given one.
      drop_remainder: whether all batches have batch_size examples.
      epochs: how many; None is without end.

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
                f"Worker {index} of {count} has {share} of {length} examples, too few for one batch of "
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
        """How many examples this worker sees in an epoch."""
        return self._examples

    def __len__(self) -> int:
        """Give the number of batches in one epoch."""
        return -(-self._examples // self._batch_size)

    def __iter__(self) -> BatchIterator:
        """Go through all the epochs, from the first batch of epoch 0 on."""
        return self.starting_at(0)

    def starting_at(self, batch: int) -> BatchIterator:
        """Resume from a batch, counted from 0 over all epochs, as a run that is resumed does.

        Raises:
          DataError: batch is negative.
        """
        if batch < 0:
            raise DataError(f"A batch is counted from 0 on, got {batch}.")
        first, within = divmod(batch, len(self))
        return BatchIterator(self, first, within * self._batch_size * self._count)

    def epoch(self, number: int) -> Iterator[tuple[Array, ...]]:
        """Go through the batches of one epoch, counted from 0; it may lie beyond `epochs`.

        Raises:
          DataError: number is negative.
        """
        if number < 0:
            raise DataError(f"An epoch is counted from 0 on, got {number}.")
        return self._gather(self._order(number))

    def blocks(self, epoch: int, examples: int) -> Iterator[tuple[Block, ...]] | None:
        """Give this worker's part of what is left of an epoch; for `BatchIterator`.

        Args:
          epoch: its number.
          examples: how many of its order all workers together have had.

        Returns:
          Blocks of batches, one array for each given, or None after the last epoch.
        """
        if self._epochs is not None and epoch >= self._epochs:
            return None
        return self._blocks(self._order(epoch, examples))

    def length(self, examples: int) -> int:
        """Give how many batches this worker has in an epoch after so many examples of all workers."""
        share = len(range(examples + self._index, len(self._arrays[0]), self._count))
        return share // self._batch_size if self._drop_remainder else -(-share // self._batch_size)

    @property
    def in_step(self) -> int:
        """How many examples of an epoch's order are gone when every worker has had one more batch."""
        return self._batch_size * self._count

    def check(self, epoch: object, examples: object) -> tuple[int, int]:
        """Give both as they are if a state may hold them.

        Raises:
          DataError: it may not.
        """
        length = len(self._arrays[0])
        if type(epoch) is not int or type(examples) is not int or epoch < 0 or not 0 <= examples <= length:
            raise DataError(
                f"no state of these batches: epoch {epoch!r}, examples {examples!r} of {length}; restore it with the "
                "data that it was saved with."
            )
        return epoch, examples

    def _order(self, number: int, gone: int = 0) -> NDArray[np.intp]:
        """Give this worker's examples of an epoch in order, intp[examples], after the first `gone` of all workers."""
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
            yield tuple(take(array, rows) for array in self._arrays)
        if whole * size < len(order):
            rest = order[whole * size :].reshape(1, -1)
            yield tuple(take(array, rest) for array in self._arrays)

    def peek(self) -> tuple[Array, ...]:
        """Give the first batch, for its shapes and dtypes; no iteration moves."""
        return next(islice(self, 1))


class BatchIterator(Iterator[tuple[Array, ...]]):
    """Goes through the batches of a `Batches`, and can say and be told where it is."""

    state_is_cheap = True
    """0.1 us; a feed takes it after every batch."""

    def __init__(self, batches: Batches, epoch: int, examples: int) -> None:
        """Begin in an epoch, after so many examples of its order (of all workers together)."""
        self._batches = batches
        self._seek(epoch, examples)

    def __next__(self) -> tuple[Array, ...]:
        """Give the next batch."""
        for batch in self._block:
            self._given += 1
            return batch
        return self._refill()

    def get_state(self) -> dict[str, int]:
        """Say where this is, after the batch given last, in plain values.

        Returns:
          epoch: the number of the epoch.
          examples: how many examples of this epoch's order are gone, counting those of all the workers as if they went
            in step. Every worker may resume from the same state, whatever their number was and is.
        """
        if self._given < self._length:
            return {"epoch": self._epoch, "examples": self._before + self._given * self._batches.in_step}
        return {"epoch": self._epoch + 1, "examples": 0}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Resume from a state; with the number of workers that it was saved with, exactly the batches follow that did.

        Raises:
          DataError: it is not a state of batches of as many examples.
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
        """Gather the next block and give its first batch."""
        self._block = iter(())  # the old block's memory is free, and still in the cache, for the new one
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
    """Give the number of rows that all the arrays have.

    Raises:
      DataError: no array, arrays of different length, or one whose rows cannot be batched.
    """
    if not arrays:
        raise DataError("Batches needs at least one array.")
    for position, array in enumerate(arrays):
        if array.ndim == 0:
            raise DataError(f"Array {position} is a single value; it needs a dimension of examples.")
        if array.dtype.hasobject:
            raise DataError(f"Array {position} holds Python objects ({array.dtype}); give numbers.")
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise DataError(f"The arrays have {lengths} rows; all must have the same number.")
    return lengths[0]


def epoch_order(length: int, seed: int, epoch: int, *, shuffle: bool) -> NDArray[np.intp]:
    """Give the order of an epoch of so many examples, intp[length]."""
    if not shuffle:
        return np.arange(length, dtype=np.intp)
    # RandomState, because its stream is frozen (NEP 19) where Generator's may change: workers with different
    # versions of NumPy must agree on the order, or an example would go to two of them and another to none.
    random = np.random.RandomState(np.random.PCG64([seed, epoch]))
    return random.permutation(length).astype(np.intp, copy=False)


def batches_ahead(arrays: Sequence[Array], batch_size: int) -> int:
    """Give how many batches to gather at a time, at least 1."""
    row_bytes = sum(math.prod(array.shape[1:]) * array.itemsize for array in arrays)
    return max(1, _BLOCK_BYTES // max(1, batch_size * row_bytes))


def take(array: Array, rows: NDArray[np.intp]) -> Array:
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
    stride = -(-batch_bytes // _ALIGNMENT) * _ALIGNMENT
    memory = np.empty(batches * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    # mode="clip" because "raise" gathers into a second buffer first; our rows are always in range.
    if stride == batch_bytes:
        block = memory[start : start + batches * stride].view(array.dtype).reshape(batches, *shape)
        np.take(array, rows, axis=0, out=block, mode="clip")
        return block
    block = np.ndarray((batches, *shape), array.dtype, memory, start, (stride, *array[:size].strides))
    for batch, wanted in zip(block, rows, strict=True):
        np.take(array, wanted, axis=0, out=batch, mode="clip")
    return block
