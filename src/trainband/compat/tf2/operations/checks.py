"""`tf.debugging`: demands on tensors. They look at values and raise at once, or when a traced function runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.checks import check
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.execute import TENSORS, convert
from trainband.compat.tf2.eager.tensor import Tensor

_SHOWN = 3
"""How many elements a message shows."""


def _demand(holds: Callable[..., Any], tensors: Mapping[str, Tensor], says: str, message: Any, summarize: Any) -> None:
    if any(one.is_traced for one in tensors.values()):
        check(
            lambda: jnp.all(holds(*(one.array for one in tensors.values()))),
            f"{message or ''} Condition {says} did not hold.",
        )
        return
    values = {name: np.asarray(one.numpy()) for name, one in tensors.items()}
    if bool(np.all(holds(*values.values()))):
        return
    count = _SHOWN if summarize is None else int(summarize)
    lines = [f"{message}" if message else "", f"Condition {says} did not hold."]
    for name, value in values.items():
        lines += [f"First {min(count, value.size)} elements of {name}:", str(value.reshape(-1)[:count])]
    raise InvalidArgumentError(None, None, "\n".join(filter(None, lines)))


def _pair(x: Any, y: Any) -> dict[str, Tensor]:
    if TENSORS.is_tensor(x) or not TENSORS.is_tensor(y):
        first = convert(x)
        return {"x": first, "y": convert(y, None if TENSORS.is_tensor(y) else first.dtype)}
    second = convert(y)
    return {"x": convert(x, second.dtype), "y": second}


def _comparison(title: str, holds: Callable[[Any, Any], Any], sign: str) -> Callable[..., None]:
    def demand(x: Any, y: Any, message: Any = None, summarize: Any = None, name: str | None = None) -> None:
        del name
        _demand(holds, _pair(x, y), f"x {sign} y", message, summarize)

    demand.__name__ = demand.__qualname__ = title
    demand.__doc__ = f"Demand that x {sign} y for all elements.\n\nRaises:\n  InvalidArgumentError: it is not so."
    return demand


assert_equal = _comparison("assert_equal", np.equal, "==")
assert_none_equal = _comparison("assert_none_equal", np.not_equal, "!=")
assert_less = _comparison("assert_less", np.less, "<")
assert_less_equal = _comparison("assert_less_equal", np.less_equal, "<=")
assert_greater = _comparison("assert_greater", np.greater, ">")
assert_greater_equal = _comparison("assert_greater_equal", np.greater_equal, ">=")


def _sign(title: str, holds: Callable[[Any], Any], says: str) -> Callable[..., None]:
    def demand(x: Any, message: Any = None, summarize: Any = None, name: str | None = None) -> None:
        del name
        _demand(holds, {"x": convert(x)}, says, message, summarize)

    demand.__name__ = demand.__qualname__ = title
    demand.__doc__ = f"Demand that {says} for all elements.\n\nRaises:\n  InvalidArgumentError: it is not so."
    return demand


assert_positive = _sign("assert_positive", lambda x: x > 0, "x > 0")
assert_negative = _sign("assert_negative", lambda x: x < 0, "x < 0")
assert_non_negative = _sign("assert_non_negative", lambda x: x >= 0, "x >= 0")
assert_non_positive = _sign("assert_non_positive", lambda x: x <= 0, "x <= 0")


def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    message: Any = None,
    summarize: Any = None,
    name: str | None = None,
) -> None:
    """Demand that x and y are close for all elements.

    Raises:
      InvalidArgumentError: they are not.
    """
    del name
    pair = _pair(x, y)
    least = 10 * np.finfo(pair["x"].dtype.numpy).eps
    relative, absolute = (least if one is None else float(one) for one in (rtol, atol))
    _demand(
        lambda a, b: np.abs(a - b) <= absolute + relative * np.abs(b),
        pair,
        "abs(x - y) <= atol + rtol * abs(y)",
        message,
        summarize,
    )


def Assert(condition: Any, data: Sequence[Any], summarize: Any = None, name: str | None = None) -> None:  # noqa: N802
    """Demand a condition.

    Raises:
      InvalidArgumentError: it does not hold.
    """
    del name, summarize
    tensor = convert(condition)
    if tensor.is_traced:
        check(lambda: jnp.all(tensor.array), "Expected a condition to be true.")
    elif not bool(np.all(tensor.numpy())):
        shown = "\n".join(str(getattr(one, "numpy", lambda one=one: one)()) for one in data)
        raise InvalidArgumentError(None, None, f"Expected '{tensor}' to be true. Summarized data: {shown}")


def assert_all_finite(x: Any, message: str, name: str | None = None) -> Tensor:
    """The tensor, all of whose elements are finite.

    Raises:
      InvalidArgumentError: one is not.
    """
    del name
    tensor = convert(x)
    if tensor.is_traced:
        check(lambda: jnp.isfinite(tensor.array).all(), f"{message} : Tensor had Inf or NaN values")
    else:
        value = np.asarray(tensor.numpy(), np.float64 if not tensor.dtype.is_complex else None)
        found = [title for title, some in (("Inf", np.isinf), ("NaN", np.isnan)) if some(value).any()]
        if found:
            raise InvalidArgumentError(None, None, f"{message} : Tensor had {' and '.join(found)} values")
    return tensor


check_numerics = assert_all_finite


def assert_type(tensor: Any, tf_type: Any, message: Any = None, name: str | None = None) -> None:
    """Demand a dtype.

    Raises:
      TypeError: it is another.
    """
    del name
    found = convert(tensor).dtype
    if found is not as_dtype(tf_type):
        raise TypeError(
            f"{message or ''} Tensor {tensor!r} must be of type {as_dtype(tf_type)!r}, got {found!r}".strip()
        )


def assert_integer(x: Any, message: Any = None, name: str | None = None) -> None:
    """Demand whole numbers.

    Raises:
      TypeError: the dtype is another.
    """
    del name
    if not convert(x).dtype.is_integer:
        raise TypeError(f'{message or ""} Expected "x" to be integer type. Found: {convert(x).dtype!r}'.strip())


def assert_same_float_dtype(tensors: Any = None, dtype: Any = None) -> DType:
    """The dtype that all tensors have, which is a floating-point one.

    Raises:
      ValueError: they do not have one such dtype.
    """
    kinds = {convert(one).dtype for one in tensors or ()} | ({as_dtype(dtype)} if dtype is not None else set())
    if len(kinds) > 1 or not all(one.is_floating for one in kinds):
        raise ValueError(f"Expected one floating point type, got {sorted(one.name for one in kinds)}.")
    return next(iter(kinds), as_dtype("float32"))


def assert_proper_iterable(values: Any) -> None:
    """Demand something like a list, which no tensor, array or text is.

    Raises:
      TypeError: it is another.
    """
    if isinstance(values, Tensor | np.ndarray | str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Expected argument 'values' to be a 'proper' iterable. Found: {type(values)}")


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether it is a tensor of numbers."""
    return TENSORS.is_tensor(tensor) and (lambda kind: kind.is_floating or kind.is_integer or kind.is_complex)(
        convert(tensor).dtype
    )


