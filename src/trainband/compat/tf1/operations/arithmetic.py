"""Arithmetic, comparison, matrix and reduction operations; and what Python's operators record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

from trainband.compat.tf1.graphs.dtypes import DType, as_dtype, int64
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, convert_pair, known_value, numpy_or_jax, record_tensor
from trainband.compat.tf1.graphs.slices import IndexedSlices


def _unary(type_: str, compute: Callable[[Any], Any], folds: bool = False) -> Callable[..., Any]:
    def operation(x: Any, name: str | None = None) -> Any:
        if isinstance(x, IndexedSlices) and type_ in ("Neg", "Identity"):
            return IndexedSlices(operation(x.values), x.indices, x.dense_shape)
        return record_tensor(type_, compute, [convert(x)], name=name, folds=folds)

    operation.__doc__ = f"TensorFlow's {type_}, element by element."
    return operation


def _folding(numpy_name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(numpy_or_jax(x), numpy_name)(x)


negative = _unary("Neg", _folding("negative"), folds=True)
abs_ = _unary("Abs", _folding("abs"), folds=True)
square = _unary("Square", _folding("square"), folds=True)
sqrt = _unary("Sqrt", jnp.sqrt)
rsqrt = _unary("Rsqrt", jax.lax.rsqrt)
exp = _unary("Exp", jnp.exp)
expm1 = _unary("Expm1", jnp.expm1)
log = _unary("Log", jnp.log)
log1p = _unary("Log1p", jnp.log1p)
sin = _unary("Sin", jnp.sin)
cos = _unary("Cos", jnp.cos)
tan = _unary("Tan", jnp.tan)
asin = _unary("Asin", jnp.arcsin)
acos = _unary("Acos", jnp.arccos)
atan = _unary("Atan", jnp.arctan)
sinh = _unary("Sinh", jnp.sinh)
cosh = _unary("Cosh", jnp.cosh)
tanh = _unary("Tanh", jnp.tanh)
erf = _unary("Erf", special.erf)
lgamma = _unary("Lgamma", special.gammaln)
digamma = _unary("Digamma", special.digamma)
sigmoid = _unary("Sigmoid", jax.nn.sigmoid)
sign = _unary("Sign", _folding("sign"), folds=True)
floor = _unary("Floor", _folding("floor"), folds=True)
ceil = _unary("Ceil", _folding("ceil"), folds=True)
round_ = _unary("Round", _folding("round"), folds=True)
reciprocal = _unary("Reciprocal", lambda x: 1 / x)
logical_not = _unary("LogicalNot", _folding("logical_not"), folds=True)
is_nan = _unary("IsNan", jnp.isnan)
is_inf = _unary("IsInf", jnp.isinf)
is_finite = _unary("IsFinite", jnp.isfinite)
stop_gradient = _unary("StopGradient", jax.lax.stop_gradient)


def _binary(type_: str, compute: Callable[[Any, Any], Any], folds: bool = True) -> Callable[..., Any]:
    def operation(x: Any, y: Any, name: str | None = None) -> Any:
        if isinstance(x, IndexedSlices) and type_ in ("Mul", "RealDiv"):
            return IndexedSlices(operation(x.values, y), x.indices, x.dense_shape)
        if isinstance(y, IndexedSlices) and type_ == "Mul":
            return IndexedSlices(operation(x, y.values), y.indices, y.dense_shape)
        first, second = convert_pair(x, y, type_)
        return record_tensor(type_, compute, [first, second], name=name, folds=folds)

    operation.__doc__ = f"TensorFlow's {type_}, element by element, with broadcasting."
    return operation


def _folding_pair(numpy_name: str) -> Callable[[Any, Any], Any]:
    return lambda x, y: getattr(numpy_or_jax(x, y), numpy_name)(x, y)


def _quotient(x: Any, y: Any) -> Any:
    """TensorFlow's `/` and `tf.div`: of whole numbers a true quotient in float64, see `div` for the other."""
    return numpy_or_jax(x, y).true_divide(x, y)


