"""Assertions on tensors: about dtypes and ranks while recording, and about values where they are known, or in a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.record import convert, known_value, record_tensor
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.control_flow import no_op
from trainband.compat.tf1.operations.printing import asserting

Holds = Callable[..., Any]


def _demand(
    name: str, tensors: Sequence[Tensor], holds: Holds, says: str, message: Any, data: Any, summarize: Any = None
) -> Operation:
    """Demand a condition: at once if the tensors' values are known, else in a run."""
    titles = [f"{_said(message)}Condition {says} did not hold element-wise:", *(f"{one.name} = " for one in tensors)]
    values = [known_value(tensor) for tensor in tensors]
    if all(value is not None for value in values):
        try:
            found = bool(holds(*values))
        except ValueError as exc:
            shapes = " vs. ".join(str(list(value.shape)) for value in values if value is not None)
            raise ValueError(f"Incompatible shapes: {shapes} (at {user_line()})") from exc
        if not found:
            shown = " ".join(f"{title}{value}" for title, value in zip(titles[1:], values, strict=True))
            raise InvalidArgumentError(None, None, f"{titles[0]} {shown} (at {user_line()})")
        return no_op(f"{name}/static_checks_determined_all_ok")
    said = [titles[0], *(x for pair in zip(titles[1:], tensors, strict=True) for x in pair)]
    return asserting(name, tensors, holds, name, said if data is None else data, summarize)


def _pair(x: Any, y: Any) -> list[Tensor]:
    if isinstance(x, Tensor) or not isinstance(y, Tensor):
        first = convert(x)
        return [first, convert(y, None if isinstance(y, Tensor) else first.dtype)]
    return [convert(x, y.dtype), y]


def _comparison(title: str, holds: Callable[[Any, Any], Any], sign: str) -> Callable[..., Operation]:
    def check(
        x: Any, y: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
    ) -> Operation:
        tensors = _pair(x, y)
        return _demand(
            name or title, tensors, lambda a, b: jnp.all(holds(a, b)), f"x {sign} y", message, data, summarize
        )

    check.__name__ = check.__qualname__ = title
    check.__doc__ = f"Make a run fail unless x {sign} y everywhere."
    return check


def _sign(title: str, holds: Callable[[Any], Any], says: str) -> Callable[..., Operation]:
    def check(
        x: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
    ) -> Operation:
        return _demand(name or title, [convert(x)], lambda a: jnp.all(holds(a)), says, message, data, summarize)

    check.__name__ = check.__qualname__ = title
    check.__doc__ = f"Make a run fail unless {says} everywhere."
    return check


assert_equal = _comparison("assert_equal", lambda a, b: a == b, "==")
assert_none_equal = _comparison("assert_none_equal", lambda a, b: a != b, "!=")
assert_less = _comparison("assert_less", lambda a, b: a < b, "<")
assert_less_equal = _comparison("assert_less_equal", lambda a, b: a <= b, "<=")
assert_greater = _comparison("assert_greater", lambda a, b: a > b, ">")
assert_greater_equal = _comparison("assert_greater_equal", lambda a, b: a >= b, ">=")
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
    tensors = _pair(x, y)
    small = 10 * (2.0 ** -_DIGITS[tensors[0].dtype.name])
    most, share = (small if one is None else one for one in (atol, rtol))
    return _demand(
        name or "assert_near",
        tensors,
        lambda a, b: jnp.all(jnp.abs(a - b) <= most + share * jnp.abs(b)),
        "x and y not equal to tolerance",
        message,
        data,
        summarize,
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
    given = [one for one in tensors or () if one is not None]
    kinds = [as_dtype(one.dtype) if hasattr(one, "dtype") else convert(one).dtype for one in given]
    kinds += [] if dtype is None else [as_dtype(dtype)]
    if len(set(kinds)) > 1 or any(not kind.is_floating for kind in kinds):
        raise ValueError(f"Expected one floating-point type, got {sorted({kind.name for kind in kinds})}.")
    return kinds[0] if kinds else as_dtype("float32")


def assert_proper_iterable(values: Any) -> None:
    """Raises `TypeError` unless a value is a sequence of tensors rather than one tensor or text."""
    if isinstance(values, Tensor | SparseTensor | str | bytes) or hasattr(values, "dtype"):
        raise TypeError(f"Expected argument \"values\" to be a 'proper' iterable. Found: {type(values)}")
    if not isinstance(values, Iterable):
        raise TypeError(f'Expected argument "values" to be iterable. Found: {type(values)}')


# --- ranks


def _said(message: Any) -> str:
    return f"{message} " if message else ""


Judge = Callable[[int, Sequence[int]], bool]
"""Of a rank, and the ranks that are asked for."""


def _ranked(
    x: Any,
    ranks: Sequence[Any],
    title: str,
    holds: Judge,
    says: str,
    message: Any,
    data: Any,
    name: Any,
    summarize: Any,
) -> Operation:
    """Demand something of a rank: at once if it is known, and the wanted ones are, else in a run."""
    tensor, wanted = convert(x), [convert(one) for one in ranks]
    numbers = [known_value(one) for one in wanted]
    for one, number in zip(wanted, numbers, strict=True):
        if one.shape.ndims or (number is not None and number.dtype.kind not in "iu"):
            raise ValueError(f"Rank must be a scalar of whole numbers, got {one} (at {user_line()}).")
    rank = tensor.shape.ndims
    if rank is None or any(number is None for number in numbers):

        def judge(a: Any, *given: Any) -> Any:
            if any(one.ndim for one in given):
                raise ArgumentError("Rank must be a scalar.")
            return jnp.asarray(holds(a.ndim, given))

        titles = [f"{_said(message)}Tensor {tensor.name} must have {says}", *wanted, "Received shape: ", tensor]
        return asserting(title, [tensor, *wanted], judge, name, titles if data is None else data, summarize)
    known = [int(number) for number in numbers if number is not None]
    if not holds(rank, known):
        asked = known[0] if len(known) == 1 else tuple(known)
        raise ValueError(
            f"{_said(message)}Tensor {tensor.name} must have {says} {asked}.  Received rank {rank}, shape "
            f"{tensor.shape} (at {user_line()})"
        )
    return no_op(name or f"{title}/static_checks_determined_all_ok")


def assert_rank(
    x: Any, rank: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has this rank; a run fails if it is not known before."""
    return _ranked(x, [rank], "assert_rank", lambda n, of: n == of[0], "rank", message, data, name, summarize)


def assert_rank_at_least(
    x: Any, rank: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has at least this rank; a run fails if it is not known before."""
    return _ranked(
        x, [rank], "assert_rank_at_least", lambda n, of: n >= of[0], "rank at least", message, data, name, summarize
    )


def assert_rank_in(
    x: Any, ranks: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> Operation:
    """Raises `ValueError` unless a tensor has one of these ranks; a run fails if it is not known before."""
    return _ranked(x, list(ranks), "assert_rank_in", _is_one_of, "rank in", message, data, name, summarize)


def _is_one_of(rank: int, allowed: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a | b, [rank == one for one in allowed])


def assert_scalar(tensor: Any, name: str | None = None, message: Any = None) -> Tensor:
    """Return a tensor, which must be a scalar.

    Raises:
      ValueError: it has another shape.
    """
    found = convert(tensor, name=name)
    if found.shape.ndims not in (None, 0):
        raise ValueError(f"{_said(message)}Expected scalar shape for {found.name}, saw shape: {found.shape}.")
    return found


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