def _ranked(title: str, holds: Callable[[int, Any], bool], says: str) -> Callable[..., None]:
    def demand(x: Any, rank: Any, message: Any = None, name: str | None = None) -> None:
        del name
        allowed = [int(one) for one in rank] if isinstance(rank, list | tuple) else int(rank)
        found = convert(x).ndim
        if not holds(found, allowed):
            raise ValueError(f"{message or ''} Tensor must have rank {says} {allowed}. Received rank {found}, "
                             f"shape {tuple(convert(x).aval[0])}".strip())  # fmt: skip

    demand.__name__ = demand.__qualname__ = title
    demand.__doc__ = f"Demand a rank {says} a number.\n\nRaises:\n  ValueError: it is another."
    return demand


assert_rank = _ranked("assert_rank", lambda found, allowed: found == allowed, "equal to")
assert_rank_at_least = _ranked("assert_rank_at_least", lambda found, allowed: found >= allowed, "of at least")


def assert_rank_in(x: Any, ranks: Sequence[Any], message: Any = None, name: str | None = None) -> None:
    """Demand one of several ranks.

    Raises:
      ValueError: it is another.
    """
    _ranked("assert_rank_in", lambda found, allowed: found in allowed, "in")(x, list(ranks), message, name)


def assert_scalar(tensor: Any, message: Any = None, name: str | None = None) -> Tensor:
    """The tensor, which has no axes.

    Raises:
      ValueError: it has some.
    """
    assert_rank(tensor, 0, message, name)
    return convert(tensor)


def assert_shapes(
    shapes: Any, data: Any = None, summarize: Any = None, message: Any = None, name: str | None = None
) -> None:
    """Demand shapes, in which the same letter stands for the same size: `[(x, ("N", 3)), (y, ("N",))]`.

    Raises:
      ValueError: a shape is another.
    """
    del data, summarize, name
    sizes: dict[Any, int] = {}
    for tensor, symbols in shapes.items() if isinstance(shapes, Mapping) else shapes:
        found = convert(tensor).aval[0]
        wanted = list(symbols) if isinstance(symbols, list | tuple | str) else [symbols]
        rest = wanted[1:] if wanted and wanted[0] in (Ellipsis, "...") else None
        if rest is not None:
            wanted, found = rest, found[max(len(found) - len(rest), 0) :]
        if len(found) != len(wanted):
            raise ValueError(f"{message or ''} Tensor of shape {tuple(found)} is not of shape {symbols}.".strip())
        for size, symbol in zip(found, wanted, strict=True):
            if symbol in (None, "?", "."):
                continue
            expected = symbol if isinstance(symbol, int) else sizes.setdefault(symbol, size)
            if size != expected:
                raise ValueError(
                    f"{message or ''} Tensor of shape {tuple(found)} is not of shape {symbols}: {symbol} is {expected}."
                    .strip()
                )  # fmt: skip


def _steps(x: Any, holds: Callable[[Any, Any], Any]) -> Tensor:
    value = np.asarray(convert(x).numpy()).reshape(-1)
    return Tensor(np.asarray(bool(np.all(holds(value[1:], value[:-1])))))


is_non_decreasing = functools.partial(_steps, holds=np.greater_equal)
is_strictly_increasing = functools.partial(_steps, holds=np.greater)


def change_nothing(*_: Any, **__: Any) -> None:
    """Changes nothing."""


enable_check_numerics = disable_check_numerics = enable_traceback_filtering = disable_traceback_filtering = (
    change_nothing
)


def is_off(*_: Any) -> bool:
    """Whether something is on that is never on here."""
    return False


is_traceback_filtering_enabled = get_log_device_placement = is_off