def _truncated(x: Any, y: Any) -> Any:
    xp = numpy_or_jax(x, y)
    if np.issubdtype(x.dtype, np.integer):
        quotient = xp.abs(x) // xp.abs(y)
        return xp.sign(x) * xp.sign(y) * quotient
    return xp.true_divide(x, y)


add = _binary("Add", _folding_pair("add"))
subtract = _binary("Sub", _folding_pair("subtract"))
multiply = _binary("Mul", _folding_pair("multiply"))
_real_divide = _binary("RealDiv", _quotient)
div = _binary("Div", lambda x, y: x // y if np.issubdtype(x.dtype, np.integer) else _quotient(x, y))
truncatediv = _binary("TruncateDiv", _truncated)
floordiv = _binary("FloorDiv", _folding_pair("floor_divide"))
floormod = _binary("FloorMod", _folding_pair("mod"))
pow_ = _binary("Pow", _folding_pair("power"))
# The first of two equal ones gets the gradient, as in TensorFlow; JAX's own shares it out.
maximum = _binary("Maximum", lambda x, y: numpy_or_jax(x, y).where((x >= y) | (x != x), x, y))
minimum = _binary("Minimum", lambda x, y: numpy_or_jax(x, y).where((x <= y) | (x != x), x, y))
squared_difference = _binary("SquaredDifference", lambda x, y: (x - y) * (x - y))
atan2 = _binary("Atan2", jnp.arctan2, folds=False)
equal = _binary("Equal", _folding_pair("equal"))
not_equal = _binary("NotEqual", _folding_pair("not_equal"))
less = _binary("Less", _folding_pair("less"))
less_equal = _binary("LessEqual", _folding_pair("less_equal"))
greater = _binary("Greater", _folding_pair("greater"))
greater_equal = _binary("GreaterEqual", _folding_pair("greater_equal"))
logical_and = _binary("LogicalAnd", _folding_pair("logical_and"))
logical_or = _binary("LogicalOr", _folding_pair("logical_or"))
logical_xor = _binary("LogicalXor", _folding_pair("logical_xor"))
div_no_nan = _binary("DivNoNan", lambda x, y: jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y)), folds=False)


def divide(x: Any, y: Any, name: str | None = None) -> Any:
    """A true quotient: of whole numbers in float64, or float32 where they are small."""
    if isinstance(x, IndexedSlices):
        return _real_divide(x, y, name)
    first, second = convert_pair(x, y, "RealDiv")
    if first.dtype.is_integer:
        wide = as_dtype("float32") if first.dtype.size <= 2 else as_dtype("float64")
        first, second = cast(first, wide), cast(second, wide)
    return _real_divide(first, second, name)


def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """Another dtype; of fractions towards zero."""
    wanted = as_dtype(dtype)
    if isinstance(x, IndexedSlices):
        return IndexedSlices(cast(x.values, wanted), x.indices, x.dense_shape)
    tensor = convert(x)
    if tensor.dtype == wanted:
        return tensor
    if wanted.is_bool:
        return record_tensor("Cast", lambda value: value != 0, [tensor], name=name, folds=True)
    return record_tensor("Cast", lambda value: value.astype(wanted.numpy), [tensor], name=name, folds=True)


def to_float(x: Any, name: str | None = None) -> Tensor:
    """As float32."""
    return cast(x, "float32", name)  # type: ignore[no-any-return]


def to_int32(x: Any, name: str | None = None) -> Tensor:
    """As int32."""
    return cast(x, "int32", name)  # type: ignore[no-any-return]


def to_int64(x: Any, name: str | None = None) -> Tensor:
    """As int64."""
    return cast(x, "int64", name)  # type: ignore[no-any-return]


def to_double(x: Any, name: str | None = None) -> Tensor:
    """As float64."""
    return cast(x, "float64", name)  # type: ignore[no-any-return]


