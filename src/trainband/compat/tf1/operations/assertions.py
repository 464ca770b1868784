"""Assertions on tensors: about dtypes and ranks while recording, and about values where they are known, or in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.record import convert, known_value, record_tensor
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.control_flow import no_op
from trainband.compat.tf1.operations.printing import asserting

Holds = Callable[..., Any]


def _demand(name: str, tensors: Sequence[Tensor], holds: Holds, message: Any, data: Any) -> Operation:
    values = [known_value(tensor) for tensor in tensors]
    text = f"{message}: {name}" if message else name
    if all(value is not None for value in values):
        if not bool(holds(*values)):
            raise InvalidArgumentError(None, None, f"{text} did not hold: {values} (at {user_line()})")
        return no_op(f"{name}/static_checks_determined_all_ok")
    more = [convert(one) for one in data or ()]
    return asserting(
        name, [*tensors, *more], lambda *given: holds(*given[: len(tensors)]), name, message=str(message or "")
    )


def _pair(x: Any, y: Any) -> list[Tensor]:
    if isinstance(x, Tensor) or not isinstance(y, Tensor):
        first = convert(x)
        return [first, convert(y, None if isinstance(y, Tensor) else first.dtype)]
    return [convert(x, y.dtype), y]


def _comparison(title: str, holds: Callable[[Any, Any], Any], says: str) -> Callable[..., Operation]:
    def check(
        x: Any, y: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
    ) -> Operation:
        del summarize
        tensors = _pair(x, y)
        return _demand(name or title, tensors, lambda a, b: jnp.all(holds(a, b)), message, data)

    check.__name__ = check.__qualname__ = title
    check.__doc__ = f"Make a run fail unless {says} everywhere."
    return check


def _sign(title: str, holds: Callable[[Any], Any], says: str) -> Callable[..., Operation]:
    def check(
        x: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
    ) -> Operation:
        del summarize
        return _demand(name or title, [convert(x)], lambda a: jnp.all(holds(a)), message, data)

    check.__name__ = check.__qualname__ = title
    check.__doc__ = f"Make a run fail unless {says} everywhere."
    return check


assert_equal = _comparison("assert_equal", lambda a, b: a == b, "x = y")
assert_none_equal = _comparison("assert_none_equal", lambda a, b: a != b, "x and y differ")
assert_less = _comparison("assert_less", lambda a, b: a < b, "x < y")
assert_less_equal = _comparison("assert_less_equal", lambda a, b: a <= b, "x <= y")
assert_greater = _comparison("assert_greater", lambda a, b: a > b, "x > y")
assert_greater_equal = _comparison("assert_greater_equal", lambda a, b: a >= b, "x >= y")
assert_positive = _sign("assert_positive", lambda a: a > 0, "x > 0")
assert_negative = _sign("assert_negative", lambda a: a < 0, "x < 0")
assert_non_negative = _sign("assert_non_negative", lambda a: a >= 0, "x >= 0")
assert_non_positive = _sign("assert_non_positive", lambda a: a <= 0, "x <= 0")


_DIGITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52, "complex64": 23, "complex128": 52}
"""The binary digits of a dtype's fractions."""


def assert_near(
    x: Any, y: Any, rtol: Any = None, atol: Any = None, data: Any = None, summarize: Any = None, message: Any = None,
    name: str | None = None,
) -> Operation:  # fmt: skip
    """Make a run fail unless |x - y| <= atol + rtol |y| everywhere; both are ten times the dtype's resolution."""
    del summarize
    tensors = _pair(x, y)
    small = 10 * (2.0 ** -_DIGITS[tensors[0].dtype.name])
    most, share = (small if one is None else one for one in (atol, rtol))
    return _demand(
        name or "assert_near", tensors, lambda a, b: jnp.all(jnp.abs(a - b) <= most + share * jnp.abs(b)), message, data
    )


# --- dtypes


def assert_type(tensor: Any, tf_type: Any, message: Any = None, name: str | None = None) -> Operation:
    """Raises `TypeError` unless a tensor has this dtype."""
    found, wanted = convert(tensor), as_dtype(tf_type)
    if found.dtype != wanted:
        raise TypeError(f"{_said(message)}{found.name} must be of type {wanted!r}; got {found.dtype!r}")
    return no_op(name or "assert_type/statically_determined_correct_type")


