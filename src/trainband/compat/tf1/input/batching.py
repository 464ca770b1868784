"""Batches: tensors of single examples, collected by a queue and its threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.ops.dtypes import bool_
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, known_value, name_scope
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.packing import packed, unpacked
from trainband.compat.tf1.input.producers import note_fullness
from trainband.compat.tf1.input.queues import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from trainband.compat.tf1.training.queue_runner import QueueRunner, add_queue_runner


class _Examples:
    """What is batched: one or more lists of tensors of the same kind.

    Raises:
      ValueError: there are no tensors, or the lists differ.
    """

    def __init__(self, lists: Sequence[Any], shapes: Any, many: bool, what: str) -> None:
        if not lists or any(len(one) == 0 for one in lists if isinstance(one, list | tuple | Mapping)):
            raise ValueError(f"Expected at least one tensor in {what}().")
        self._first = lists[0]
        if isinstance(self._first, Mapping) and any(sorted(one) != sorted(self._first) for one in lists):
            raise ValueError("All dictionaries must have the same keys.")
        self.lists = [self._listed(one) for one in lists]
        kinds = [[one.dtype for one in tensors] for tensors in self.lists]
        if any(kind != kinds[0] for kind in kinds):
            raise TypeError(f"Expected types to be consistent: {kinds}")
        self._sparse = [isinstance(one, SparseTensor) for one in self.lists[0]]
        self._kinds = [(one.dtype, one.shape) for one in self.lists[0]]
        self._many = many
        self.tensors = [
            [packed(one, many) if isinstance(one, SparseTensor) else one for one in tensors] for tensors in self.lists
        ]
        self.dtypes = [one.dtype for one in self.tensors[0]]
        self.shapes = [TensorShape(one) for one in shapes] if shapes is not None else self._common_shapes()

    def _listed(self, tensors: Any) -> list[Any]:
        if isinstance(tensors, Mapping):
            values = [tensors[key] for key in sorted(tensors)]
        elif isinstance(tensors, list | tuple) and not hasattr(tensors, "dense_shape"):
            values = list(tensors)
        else:
            values = [tensors]
        return [one if isinstance(one, SparseTensor) else convert(one) for one in values]

    def _common_shapes(self) -> list[TensorShape]:
        found = []
        for column in zip(*self.tensors, strict=True):
            every = [self._row(one.shape) for one in column]
            if any(one.sizes is None or len(one) != len(every[0]) for one in every):
                found.append(TensorShape(None))
                continue
            sizes = [one.as_list() for one in every]
            found.append(TensorShape([axis[0] if len(set(axis)) == 1 else None for axis in zip(*sizes, strict=True)]))
        return found

    def _row(self, shape: TensorShape) -> TensorShape:
        return TensorShape(None if shape.sizes is None else shape.sizes[1:] if self._many else shape.sizes)

    def as_given(self, tensors: Any) -> Any:
        """A batch in the form of the script's tensors."""
        listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        whole = [
            unpacked(one, dtype, self._row(shape)) if is_sparse else one
            for one, is_sparse, (dtype, shape) in zip(listed, self._sparse, self._kinds, strict=True)
        ]
        if isinstance(self._first, Mapping):
            return dict(zip(sorted(self._first), whole, strict=True))
        return whole if len(whole) > 1 else whole[0]  # of a list of one tensor, too, as in TensorFlow


def _batched(
    lists: Sequence[Any],
    batch_size: Any,
    make: Callable[..., QueueBase],
    *,
    what: str,
    threads: int = 1,
    keep: Any = True,
    many: bool = False,
    shapes: Any = None,
    smaller: bool = False,
    dynamic: bool = False,
    name: str | None = None,
    summary: tuple[str, Callable[[], float]] = ("", lambda: 1.0),
) -> Any:
    with name_scope(name, what, None) as scope:
        examples = _Examples(lists, shapes, many, what)
        if shapes is None and any(shape.sizes is None for shape in examples.shapes):
            raise ValueError(f"Cannot infer Tensor's rank: {[one.shape for one in examples.tensors[0]]}")
        if not dynamic and any(not shape.is_fully_defined() for shape in examples.shapes):
            raise ValueError(f"All shapes must be fully defined: {examples.shapes}")
        queue = make(examples.dtypes, examples.shapes)
        kept = None if keep is True else _checked(convert(keep, bool_), many=many)
        if kept is not None and (known := known_value(kept)) is not None and known.ndim == 0 and bool(known):
            kept = None
        put = [queue.enqueue_kept(tensors, kept, many=many) for tensors in examples.tensors]
        add_queue_runner(QueueRunner(queue, put * threads if len(put) == 1 else put))
        note_fullness(queue, summary[0], summary[1]())
        take = queue.dequeue_up_to if smaller else queue.dequeue_many
        return examples.as_given(take(batch_size, name=scope))


