"""Arithmetic and comparison, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_computed, is_floating, is_integer, numpy_or_jax, with_value
from trainband.compat.ops.checks import check
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.ops.table import op


def _unary(
    names: str,
    type_: str,
    function: str | Callable[[Any], Any],
    *,
    v1_names: str = "",
    by_row: str = "",
    flat: bool = False,
    kinds: str = "float complex",
) -> Callable[[Any], Any]:
    """Add an operation of one array to the table. If it is given by NumPy's name, it accepts NumPy's arrays, too."""
    folds = isinstance(function, str)

    def compute(x: Any) -> Any:
        return getattr(numpy_or_jax(x), function)(x) if isinstance(function, str) else function(x)

    compute.__name__ = (names or v1_names).split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element."
    return op(
        names, v1_names=v1_names, type=type_, tensors="x", folds=folds, by_row=by_row, flat=flat, kinds={"x": kinds}
    )(compute)


def _abs(x: Any) -> Any:
    """The absolute value, whose derivative at zero is zero."""
    if not is_computed(x) or not is_floating(x):
        return numpy_or_jax(x).abs(x)
    return x * jnp.sign(jax.lax.stop_gradient(x))


def _angle(x: Any) -> Any:
    return jnp.angle(x) if jnp.iscomplexobj(x) else jnp.where(x < 0, np.pi, 0).astype(x.dtype)


def _guarded(function: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function with an infinite slope somewhere, through which a derivative of zero goes as zero.

    So it is in TensorFlow's kernels, and so a `tf.where` around it can keep its poles out of a gradient.

    Args:
      slope: of the function's result.
    """
    guarded = jax.custom_vjp(function)

    def forward(x: Any) -> tuple[Any, Any]:
        result = function(x)
        return result, result

    def backward(result: Any, cotangent: Any) -> tuple[Any]:
        return (jnp.where(cotangent == 0, 0, cotangent * slope(result)),)

    guarded.defvjp(forward, backward)
    return lambda x: guarded(jnp.asarray(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else function(x)


square_root = _guarded(jnp.sqrt, lambda y: 0.5 / y)


def _digamma(x: Any) -> Any:
    """Undefined at zero, as at the other poles."""
    found = special.digamma(x)
    return with_value(found, jnp.where(x == 0, jnp.nan, found))


NUMBERS = "float int complex"
negative = _unary("tf.math.negative tf.negative", "Neg", "negative", v1_names="tf.neg", by_row="x", kinds=NUMBERS)
abs_ = _unary("tf.math.abs tf.abs", "Abs", _abs, kinds=NUMBERS)
square = _unary("tf.math.square tf.square", "Square", "square", kinds=NUMBERS)
sqrt = _unary("tf.math.sqrt tf.sqrt", "Sqrt", square_root)
rsqrt = _unary("tf.math.rsqrt", "Rsqrt", _guarded(jax.lax.rsqrt, lambda y: -0.5 * y * y * y), v1_names="tf.rsqrt")
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
digamma = _unary("tf.math.digamma", "Digamma", _digamma, v1_names="tf.digamma")
sigmoid = _unary("tf.math.sigmoid tf.sigmoid tf.nn.sigmoid", "Sigmoid", jax.nn.sigmoid)
sign = _unary("tf.math.sign tf.sign", "Sign", "sign", kinds=NUMBERS)
floor = _unary("tf.math.floor tf.floor", "Floor", "floor", flat=True, kinds="float")
ceil = _unary("tf.math.ceil", "Ceil", "ceil", v1_names="tf.ceil", flat=True, kinds="float")
round_ = _unary("tf.math.round tf.round", "Round", "round", flat=True, kinds=NUMBERS)
reciprocal = _unary(
    "tf.math.reciprocal",
    "Reciprocal",
    _guarded(lambda x: 1 / x, lambda y: -y * y),
    v1_names="tf.reciprocal",
    kinds=NUMBERS,
)
logical_not = _unary("tf.math.logical_not tf.logical_not", "LogicalNot", "logical_not", kinds="bool")
is_nan = _unary("tf.math.is_nan", "IsNan", jnp.isnan, v1_names="tf.is_nan", kinds="float")
is_inf = _unary("tf.math.is_inf", "IsInf", jnp.isinf, v1_names="tf.is_inf", kinds="float")
is_finite = _unary("tf.math.is_finite", "IsFinite", jnp.isfinite, v1_names="tf.is_finite", kinds="float")
stop_gradient = _unary(
    "tf.stop_gradient", "StopGradient", jax.lax.stop_gradient, flat=True, kinds="float int bool complex string"
)
asinh = _unary("tf.math.asinh tf.asinh", "Asinh", jnp.arcsinh)
acosh = _unary("tf.math.acosh tf.acosh", "Acosh", jnp.arccosh)
atanh = _unary("tf.math.atanh tf.atanh", "Atanh", jnp.arctanh)
erfc = _unary("tf.math.erfc", "Erfc", special.erfc, v1_names="tf.erfc")
rint = _unary("tf.math.rint", "Rint", "rint", v1_names="tf.rint", flat=True)
bessel_i0 = _unary("tf.math.bessel_i0", "BesselI0", special.i0)
bessel_i0e = _unary("tf.math.bessel_i0e", "BesselI0e", special.i0e)
bessel_i1 = _unary("tf.math.bessel_i1", "BesselI1", special.i1)
bessel_i1e = _unary("tf.math.bessel_i1e", "BesselI1e", special.i1e)
real = _unary("tf.math.real", "Real", jnp.real, v1_names="tf.real")
imag = _unary("tf.math.imag", "Imag", jnp.imag, v1_names="tf.imag")
conj = _unary("tf.math.conj", "Conj", jnp.conj, v1_names="tf.conj", kinds=NUMBERS)
angle = _unary("tf.math.angle", "Angle", _angle, v1_names="tf.angle")


def _binary(
    names: str,
    type_: str,
    function: str | Callable[[Any, Any], Any],
    *,
    v1_names: str = "",
    folds: bool = True,
    by_row: str = "",
    flat: bool = False,
    kinds: str = "float int complex bool string",
) -> Callable[[Any, Any], Any]:
    """Add an operation of two arrays of one dtype to the table, with broadcasting."""

    def compute(x: Any, y: Any) -> Any:
        return getattr(numpy_or_jax(x, y), function)(x, y) if isinstance(function, str) else function(x, y)

    compute.__name__ = (names or v1_names).split()[-1].rpartition(".")[2]
    compute.__doc__ = f"TensorFlow's {type_}, element by element, with broadcasting."
    return op(
        names, v1_names=v1_names, type=type_, tensors="x y", alike="x y", folds=folds, by_row=by_row, flat=flat,
        kinds={"x": kinds, "y": kinds},
    )(compute)  # fmt: skip


def as_fractions(x: Any, y: Any) -> tuple[Any, Any]:
    """Whole numbers as float64, or float32 where they are small."""
    if not is_integer(x):
        return x, y
    wide = np.float32 if x.dtype.itemsize <= 2 else np.float64
    return x.astype(wide), y.astype(wide)


def _true_quotient(x: Any, y: Any) -> Any:
    return numpy_or_jax(x, y).true_divide(*as_fractions(x, y))


def _divisible(function: str | Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A division that refuses to divide whole numbers by zero."""

    def compute(x: Any, y: Any) -> Any:
        if is_integer(x):
            check(lambda: (y != 0).all(), "Integer division by zero")
            y = numpy_or_jax(y).where(y == 0, 1, y)  # NumPy and XLA give other numbers, and the first warns
        return getattr(numpy_or_jax(x, y), function)(x, y) if isinstance(function, str) else function(x, y)

    return compute


def _truncated_quotient(x: Any, y: Any) -> Any:
    xp = numpy_or_jax(x, y)
    if is_integer(x):
        floored = xp.floor_divide(x, y)
        is_lower = (floored * y != x) & ((x < 0) != (y < 0))
        return floored + is_lower.astype(x.dtype)
    return xp.trunc(xp.true_divide(x, y))


def _floored_quotient(x: Any, y: Any) -> Any:
    """The quotient, rounded down. NumPy's own function has 29 for 6 // 0.2, and NaN for infinity // 2."""
    xp = numpy_or_jax(x, y)
    return xp.floor_divide(x, y) if is_integer(x) else xp.floor(xp.true_divide(x, y))


@jax.custom_jvp
def _rest(x: Any, y: Any) -> Any:
    return jnp.mod(x, y)


@_rest.defjvp
def _rest_derivative(values: Any, tangents: Any) -> tuple[Any, Any]:
    return _rest(*values), tangents[0] - tangents[1] * _floored_quotient(*values)


def _floored_rest(x: Any, y: Any) -> Any:
    return np.mod(x, y) if numpy_or_jax(x, y) is np else _rest(x, y) if is_floating(x) else jnp.mod(x, y)


def _quotient_or_zero(x: Any, y: Any) -> Any:
    x, y = as_fractions(x, y)
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y)).astype(x.dtype)


@jax.custom_jvp
def _product_or_zero(x: Any, y: Any) -> Any:
    return jnp.where(y == 0, 0, x) * y


@_product_or_zero.defjvp
def _product_or_zero_derivative(values: Any, tangents: Any) -> tuple[Any, Any]:
    """By the second it is the first, also where the second is zero."""
    (x, y), (dx, dy) = values, tangents
    return _product_or_zero(x, y), dx * y + dy * x


def _truncated_rest(x: Any, y: Any) -> Any:
    return numpy_or_jax(x, y).fmod(x, y)


@jax.custom_jvp
def _power(x: Any, y: Any) -> Any:
    return jnp.power(x, y)


@_power.defjvp
def _power_derivative(values: Any, tangents: Any) -> tuple[Any, Any]:
    """By the exponent it is zero where the base is not positive, as in TensorFlow."""
    (x, y), (dx, dy) = values, tangents
    result = _power(x, y)
    by_exponent = jnp.where(x > 0, result * jnp.log(jnp.where(x > 0, x, 1)), 0)
    return result, dx * (y * _power(x, y - 1)) + dy * by_exponent


def _whole_power(x: Any, y: Any) -> Any:
    """Of whole numbers, all bits of the exponent count: JAX's own stops at 63."""
    if numpy_or_jax(x, y) is np:
        return np.power(x, y)
    base, exponent = jnp.broadcast_arrays(x, y)

    def one_bit(at: Any, carried: Any) -> Any:
        result, square = carried
        is_set = (exponent >> at.astype(exponent.dtype)) & 1
        return jnp.where(is_set == 1, result * square, result), square * square

    bits = exponent.dtype.itemsize * 8
    return jax.lax.fori_loop(0, bits, one_bit, (jnp.ones_like(base), base))[0]


def _to_the_power(x: Any, y: Any) -> Any:
    xp = numpy_or_jax(x, y)
    if is_integer(x):
        check(lambda: (y >= 0).all(), "Integers to negative integer powers are not allowed")
        return _whole_power(x, xp.maximum(y, 0))
    return _power(x, y) if xp is jnp and is_floating(x) else xp.power(x, y)


def _extreme(first_wins: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The first of two equal elements gets the gradient, as in TensorFlow, and the second where there is no number."""

    def compute(x: Any, y: Any) -> Any:
        xp = numpy_or_jax(x, y)
        if is_floating(x) or is_floating(y):
            y = xp.where(x != x, y + (jax.lax.stop_gradient(x) if xp is jnp else x), y)
        return xp.where(first_wins(x, y), x, y)

    return compute


def _first_only(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of which the derivative by the first argument is left out."""
    return lambda x, y: function(jax.lax.stop_gradient(x), y)


def _zeta(x: Any, q: Any) -> Any:
    return jnp.where(x < 1, jnp.nan, special.zeta(x, q))


add = _binary("tf.math.add tf.add", "Add", "add")
subtract = _binary("tf.math.subtract tf.subtract", "Sub", "subtract", v1_names="tf.sub")
multiply = _binary("tf.math.multiply tf.multiply", "Mul", "multiply", v1_names="tf.mul", by_row="x y")
divide = _binary(
    "tf.math.divide tf.truediv tf.divide", "RealDiv", _true_quotient, v1_names="tf.realdiv", by_row="x"
)  # fmt: skip
div = _binary("", "Div", _divisible(lambda x, y: x // y if is_integer(x) else _true_quotient(x, y)), v1_names="tf.div")
truncatediv = _binary("tf.truncatediv", "TruncateDiv", _divisible(_truncated_quotient))
floordiv = _binary(
    "tf.math.floordiv", "FloorDiv", _divisible(_floored_quotient), v1_names="tf.floordiv tf.floor_div", flat=True
)
floormod = _binary("tf.math.floormod", "FloorMod", _divisible(_floored_rest), v1_names="tf.mod tf.floormod tf.math.mod")
truncatemod = _binary("tf.truncatemod", "TruncateMod", _divisible(_truncated_rest))
pow_ = _binary("tf.math.pow tf.pow", "Pow", _to_the_power)
maximum = _binary("tf.math.maximum tf.maximum", "Maximum", _extreme(lambda x, y: x >= y))
minimum = _binary("tf.math.minimum tf.minimum", "Minimum", _extreme(lambda x, y: x <= y))
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
logical_and = _binary("tf.math.logical_and tf.logical_and", "LogicalAnd", "logical_and", kinds="bool")
logical_or = _binary("tf.math.logical_or tf.logical_or", "LogicalOr", "logical_or", kinds="bool")
logical_xor = _binary("", "LogicalXor", "logical_xor", v1_names="tf.logical_xor tf.math.logical_xor", kinds="bool")
div_no_nan = _binary(
    "tf.math.divide_no_nan tf.math.div_no_nan", "DivNoNan", _quotient_or_zero, v1_names="tf.div_no_nan", folds=False
)
multiply_no_nan = _binary("tf.math.multiply_no_nan", "MulNoNan", _product_or_zero, folds=False)
xlogy = _binary(
    "tf.math.xlogy",
    "Xlogy",
    lambda x, y: x * jnp.where(x == 0, 0, jnp.log(jnp.where(x == 0, 1, y))),
    folds=False,
    kinds="float",
)
xlog1py = _binary(
    "tf.math.xlog1py",
    "Xlog1py",
    lambda x, y: x * jnp.where(x == 0, 0, jnp.log1p(jnp.where(x == 0, 0, y))),
    folds=False,
    kinds="float",
)
xdivy = _binary(
    "tf.math.xdivy",
    "Xdivy",
    lambda x, y: x * jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, y)),
    folds=False,
    kinds="float",
)
zeta = _binary("tf.math.zeta", "Zeta", _first_only(_zeta), v1_names="tf.zeta", folds=False, kinds="float")


@op("tf.math.igamma", v1_names="tf.igamma", type="Igamma", tensors="a x", alike="a x", kinds={"a": "float"})
def igamma(a: Any, x: Any) -> Any:
    """The lower regularized incomplete gamma function."""
    return jnp.where(x == 0, 0, jnp.where(a <= 0, jnp.nan, special.gammainc(jnp.where(a <= 0, 1, a), x)))


@op("tf.math.igammac", v1_names="tf.igammac", type="Igammac", tensors="a x", alike="a x", kinds={"a": "float"})
def igammac(a: Any, x: Any) -> Any:
    """The upper regularized incomplete gamma function."""
    return jnp.where(a <= 0, jnp.nan, special.gammaincc(jnp.where(a <= 0, 1, a), x))


@op("tf.math.polygamma", v1_names="tf.polygamma", type="Polygamma", tensors="a x", alike="a x", kinds={"a": "float"})
def polygamma(a: Any, x: Any) -> Any:
    """The derivatives of the digamma function, of the orders `a`."""
    sign = jnp.where(jax.lax.stop_gradient(a) % 2 == 0, -1, 1).astype(x.dtype)
    order = jax.lax.stop_gradient(a)
    return jnp.where(order == 0, special.digamma(x), sign * jnp.exp(special.gammaln(order + 1)) * zeta(order + 1, x))


@op("tf.math.betainc", v1_names="tf.betainc", type="Betainc", tensors="a b x", alike="a b x", kinds={"x": "float"})
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function of arrays of one shape, or scalars."""
    shapes = {np.shape(one) for one in (a, b, x)} - {()}
    if len(shapes) > 1:
        raise ArgumentError(f"Shapes of a, b and x must be equal, or scalars; {sorted(shapes)} are inconsistent")
    first, second, third = (jnp.asarray(one, np.float64) for one in (a, b, x))  # float32 is off where x is small
    return special.betainc(jax.lax.stop_gradient(first), jax.lax.stop_gradient(second), third).astype(x.dtype)


@op("tf.math.lbeta", v1_names="tf.lbeta", type="lbeta", tensors="x", kinds={"x": "float"})
def lbeta(x: Any) -> Any:
    """The logarithm of the beta function of the numbers along the last axis."""
    return jnp.sum(special.gammaln(x), -1) - special.gammaln(jnp.sum(x, -1))


@op("tf.math.polyval", v1_names="tf.polyval", type="polyval", lists="coeffs", tensors="x")
def polyval(coeffs: Sequence[Any], x: Any) -> Any:
    """A polynomial of `x`, of which the coefficient of the highest power comes first."""
    found = jnp.zeros_like(x)
    for one in coeffs:
        found = found * x + one
    return found


@op("tf.math.scalar_mul tf.scalar_mul", type="Mul", tensors="scalar x", like={"scalar": "x"}, by_row="x")
def scalar_mul(scalar: Any, x: Any) -> Any:
    """An array times a number."""
    return scalar * x


@op("tf.complex", v1_names="tf.dtypes.complex", type="Complex", tensors="real imag", alike="real imag")
def complex_(real: Any, imag: Any) -> Any:
    """Complex numbers of their real and imaginary parts."""
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@op(
    "tf.cast",
    v1_names="tf.dtypes.cast",
    type="Cast",
    tensors="x",
    by_row="x",
    folds=True,
    unchanged=lambda x, dtype: as_dtype(x.dtype) == as_dtype(dtype),
)
def cast(x: Any, dtype: Any) -> Any:
    """Convert to another dtype. Fractions are truncated; as a boolean, a number is true unless it is zero."""
    wanted = as_dtype(dtype)
    if wanted.is_integer and is_floating(x):
        return _truncated(x, wanted.numpy)
    return x != 0 if wanted.is_bool else x.astype(wanted.numpy)


def _truncated(x: Any, kind: np.dtype[Any]) -> Any:
    """Floating-point numbers as integers, by the rules of TensorFlow's kernels on x86 for what is out of range.

    Neither NumPy nor XLA defines those: a program gave other numbers once compiled. The processor converts to 32 or 64
    bits, of which a smaller dtype takes the low ones, and gives the smallest integer for what does not fit.
    """
    xp = numpy_or_jax(x)
    with np.errstate(over="ignore"):  # float16 ends before: infinite
        half, limit = x.dtype.type(float(2**63)), x.dtype.type(float(2**31))
    if kind == np.uint64:
        upper = xp.where((x >= half) & (x < half * 2), x - half, 0).astype(np.uint64) + np.uint64(2**63)
        return xp.where((x >= half) | (x != x), upper, _truncated(x, np.dtype(np.int64)).astype(np.uint64))
    wide: Any = np.dtype(np.int64 if kind in (np.dtype(np.uint32), np.dtype(np.int64)) else np.int32)
    limit, least = (half if wide == np.int64 else limit), np.iinfo(wide).min
    fits = (x >= -limit) & (x < limit)
    return xp.where(fits, xp.where(fits, x, 0).astype(wide), wide.type(least)).astype(kind)


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
to_bfloat16 = _cast_to("bfloat16", "to_bfloat16")
to_complex64 = _cast_to("complex64", "to_complex64")
to_complex128 = _cast_to("complex128", "to_complex128")


@op("tf.math.add_n tf.add_n", type="AddN", lists="inputs")
def add_n(inputs: Any) -> Any:
    """The sum of several arrays of one shape."""
    total = inputs[0]
    if any(np.shape(one) != np.shape(total) for one in inputs):
        raise ValueError(f"Shapes must be equal, but are {[np.shape(one) for one in inputs]}")
    for one in inputs[1:]:
        total = total + one
    return total


@op(
    "tf.math.accumulate_n",
    v1_names="tf.accumulate_n",
    type="AddN",
    lists="inputs",
    v1="inputs shape tensor_dtype name",
)
def accumulate_n(inputs: Any, shape: Any = None, tensor_dtype: Any = None) -> Any:
    """The sum of several arrays of one shape."""
    found = add_n(inputs)
    if shape is not None and not TensorShape(shape).is_compatible_with(found.shape):
        raise ArgumentError(f"Shapes {shape} and {found.shape} are not compatible")
    if tensor_dtype is not None and as_dtype(tensor_dtype) != as_dtype(found.dtype):
        raise TypeError(f"tensor_dtype is {as_dtype(tensor_dtype)}, but input is of type {as_dtype(found.dtype)}")
    return found
