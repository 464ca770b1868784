"""Arithmetic and comparison, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from trainband.compat.ops.arrays import is_integer, numpy_or_jax
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.table import op


def _unary(
    names: str,
    type_: str,
    function: str | Callable[[Any], Any],
    *,
    v1_names: str = "",
    by_row: str = "",
    flat: bool = False,
) -> Callable[[Any], Any]:
    """Add an operation of one array to the table. If it is given by NumPy's name, it accepts NumPy's arrays, too."""
    folds = isinstance(function, str)

    def compute(x: Any) -> Any:
        return getattr(numpy_or_jax(x), function)(x) if isinstance(function, str) else function(x)

    compute.__name__ = (names or v1_names).split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element."
    return op(names, v1_names=v1_names, type=type_, tensors="x", folds=folds, by_row=by_row, flat=flat)(compute)


negative = _unary("tf.math.negative tf.negative", "Neg", "negative", v1_names="tf.neg", by_row="x")
abs_ = _unary("tf.math.abs tf.abs", "Abs", "abs")
square = _unary("tf.math.square tf.square", "Square", "square")
sqrt = _unary("tf.math.sqrt tf.sqrt", "Sqrt", jnp.sqrt)
rsqrt = _unary("tf.math.rsqrt", "Rsqrt", jax.lax.rsqrt, v1_names="tf.rsqrt")
exp = _unary("tf.math.exp tf.exp", "Exp", jnp.exp)
expm1 = _unary("tf.math.expm1", "Expm1", jnp.expm1, v1_names="tf.expm1")
log = _unary("tf.math.log", "Log", jnp.log, v1_names="tf.log")
log1p = _unary("tf.math.log1p", "Log1p", jnp.log1p, v1_names="tf.log1p")
sin = _unary("tf.math.sin tf.sin", "Sin", jnp.sin)
cos = _unary("tf.math.cos tf.cos", "Cos", jnp.cos)
tan = _unary("tf.math.tan tf.tan", "Tan", jnp.tan)
asin = _unary("tf.math.asin tf.asin", "Asin", jnp.arcsin)
acos = _unary("tf.math.acos tf.acos", "Acos", jnp.arccos)
atan = _unary("tf.math.atan tf.atan", "Atan", jnp.arctan)
sinh = _unary("tf.math.sinh tf.sinh", "Sinh", jnp.sinh)
cosh = _unary("tf.math.cosh tf.cosh", "Cosh", jnp.cosh)
tanh = _unary("tf.math.tanh tf.tanh tf.nn.tanh", "Tanh", jnp.tanh)
erf = _unary("tf.math.erf", "Erf", special.erf, v1_names="tf.erf")
lgamma = _unary("tf.math.lgamma", "Lgamma", special.gammaln, v1_names="tf.lgamma")
digamma = _unary("tf.math.digamma", "Digamma", special.digamma, v1_names="tf.digamma")
sigmoid = _unary("tf.math.sigmoid tf.sigmoid tf.nn.sigmoid", "Sigmoid", jax.nn.sigmoid)
sign = _unary("tf.math.sign tf.sign", "Sign", "sign")
floor = _unary("tf.math.floor tf.floor", "Floor", "floor", flat=True)
ceil = _unary("tf.math.ceil", "Ceil", "ceil", v1_names="tf.ceil", flat=True)
round_ = _unary("tf.math.round tf.round", "Round", "round", flat=True)
reciprocal = _unary("tf.math.reciprocal", "Reciprocal", lambda x: 1 / x, v1_names="tf.reciprocal")
logical_not = _unary("tf.math.logical_not tf.logical_not", "LogicalNot", "logical_not")
is_nan = _unary("tf.math.is_nan", "IsNan", jnp.isnan, v1_names="tf.is_nan")
is_inf = _unary("tf.math.is_inf", "IsInf", jnp.isinf, v1_names="tf.is_inf")
is_finite = _unary("tf.math.is_finite", "IsFinite", jnp.isfinite, v1_names="tf.is_finite")
stop_gradient = _unary("tf.stop_gradient", "StopGradient", jax.lax.stop_gradient, flat=True)


def _binary(
    names: str,
    type_: str,
    function: str | Callable[[Any, Any], Any],
    *,
    v1_names: str = "",
    folds: bool = True,
    by_row: str = "",
    flat: bool = False,
) -> Callable[[Any, Any], Any]:
    """Add an operation of two arrays of one dtype to the table, with broadcasting."""

    def compute(x: Any, y: Any) -> Any:
        return getattr(numpy_or_jax(x, y), function)(x, y) if isinstance(function, str) else function(x, y)

    compute.__name__ = (names or v1_names).split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element, with broadcasting."
    return op(names, v1_names=v1_names, type=type_, tensors="x y", alike="x y", folds=folds, by_row=by_row, flat=flat)(
        compute
    )


def _true_quotient(x: Any, y: Any) -> Any:
    """A true quotient: of whole numbers in float64, or float32 where they are small."""
    if is_integer(x):
        wide = np.float32 if x.dtype.itemsize <= 2 else np.float64
        x, y = x.astype(wide), y.astype(wide)
    return numpy_or_jax(x, y).true_divide(x, y)


def _truncated_quotient(x: Any, y: Any) -> Any:
    xp = numpy_or_jax(x, y)
    if is_integer(x):
        return xp.sign(x) * xp.sign(y) * (xp.abs(x) // xp.abs(y))
    return xp.true_divide(x, y)


def _quotient_or_zero(x: Any, y: Any) -> Any:
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


add = _binary("tf.math.add tf.add", "Add", "add")
subtract = _binary("tf.math.subtract tf.subtract", "Sub", "subtract", v1_names="tf.sub")
multiply = _binary("tf.math.multiply tf.multiply", "Mul", "multiply", v1_names="tf.mul", by_row="x y")
divide = _binary(
    "tf.math.divide tf.truediv tf.divide", "RealDiv", _true_quotient, v1_names="tf.realdiv", by_row="x"
)  # fmt: skip
div = _binary("", "Div", lambda x, y: x // y if is_integer(x) else _true_quotient(x, y), v1_names="tf.div")
truncatediv = _binary("tf.truncatediv", "TruncateDiv", _truncated_quotient)
floordiv = _binary("tf.math.floordiv", "FloorDiv", "floor_divide", v1_names="tf.floordiv tf.floor_div", flat=True)
floormod = _binary("tf.math.floormod", "FloorMod", "mod", v1_names="tf.mod tf.floormod")
pow_ = _binary("tf.math.pow tf.pow", "Pow", "power")
# The first of two equal elements gets the gradient, as in TensorFlow; JAX would split it.
maximum = _binary(
    "tf.math.maximum tf.maximum", "Maximum", lambda x, y: numpy_or_jax(x, y).where((x >= y) | (x != x), x, y)
)
minimum = _binary(
    "tf.math.minimum tf.minimum", "Minimum", lambda x, y: numpy_or_jax(x, y).where((x <= y) | (x != x), x, y)
)
squared_difference = _binary(
    "tf.math.squared_difference", "SquaredDifference", lambda x, y: (x - y) * (x - y), v1_names="tf.squared_difference"
)
atan2 = _binary("tf.math.atan2 tf.atan2", "Atan2", jnp.arctan2, folds=False)
equal = _binary("tf.math.equal tf.equal", "Equal", "equal")
not_equal = _binary("tf.math.not_equal tf.not_equal", "NotEqual", "not_equal")
less = _binary("tf.math.less tf.less", "Less", "less")
less_equal = _binary("tf.math.less_equal tf.less_equal", "LessEqual", "less_equal")
greater = _binary("tf.math.greater tf.greater", "Greater", "greater")
greater_equal = _binary("tf.math.greater_equal tf.greater_equal", "GreaterEqual", "greater_equal")
logical_and = _binary("tf.math.logical_and tf.logical_and", "LogicalAnd", "logical_and")
logical_or = _binary("tf.math.logical_or tf.logical_or", "LogicalOr", "logical_or")
logical_xor = _binary("", "LogicalXor", "logical_xor", v1_names="tf.logical_xor")
div_no_nan = _binary("tf.math.div_no_nan", "DivNoNan", _quotient_or_zero, v1_names="tf.div_no_nan", folds=False)


@op(
    "tf.cast",
    type="Cast",
    tensors="x",
    by_row="x",
    folds=True,
    unchanged=lambda x, dtype: as_dtype(x.dtype) == as_dtype(dtype),
)
def cast(x: Any, dtype: Any) -> Any:
    """Convert to another dtype. Fractions are truncated; as a boolean, a number is true unless it is zero."""
    wanted = as_dtype(dtype)
    return x != 0 if wanted.is_bool else x.astype(wanted.numpy)


def _cast_to(dtype: str, name: str) -> Callable[[Any], Any]:
    def compute(x: Any) -> Any:
        return cast(x, dtype)

    compute.__name__ = name
    compute.__doc__ = f"The numbers as {dtype}."
    return op(
        v1_names=f"tf.{name}", type="Cast", tensors="x", by_row="x", folds=True,
        unchanged=lambda x: as_dtype(x.dtype) == as_dtype(dtype),
    )(compute)  # fmt: skip


to_float = _cast_to("float32", "to_float")
to_double = _cast_to("float64", "to_double")
to_int32 = _cast_to("int32", "to_int32")
to_int64 = _cast_to("int64", "to_int64")


@op("tf.math.add_n tf.add_n", type="AddN", lists="inputs")
def add_n(inputs: Any) -> Any:
    """The sum of several arrays of one shape."""
    total = inputs[0]
    for one in inputs[1:]:
        total = total + one
    return total


@op(
    "tf.math.accumulate_n",
    v1_names="tf.accumulate_n",
    type="AddN",
    lists="inputs",
    v1="inputs -shape -tensor_dtype name",
)
def accumulate_n(inputs: Any) -> Any:
    """The sum of several arrays of one shape."""
    return add_n(inputs)
