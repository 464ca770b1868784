"""Probabilities that know their logits: TensorFlow's Keras makes the crossentropy of the logits where it finds them.

It finds them from what an activation of Keras's gives, and from an operation in a graph, but not across the call of a
`tf.function`: so a result is of the logits only in the call that computed it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from trainband.compat.tf2.eager.captured import is_in_function
from trainband.compat.tf2.eager.tensor import Tensor

ANY = ""
"""The operation of logits that every crossentropy takes: Keras does not ask which of its activations it was."""


class Logits(NamedTuple):
    """What probabilities were computed from.

    Attributes:
      value: the logits, a tensor or an array.
      operation: `Softmax` or `Sigmoid` if an operation of the graph computed them, else `ANY`.
    """

    value: Any
    operation: str


class _Open(threading.local):
    call = 0
    is_eager = False


_open = _Open()
_calls = itertools.count(1)


@contextmanager
def function_call() -> Iterator[None]:
    """Inside is a call of a `tf.function`, which knows nothing of what was computed outside, nor the reverse."""
    before, _open.call = _open.call, next(_calls)
    try:
        yield
    finally:
        _open.call = before


def remember(tensor: Tensor, logits: Logits) -> None:
    """Note the logits of a tensor of probabilities."""
    tensor.logits = (_open.call, logits)


def logits_of(tensor: Tensor) -> Logits | None:
    """Return the logits that a tensor was computed from, if TensorFlow's Keras would find them."""
    if tensor.logits is None or tensor.logits[0] != _open.call:
        return None
    found: Logits = tensor.logits[1]
    return found


def note_operation(operation: str, axis: Any, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Note the logits of a softmax or sigmoid that a graph computes; there is none around an eager operation."""
    is_last = axis is None or axis in (-1, inputs[0].ndim - 1)
    if is_last and is_in_graph(inputs):
        remember(results[0], Logits(inputs[0], operation))


def is_in_graph(inputs: Sequence[Tensor]) -> bool:
    """Whether TensorFlow would compute with these tensors in a graph."""
    return is_in_function() or (any(one.is_traced for one in inputs) and not _open.is_eager)


@contextmanager
def eagerly(is_eager: bool) -> Iterator[None]:
    """Inside, what JAX traces stands for a computation that is eager in TensorFlow, or is not."""
    before, _open.is_eager = _open.is_eager, is_eager
    try:
        yield
    finally:
        _open.is_eager = before