def _checked(keep: Tensor, *, many: bool) -> Tensor:
    """Return what tells which examples are kept; raises `ValueError` where it cannot."""
    if keep.shape.ndims is None:
        raise ValueError("`keep_input` rank must be known at graph construction time.")
    if keep.shape.ndims > 1:
        raise ValueError("`keep_input` must be 0 or 1 dimensions.")
    if keep.shape.ndims == 1 and not many:
        raise ValueError("`keep_input` cannot be a vector when `enqueue_many=False`.")
    return keep


def _plain(capacity: int, dynamic: bool, shared_name: str | None) -> Callable[..., QueueBase]:
    kind = PaddingFIFOQueue if dynamic else FIFOQueue
    return lambda dtypes, shapes: kind(capacity, dtypes, shapes, shared_name=shared_name)


def _mixed(capacity: int, least: int, seed: int | None, shared_name: str | None) -> Callable[..., QueueBase]:
    return lambda dtypes, shapes: RandomShuffleQueue(
        capacity, least, dtypes, shapes, seed=seed, shared_name=shared_name
    )


def _full(capacity: int, least: int | None = None) -> tuple[str, Callable[[], float]]:
    if least is None:
        return f"fraction_of_{capacity}_full", lambda: 1.0 / capacity
    return f"fraction_over_{least}_of_{capacity - least}_full", lambda: 1.0 / capacity


def maybe_batch(
    tensors: Any,
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of those examples for which `keep_input` is true."""
    return _batched(
        [tensors], batch_size, _plain(capacity, dynamic_pad, shared_name), what="batch", threads=num_threads,
        keep=keep_input, many=enqueue_many, shapes=shapes, smaller=allow_smaller_final_batch, dynamic=dynamic_pad,
        name=name, summary=_full(capacity),
    )  # fmt: skip


def batch(
    tensors: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of tensors, in order if there is one thread.

    Args:
      tensors: of one example, or with `enqueue_many` of several; a list, a dictionary, or a single one.
      dynamic_pad: whether sizes may differ; smaller ones are padded with zeros.
      allow_smaller_final_batch: whether the last batch may have fewer examples; they are left out otherwise.

    Raises:
      ValueError: a shape is not known, and nothing is padded.
    """
    return maybe_batch(
        tensors, True, batch_size, num_threads, capacity, enqueue_many, shapes, dynamic_pad,
        allow_smaller_final_batch, shared_name, name,
    )  # fmt: skip


def maybe_batch_join(
    tensors_list: Sequence[Any],
    keep_input: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of those examples of several sources for which `keep_input` is true."""
    return _batched(
        tensors_list, batch_size, _plain(capacity, dynamic_pad, shared_name), what="batch_join", keep=keep_input,
        many=enqueue_many, shapes=shapes, smaller=allow_smaller_final_batch, dynamic=dynamic_pad, name=name,
        summary=_full(capacity),
    )  # fmt: skip


def batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of the examples of several sources, with a thread for each."""
    return maybe_batch_join(
        tensors_list, True, batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
        shared_name, name,
    )  # fmt: skip


def maybe_shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches, in random order, of those examples for which `keep_input` is true."""
    return _batched(
        [tensors], batch_size, _mixed(capacity, min_after_dequeue, seed, shared_name), what="shuffle_batch",
        threads=num_threads, keep=keep_input, many=enqueue_many, shapes=shapes, smaller=allow_smaller_final_batch,
        name=name, summary=_full(capacity, min_after_dequeue),
    )  # fmt: skip


def shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples in random order; `min_after_dequeue` of them stay in the queue, to mix well."""
    return maybe_shuffle_batch(
        tensors, batch_size, capacity, min_after_dequeue, True, num_threads, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name,
    )  # fmt: skip


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches, in random order, of those examples of several sources for which `keep_input` is true."""
    return _batched(
        tensors_list, batch_size, _mixed(capacity, min_after_dequeue, seed, shared_name), what="shuffle_batch_join",
        keep=keep_input, many=enqueue_many, shapes=shapes, smaller=allow_smaller_final_batch, name=name,
        summary=_full(capacity, min_after_dequeue),
    )  # fmt: skip


def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of the examples of several sources in random order, with a thread for each."""
    return maybe_shuffle_batch_join(
        tensors_list, batch_size, capacity, min_after_dequeue, True, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name,
    )  # fmt: skip