def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,  # noqa: ARG001 - a hint
    b_is_sparse: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Tensor:
    """The matrix product over the last two axes."""
    first, second = convert_pair(a, b, "MatMul")

    def compute(x: Any, y: Any) -> Any:
        if x.ndim < 2 or y.ndim < 2:
            raise ValueError(f"Shape must be rank 2 but is rank {min(x.ndim, y.ndim)} for 'MatMul'")
        x = jnp.swapaxes(x, -1, -2) if transpose_a or adjoint_a else x
        y = jnp.swapaxes(y, -1, -2) if transpose_b or adjoint_b else y
        return jnp.matmul(x, y)

    return record_tensor("MatMul", compute, [first, second], name=name)


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """The sum of products over some axes of both."""
    first, second = convert_pair(a, b, "Tensordot")
    return record_tensor("Tensordot", lambda x, y: jnp.tensordot(x, y, axes), [first, second], name=name)


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Tensor:
    """The sum of products that an equation names."""
    return record_tensor("Einsum", lambda *xs: jnp.einsum(equation, *xs), [convert(x) for x in inputs], name=name)


def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of several tensors of one shape."""
    tensors = [convert(one) for one in inputs]
    if not tensors:
        raise ValueError("inputs must be a list of at least one Tensor/IndexedSlices with the same dtype and shape")

    def total(*values: Any) -> Any:
        result = values[0]
        for value in values[1:]:
            result = result + value
        return result

    return record_tensor("AddN", total, tensors, name=name)


def axes_of(axis: Any) -> tuple[int, ...] | None:
    """The axes that an argument names, which must be known while recording.

    Raises:
      ValueError: it is computed.
    """
    if axis is None:
        return None
    if isinstance(axis, Tensor):
        known = known_value(axis)
        if known is None:
            raise ValueError(f"the axes {axis} must be known while recording.")
        axis = known
    return tuple(int(one) for one in np.ravel(axis))


def _reduction(type_: str, compute: Callable[..., Any], folds: bool = False) -> Callable[..., Tensor]:
    def operation(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
        *,
        dim: Any = None,
    ) -> Tensor:
        wanted = next((one for one in (axis, reduction_indices, dim) if one is not None), None)
        axes = axes_of(wanted)
        keep = bool(keepdims or keep_dims)

        def reduce(x: Any) -> Any:
            return compute(x, axis=axes, keepdims=keep)

        return record_tensor(type_, reduce, [convert(input_tensor)], name=name, folds=folds)

    operation.__doc__ = f"TensorFlow's {type_} over some axes, or all."
    return operation


def _mean(x: Any, **where: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.mean(x, **where)
    count = np.size(x) // max(1, np.size(jnp.sum(x, **where)))
    return jnp.sum(x, **where) // count


def _sum(x: Any, **where: Any) -> Any:
    return numpy_or_jax(x).sum(x, dtype=x.dtype, **where)


def _prod(x: Any, **where: Any) -> Any:
    return numpy_or_jax(x).prod(x, dtype=x.dtype, **where)


reduce_sum = _reduction("Sum", _sum, folds=True)
reduce_prod = _reduction("Prod", _prod, folds=True)
reduce_mean = _reduction("Mean", _mean)
reduce_max = _reduction("Max", lambda x, **where: numpy_or_jax(x).max(x, **where), folds=True)
reduce_min = _reduction("Min", lambda x, **where: numpy_or_jax(x).min(x, **where), folds=True)
reduce_all = _reduction("All", lambda x, **where: numpy_or_jax(x).all(x, **where), folds=True)
reduce_any = _reduction("Any", lambda x, **where: numpy_or_jax(x).any(x, **where), folds=True)
reduce_logsumexp = _reduction("LogSumExp", special.logsumexp)


def argmax(
    input: Any,  # noqa: A002 - TensorFlow's name
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = int64,
) -> Tensor:
    """Where along an axis the largest is; the first of several."""
    return _place("ArgMax", jnp.argmax, input, axis if axis is not None else dimension, as_dtype(output_type), name)


def argmin(
    input: Any,  # noqa: A002
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: Any = int64,
) -> Tensor:
    """Where along an axis the smallest is; the first of several."""
    return _place("ArgMin", jnp.argmin, input, axis if axis is not None else dimension, as_dtype(output_type), name)


def _place(type_: str, find: Callable[..., Any], x: Any, axis: Any, dtype: DType, name: str | None) -> Tensor:
    axes = axes_of(0 if axis is None else axis) or (0,)
    return record_tensor(type_, lambda v: find(v, axis=axes[0]).astype(dtype.numpy), [convert(x)], name=name)


def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Tensor:
    """Sums of all up to each place."""

    def compute(value: Any) -> Any:
        value = jnp.flip(value, axis) if reverse else value
        total = jnp.cumsum(value, axis=axis, dtype=value.dtype)
        total = total - value if exclusive else total
        return jnp.flip(total, axis) if reverse else total

    return record_tensor("Cumsum", compute, [convert(x)], name=name)


def accumulate_n(inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """The sum of several tensors of one shape."""
    return add_n(inputs, name)


def trace(x: Any, name: str | None = None) -> Tensor:
    """The sum of a matrix's diagonal."""
    return record_tensor("Trace", lambda v: jnp.trace(v, axis1=-2, axis2=-1), [convert(x)], name=name)


