"""What a model is trained with, as batches of arrays: arrays, datasets, tensors, generators and sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import OutOfRangeError
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import is_tensor
from trainband.compat.tf1.models import phase


@dataclass(frozen=True, slots=True)
class Batch:
    """Arrays of one batch: a list for the inputs, the targets and the weights of examples, which may be `None`."""

    inputs: list[Any]
    targets: list[Any] | None = None
    weights: list[Any] | None = None

    @property
    def size(self) -> int:
        """How many examples."""
        first = next(iter([*self.inputs, *(self.targets or [])]), None)
        return 1 if first is None else len(first)


@dataclass(frozen=True, slots=True)
class Source:
    """Where batches come from.

    Attributes:
      epoch: begins an epoch, or goes on where it cannot begin again.
      steps: how many batches an epoch has; `None` if that is not known.
    """

    epoch: Callable[[], Iterator[Batch]]
    steps: int | None = None
    examples: int | None = None


def listed(value: Any, names: Sequence[str]) -> list[Any] | None:
    """Arrays in the order of a model's names."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if len(names) == 1 and names[0] not in value and len(value) == 1:
            return list(value.values())
        return [value[name] for name in names] if all(name in value for name in names) else list(value.values())
    if isinstance(value, tuple) or (isinstance(value, list) and len(names) > 1):
        return list(value)
    if isinstance(value, list) and len(value) == 1 and np.ndim(value[0]) > 0:
        return list(value)
    return [value]


def source_of(
    x: Any,
    y: Any = None,
    weights: Any = None,
    *,
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool = False,
) -> Source:
    """The batches of what a script passes.

    Raises:
      ValueError: arrays of different lengths, or an input without a known end and no number of steps.
    """
    if hasattr(x, "make_initializable_iterator"):
        return _of_dataset(x, names, steps)
    if hasattr(x, "get_next") and not isinstance(x, Mapping):
        return _of_tensors(x.get_next(), names, steps)
    if x is not None and any(map(is_tensor, flatten(x))):
        return _of_tensors(tuple(one for one in (x, y, weights) if one is not None), names, steps)
    if hasattr(x, "__getitem__") and hasattr(x, "__len__") and hasattr(x, "on_epoch_end"):
        return _of_sequence(x, names, shuffle, steps)
    if hasattr(x, "__next__"):
        if steps is None:
            raise ValueError("With a generator, the number of steps of an epoch must be given.")
        return Source(lambda: _parts_of(x, names, steps), steps)
    return _of_arrays(Batch(*(_arrays(x, y, weights, names))), batch_size or 32, shuffle, steps)


def _arrays(x: Any, y: Any, weights: Any, names: tuple[Sequence[str], Sequence[str]]) -> tuple[Any, Any, Any]:
    inputs, targets = listed(x, names[0]) or [], listed(y, names[1])
    given = listed(weights, names[1])
    ready = [None if group is None else [_array(one) for one in group] for group in (inputs, targets, given)]
    sizes = {len(one) for group in ready for one in group or () if one is not None}
    if len(sizes) > 1:
        raise ValueError(f"All input arrays and target arrays must have the same number of samples, got {sizes}.")
    return tuple(ready)  # type: ignore[return-value]


def _array(value: Any) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _picked(group: list[Any] | None, rows: Any) -> list[Any] | None:
    return None if group is None else [None if one is None else one[rows] for one in group]


def _of_arrays(whole: Batch, batch_size: int, shuffle: bool, steps: int | None) -> Source:
    count = whole.size if whole.inputs or whole.targets else 0
    if not whole.inputs and not whole.targets:
        if steps is None:
            raise ValueError("A model whose inputs are tensors needs the number of steps of an epoch.")
        return Source(lambda: iter([whole] * steps), steps)
    if steps is not None:
        batch_size = math.ceil(count / steps)

    def epoch() -> Iterator[Batch]:
        order = np.arange(count)
        if shuffle:
            np.random.shuffle(order)
        for start in range(0, count, batch_size):
            rows: Any = order[start : start + batch_size]
            if not shuffle:
                rows = slice(start, start + batch_size)
            yield Batch(
                _picked(whole.inputs, rows) or [], _picked(whole.targets, rows), _picked(whole.weights, rows)
            )  # fmt: skip

    return Source(epoch, math.ceil(count / batch_size), count)


def _of_dataset(dataset: Any, names: tuple[Sequence[str], Sequence[str]], steps: int | None) -> Source:
    iterator = dataset.make_initializable_iterator()
    element = iterator.get_next()
    started = False

    def epoch() -> Iterator[Batch]:
        nonlocal started
        session = phase.get_session()
        if not started or steps is None:
            session.run(iterator.initializer)
            started = True
        yield from _run(session, element, names, steps)

    return Source(epoch, steps)


def _of_tensors(element: Any, names: tuple[Sequence[str], Sequence[str]], steps: int | None) -> Source:
    if steps is None:
        raise ValueError("With tensors or an iterator, the number of steps of an epoch must be given.")
    return Source(lambda: _run(phase.get_session(), element, names, steps), steps)


def _run(session: Any, element: Any, names: tuple[Sequence[str], Sequence[str]], steps: int | None) -> Iterator[Batch]:
    made = 0
    while steps is None or made < steps:
        try:
            found = session.run(element)
        except OutOfRangeError:
            return
        made += 1
        yield _batch(found, names)


def _batch(found: Any, names: tuple[Sequence[str], Sequence[str]]) -> Batch:
    parts = list(found) if isinstance(found, list | tuple) else [found]
    x, y, weights = [*parts, None, None][:3]
    return Batch(*_arrays(x, y, weights, names))


def _parts_of(generator: Iterator[Any], names: tuple[Sequence[str], Sequence[str]], steps: int) -> Iterator[Batch]:
    for _ in range(steps):
        try:
            found = next(generator)
        except StopIteration:
            return
        yield _batch(found, names)


def _of_sequence(sequence: Any, names: tuple[Sequence[str], Sequence[str]], shuffle: bool, steps: int | None) -> Source:
    count = len(sequence) if steps is None else min(steps, len(sequence))

    def epoch() -> Iterator[Batch]:
        order = np.arange(len(sequence))
        if shuffle:
            np.random.shuffle(order)
        for place in order[:count]:
            yield _batch(sequence[int(place)], names)
        sequence.on_epoch_end()

    return Source(epoch, count)


def split(source: Batch, part: float) -> tuple[Batch, Batch]:
    """The examples up to the last part, and that."""
    at = int(source.size * (1.0 - part))
    first, last = slice(None, at), slice(at, None)
    return tuple(  # type: ignore[return-value]
        Batch(_picked(source.inputs, rows) or [], _picked(source.targets, rows), _picked(source.weights, rows))
        for rows in (first, last)
    )


def with_classes(batch: Batch, class_weight: Mapping[Any, float] | None) -> Batch:
    """A batch whose examples weigh what their classes do."""
    if not class_weight or not batch.targets:
        return batch
    found = []
    for i, target in enumerate(batch.targets):
        classes = target.argmax(-1) if target.ndim > 1 and target.shape[-1] > 1 else target.reshape(-1)
        weights = np.array([class_weight.get(int(one), 1.0) for one in classes], np.float32)
        before = None if batch.weights is None else batch.weights[i]
        found.append(weights if before is None else weights * before)
    return replace(batch, weights=found)