def assert_integer(x: Any, message: Any = None, name: str | None = None) -> Operation:
    """Raises `TypeError` unless a tensor holds whole numbers."""
    found = convert(x)
    if not found.dtype.is_integer:
        raise TypeError(f'{_said(message)}Expected "x" to be integer type. Found: {found.dtype!r} ({found.name})')
    return no_op(name or "assert_integer/statically_determined_is_integer")


def assert_same_float_dtype(tensors: Any = None, dtype: Any = None) -> DType:
    """Return the floating-point dtype that all tensors have.

    Raises:
      ValueError: they have none in common.
    """
    kinds = [convert(one).dtype for one in tensors or () if one is not None]
    kinds += [] if dtype is None else [as_dtype(dtype)]
    if len(set(kinds)) > 1 or any(not kind.is_floating for kind in kinds):
        raise ValueError(f"Expected one floating-point type, got {sorted({kind.name for kind in kinds})}.")
    return kinds[0] if kinds else as_dtype("float32")


def assert_proper_iterable(values: Any) -> None:
    """Raises `TypeError` unless a value is a sequence of tensors rather than one tensor or text."""
    if isinstance(values, Tensor | str | bytes) or hasattr(values, "dtype") or not isinstance(values, Iterable):
        raise TypeError(f"Expected argument \"values\" to be a 'proper' iterable. Found: {type(values)}")


# --- ranks


def _said(message: Any) -> str:
    return f"{message} " if message else ""


def _ranked(
    x: Any, title: str, holds: Callable[[int], bool], says: str, message: Any, data: Any, name: Any
) -> Operation:
    tensor = convert(x)
    rank = tensor.shape.ndims
    if rank is None:
        return asserting(
            title, [tensor, *(convert(one) for one in data or ())], lambda a, *_: jnp.asarray(holds(a.ndim)), name
        )
    if not holds(rank):
        raise ValueError(
            f"{_said(message)}Tensor {tensor.name} must have {says}.  Received rank {rank}, shape {tensor.shape} "
            f"(at {user_line()})"
        )
    return no_op(name or f"{title}/static_checks_determined_all_ok")


def assert_rank(
    x: Any, rank: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has this rank; a run fails if it is not known before."""
    del summarize
    wanted = _static_rank(rank)
    return _ranked(x, "assert_rank", lambda n: n == wanted, f"rank {wanted}", message, data, name)


def assert_rank_at_least(
    x: Any, rank: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has at least this rank; a run fails if it is not known before."""
    del summarize
    least = _static_rank(rank)
    return _ranked(x, "assert_rank_at_least", lambda n: n >= least, f"rank at least {least}", message, data, name)


def assert_rank_in(
    x: Any, ranks: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has one of these ranks; a run fails if it is not known before."""
    del summarize
    allowed = tuple(map(_static_rank, ranks))
    return _ranked(x, "assert_rank_in", lambda n: n in allowed, f"rank in {allowed}", message, data, name)


def assert_scalar(tensor: Any, name: str | None = None, message: Any = None) -> Tensor:
    """Return a tensor, which must be a scalar.

    Raises:
      ValueError: it has another shape.
    """
    found = convert(tensor, name=name)
    if found.shape.ndims not in (None, 0):
        raise ValueError(f"{_said(message)}Expected scalar shape for {found.name}, saw shape: {found.shape}.")
    return found


def _static_rank(rank: Any) -> int:
    value = known_value(convert(rank))
    if value is None or value.ndim or value.dtype.kind not in "iu":
        raise ValueError(f"Rank must be a scalar of whole numbers that is known, got {rank}.")
    return int(value)


# --- order


def _ordered(x: Any, title: str, holds: Callable[[Any, Any], Any], name: str | None) -> Tensor:
    return record_tensor(
        title, lambda a: jnp.all(holds(jnp.ravel(a)[:-1], jnp.ravel(a)[1:])), [convert(x)], name=name or title
    )


def is_non_decreasing(x: Any, name: str | None = None) -> Tensor:
    """Whether no element is less than the one before it."""
    return _ordered(x, "is_non_decreasing", lambda a, b: a <= b, name)


def is_strictly_increasing(x: Any, name: str | None = None) -> Tensor:
    """Whether each element is more than the one before it."""
    return _ordered(x, "is_strictly_increasing", lambda a, b: a < b, name)


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether a value is a tensor of numbers."""
    kind = tensor.dtype if isinstance(tensor, Tensor) else None
    return kind is not None and (kind.is_floating or kind.is_integer or kind.is_complex)