def _linear(type_: str, compute: Callable[[Any], Any]) -> Callable[..., Tensor]:
    def operation(input: Any, name: str | None = None, **_: Any) -> Tensor:  # noqa: A002
        return record_tensor(type_, compute, [convert(input)], name=name)

    operation.__doc__ = f"TensorFlow's {type_} over the last two axes."
    return operation


matrix_inverse = _linear("MatrixInverse", jnp.linalg.inv)
matrix_determinant = _linear("MatrixDeterminant", jnp.linalg.det)
cholesky = _linear("Cholesky", jnp.linalg.cholesky)
diag_part = _linear("DiagPart", jnp.diagonal)
matrix_transpose = _linear("MatrixTranspose", lambda x: jnp.swapaxes(x, -1, -2))


def matrix_solve(matrix: Any, rhs: Any, name: str | None = None) -> Tensor:
    """The x with matrix x = rhs."""
    first, second = convert_pair(matrix, rhs, "MatrixSolve")
    return record_tensor("MatrixSolve", jnp.linalg.solve, [first, second], name=name)


def norm(
    tensor: Any,
    ord: Any = "euclidean",  # noqa: A002
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """The Euclidean norm, or that of the order 1, 2 or infinity, of the elements."""
    axes = axes_of(axis)
    keep = bool(keepdims)

    def compute(x: Any) -> Any:
        if ord in (1,):
            return jnp.sum(jnp.abs(x), axis=axes, keepdims=keep)
        if ord == np.inf:
            return jnp.max(jnp.abs(x), axis=axes, keepdims=keep)
        return jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=keep))

    return record_tensor("norm", compute, [convert(tensor)], name=name)


def _python_operators() -> None:
    for name, function in {
        "add": add,
        "subtract": subtract,
        "multiply": multiply,
        "divide": divide,
        "floordiv": floordiv,
        "floormod": floormod,
        "pow": pow_,
        "matmul": matmul,
        "logical_and": logical_and,
        "logical_or": logical_or,
        "logical_xor": logical_xor,
    }.items():
        symbol = {"subtract": "sub", "multiply": "mul", "divide": "truediv"}.get(name, name)
        Tensor.overloads[name] = lambda x, y, f=function, s=symbol: f(x, y, name=s)
        Tensor.overloads[f"reversed_{name}"] = lambda y, x, f=function, s=symbol: f(x, y, name=s)
    Tensor.overloads |= {
        "less": less,
        "less_equal": less_equal,
        "greater": greater,
        "greater_equal": greater_equal,
        "negative": negative,
        "abs": abs_,
        "logical_not": logical_not,
    }


_python_operators()
