"""In which order elements come: shuffled, interleaved, in batches and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.datasets.elements import Element, Elements, Spec, stacked
from trainband.compat.tf1.graphs.errors import DataLossError, InvalidArgumentError
from trainband.compat.tf1.input.packing import stacked as stacked_sparse


def shuffled(elements: Elements, size: int, random: np.random.Generator) -> Elements:
    """Each time a random one of the next `size` elements.

    Raises:
      InvalidArgumentError: the size is not positive.
    """
    if size < 1:
        raise InvalidArgumentError(None, None, "buffer_size must be greater than zero.")
    buffer: list[Element] = []
    draws: list[float] = []

    def draw() -> float:
        if not draws:
            draws.extend(random.random(1024).tolist())  # one at a time costs ten times as much
        return draws.pop()

    for element in elements:
        if len(buffer) < size:
            buffer.append(element)
            continue
        place = int(draw() * size)
        chosen, buffer[place] = buffer[place], element
        yield chosen
    while buffer:
        place = int(draw() * len(buffer))
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()


class Batches:
    """Several elements at a time as one, by a function of them. It goes on after an error in the source."""

    def __init__(
        self, elements: Elements, size: int, drop_remainder: bool, combine: Callable[[Sequence[Element]], Element]
    ) -> None:
        if size < 1:
            raise InvalidArgumentError(None, None, "Batch size must be greater than zero.")
        self._elements, self._size, self._drops, self._combine = elements, size, drop_remainder, combine
        self._ended = False

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Element:
        gathered: list[Element] = []
        while not self._ended and len(gathered) < self._size:
            try:
                gathered.append(next(self._elements))
            except StopIteration:
                self._ended = True
        if not gathered or (self._drops and len(gathered) < self._size):
            raise StopIteration
        return self._combine(gathered)


def stacker(specs: Sequence[Spec], sparse: Sequence[int] = ()) -> Callable[[Sequence[Element]], Element]:
    """The function that stacks elements.

    Args:
      sparse: which leaves are the first ones of sparse tensors.
    """

    def combine(elements: Sequence[Element]) -> Element:
        columns = list(zip(*elements, strict=True))
        found: list[Any] = []
        while len(found) < len(columns):
            place = len(found)
            if place in sparse:
                rows = list(zip(*columns[place : place + 3], strict=True))
                found += stacked_sparse(rows, specs[place + 1].dtype)
            else:
                found.append(stacked(columns[place], specs[place], place))
        return tuple(found)

    return combine


def padder(
    specs: Sequence[Spec], shapes: Sequence[Sequence[int | None] | None], fillings: Sequence[Any]
) -> Callable[[Sequence[Element]], Element]:
    """The function that stacks elements, each part padded at the end.

    Args:
      shapes: the sizes that are wanted; `None` for the largest in the batch.
      fillings: what is put there.
    """

    def one(values: Sequence[Any], spec: Spec, wanted: Sequence[int | None] | None, filling: Any, part: int) -> Any:
        sizes = [list(np.shape(value)) for value in values]
        rank = len(sizes[0])
        if wanted is None:
            wanted = [None] * rank
        if any(len(size) != len(wanted) for size in sizes):
            raise InvalidArgumentError(
                None,
                None,
                "All elements in a batch must have the same rank as the padded shape for component"
                f"{part}: expected rank {len(wanted)} got element with rank {rank}",
            )
        whole = [max(size[i] for size in sizes) if one is None else one for i, one in enumerate(wanted)]
        for size in sizes:
            for i, most in enumerate(whole):
                if size[i] > most:
                    raise DataLossError(
                        None,
                        None,
                        "Attempted to pad to a smaller size than the input element: component "
                        f"{part} has shape {size}, and the padded shape is {whole}.",
                    )
        batch: Any = np.empty((len(values), *whole), spec.dtype.numpy)
        batch[...] = filling
        for place, (value, size) in enumerate(zip(values, sizes, strict=True)):
            content = value[()] if spec.dtype == string and not size else value
            batch[(place, *(slice(0, n) for n in size))] = content
        return batch

    def combine(elements: Sequence[Element]) -> Element:
        columns = zip(*elements, strict=True)
        parts = zip(columns, specs, shapes, fillings, strict=True)
        return tuple([one(column, spec, shape, filling, i) for i, (column, spec, shape, filling) in enumerate(parts)])

    return combine


def interleaved(elements: Elements, opened: Callable[[Element], Elements], cycle: int, block: int) -> Elements:
    """From `cycle` elements at a time, `block` in a row of each one's own elements."""
    open_: list[Elements | None] = [None] * cycle
    place = taken = 0
    ended = False
    while not ended or any(one is not None for one in open_):
        current = open_[place]
        if current is None and not ended:
            first = next(elements, None)
            if first is None:
                ended = True
            else:
                open_[place] = opened(first)
            continue
        if current is not None:
            found = next(current, None)
            if found is not None:
                yield found
                taken += 1
                if taken < block:
                    continue
            else:
                open_[place] = None
        place, taken = (place + 1) % cycle, 0


def windows(elements: Elements, size: int, shift: int, stride: int, drop_remainder: bool) -> Any:
    """Lists of elements, `stride` apart in each, that begin `shift` apart."""
    held: list[Element] = []
    skip = 0
    reach = (size - 1) * stride + 1
    ended = False
    while True:
        while not ended and (skip or len(held) < reach):
            try:
                element = next(elements)
            except StopIteration:
                ended = True
                break
            if skip:
                skip -= 1
            else:
                held.append(element)
        window = held[0:reach:stride]
        if not window or (drop_remainder and len(window) < size):
            return
        yield window
        skip = max(0, shift - len(held))
        held = held[shift:]
        if ended and not held:
            return


def grouped(
    elements: Elements,
    key: Callable[[Element], int],
    size: Callable[[int], int],
    reduce: Callable[[int, list[Element]], Elements],
) -> Elements:
    """The elements that `reduce` makes of each `size(key)` elements of one key, and of what is left at the end."""
    groups: dict[int, list[Element]] = {}
    sizes: dict[int, int] = {}
    for element in elements:
        number = key(element)
        group = groups.setdefault(number, [])
        group.append(element)
        if number not in sizes:
            sizes[number] = size(number)
            if sizes[number] < 1:
                raise InvalidArgumentError(
                    None, None, f"Window size must be greater than zero, but got {sizes[number]}."
                )
        if len(group) == sizes[number]:
            del groups[number]
            yield from reduce(number, group)
    for number in sorted(groups):
        yield from reduce(number, groups[number])
